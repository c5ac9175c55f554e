"""Sessions: the trajectories of one program that runs many samples, such as an evaluator. A header tells them apart."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, NamedTuple

from rolloutlab.capture.client import RolloutClient, Submit
from rolloutlab.capture.gateway import Gateway
from rolloutlab.capture.rollout import CapturedRollout
from rolloutlab.capture.server import serve
from rolloutlab.connection import Connector
from rolloutlab.errors import LabError, described
from rolloutlab.objective.preflight import count
from rolloutlab.runtime import ThreadCall, finish_despite_cancellation
from rolloutlab.sampling.batches import Batches
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.programs.player import (
    EndedRollout,
    ProgramEnd,
    check_service,
    make_ended_rollout,
    make_gateway,
    no_call_error,
    read_program_end,
    settings_of,
)
from rolloutlab.sampling.programs.program import Program, rerun_hint, sessions_hint
from rolloutlab.sampling.run import ProgressBar, check_run, explain_early_end
from rolloutlab.sampling.writer import WHAT_IS_STORED, surplus_line
from rolloutlab.settings import Address
from rolloutlab.store.growing import GrowingTrajectories
from rolloutlab.store.lab import Lab
from rolloutlab.store.locks import CollectionLock
from rolloutlab.store.models import Recorded, StoredCollection, dump_items

_PAUSE = 0.2
"""The least seconds between two batches. If the process is killed, it loses the answers since the last batch."""
_SHARE = 4.0
"""The pause after a batch, as a multiple of the time that it took: each batch writes its sessions as a whole."""
_RUNNING = ProgramEnd("error", ("the capture ended before its program",))
"""The end that sessions are stored with while their program runs. It stays if this process is killed."""


class _State(NamedTuple):
    """The state of a session. It has to be stored again if its number of answers or its end has changed."""

    answers: int
    end: ProgramEnd


def program_in(run: SamplingRun) -> Program:
    """Return the program of a run that `plan_program` or `plan_sessions` planned."""
    assert run.program, "the run was planned without a program"
    return run.program


class SessionWriter:
    """Writes sessions into a generation of a collection. The first sessions create it, and `close` unlocks it.

    Each session is stored with the end that it would have if this process were killed now.

    Raises:
        ConflictError: another process stores sessions in the collection.
    """

    def __init__(self, lab: Lab, run: SamplingRun, meter: Meter) -> None:
        self._lab, self._run, self._meter = lab, run, meter
        self._program = program_in(run)
        self._batches = Batches[tuple[str, _State, EndedRollout]](self._take)
        self.collection: StoredCollection | None = run.begun
        self._lock = CollectionLock()
        self._growing: GrowingTrajectories | None = None
        if run.begun:
            self._lock.keep(lab.lock_for_sampling(run.begun))
            try:
                self._growing = lab.growing(run.begun)
            except BaseException:
                self._lock.let_go()
                raise
        self._queued: dict[str, _State] = {}
        self._stored: dict[str, _State] = {}
        self._usage: dict[str, tuple[int, int]] = {}
        self._refused = ""
        """The message about what could not be stored at the end, if anything."""
        self.scored: set[str] = set()
        """Names of the sessions that went on after they were scored. The scored state is kept beside the whole."""

    @property
    def done(self) -> int:
        """The number of sessions on disk."""
        return len(self._stored)

    def under_way(self) -> AbstractContextManager[None]:
        """Make a context in which sessions are stored; it unlocks the collection at its end."""
        return self._lock.under_way()

    def close(self) -> None:
        """Unlock the collection. Inside of `under_way`, it is unlocked at the end of that."""
        self._lock.close()

    async def store_as_answered(self, gateway: Gateway, captured: CapturedRollout) -> None:
        """Store the sessions of a program as they are answered, until this is cancelled.

        Raises:
            LabError: two tries in a row to store them failed.
        """
        failed = False
        while True:
            begun = time.monotonic()
            self._queue(gateway, captured, _RUNNING)
            try:
                await self._batches.flush()
                failed = False
            except LabError:  # a disk may be locked or full for a moment only
                if failed:
                    raise
                failed = True
            await asyncio.sleep(max(_PAUSE, _SHARE * (time.monotonic() - begun)))

    async def store_at_end(self, gateway: Gateway, captured: CapturedRollout, end: ProgramEnd) -> None:
        """Store the sessions that have changed. end: how the program has ended.

        Raises:
            LabError: two tries to store them failed.
        """
        self._queue(gateway, captured, end)
        try:
            await self._batches.flush_at_end()
        except LabError as error:
            lost = sum(self._stored.get(name) != state for name, state in self._queued.items())
            self._refused = f"{error.message}; {count(lost, 'session')} of {self._run.name} could not be stored"
            raise LabError(
                self._refused, hint=f"{error.hint or 'end what holds the file'}, and run it again"
            ) from error

    def describe_kept(self) -> str:
        """Say what is stored after an error, and what to type to continue."""
        return f"{self.describe_stored()} -> {self._rest_hint()}" if self.done else ""

    def describe_interrupt(self) -> tuple[str, str]:
        """Return the message and the hint after an interrupt."""
        if self._lock.is_under_way:  # after a second interrupt, which did not wait for the disk
            kept = f"{count(self.done, 'session')} had begun and {_are(self.done)} kept"
            return f"{kept}; others are still being stored", self._rest_hint() if self.collection else WHAT_IS_STORED
        if not self.done:
            return self._refused or "no session had an answer yet, and nothing was stored", rerun_hint(self._program)
        kept = f"{count(self.done, 'session')} had begun and {_are(self.done)} kept"
        return "; ".join(filter(None, [self._refused, kept])), self._rest_hint()

    def describe_unfinished(self) -> tuple[str, str | None]:
        """Say what is stored after a budget ran out; return the cell that goes on, or None if it is the same cell."""
        return (self.describe_stored(), self._cell()) if self.done else ("nothing was sampled", None)

    def describe_scored(self) -> str:
        """Describe the sessions that went on after they were scored, in a line; "" if there are none."""
        if not self.scored:
            return ""
        first = f"{count(len(self.scored), 'session')} went on after being scored, the first {min(self.scored)}"
        return f"{first}: what was scored is kept beside the whole, and its tokens are in both"

    def describe_stored(self) -> str:
        """Say how many sessions are stored."""
        return f"{count(self.done, 'session')} with answers {_are(self.done)} kept"

    def _rest_hint(self) -> str:
        return self._meter.with_budget(self._cell())

    def _cell(self) -> str:
        label = f"{self.collection.name}:{self.collection.generation}" if self.collection else self._run.name
        return sessions_hint(label, self._program)

    def _queue(self, gateway: Gateway, captured: CapturedRollout, end: ProgramEnd) -> None:
        """Queue the sessions that have changed since they were queued last."""
        for name, session in captured.sessions.items():
            state = _State(
                len(session.completions), _end_of_session(session, end, asked=gateway.has_open_call(session))
            )
            if state.answers and state != self._queued.get(name):
                self._queued[name] = state
                self._batches.add((name, state, make_ended_rollout(0, 0, session.snapshot(), state.end)))

    def _take(self, sessions: Sequence[tuple[str, _State, EndedRollout]]) -> None:
        """Store sessions, in a thread. The first ones create the generation and lock it."""
        newest = {name: ended for name, _, ended in sessions}  # a session may be queued several times
        recorded = {name: _make_record(self._run, name, each) for name, each in newest.items()}
        step = next((each.step for each in newest.values() if each.step is not None), None)

        # usages are of whole sessions: only what is new since they were stored last is added to the collection
        before = [self._usage.get(name, (0, 0)) for name in newest]
        prompt, completion = (
            sum(each.usage[i] for each in newest.values()) - sum(each[i] for each in before) for i in (0, 1)
        )

        def begin() -> tuple[StoredCollection, GrowingTrajectories]:
            collection = self._lab.open_collection(self._run.name, _plan_to_store(self._run, step))
            self._lock.keep(self._lab.lock_for_sampling(collection))  # before any other process can see it
            growing = self._lab.growing(collection)
            growing.put(recorded, (prompt, completion))
            return collection, growing

        if self._growing:
            self.scored.update(self._growing.put(recorded, (prompt, completion)))
        else:
            try:
                collection, self._growing = self._lab.at_once(begin)
            except BaseException:
                self._lock.let_go()
                raise
            self._lab.keep_name(collection.name, collection.id)
            self.collection = self._lab.by_id(collection.id)  # under the name that it has from now on
            # unlocks only if `under_way` has ended, which may happen while this thread waits for the disk
            self._lock.close()
        self._usage.update({name: each.usage for name, each in newest.items()})
        self._stored.update({name: state for name, state, _ in sessions})
        self._meter.record(self.collection)


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _plan_to_store(run: SamplingRun, step: int | None) -> dict[str, object]:
    """Return the plan to store with a new generation. step: the checkpoint that answered first."""
    update = {"step": step, "sessions": program_in(run).name, "program": None}
    return run.plan.model_copy(update=update).model_dump(mode="json", exclude_defaults=True)


def _end_of_session(captured: CapturedRollout, end: ProgramEnd, *, asked: bool) -> ProgramEnd:
    """Find how a session ended. If its last call was answered it is done, whatever becomes of the program later.

    asked: whether a call of the session waits for an answer.
    """
    if not (captured.cut_off or asked):
        return ProgramEnd("done")
    if captured.failure and not asked:
        return ProgramEnd("error", (f"its last call failed: {described(captured.failure)}",))
    return ProgramEnd("timeout" if end.reason == "timeout" else "error", ("its last call got no answer", *end.logs))


def _make_record(run: SamplingRun, name: str, ended: EndedRollout) -> Recorded:
    prompt = ended.prompt
    return Recorded(
        f"session {name}",
        run.name,
        dump_items(prompt),
        prompt,
        ended.histories[0].messages_and_choices[len(prompt) :],
        model=run.plan.model,
        step=ended.step,
        sampling={**run.plan.sampling(), **ended.captured.sampling},
        extra=ended.extra(session=name),
    )


SESSIONS_TIMEOUT = 86_400.0
"""The time-out of a program that runs many samples, in seconds, by default."""
_INTERRUPTED = ProgramEnd("error", ("interrupted",))


def run_sessions(
    run: SamplingRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Run a program once; its sessions become trajectories of a collection.

    Args:
        run: the plan.
        lab: the store.
        connector: finds the service.
        progress: shows the run.
        tick: called while this thread waits, to show sign-ins that tools need.
        meter: counts the cost of the requests.
        prepare: called with the address of the service before the first request.

    Raises:
        SamplingError: no call was answered. Others as of `Session.capture`.
    """
    check_run(run, lab, meter)
    with closing(SessionWriter(lab, run, meter)) as writer:
        address = connector.address(progress.waiting)
        prepare(address)
        gateway, _ = make_gateway(connector, address, meter)
        # sessions that are added later get other seeds than the first ones, or they would repeat their answers
        captured = gateway.open(settings_of(run.plan, 0, run.begun.trajectories if run.begun else 0), by_session=True)

        async def play() -> ProgramEnd:
            end = _INTERRUPTED
            with writer.under_way():
                try:
                    async with serve(gateway) as url:
                        end = await _play(run, gateway, captured, url, connector.http.submit, writer)
                finally:  # after the gateway has closed: it has marked the calls that its end cut off
                    await finish_despite_cancellation(writer.store_at_end(gateway, captured, end))
            return end

        def show() -> None:
            progress.update(writer.done, None, "sessions")
            tick()

        with explain_early_end(writer, meter, progress):
            end = connector.http.run(play(), show, to_its_end=True)
            if end.logs and writer.done:
                progress.keep(f"{'; '.join(end.logs)}; {writer.describe_stored()}")
            progress.keep(writer.describe_scored())
            progress.keep(surplus_line(sum(each.surplus for each in captured.sessions.values())))
            _check_sampled(captured, end, program_in(run).address)
    assert writer.collection, "_check_sampled raises if nothing was stored"
    return lab.by_id(writer.collection.id)


async def _play(
    run: SamplingRun, gateway: Gateway, captured: CapturedRollout, url: str, submit: Submit, writer: SessionWriter
) -> ProgramEnd:
    """Run a program once, store its sessions as they are answered, and return how it ended."""
    client = RolloutClient(gateway, captured, url, submit)
    thread = ThreadCall(partial(program_in(run).solve, {}, client), "rolloutlab-program")
    kept = asyncio.create_task(writer.store_as_answered(gateway, captured))
    either: list[asyncio.Future[Any]] = [asyncio.wrap_future(thread.outcome), kept]
    try:
        await asyncio.wait(either, timeout=run.plan.timeout, return_when=asyncio.FIRST_COMPLETED)
        if kept.done():  # storing failed: end the program, so that no answer is paid for that cannot be stored
            kept.result()
        return read_program_end(thread, run.plan.timeout)
    finally:
        kept.cancel()
        gateway.close(captured)
        await thread.end()
        await asyncio.gather(kept, return_exceptions=True)


def _check_sampled(captured: CapturedRollout, end: ProgramEnd, address: str) -> None:
    """Raise an error if the budget was too small for a call, or if no call was answered.

    The BudgetError is raised even if other calls were answered. Without an answer, the ServiceError that was the reason
    is raised, or else SamplingError. address: `Program.address`.
    """
    for session in captured.sessions.values():
        if session.over_budget:
            raise session.over_budget
    if any(session.completions for session in captured.sessions.values()):
        return
    for session in captured.sessions.values():
        check_service(session)
    failed = next((each for each in captured.sessions.values() if each.failure), captured)
    raise no_call_error(failed, end, address)
