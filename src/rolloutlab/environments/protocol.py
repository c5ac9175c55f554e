"""Environment protocol: what a simulator has to have, and sources that make one instance per rollout."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Observation = str | Sequence[Mapping[str, Any]] | None
"""What the policy reads next: the text of a user message, or messages; None for nothing."""


class Step(NamedTuple):
    """What came of an answer, or of a tool call.

    observation: what the policy reads next. reward: of this turn, any finite number. done: whether the episode ends
    here. info: numbers and texts to keep with the trajectory, the latest of each name.
    """

    observation: Observation
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = {}


class Simulator(Protocol):
    """One instance per rollout. Each method may be a coroutine function; a tuple stands for a `Step`.

    It may have more. `tools`: functions or bound methods that the policy may call; one that returns a `Step` gives its
    observation to the policy, and its reward to the turn. Without `step`, an answer without a tool call ends the
    episode. `open()`: called before `reset` without a time-out, to wait for what it needs, such as a session of a
    server; a text that it returns is kept in the logs. `get_reward()`: called at the end, added to the rewards of the
    turns. `close()`: called whatever happens.
    """

    def reset(self, seed: int) -> Observation:
        """Begin the episode; the first observation. Rollouts of one group have the same seed."""

    def step(self, answer: str) -> Step:
        """What comes of the text of an answer."""


class Source(Protocol):
    """Makes environments. A class, a factory and a generator function are wrapped as one; adapters are one.

    name: what a collection stores and `--resume` compares, such as `GuessNumber` or `textarena:Mastermind-v0`. A source
    may have `is_async`: True runs all calls of its environments on an event loop, one for each.
    """

    name: str

    def environment(self, row: Mapping[str, Any]) -> Any:
        """A new instance for one rollout of a row; called in the thread that its other methods are called in."""

    def rows(self, limit: int | None, seed: int) -> Sequence[Mapping[str, Any]] | None:
        """Rows of its own, one group each, where none are given; None for a source that has none.

        limit: how many, where a number was given. seed: the plan's. What it returns is stored, and has to be JSON.
        """


class Adapter(Protocol):
    """A plug-in of `rolloutlab.environments`: the environments of a package, as `--env PLUGIN:NAME`.

    It may have more. `names()`: the names that tab completion offers. `recognise(env, options)`: a source for a class
    or factory of the package that a user gave without a name, None for any other. `refuse(environment)`: raises
    InputError for an instance or class of the package that looks like a `Simulator` and is none. `advice(environment)`:
    what to type for an instance or class of the package that has another protocol, None for any other.
    """

    def source(self, name: str, **options: Any) -> Source:
        """Make the source of an environment.

        Args:
            name: what comes after the colon.
            options: of the package for this environment, such as `is_slippery=False`.

        Raises:
            InputError: there is no such environment, or the package is not installed.
        """
