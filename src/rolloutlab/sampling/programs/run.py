"""Run of a program over rows: a gateway before the service, rollouts, storage, interrupts."""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from rolloutlab.api.http.client import MAX_CONNECTIONS
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.capture.gateway import Gateway, OnChunk
from rolloutlab.capture.server import served
from rolloutlab.connection import Connector
from rolloutlab.sampling.earlier_tokens import EarlierTokens
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.outage import Outage
from rolloutlab.sampling.programs.plan import ProgramRun
from rolloutlab.sampling.programs.runner import EndedRollout, ProgramRunner
from rolloutlab.sampling.programs.writer import ProgramWriter
from rolloutlab.sampling.run import ProgressBar, check_concurrency, early_end
from rolloutlab.sampling.sending import Sender, sender
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection


def run_program(
    run: ProgramRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    concurrency: int,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Play the rollouts of a run; the collection that it belongs to. Arguments are those of `sample`.

    Raises:
        As `Session.rollouts`.
    """
    check_concurrency(concurrency)
    check_run(run, lab, meter)
    with closing(ProgramWriter(lab, run)) as writer:
        address = connector.address(progress.waiting)
        prepare(address)
        gateway = gateway_to(connector, address, meter)

        def take(ended: Sequence[EndedRollout]) -> None:
            writer.take(ended)
            meter.record(writer.collection)

        async def play() -> None:
            async with served(gateway) as url:
                runner = ProgramRunner(run, gateway, url, connector.http.submit, take, writer.fail)
                await runner.play(max(1, min(concurrency, writer.total, MAX_CONNECTIONS)))

        def show() -> None:
            progress.update(writer.done, writer.total, writer.note())
            tick()

        with early_end(writer, meter, progress):
            connector.http.run(play(), show, to_its_end=True)
    writer.check()
    assert writer.collection, "without a rollout the check has raised"
    return lab.by_id(writer.collection.id)


def check_run(run: ProgramRun, lab: Lab, meter: Meter) -> None:
    """Check what needs no service: the budget, and that the lab can be written."""
    meter.check(run.plan.pinned_model, max_tokens=run.plan.max_tokens)
    lab.check_writable()


def gateway_to(connector: Connector, address: Address, meter: Meter) -> Gateway:
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
