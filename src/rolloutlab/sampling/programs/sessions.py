"""Sessions of one program that runs many samples, such as an evaluator: trajectories distinguished by a header."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from rolloutlab.capture.client import RolloutClient, Submit
from rolloutlab.capture.gateway import Gateway
from rolloutlab.capture.rollout import CapturedRollout
from rolloutlab.capture.server import served
from rolloutlab.connection import Connector
from rolloutlab.errors import SamplingError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.own_thread import OwnThread
from rolloutlab.sampling.programs.plan import ProgramRun
from rolloutlab.sampling.programs.run import check_run, gateway_to
from rolloutlab.sampling.programs.runner import ProgramEnd, check_service, program_end, settings_of
from rolloutlab.sampling.programs.session_writer import SessionWriter
from rolloutlab.sampling.run import ProgressBar, early_end
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection

SESSIONS_TIMEOUT = 86_400.0
"""Seconds of a program that runs many samples."""
_INTERRUPTED = ProgramEnd("error", ("interrupted",))


def run_sessions(
    run: ProgramRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Run a program once, whose sessions become trajectories of a collection. Arguments are those of `sample`.

    Raises:
        SamplingError: no call was answered. Others as of `Session.capture`.
    """
    check_run(run, lab, meter)
    with closing(SessionWriter(lab, run, meter)) as writer:
        address = connector.address(progress.waiting)
        prepare(address)
        gateway = gateway_to(connector, address, meter)
        # sessions that join others have other seeds than those: else they would repeat their answers
        captured = gateway.open(settings_of(run.plan, 0, run.begun.trajectories if run.begun else 0), by_session=True)

        async def play() -> ProgramEnd:
            end = _INTERRUPTED
            try:
                async with served(gateway) as url:
                    end = await _play(run, gateway, captured, url, connector.http.submit, writer)
            finally:  # after the gateway, so that calls which its end cuts off are known as such
                await writer.store_at_end(gateway, captured, end)
            return end

        def show() -> None:
            progress.update(writer.done, None, "sessions")
            tick()

        with early_end(writer, meter, progress):
            end = connector.http.run(play(), show, to_its_end=True)
            _check_sampled(captured, end)
            if end.logs:
                progress.keep(f"{'; '.join(end.logs)}; {count(writer.done, 'session')} with answers are kept")
            progress.keep(writer.notes())
    assert writer.collection, "without any answer the check has raised"
    return lab.by_id(writer.collection.id)


async def _play(
    run: ProgramRun, gateway: Gateway, captured: CapturedRollout, url: str, submit: Submit, writer: SessionWriter
) -> ProgramEnd:
    """Run a program once, whose sessions are stored as they are answered: how it ended."""
    client = RolloutClient(gateway, captured, url, submit)
    thread = OwnThread(partial(run.program.solve, {}, client), "rolloutlab-program")
    kept = asyncio.create_task(writer.keep_up(gateway, captured))
    either: list[asyncio.Future[Any]] = [asyncio.wrap_future(thread.outcome), kept]
    try:
        await asyncio.wait(either, timeout=run.plan.timeout, return_when=asyncio.FIRST_COMPLETED)
        if kept.done():  # no more is paid for what cannot be stored
            kept.result()
        return program_end(thread, run.plan.timeout)
    finally:
        kept.cancel()
        gateway.close(captured)
        await thread.end()
        await asyncio.gather(kept, return_exceptions=True)


def _check_sampled(captured: CapturedRollout, end: ProgramEnd) -> None:
    """Raise where no call was answered, with why: SamplingError, ServiceError or BudgetError."""
    if not any(session.completions for session in captured.sessions.values()):
        for session in captured.sessions.values():
            check_service(session.failure)
        message = "; ".join(["no call of the program was answered", *end.logs])
        raise SamplingError(message, hint="OPENAI_BASE_URL and OPENAI_API_KEY are what it has to use")
