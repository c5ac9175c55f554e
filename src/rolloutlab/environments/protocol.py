"""Environment protocols: what an environment must define, and sources that make one instance per rollout."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

Observation = str | Sequence[Mapping[str, Any]] | None
"""What the policy reads next: the text of a user message, or messages; None if there is nothing to read."""


class Step(NamedTuple):
    """The environment's response to an answer or a tool call.

    Attributes:
        observation: What the policy reads next.
        reward: The reward of this turn, any finite number.
        done: Whether the episode ends here.
        info: Numbers and texts to store with the trajectory; a later step replaces values of the same name.
    """

    observation: Observation
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = {}


class Simulator(Protocol):
    """An environment; each rollout has its own instance.

    Each method may be a coroutine function. `step` may return a tuple instead of a `Step`. Without `step`, an answer
    without a tool call ends the episode. An environment may also define:

    - `tools`: functions or bound methods that the policy may call. If a tool returns a `Step`, the policy reads its
      observation, and the turn gets its reward.
    - `open()`: called before `reset`, without a time-out, to wait for what the environment needs, such as a session of
      a server. If it returns a text, the text is added to the trajectory's logs.
    - `get_reward()`: called at the end; its result is added to the rewards of the turns.
    - `close()`: called at the end, even after an error.
    """

    def reset(self, seed: int) -> Observation:
        """Begin the episode; return the first observation. Rollouts of one group have the same seed."""

    def step(self, answer: str) -> Step:
        """Respond to the text of an answer."""


class Source(Protocol):
    """Makes environments. A class, factory or generator function is wrapped into a source; an `Adapter` makes sources.

    A source may also define `is_async`. If it is True, each environment gets an event loop, which runs all its calls.

    Attributes:
        name: The name that a collection stores and `--resume` compares, such as `GuessNumber` or
            `textarena:Mastermind-v0`.
    """

    name: str

    def environment(self, row: Mapping[str, Any]) -> Any:
        """Make an instance for one rollout of a row; called in the instance's own thread."""

    def rows(self, limit: int | None, seed: int) -> Sequence[Mapping[str, Any]] | None:
        """Return the rows to use if the user gives none, one per group; None if the source has no rows.

        limit: the largest number of rows, None if the user gave no number. seed: the seed of the sampling. The rows are
        stored, so they must be JSON.
        """


class Adapter(Protocol):
    """A plug-in of `rolloutlab.environments`: the environments of a package, as `--env PLUGIN:NAME`.

    An adapter may also define:

    - `names()`: the names that tab completion offers.
    - `recognise(env, options)`: a source for a class or factory of the package that a user gave without a name; None
      for any other object.
    - `refuse(environment)`: raises InputError for an instance or class of the package that looks like a `Simulator` but
      is not one.
    - `advice(environment)`: what to type for an instance or class of the package that has another protocol; None for
      any other object.
    """

    def source(self, name: str, **options: Any) -> Source:
        """Make the source of an environment.

        Args:
            name: The part of `PLUGIN:NAME` after the colon.
            options: The package's own options for this environment, such as `is_slippery=False`.

        Raises:
            InputError: there is no such environment, or the package is not installed.
        """
