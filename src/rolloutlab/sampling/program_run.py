"""Run of a program over rows: a gateway before the service, rollouts, storage, interrupts."""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from rolloutlab.api.http.client import MAX_CONNECTIONS
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.capture.gateway import Gateway, OnChunk
from rolloutlab.capture.server import served
from rolloutlab.connection import Connector
from rolloutlab.errors import BudgetError, InputError, SamplingError, ServiceError, interrupted
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.earlier_tokens import EarlierTokens
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.outage import Outage
from rolloutlab.sampling.program_runner import ProgramEnd, ProgramRunner, settings_of
from rolloutlab.sampling.program_writer import ProgramWriter
from rolloutlab.sampling.programs import ProgramRun
from rolloutlab.sampling.run import ProgressBar, check_concurrency
from rolloutlab.sampling.sending import Sender, sender
from rolloutlab.sampling.sessions import ended_sessions, play_sessions, store_sessions
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection

TIMEOUT = 600.0
"""Seconds of one rollout."""
LONG_TIMEOUT = 86_400.0
"""Seconds of a program that runs many samples."""


def run_program(
    run: ProgramRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    concurrency: int,
    timeout: float,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Play the rollouts of a run; the collection that it belongs to. Arguments are those of `sample`.

    Raises:
        As `Session.rollouts`.
    """
    check_concurrency(concurrency)
    _check(run, lab, timeout, meter)
    with closing(ProgramWriter(lab, run)) as writer:
        address = connector.address(partial(progress.update, 0, None))
        prepare(address)
        gateway = _gateway(connector, address, meter)

        async def play() -> None:
            async with served(gateway) as url:
                parts = run, gateway, url, connector.http.submit, timeout
                runner = ProgramRunner(*parts, writer.take, writer.fail)
                await runner.play(max(1, min(concurrency, writer.total, MAX_CONNECTIONS)))

        def show() -> None:
            progress.update(writer.done, writer.total, writer.note())
            tick()

        try:
            connector.http.run(play(), show, to_its_end=True)
        except KeyboardInterrupt as error:
            interrupted(error, *writer.interrupted())
            raise
        except BudgetError as error:
            raise BudgetError(
                f"{error.message}; {writer.so_far() or 'nothing was sampled'}", hint=meter.more(None)
            ) from None
        except BaseException:
            progress.keep(writer.so_far())
            raise
        finally:
            meter.close(writer.collection)
    writer.check()
    assert writer.collection, "without a rollout the check has raised"
    return lab.by_id(writer.collection.id)


def run_sessions(
    run: ProgramRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    timeout: float,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Run a program once, whose sessions are the trajectories of a new collection. Arguments are those of `sample`.

    Raises:
        SamplingError: no call was answered. Others as of `Session.capture`.
    """
    _check(run, lab, timeout, meter)
    address = connector.address(partial(progress.update, 0, None))
    prepare(address)
    gateway, collection = _gateway(connector, address, meter), None
    captured = gateway.open(settings_of(run.plan, 0, 0), by_session=True)

    async def play() -> ProgramEnd:
        async with served(gateway) as url:
            return await play_sessions(run, gateway, captured, url, connector.http.submit, timeout)

    def show() -> None:
        progress.update(gateway.sessions, None, "sessions")
        tick()

    try:
        end = connector.http.run(play(), show, to_its_end=True)
        sessions = ended_sessions(captured, end)
        collection = store_sessions(lab, run, sessions)
        if end.logs:
            progress.keep(f"{'; '.join(end.logs)}; {count(len(sessions), 'session')} with answers are kept")
    except KeyboardInterrupt as error:
        with suppress(SamplingError, ServiceError):  # nothing was sampled
            sessions = ended_sessions(captured, ProgramEnd("error", ("interrupted",)))
            collection = store_sessions(lab, run, sessions)
            interrupted(
                error, f"{count(len(sessions), 'session')} had begun and are kept", f"%group {collection.label}/0"
            )
        raise
    finally:
        meter.close(collection)
    return collection


def _check(run: ProgramRun, lab: Lab, timeout: float, meter: Meter) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InputError(f"timeout must be a number of seconds > 0, not {timeout!r}", hint="--timeout 600")
    meter.check(run.plan.pinned_model, max_tokens=run.plan.max_tokens)
    lab.check_writable()


def _gateway(connector: Connector, address: Address, meter: Meter) -> Gateway:
    """A gateway before a service, which retries it while it is away."""
    send = partial(_send, EarlierTokens(connector.http, address), sender(connector, address, meter))
    # an embedded service that is gone comes back at another address
    again = connector.http.retries() if connector.settings.service else None
    outage = Outage[tuple[ChatRequest, OnChunk | None]](lambda both: send(*both), again)
    return Gateway(lambda request, on_chunk: outage.complete((request, on_chunk)))


async def _send(
    earlier: EarlierTokens, answer: Sender, request: ChatRequest, on_chunk: OnChunk | None
) -> ChatCompletion:
    return await earlier.complete(request, partial(answer, on_chunk=on_chunk))
