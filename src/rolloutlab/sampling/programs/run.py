"""Run of a program over rows: a gateway before the service, rollouts, storage, interrupts."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from rolloutlab.api.http.client import MAX_CONNECTIONS
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.capture.gateway import Gateway, OnChunk
from rolloutlab.capture.server import served
from rolloutlab.connection import Connector
from rolloutlab.errors import RolloutlabError, SamplingError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.earlier_tokens import EarlierTokens
from rolloutlab.sampling.generation import Generation
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.outage import Outage
from rolloutlab.sampling.programs.plan import ProgramRun, run_again, to_resume
from rolloutlab.sampling.programs.runner import EndedRollout, ProgramRunner
from rolloutlab.sampling.run import ProgressBar, check_concurrency, early_end
from rolloutlab.sampling.sending import Sender, sender
from rolloutlab.settings import Address
from rolloutlab.store.arrivals import Placed, dump_arrival
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, Score, StoredCollection

_SOURCE = "function"


class ProgramWriter:
    """Writes rollouts into a generation of a collection, which is created with the first one; `close` unlocks it."""

    def __init__(self, lab: Lab, run: ProgramRun) -> None:
        self._lab = lab
        self._run = run
        self._generation = Generation(lab, run.name, run.plan, run.groups, run.begun, "rollouts")
        self.close = self._generation.close
        self.total, self.done, self.failed, self.tokens = len(run.seats), 0, 0, 0
        self._first_error: RolloutlabError | None = None
        self._since = time.monotonic()

    @property
    def collection(self) -> StoredCollection | None:
        """The generation, once it is stored."""
        return self._generation.collection

    def take(self, ended: Sequence[EndedRollout]) -> None:
        """Store rollouts with their rewards, at once; a generation is created with its first ones."""
        for each in ended:
            _ = each.histories  # merged before the lab is locked
        step = next((each.step for each in ended if each.step is not None), None)
        self._generation.store(partial(self._put, ended), step)
        self.done += len(ended)
        self.tokens += sum(each.usage[1] for each in ended)

    def fail(self, error: RolloutlabError) -> None:
        """Count a rollout that sampled nothing."""
        self.failed += 1
        self._first_error = self._first_error or error

    def check(self) -> None:
        """SamplingError when some rollouts sampled nothing."""
        if error := self._first_error:
            if not self.done:
                raise error
            missing = f"{self.failed:,} of {count(self.total, 'rollout')} of {self._generation.label}"
            message = f"{missing} sampled nothing: {error.message}"
            raise SamplingError(message, hint=self._rest()) from error

    def kept(self) -> str:
        """What is stored after an error, and what to type to continue."""
        return f"{self._so_far()}; they are kept -> {self._rest()}" if self.done else ""

    def interrupted(self) -> tuple[str, str]:
        """Message and hint after an interrupt."""
        if not self.done:
            return "no rollout had ended yet, and nothing was stored", run_again(self._run.program)
        rest = f"plays the other {self.total - self.done:,}"
        if self._run.program.typed:  # words after a command would be taken for its own
            return f"{self._so_far()} and are kept; this {rest}:", self._rest()
        return f"{self._so_far()} and are kept", f"{self._rest()} {rest}"

    def unfinished(self) -> tuple[str, str | None]:
        """What a budget has left over, and what goes on; None for the same cell."""
        if not self.done:
            return "nothing was sampled", None
        return f"{self._so_far()} and are kept, {self.total - self.done:,} are not sampled yet", self._rest()

    def note(self) -> str:
        """Failures and speed."""
        seconds = time.monotonic() - self._since
        parts = [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join([*parts, *([f"{self.tokens / seconds:,.0f} tokens/s"] if self.done else [])])

    def _so_far(self) -> str:
        return f"{self.done:,} of {count(self.total, 'rollout')} had ended"

    def _rest(self) -> str:
        return to_resume(self._generation.label, self._run.program.name, self._run.program.typed)

    def _put(self, ended: Sequence[EndedRollout], groups: Sequence[Group]) -> None:
        scores, plan = [], self._run.plan
        for each in ended:
            fitted = self._lab.fit_prompt(groups[each.place], each.prompt)
            items = each.histories[0].messages_and_choices[len(fitted.prompt) :]
            sampling = {**plan.sampling(), **each.captured.sampling}
            arrival = dump_arrival(Arrival(each.position, items, 0, each.extra()))
            self._lab.put_all([Placed(fitted, [arrival], plan.model, each.step, sampling, each.usage)])
            if each.end.reward is not None:
                ref = self._lab.refs(fitted)[each.position]
                scores.append(Score(ref, each.end.reward, each.end.components))
        if scores:
            self._lab.rewards.give(scores, _SOURCE)


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
