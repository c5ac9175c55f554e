"""Reward functions of other libraries: recognised by their signatures, which plug-ins of `rolloutlab.rewards` know."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rolloutlab.plugins import REWARDS, load, load_all
from rolloutlab.scoring.ask import Ask, ModelAsker
from rolloutlab.scoring.calls import RewardCall, reward_call
from rolloutlab.scoring.estimate import ModelUsage

GRADERS = "openai-graders"
"""The plug-in of `--grader`."""


class ForeignReward:
    """A reward function of another library, with what makes its call.

    function: itself, for its name, its source and calls by hand. call: makes the call from the name of the component
    and the columns of the rows; raises InputError for a parameter that it cannot be given. usage: by model that it
    asks, the tokens so far.
    """

    usage: Mapping[str, ModelUsage] = MappingProxyType({})

    def __init__(self, function: Any, call: Callable[[str, Sequence[str]], RewardCall]) -> None:
        self.function = function
        self.call = call
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function itself."""
        return self.function(*arguments, **named)


class RewardSignature(Protocol):
    """A plug-in of `rolloutlab.rewards`: the signature that a library gives to its reward functions."""

    def recognise(self, function: Any, columns: Sequence[str]) -> ForeignReward | None:
        """Wrap a function of this library; None for any other, so that the next plug-in is asked.

        Args:
            function: what the user gave as a reward function, which need not be callable.
            columns: the columns of the rows; a parameter that is one of them is no sign of the library.

        Raises:
            InputError: it is of this library and cannot be called here, or it is not clear what it means.
        """


class Graders(Protocol):
    """A plug-in that makes reward functions of the JSON of graders."""

    def reward(self, grader: Any, ask: Ask, model: str | None = None) -> ForeignReward:
        """A reward function of a grader.

        Args:
            grader: its JSON, as a mapping or a text, or the path of a file with it.
            ask: asks a model about a trajectory.
            model: asked instead of those in the JSON.
        """


def call_of(name: str, function: Any, columns: Sequence[str]) -> RewardCall:
    """The call of a reward function of this project (`calls.reward_call`) or of another library.

    Plug-ins are asked in the order of `plugins.names`, and the first that recognises the function has it.

    Raises:
        InputError: as `reward_call`, or as the plug-in that recognised it.
    """
    foreign = function if isinstance(function, ForeignReward) else recognised(function, columns)
    return foreign.call(name, columns) if foreign else reward_call(name, function, columns)


def grader_reward(grader: Any, ask: ModelAsker, model: str | None) -> ForeignReward:
    """A reward function of a grader, whose models `ask` asks and counts."""
    graders: Graders = load(REWARDS, GRADERS)
    reward = graders.reward(grader, ask, model)
    reward.usage = ask.usage
    return reward


def recognised(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    """The function as its library calls it; None where no plug-in recognises it. Raises InputError as the plug-in."""
    signatures: Iterable[RewardSignature] = (each for _, each in load_all(REWARDS) if hasattr(each, "recognise"))
    return next(filter(None, (each.recognise(function, columns) for each in signatures)), None)
