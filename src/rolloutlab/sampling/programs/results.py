"""Rewards from the result files of a program that runs many samples, joined to its sessions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError, RewardError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.data_files import open_data_file, read_json_lines
from rolloutlab.sampling.programs.player import components_of
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Ref, Score, StoredCollection
from rolloutlab.store.rewards import finite, total

_IDS = ("session_id", "trace_id", "trajectory_id", "id")
_NAMED = 3
"""The most names in a line for the user."""


@dataclass(frozen=True)
class SessionResult:
    """What a results file has for a session."""

    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)


def read_results(pattern: str) -> dict[str, SessionResult]:
    """Read the rewards in files of JSON Lines, by the id of their session. pattern: may have `*` and `**`.

    A line is an object with

    - an id of the session: `session_id`, `trace_id`, `trajectory_id` or `id`. If it has several, any may be the id.
    - `reward`: a number. Without it, the reward is the sum of the components.
    - `rewards`: the components, an object of numbers. It may be missing.

    The forms that verifiers writes are read too:

    - 0.4: a line has a list `traces` of such objects. A component is `{score, weight}`, or null if nothing was scored.
    - 0.3: the components are called `metrics`. `trajectory_id` is there only on request, or in each step of a
      `trajectory`.

    Raises:
        InputError: there is no such file, or a line has none of these forms.
    """
    if not (paths := sorted(glob(pattern, recursive=True))):  # noqa: PTH207 - of absolute patterns, too
        raise InputError(f"there is no file {pattern}", hint="--results 'outputs/**/traces.jsonl'")
    by_id: dict[str, dict[str, SessionResult]] = {key: {} for key in _IDS}
    for path in paths:
        for place, line in _read_lines(path):
            ids = _ids_of(line)
            if not ids:
                is_verifiers = "example_id" in line
                hint = "vf-eval ... --state-columns trajectory_id" if is_verifiers else ", ".join(_IDS)
                raise InputError(f"{place} has no id of a session", hint=hint)
            result = _read_result(place, line)
            for key, value in ids.items():
                by_id[key][value] = result
    return {name: result for key in reversed(_IDS) for name, result in by_id[key].items()}


@dataclass(frozen=True)
class JoinedResults:
    """The outcome of `join_results`.

    sessions: the number of sessions that have a result.
    unknown: the names of the results that belong to no session.
    without: the names of the sessions that have no result and no reward.
    """

    sessions: int
    unknown: Sequence[str]
    without: Sequence[str]

    def lines(self, label: str) -> list[str]:
        """Describe to the user what was not joined, in lines."""
        odd = count(len(self.unknown), "result"), count(len(self.without), "session")
        return [
            *([f"{odd[0]} of no session of {label}: {_name_some(self.unknown)}"] if self.unknown else []),
            *(
                [f"{odd[1]} of {label} without a result or a reward: {_name_some(self.without)}"]
                if self.without
                else []
            ),
        ]


def join_results(lab: Lab, collection: StoredCollection, results: Mapping[str, SessionResult]) -> JoinedResults:
    """Give the sessions of a collection their rewards.

    If several runs of a program had a session of the same name, the newest of these sessions gets the result.
    """
    newest: dict[str, Ref] = {}
    without = []
    for group in lab.each_group(collection):
        for trajectory in group.trajectories:
            name = (trajectory.extra.get("metadata") or {}).get("session", "")
            if name in results and (name not in newest or newest[name].id < trajectory.id):
                newest[name] = Ref(trajectory.id, trajectory.name)
            if name not in results and trajectory.reward is None:
                without.append(name)
    rewards = ((newest[name], results[name]) for name in newest)
    scores = [Score(each, result.reward, result.components) for each, result in rewards if result.reward is not None]
    if scores:
        lab.rewards.give(scores, "tool", keep_hand=True)
    # `results` has a line under each of its ids, the best id last, and any of them may be the name of a session
    joined, named = {id(results[name]) for name in newest}, {id(result): name for name, result in results.items()}
    return JoinedResults(len(newest), [name for line, name in named.items() if line not in joined], without)


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _ids_of(line: Mapping[str, Any]) -> dict[str, str]:
    """Find the ids of a line, by field. The id of a trajectory may be in its steps only."""
    steps = line.get("trajectory")
    first = steps[0] if isinstance(steps, list) and steps and isinstance(steps[0], dict) else {}
    named = {"trajectory_id": first.get("trajectory_id"), **line}
    return {key: str(named[key]) for key in _IDS if named.get(key) not in (None, "")}


def _read_lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with open_data_file(Path(path)) as file:
        for place, line in read_json_lines(file, path):
            traces = line.get("traces") if isinstance(line, dict) else None
            for each in traces if isinstance(traces, list) else [line]:
                if not isinstance(each, dict):
                    hint = '{"session_id": "a1", "reward": 1.0} in each line'
                    raise InputError(f"{place} is not an object", hint=hint)
                yield place, each


def _read_result(place: str, line: Mapping[str, Any]) -> SessionResult:
    parts = line.get("rewards", line.get("metrics") if "example_id" in line else None)
    parts = parts if isinstance(parts, dict) and not any(map(_is_missing, parts.values())) else {}
    try:
        components = components_of({name: _read_component(name, value) for name, value in parts.items()})
        if not _is_missing(line.get("reward")):
            return SessionResult(finite(line["reward"], place), components)
        return SessionResult(total(components.values(), place) if components else None, components)
    except RewardError as error:
        raise InputError(f"{place}: {error.message}", hint=error.hint or '"reward": 1.0') from None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _read_component(name: str, value: Any) -> float:
    """Read the value of a component: a number, or the product of `score` and `weight`."""
    if not isinstance(value, dict):
        return finite(value, name)
    return finite(value.get("score"), name) * finite(value.get("weight", 1), name)
