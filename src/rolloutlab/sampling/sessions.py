"""Sessions of one program that runs many samples, such as an evaluator: trajectories distinguished by a header."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from glob import glob
from typing import Any

from rolloutlab.capture.client import RolloutClient, Submit
from rolloutlab.capture.gateway import Gateway
from rolloutlab.capture.rollout import CapturedRollout
from rolloutlab.errors import InputError, LabError, RewardError, SamplingError, described
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.own_thread import OwnThread
from rolloutlab.sampling.program_runner import (
    EndedRollout,
    ProgramEnd,
    check_service,
    components_of,
    ended_rollout,
    program_end,
)
from rolloutlab.sampling.programs import ProgramRun
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded, Score, StoredCollection, dumped
from rolloutlab.store.rewards import finite, total

_IDS = ("id", "trace_id", "session_id")


@dataclass(frozen=True)
class SessionResult:
    """What a results file has for a session."""

    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)


def read_results(pattern: str) -> dict[str, SessionResult]:
    """The rewards in files of JSON Lines, by the id of their session. pattern: may have `*` and `**`.

    A line has its `id`, `trace_id` or `session_id`, a number `reward`, and an object of numbers `rewards`, which are
    the components; a reward that is not there is their sum. Or it has a list `traces` of such objects, whose components
    are `{score, weight}`, or null where nothing was scored, as verifiers writes them.

    Raises:
        InputError: there is no such file, or a line is not like that.
    """
    if not (paths := sorted(glob(pattern, recursive=True))):  # noqa: PTH207 - of absolute patterns, too
        raise InputError(f"there is no file {pattern}", hint="--results 'outputs/**/traces.jsonl'")
    results: dict[str, SessionResult] = {}
    for path in paths:
        for place, line in _lines(path):
            name = next((str(line[key]) for key in _IDS if line.get(key)), None)
            if name is None:
                raise InputError(f"{place} has no id of a session", hint=", ".join(_IDS))
            results[name] = _result(place, line)
    return results


async def play_sessions(
    run: ProgramRun, gateway: Gateway, captured: CapturedRollout, url: str, submit: Submit, timeout: float
) -> ProgramEnd:
    """Run a program once, whose sessions are in `captured` then: how it ended."""
    client = RolloutClient(gateway, captured, url, submit)
    thread = OwnThread(partial(run.program.solve, {}, client), "rolloutlab-program")
    try:
        await asyncio.wait([asyncio.wrap_future(thread.outcome)], timeout=timeout)
        return program_end(thread, timeout)
    finally:
        gateway.close(captured)
        await thread.end()


def ended_sessions(captured: CapturedRollout, end: ProgramEnd) -> dict[str, EndedRollout]:
    """What the sessions of a program have sampled, by their names. end: of the program.

    Raises:
        SamplingError, ServiceError, BudgetError: nothing, and why.
    """
    sampled = {name: each for name, each in captured.sessions.items() if each.completions}
    if not sampled:
        for session in captured.sessions.values():
            check_service(session.failure)
        message = "; ".join(["no call of the program was answered", *end.logs])
        raise SamplingError(message, hint="OPENAI_BASE_URL and OPENAI_API_KEY are what it has to use")
    return {name: ended_rollout(0, 0, each, _session_end(each, end)) for name, each in sampled.items()}


def store_sessions(lab: Lab, run: ProgramRun, sessions: Mapping[str, EndedRollout]) -> StoredCollection:
    """Store the sessions of a run as a new generation, at once; those that begin alike are a group.

    Raises:
        LabError: they could not be stored, in two tries.
    """
    try:
        try:
            label = _published(lab, run, sessions)
        except LabError:  # a disk may be locked or full for a moment only
            label = _published(lab, run, sessions)
    except LabError as error:
        message = f"{error.message}; {count(len(sessions), 'session')} of {run.name} could not be stored"
        raise LabError(message, hint=f"{error.hint or 'end what holds the file'}, and run it again") from error
    collection = lab.find(label)
    usages = [each.usage for each in sessions.values()]
    lab.spend(collection, sum(prompt for prompt, _ in usages), sum(completion for _, completion in usages))
    return collection


def _published(lab: Lab, run: ProgramRun, sessions: Mapping[str, EndedRollout]) -> str:
    with lab.draft() as draft:
        for name, each in sessions.items():
            draft.add([_recorded(run, name, each)])
        [label] = draft.publish()
    return label


def join_results(lab: Lab, collection: StoredCollection, results: Mapping[str, SessionResult]) -> int:
    """Give the sessions of a collection their rewards; for how many of them there are results."""
    scores, joined = list[Score](), 0
    for group in lab.each_group(collection):
        for trajectory in group.trajectories:
            result = results.get((trajectory.extra.get("metadata") or {}).get("session", ""))
            joined += result is not None
            if result and result.reward is not None:
                scores.append(Score(trajectory, result.reward, result.components))
    if scores:
        lab.rewards.give(scores, "tool", keep_hand=True)
    return joined


def _session_end(captured: CapturedRollout, end: ProgramEnd) -> ProgramEnd:
    """How a session ended: what became of its program afterwards is no failure of its own."""
    if not captured.cut_off:
        return ProgramEnd("done")
    if captured.failure:
        return ProgramEnd("error", (f"its last call failed: {described(captured.failure)}",))
    return ProgramEnd("timeout" if end.reason == "timeout" else "error", ("its last call got no answer", *end.logs))


def _recorded(run: ProgramRun, name: str, ended: EndedRollout) -> Recorded:
    prompt = ended.prompt
    return Recorded(
        f"session {name}",
        run.name,
        dumped(prompt),
        prompt,
        ended.histories[0].messages_and_choices[len(prompt) :],
        model=run.plan.model,
        step=ended.step,
        sampling={**run.plan.sampling(), **ended.captured.sampling},
        extra=ended.extra(session=name),
    )


def _lines(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - of a text
        for number, text in enumerate(file, 1):
            if text.strip():
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
