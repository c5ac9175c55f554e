"""Rewards from the result files of a program that runs many samples, joined to its sessions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError, RewardError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.data_files import json_lines, reading
from rolloutlab.sampling.programs.player import components_of
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Ref, Score, StoredCollection
from rolloutlab.store.rewards import finite, total

_IDS = ("session_id", "trace_id", "trajectory_id", "id")
_NAMED = 3
"""So many names are in a line for the user."""


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

    Other forms are of verifiers. 0.4 writes a list `traces` of such objects in a line; its components are
    `{score, weight}`, or null if nothing was scored. 0.3 calls the components `metrics`. It writes `trajectory_id` only
    if it is told to, or in each step of a `trajectory`.

    Raises:
        InputError: there is no such file, or a line has none of these forms.
    """
    if not (paths := sorted(glob(pattern, recursive=True))):  # noqa: PTH207 - of absolute patterns, too
        raise InputError(f"there is no file {pattern}", hint="--results 'outputs/**/traces.jsonl'")
    by_id: dict[str, dict[str, SessionResult]] = {key: {} for key in _IDS}
    for path in paths:
        for place, line in _lines(path):
            ids = _ids_of(line)
            if not ids:
                is_verifiers = "example_id" in line
                hint = "vf-eval ... --state-columns trajectory_id" if is_verifiers else ", ".join(_IDS)
                raise InputError(f"{place} has no id of a session", hint=hint)
            result = _result(place, line)
            for key, value in ids.items():
                by_id[key][value] = result
    return {name: result for key in reversed(_IDS) for name, result in by_id[key].items()}


@dataclass(frozen=True)
class JoinedResults:
    """What came of results. sessions: how many have one. unknown: lines of no session. without: sessions of no line."""

    sessions: int
    unknown: Sequence[str]
    without: Sequence[str]

    def lines(self, label: str) -> list[str]:
        """Lines for the user on what was not joined."""
        odd = count(len(self.unknown), "result"), count(len(self.without), "session")
        return [
            *([f"{odd[0]} of no session of {label}: {_some(self.unknown)}"] if self.unknown else []),
            *([f"{odd[1]} of {label} without a result or a reward: {_some(self.without)}"] if self.without else []),
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
    # a line has a name for each of its ids, the best one last, and any of them may be that of a session
    joined, named = {id(results[name]) for name in newest}, {id(result): name for name, result in results.items()}
    return JoinedResults(len(newest), [name for line, name in named.items() if line not in joined], without)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _ids_of(line: Mapping[str, Any]) -> dict[str, str]:
    """The ids that a line has, by field. The id of a trajectory may be in its steps only."""
    steps = line.get("trajectory")
    first = steps[0] if isinstance(steps, list) and steps and isinstance(steps[0], dict) else {}
    named = {"trajectory_id": first.get("trajectory_id"), **line}
    return {key: str(named[key]) for key in _IDS if named.get(key) not in (None, "")}


def _lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with reading(Path(path)) as file:
        for place, line in json_lines(file, path):
            traces = line.get("traces") if isinstance(line, dict) else None
            for each in traces if isinstance(traces, list) else [line]:
                if not isinstance(each, dict):
                    hint = '{"session_id": "a1", "reward": 1.0} in each line'
                    raise InputError(f"{place} is not an object", hint=hint)
                yield place, each


def _result(place: str, line: Mapping[str, Any]) -> SessionResult:
    parts = line.get("rewards", line.get("metrics") if "example_id" in line else None)
    parts = parts if isinstance(parts, dict) and not any(map(_is_missing, parts.values())) else {}
    try:
        components = components_of({name: _component(name, value) for name, value in parts.items()})
        if not _is_missing(line.get("reward")):
            return SessionResult(finite(line["reward"], place), components)
        return SessionResult(total(components.values(), place) if components else None, components)
    except RewardError as error:
        raise InputError(f"{place}: {error.message}", hint=error.hint or '"reward": 1.0') from None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _component(name: str, value: Any) -> float:
    """A number, or the product of `score` and `weight`."""
    if not isinstance(value, dict):
        return finite(value, name)
    return finite(value.get("score"), name) * finite(value.get("weight", 1), name)
