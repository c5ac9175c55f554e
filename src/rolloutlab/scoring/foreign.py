"""Reward functions of other libraries: plug-ins of `rolloutlab.rewards` recognise them by their signatures."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rolloutlab.plugins import REWARDS, ask_all, load
from rolloutlab.scoring.ask import Ask, ModelAsker
from rolloutlab.scoring.calls import RewardCall, reward_call
from rolloutlab.scoring.estimate import ModelUsage

GRADERS = "openai-graders"
"""The plug-in of `--grader`."""


class ForeignReward:
    """A reward function of another library, and how the lab calls it.

    Attributes:
        function: The original function; the lab reads its name and source, and calling this object calls it.
        call: Makes the `RewardCall` from the name of the component and the columns of the rows. It raises InputError
            if the function has a parameter that the lab has no value for.
        usage: The tokens so far, by the model that the function asks.
    """

    usage: Mapping[str, ModelUsage] = MappingProxyType({})

    def __init__(self, function: Any, call: Callable[[str, Sequence[str]], RewardCall]) -> None:
        self.function = function
        self.call = call
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the original function."""
        return self.function(*arguments, **named)


class RewardSignature(Protocol):
    """A plug-in of `rolloutlab.rewards`: the signature that a library gives to its reward functions."""

    def recognise(self, function: Any, columns: Sequence[str]) -> ForeignReward | None:
        """Wrap a function of this library; return None for any other, so that the next plug-in is asked.

        Args:
            function: The reward function that the user gave; it may be an object that is not callable.
            columns: The columns of the rows. A parameter named like a column is not evidence for the library.

        Raises:
            InputError: the function is of this library but cannot be called here, or its signature is ambiguous.
        """


class Graders(Protocol):
    """A plug-in that turns graders in JSON into reward functions."""

    def reward(self, grader: Any, ask: Ask, model: str | None = None) -> ForeignReward:
        """Make the reward function of a grader.

        Args:
            grader: The grader's JSON as a mapping or a text, or the path of a file with it.
            ask: Asks a model about a trajectory.
            model: The model to ask; None asks the models that the JSON names.
        """


def call_of(name: str, function: Any, columns: Sequence[str]) -> RewardCall:
    """Make the call of a reward function, of this project (`calls.reward_call`) or of another library.

    Plug-ins are asked in the order of `plugins.names`; the first that recognises the function makes the call.

    Raises:
        InputError: `reward_call`, or the plug-in that recognises the function, raises it.
    """
    foreign = function if isinstance(function, ForeignReward) else recognise_foreign(function, columns)
    return foreign.call(name, columns) if foreign else reward_call(name, function, columns)


def grader_reward(grader: Any, ask: ModelAsker, model: str | None) -> ForeignReward:
    """Make the reward function of a grader; `ask` asks its models and counts their tokens."""
    graders: Graders = load(REWARDS, GRADERS)
    reward = graders.reward(grader, ask, model)
    reward.usage = ask.usage
    return reward


def recognise_foreign(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    """Wrap a function that a plug-in recognises; None if no plug-in does. Raises InputError as the plug-in."""
    return ask_all(REWARDS, "recognise", function, columns, kind=ForeignReward)
