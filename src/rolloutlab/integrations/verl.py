"""Calls of reward functions of verl: with all that was sampled as `solution_str`, and columns of its data files.

https://verl.readthedocs.io/en/latest/preparation/reward_function.html
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rolloutlab.errors import RewardError
from rolloutlab.scoring.calls import Arguments, RewardCall, bound_names
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import check_known, is_asynchronous, own_parameters, wanted, with_parts
from rolloutlab.store.decoded import completion_items, decode_conversation
from rolloutlab.store.models import Group, StoredTrajectory

_OWN = {"solution_str", "ground_truth"}
"""Parameters by which such a function is recognised."""
_OWN_OF_BATCH = {"solution_strs", "ground_truths"}
"""The same for functions of verl's batch reward manager, which get lists and return a list."""
_OTHERS = {"data_source", "extra_info"}


def recognise(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    """Wrap a function with the parameters `solution_str` and `ground_truth`, or with both in the plural."""
    own = own_parameters(function, columns)
    if not {"solution_str", "solution_strs"} & own:
        return None
    parameters = inspect.signature(function).parameters.keys()
    if parameters >= _OWN and "solution_str" in own:
        return ForeignReward(function, functools.partial(_one_call, function))
    if parameters >= _OWN_OF_BATCH and "solution_strs" in own:
        return ForeignReward(function, functools.partial(_batch_call, function))
    return None


def _one_call(function: Any, name: str, columns: Sequence[str]) -> RewardCall:
    """Make the call. Raises InputError for a parameter that is neither of verl nor a column."""
    check_known(function, [*_OWN, *_OTHERS, *columns], {})
    named, _ = wanted(function)

    def arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
        (trajectory,) = members
        given = {**trajectory.row, **_given(trajectory)}
        return Arguments((), {n: v for n, v in given.items() if n in named and n not in bound_names(function)})

    return _call(function, name, "trajectory", arguments)


def _batch_call(function: Any, name: str, _columns: Sequence[str]) -> RewardCall:
    """Make the call for a group at once. Raises as `_one_call` does."""
    check_known(function, [f"{each}s" for each in (*_OWN, *_OTHERS)], {})
    named, _ = wanted(function)

    def arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
        given = [_given(trajectory) for trajectory in members]
        lists = {f"{each}s": [one[each] for one in given] for each in (*_OWN, *_OTHERS)}
        return Arguments((), {n: v for n, v in lists.items() if n in named and n not in bound_names(function)})

    return _call(function, name, "group", arguments)


def _given(trajectory: StoredTrajectory) -> dict[str, Any]:
    """Return the arguments of verl for a trajectory."""
    row = trajectory.row
    info = row.get("extra_info")
    if info is None or isinstance(info, Mapping):  # verl adds these to it
        info = {**(info or {}), "num_turns": 1 + len(completion_items(trajectory)), "rollout_reward_scores": {}}
    right = row["ground_truth"] if "ground_truth" in row else _right_answer(row)
    text = decode_conversation(trajectory)
    return {"data_source": row.get("data_source"), "solution_str": text, "ground_truth": right, "extra_info": info}


def _call(function: Any, name: str, per: Literal["trajectory", "group"], arguments: Any) -> RewardCall:
    value = _value_of if per == "trajectory" else _values_of

    async def waited(**given: Any) -> Any:
        return value(await function(**given))

    def called(**given: Any) -> Any:
        return value(function(**given))

    asynchronous = is_asynchronous(function)
    wrapped = functools.wraps(function, updated=())(waited if asynchronous else called)
    return RewardCall(name, wrapped, per, "verl", asynchronous, arguments)


def _right_answer(row: Mapping[str, Any]) -> Any:
    """Return the ground truth where verl's data files have it: `reward_model.ground_truth`."""
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        hint = "lambda answer, row: compute_score('', answer, row['ANSWER'])"
        raise RewardError("the row has neither ground_truth nor reward_model.ground_truth", hint=hint)
    return reward_model["ground_truth"]


def _value_of(outcome: Any) -> Any:
    """Return a number; of a dictionary its `score`, with its other numbers as components that do not count."""
    if not isinstance(outcome, Mapping) or "score" not in outcome:
        return outcome
    return with_parts(outcome["score"], {name: part for name, part in outcome.items() if name != "score"})


def _values_of(outcomes: Any) -> list[Any]:
    """Return a value per trajectory, each as `_value_of` returns it."""
    outcomes = outcomes.tolist() if hasattr(outcomes, "tolist") else outcomes
    if not isinstance(outcomes, list | tuple):
        message = f"a batch function of verl must return a list of a value per solution, not {outcomes!r}"
        raise RewardError(message, hint="return [0.0 for solution_str in solution_strs]")
    return [_value_of(outcome) for outcome in outcomes]
