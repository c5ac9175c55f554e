"""Reward functions of TRL, verl, verifiers and ART, recognised by their signatures and called as those libraries do.

TRL: https://huggingface.co/docs/trl/grpo_trainer#using-a-custom-reward-function. verifiers: functions of a `Rubric`, up
to verifiers 0.3. ART: functions of an `art.Trajectory` or `art.TrajectoryGroup`, as RULER is one.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.integrations.art.rewards import art_call, art_kind
from rolloutlab.integrations.trl.rewards import BATCH, trl_call
from rolloutlab.integrations.verifiers import ROLLOUT, ROLLOUTS, is_rubric, verifiers_call
from rolloutlab.integrations.verl import verl_kind
from rolloutlab.scoring.calls import RewardCall, bound_names, reward_call
from rolloutlab.scoring.estimate import ModelUsage

_ONLY_VERIFIERS = {"state", "states", "infos", "tasks", "parser"}


class ForeignReward:
    """A reward function of another library, as `lab.trl`, `lab.verifiers` and `lab.art` make it.

    call: makes its call from its name and the columns of the rows; raises InputError for what it cannot be given.
    usage: by model that it asks, the tokens so far.
    """

    usage: Mapping[str, ModelUsage] = MappingProxyType({})

    def __init__(self, function: Any, call: Callable[[str, Sequence[str]], RewardCall]) -> None:
        self.function = function
        self.call = call
        self.__name__ = str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The function itself."""
        return self.function(*arguments, **named)


def call_of(name: str, function: Any, columns: Sequence[str]) -> RewardCall:
    """The call of a reward function of this project (`calls.reward_call`) or of another library.

    Raises:
        InputError: as `reward_call`; or it needs what only a trainer has; or it takes `completion` and `answer` and so
        may be meant for verifiers, whose `answer` is a column.
    """
    foreign = function if isinstance(function, ForeignReward) else _recognised(function, columns)
    return foreign.call(name, columns) if foreign else reward_call(name, function, columns)


def trl(function: Callable[..., Any], *, conversational: bool | None = None) -> ForeignReward:
    """A reward function of TRL: `f(completions, prompts=None, **columns)` returns a number, or None, per completion.

    conversational: completions are lists of messages, else texts. By default as its annotation of `completions` says,
    else as TRL has it: where the prompts are messages (a column `prompt` of messages, or more than one user's text).
    None means that the function does not apply: then it adds nothing to the reward.
    """
    return ForeignReward(function, functools.partial(trl_call, function, conversational))


def verifiers(function: Any, *, answer: str = "answer", **objects: Any) -> ForeignReward:
    """A reward function of verifiers, or a whole `Rubric` with its weights.

    answer: the column with the ground truth, which such functions call `answer`. objects: what a rubric would give to
    its functions by name, such as `parser`.
    """
    return ForeignReward(function, functools.partial(verifiers_call, function, answer, objects))


def art(function: Callable[..., Any]) -> ForeignReward:
    """A function of an `art.Trajectory`, or of a `TrajectoryGroup` if it is annotated so.

    It returns a number, or the trajectory or group with rewards; metrics are components that do not count.
    """
    return ForeignReward(function, functools.partial(art_call, function))


def _recognised(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    if is_rubric(function):
        return verifiers(function)
    if not callable(function):
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    names = {name for name in parameters if name not in columns} - bound_names(function)
    if art_kind(function):
        return art(function)
    if names & _ONLY_VERIFIERS and names & {*ROLLOUT, *ROLLOUTS}:
        own = ", ".join(sorted(names & _ONLY_VERIFIERS))
        raise InputError(f"its parameter {own} is one of verifiers, not a column", hint="lab.verifiers(f)")
    if verl_call := verl_kind(parameters.keys(), names):
        return ForeignReward(function, functools.partial(verl_call, function))
    if names & set(BATCH):
        if "answers" in names:
            raise InputError("completions and answers together are of verifiers", hint="lab.verifiers(f)")
        return trl(function)
    if {"completion", "answer"} <= parameters.keys() - bound_names(function):
        raise _unclear(columns)
    return None


def _unclear(columns: Sequence[str]) -> InputError:
    """The error for a function of `completion` and `answer`."""
    message = "answer is the text of the completion; of verifiers it is the right answer, and no column here"
    hint = 'lab.verifiers(f, answer="capital") for a column; else completion[-1]["content"]'
    if "answer" in columns:
        message = "answer is the text of the completion, and a column"
        hint = 'lab.verifiers(f) for the column; else completion[-1]["content"], or row["answer"]'
    return InputError(f"{message}: which of them the function means is not clear", hint=hint)
