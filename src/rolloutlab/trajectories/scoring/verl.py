"""Call of a reward function of verl: all that was sampled as `solution_str`, and the columns of its data files.

https://verl.readthedocs.io/en/latest/preparation/reward_function.html
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlab.errors import RewardError
from rolloutlab.store.decoded import completion_items, decoded_conversation
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.trajectories.scoring.calls import Arguments, RewardCall, bound_names
from rolloutlab.trajectories.scoring.signatures import check_known, is_asynchronous, wanted, with_parts

OWN = {"solution_str", "ground_truth"}
"""Parameters by which such a function is recognised."""
_OTHERS = {"data_source", "extra_info"}


def verl_call(function: Any, name: str, columns: Sequence[str]) -> RewardCall:
    """The call; InputError for a parameter that is neither of verl nor a column."""
    check_known(function, [*OWN, *_OTHERS, *columns], {})
    named, _ = wanted(function)

    def arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
        (trajectory,) = members
        row = trajectory.row
        info = row.get("extra_info")
        if info is None or isinstance(info, Mapping):  # verl adds these to it
            info = {**(info or {}), "num_turns": 1 + len(completion_items(trajectory)), "rollout_reward_scores": {}}
        extra = {"data_source": row.get("data_source"), "extra_info": info}
        given = {**row, **extra, "solution_str": decoded_conversation(trajectory)}
        if "ground_truth" not in row:
            given["ground_truth"] = _right_answer(row)
        return Arguments((), {n: v for n, v in given.items() if n in named and n not in bound_names(function)})

    async def waited(**given: Any) -> Any:
        return _value_of(await function(**given))

    def called(**given: Any) -> Any:
        return _value_of(function(**given))

    asynchronous = is_asynchronous(function)
    wrapped = functools.wraps(function, updated=())(waited if asynchronous else called)
    return RewardCall(name, wrapped, "trajectory", "verl", asynchronous, arguments)


def _right_answer(row: Mapping[str, Any]) -> Any:
    """The ground truth as verl's data files have it, `reward_model.ground_truth`."""
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        hint = "lambda answer, row: compute_score('', answer, row['ANSWER'])"
        raise RewardError("the row has neither ground_truth nor reward_model.ground_truth", hint=hint)
    return reward_model["ground_truth"]


def _value_of(outcome: Any) -> Any:
    """A number; of a dictionary its `score`, and its other numbers as components that do not count."""
    if not isinstance(outcome, Mapping) or "score" not in outcome:
        return outcome
    return with_parts(outcome["score"], {name: part for name, part in outcome.items() if name != "score"})
