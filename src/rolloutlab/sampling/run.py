"""Run of a sampling plan: play its rollouts, store what arrives as it arrives, stop on interrupts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

from rolloutlab.api.http.client import MAX_CONNECTIONS
from rolloutlab.connection import Connector
from rolloutlab.errors import BudgetError, InputError, interrupted
from rolloutlab.sampling.chat_player import ChatPlayer, put_answers
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.programs.player import ProgramPlayer, put_rollouts
from rolloutlab.sampling.writer import TrajectoryWriter
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection

CONCURRENT = 64
"""Concurrent requests by default. The service batches them."""


class ProgressBar(Protocol):
    """A display of work under way."""

    def update(self, done: int, total: int | None, note: str = "", text: str = "") -> None:
        """Show that `done` of `total` (None: unknown) is done, and the text that has come so far."""

    def waiting(self, what: str) -> None:
        """Show at once what the run waits for."""

    def keep(self, line: str) -> None:
        """Leave this line on the screen after the work."""


def check_concurrency(concurrency: Any) -> None:
    """Raise InputError unless it is an integer ≥ 1."""
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InputError(f"concurrency must be an integer ≥ 1, not {concurrency!r}", hint="--concurrency 64")


def check_run(run: SamplingRun, lab: Lab, meter: Meter) -> None:
    """Check that the budget has a price and a bound, and that the lab can be written. This needs no service."""
    meter.check(run.plan.pinned_model, max_tokens=run.plan.max_tokens)
    lab.check_writable()


class Writer(Protocol):
    """Stores the completions of a run, and says what it has stored."""

    @property
    def collection(self) -> StoredCollection | None: ...
    def describe_interrupt(self) -> tuple[str, str]: ...
    def describe_unfinished(self) -> tuple[str, str | None]: ...
    def describe_kept(self) -> str: ...


@contextmanager
def explain_early_end(writer: Writer, meter: Meter, progress: ProgressBar) -> Iterator[None]:
    """Run a block. If it ends early, say what is stored and how to continue, in the error or in a line of its own."""
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted(error, *writer.describe_interrupt())
        raise
    except BudgetError as error:
        kept, rest = writer.describe_unfinished()
        raise BudgetError(f"{error.message}; {kept}", hint=meter.resume_hint(rest)) from None
    except BaseException:
        progress.keep(writer.describe_kept())
        raise
    finally:
        meter.close(writer.collection)


def open_writer(lab: Lab, run: SamplingRun, with_budget: Callable[[str], str] = str) -> TrajectoryWriter[Any]:
    """Open the writer of a run, and lock the stored generation that the run adds to, if any.

    with_budget: as of `TrajectoryWriter`.
    """
    put: Callable[..., None] = put_rollouts if run.program else put_answers
    return TrajectoryWriter(lab, run, partial(put, lab, run), with_budget)


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
    """Play the rollouts of a plan and store what they sample; return the collection.

    After an interrupt, everything that has arrived is stored first. Then it is counted and shown, and the lock of the
    collection is released. So another process that resumes the collection sees exactly what is missing.

    Args:
        run: the plan.
        lab: the store.
        connector: finds the service.
        progress: shows the run.
        concurrency: the most concurrent requests, or concurrent rollouts of a program.
        tick: called while this thread waits, to show sign-ins that tools need.
        meter: counts the cost of the requests.
        prepare: called with the address of the service before the first request.

    Raises:
        The errors of `Session.chat` and `Session.rollouts`.
    """
    check_concurrency(concurrency)
    check_run(run, lab, meter)
    with closing(open_writer(lab, run, meter.with_budget)) as writer:
        address = connector.address(progress.waiting)
        prepare(address)
        player = (ProgramPlayer if run.program else ChatPlayer)(run, connector, address, meter)

        def take(records: Sequence[Any]) -> None:
            writer.take(records)
            meter.record(writer.collection)

        async def play() -> None:
            with writer.under_way():
                await player.play(max(1, min(concurrency, writer.total, MAX_CONNECTIONS)), take, writer.fail)

        def show() -> None:
            progress.update(writer.done, writer.total, writer.note(player.waits), player.text)
            tick()

        with explain_early_end(writer, meter, progress):
            connector.http.run(play(), show, to_its_end=True)
    progress.keep(writer.unscored_line())
    progress.keep(writer.surplus_line())
    progress.keep(writer.trouble_line())
    writer.check()
    assert writer.collection, "writer.check() raises if nothing was stored"
    return lab.by_id(writer.collection.id)
