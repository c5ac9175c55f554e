"""Run of a sampling plan: send its rollouts to the service, store completions as they arrive, stop on interrupts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

from rolloutlab.api.http.client import MAX_CONNECTIONS
from rolloutlab.connection import Connector
from rolloutlab.errors import BudgetError, InputError, interrupted
from rolloutlab.sampling.earlier_tokens import EarlierTokens
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.rollout import RolloutRunner
from rolloutlab.sampling.sending import sender
from rolloutlab.sampling.writer import PreparedAnswer, TrajectoryWriter
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection

CONCURRENT = 64
"""Requests under way at once; the service batches those."""


class ProgressBar(Protocol):
    """A display of work under way."""

    def update(self, done: int, total: int | None, note: str = "", text: str = "") -> None:
        """Show that `done` of `total` (None: unknown) is done, and the text that has come so far."""

    def waiting(self, what: str) -> None:
        """Show at once what is waited for."""

    def keep(self, line: str) -> None:
        """Leave this line on the screen after the work."""


def check_concurrency(concurrency: Any) -> None:
    """InputError unless it is an integer ≥ 1."""
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InputError(f"concurrency must be an integer ≥ 1, not {concurrency!r}", hint="--concurrency 64")


class Writer(Protocol):
    """Stores the completions of a run, and tells what it has stored."""

    @property
    def collection(self) -> StoredCollection | None: ...
    def interrupted(self) -> tuple[str, str]: ...
    def unfinished(self) -> tuple[str, str | None]: ...
    def kept(self) -> str: ...


@contextmanager
def early_end(writer: Writer, meter: Meter, progress: ProgressBar) -> Iterator[None]:
    """Make a context manager for a run: if the run ends early, the error tells what is stored and how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted(error, *writer.interrupted())
        raise
    except BudgetError as error:
        kept, rest = writer.unfinished()
        raise BudgetError(f"{error.message}; {kept}", hint=meter.more(rest)) from None
    except BaseException:
        progress.keep(writer.kept())
        raise
    finally:
        meter.close(writer.collection)


def sample(
    run: SamplingRun,
    lab: Lab,
    connector: Connector,
    progress: ProgressBar,
    concurrency: int,
    tick: Callable[[], None],
    meter: Meter,
    prepare: Callable[[Address], object] = lambda _: None,
) -> StoredCollection:
    """Run the rollouts of a plan and store their completions; returns the collection.

    After an interrupt, everything that has arrived is stored before it is counted or shown, and before the lock of the
    collection is released. Another process that resumes the collection therefore sees exactly what is missing.

    Args:
        run: the plan.
        lab: the store.
        connector: finds the service.
        progress: shows the run.
        concurrency: requests under way at once.
        tick: called while this thread waits, to show sign-ins that tools need.
        meter: counts the cost of the requests.
        prepare: called with the address of the service before the first request.

    Raises:
        As `Session.chat`.
    """
    check_concurrency(concurrency)
    meter.check(run.plan.pinned_model, max_tokens=run.plan.max_tokens)
    lab.check_writable()
    with closing(TrajectoryWriter(lab, run)) as writer:
        address = connector.address(progress.waiting)
        prepare(address)

        def take(answers: Sequence[PreparedAnswer]) -> None:
            writer.take(answers)
            meter.record(writer.collection)

        async def play() -> None:
            with writer.under_way():
                await runner.play(run.rollouts, min(concurrency, writer.total, MAX_CONNECTIONS))

        def show() -> None:
            progress.update(writer.done, writer.total, writer.note(runner.waits), writer.text)
            tick()

        # an embedded service that is gone comes back at another address
        again = connector.http.retries() if connector.settings.service else None
        send = partial(sender(connector, address, meter), on_text=writer.say if writer.total == 1 else None)
        ask = partial(EarlierTokens(connector.http, address).complete, send=send)
        played = run.episodes()
        runner = RolloutRunner(run.plan, run.groups, ask, run.tools, writer.prepare, take, writer.fail, again, played)
        with early_end(writer, meter, progress):
            connector.http.run(play(), show, to_its_end=True)
    progress.keep(writer.unscored())
    writer.check()
    assert writer.collection, "writer.check() raises if nothing was stored"
    return lab.by_id(writer.collection.id)
