"""Sessions of one program that runs many samples, such as an evaluator: trajectories distinguished by a header."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from rolloutlab.capture.client import RolloutClient, Submit
from rolloutlab.capture.gateway import Gateway
from rolloutlab.capture.rollout import CapturedRollout
from rolloutlab.capture.server import served
from rolloutlab.connection import Connector
from rolloutlab.errors import LabError, SamplingError, ServiceError, described, interrupted
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.own_thread import OwnThread
from rolloutlab.sampling.programs.plan import ProgramRun
from rolloutlab.sampling.programs.run import check_run, gateway_to
from rolloutlab.sampling.programs.runner import (
    EndedRollout,
    ProgramEnd,
    check_service,
    ended_rollout,
    program_end,
    settings_of,
)
from rolloutlab.sampling.run import ProgressBar
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded, StoredCollection, dumped

SESSIONS_TIMEOUT = 86_400.0
"""Seconds of a program that runs many samples."""


def run_sessions(
    run: ProgramRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Run a program once, whose sessions are the trajectories of a new collection. Arguments are those of `sample`.

    Raises:
        SamplingError: no call was answered. Others as of `Session.capture`.
    """
    check_run(run, lab, meter)
    address = connector.address(partial(progress.update, 0, None))
    prepare(address)
    gateway, collection = gateway_to(connector, address, meter), None
    captured = gateway.open(settings_of(run.plan, 0, 0), by_session=True)

    async def play() -> ProgramEnd:
        async with served(gateway) as url:
            return await _play(run, gateway, captured, url, connector.http.submit)

    def show() -> None:
        progress.update(gateway.sessions, None, "sessions")
        tick()

    try:
        end = connector.http.run(play(), show, to_its_end=True)
        sessions = _ended(captured, end)
        collection = _store(lab, run, sessions)
        if end.logs:
            progress.keep(f"{'; '.join(end.logs)}; {count(len(sessions), 'session')} with answers are kept")
    except KeyboardInterrupt as error:
        with suppress(SamplingError, ServiceError):  # nothing was sampled
            sessions = _ended(captured, ProgramEnd("error", ("interrupted",)))
            collection = _store(lab, run, sessions)
            interrupted(
                error, f"{count(len(sessions), 'session')} had begun and are kept", f"%group {collection.label}/0"
            )
        raise
    finally:
        meter.close(collection)
    return collection


async def _play(run: ProgramRun, gateway: Gateway, captured: CapturedRollout, url: str, submit: Submit) -> ProgramEnd:
    """Run a program once, whose sessions are in `captured` then: how it ended."""
    client = RolloutClient(gateway, captured, url, submit)
    thread = OwnThread(partial(run.program.solve, {}, client), "rolloutlab-program")
    try:
        await asyncio.wait([asyncio.wrap_future(thread.outcome)], timeout=run.plan.timeout)
        return program_end(thread, run.plan.timeout)
    finally:
        gateway.close(captured)
        await thread.end()


def _ended(captured: CapturedRollout, end: ProgramEnd) -> dict[str, EndedRollout]:
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


def _store(lab: Lab, run: ProgramRun, sessions: Mapping[str, EndedRollout]) -> StoredCollection:
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
