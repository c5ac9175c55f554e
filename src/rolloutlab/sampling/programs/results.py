"""Rewards of a program that runs many samples, from the files that it writes, joined to its sessions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from glob import glob
from typing import Any

from rolloutlab.api.wire.json_size import too_large
from rolloutlab.errors import InputError, RewardError
from rolloutlab.sampling.programs.runner import components_of
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Ref, Score, StoredCollection
from rolloutlab.store.rewards import finite, total

_IDS = ("session_id", "trace_id", "id")


@dataclass(frozen=True)
class SessionResult:
    """What a results file has for a session."""

    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)


def read_results(pattern: str) -> dict[str, SessionResult]:
    """The rewards in files of JSON Lines, by the id of their session. pattern: may have `*` and `**`.

    A line has its `session_id`, `trace_id` or `id`, a number `reward`, and an object of numbers `rewards`, which are
    the components; a reward that is not there is their sum. Of several ids, any may be that of the session. Or it has
    a list `traces` of such objects, whose components are `{score, weight}`, or null where nothing was scored, as
    verifiers writes them.

    Raises:
        InputError: there is no such file, or a line is not like that.
    """
    if not (paths := sorted(glob(pattern, recursive=True))):  # noqa: PTH207 - of absolute patterns, too
        raise InputError(f"there is no file {pattern}", hint="--results 'outputs/**/traces.jsonl'")
    by_id: dict[str, dict[str, SessionResult]] = {key: {} for key in _IDS}
    for path in paths:
        for place, line in _lines(path):
            ids = {key: str(line[key]) for key in _IDS if line.get(key) not in (None, "")}
            if not ids:
                raise InputError(f"{place} has no id of a session", hint=", ".join(_IDS))
            result = _result(place, line)
            for key, value in ids.items():
                by_id[key][value] = result
    return {name: result for key in reversed(_IDS) for name, result in by_id[key].items()}


def join_results(lab: Lab, collection: StoredCollection, results: Mapping[str, SessionResult]) -> int:
    """Give the sessions of a collection their rewards; for how many of them there are results.

    Where several runs of a program had a session of one name, the results are of the last one.
    """
    newest: dict[str, Ref] = {}
    for group in lab.each_group(collection):
        for trajectory in group.trajectories:
            name = (trajectory.extra.get("metadata") or {}).get("session", "")
            if name in results and (name not in newest or newest[name].id < trajectory.id):
                newest[name] = Ref(trajectory.id, trajectory.name)
    rewards = ((newest[name], results[name]) for name in newest)
    scores = [Score(each, result.reward, result.components) for each, result in rewards if result.reward is not None]
    if scores:
        lab.rewards.give(scores, "tool", keep_hand=True)
    return len(newest)


def _lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - of a text
        for number, text in enumerate(file, 1):
            if text.strip():
                if why := too_large(text):
                    raise InputError(f"{path}, line {number}: {why}")
                try:
                    line = json.loads(text)
                except ValueError:
                    raise InputError(f"{path}, line {number} is not JSON") from None
                traces = line.get("traces") if isinstance(line, dict) else None
                for each in traces if isinstance(traces, list) else [line]:
                    if not isinstance(each, dict):
                        raise InputError(f"{path}, line {number} is not an object")
                    yield f"{path}, line {number}", each


def _result(place: str, line: Mapping[str, Any]) -> SessionResult:
    parts = line.get("rewards")
    parts = parts if isinstance(parts, dict) and None not in parts.values() else {}
    try:
        components = components_of({name: _component(name, value) for name, value in parts.items()})
        if line.get("reward") is not None:
            return SessionResult(finite(line["reward"], place), components)
        return SessionResult(total(components.values(), place) if components else None, components)
    except RewardError as error:
        raise InputError(f"{place}: {error.message}") from None


def _component(name: str, value: Any) -> float:
    """A number, or the product of `score` and `weight`."""
    if not isinstance(value, dict):
        return finite(value, name)
    return finite(value.get("score"), name) * finite(value.get("weight", 1), name)
