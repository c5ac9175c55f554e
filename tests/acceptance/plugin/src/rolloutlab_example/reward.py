"""Reward functions `f(guess, gold)`, whose right answer is the column `target`."""

from functools import partial

from rolloutlab.errors import InputError
from rolloutlab.scoring.calls import Arguments, RewardCall
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import is_asynchronous, own_parameters


def recognise(function, columns):
    if own_parameters(function, columns) >= {"guess", "gold"}:
        return ForeignReward(function, partial(call, function))
    return None


def call(function, name, columns):
    if "target" not in columns:
        raise InputError("the rows have no column target", hint="%%chat NAME --over ROWS, with the column target")

    def arguments(members, group):
        (trajectory,) = members
        return Arguments((), {"guess": trajectory.answer, "gold": trajectory.row["target"]})

    return RewardCall(name, function, "trajectory", "the example", is_asynchronous(function), arguments)
