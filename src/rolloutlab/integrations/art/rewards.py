"""Calls of reward functions of `openpipe-art`, which take an `art.Trajectory`, or like RULER a `TrajectoryGroup`."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_type_hints

from rolloutlab.api.wire.chat import Choice
from rolloutlab.scoring.calls import Arguments, RewardCall
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import is_asynchronous, with_parts
from rolloutlab.store.models import Group, StoredTrajectory


def art_kind(function: Any) -> str:
    """Return `Trajectory` or `TrajectoryGroup` if the first parameter is annotated as that class of `art`, else ""."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
        hints = get_type_hints(function) if inspect.isroutine(function) else {}
    except (AttributeError, NameError, TypeError, ValueError):  # an annotation that cannot be resolved
        hints = {}
    annotation = hints.get(first.name, first.annotation) if first else None
    if isinstance(annotation, str):
        module, _, kind = annotation.rpartition(".")
        return kind if module == "art" else ""
    module, kind = str(getattr(annotation, "__module__", "")), str(getattr(annotation, "__name__", ""))
    return kind if module.split(".")[0] == "art" and kind in {"Trajectory", "TrajectoryGroup"} else ""


def reward(function: Callable[..., Any]) -> ForeignReward:
    """Wrap a function of an `art.Trajectory`, or of a `TrajectoryGroup` if it is annotated so.

    It returns a number, or the trajectory or group with rewards; metrics are components that do not count.
    """
    return ForeignReward(function, functools.partial(_call, function))


def recognise(function: Any, _columns: Sequence[str]) -> ForeignReward | None:
    """Wrap a function whose first parameter is annotated as a class of `art`."""
    return reward(function) if callable(function) and art_kind(function) else None


def _call(function: Any, name: str, _columns: Sequence[str]) -> RewardCall:
    of_group = art_kind(function) == "TrajectoryGroup"

    def arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
        made = [_art_trajectory(t) for t in members]
        if not of_group:
            return Arguments((made[0],), {})
        from art import TrajectoryGroup

        return Arguments((TrajectoryGroup(made),), {})

    def before(given: Any) -> list[Any]:
        return list(given.trajectories) if of_group else []

    async def waited(given: Any) -> Any:
        members = before(given)
        return _art_values(await function(given), members)

    def called(given: Any) -> Any:
        members = before(given)
        return _art_values(function(given), members)

    asynchronous = is_asynchronous(function)
    per: Literal["trajectory", "group"] = "group" if of_group else "trajectory"
    wrapped = functools.wraps(function, updated=())(waited if asynchronous else called)
    return RewardCall(name, wrapped, per, "ART", asynchronous, arguments)


def _art_trajectory(trajectory: StoredTrajectory) -> Any:
    """Convert a trajectory to an `art.Trajectory`, with its completions as choices of the `openai` SDK."""
    from art import Trajectory
    from openai.types.chat.chat_completion import Choice as SdkChoice

    made = replace(trajectory, reward=trajectory.reward or 0.0).to_wire().to_wire()
    items = zip(trajectory.items, made["messages_and_choices"], strict=True)
    made["messages_and_choices"] = [SdkChoice.model_validate(d) if isinstance(i, Choice) else d for i, d in items]
    known = Trajectory.model_fields.keys() - {"start_time"}
    return Trajectory(**{key: value for key, value in made.items() if key in known})


def _art_values(outcome: Any, members: Sequence[Any]) -> Any:
    """Return the value of a trajectory, or of each member of a group, whatever the order in which they were returned.

    A member that the function left out has none. Copies, which RULER returns, are in the order of the group.
    """
    scored = getattr(outcome, "trajectories", outcome)
    if not members or not isinstance(scored, list | tuple):
        return _value_of(outcome)
    own = {id(member) for member in members}
    if scored and all(id(each) in own for each in scored):
        returned = {id(each): _value_of(each) for each in scored}
        return [returned.get(id(member)) for member in members]
    return [_value_of(each) for each in scored]


def _value_of(outcome: Any) -> Any:
    if hasattr(outcome, "reward"):
        return with_parts(outcome.reward, getattr(outcome, "metrics", None) or {})
    return outcome
