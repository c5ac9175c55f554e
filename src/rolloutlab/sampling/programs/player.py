"""Player of programs: calls a program for each rollout with another client, and captures what it samples.

The client speaks to a gateway on this machine, which passes requests on to the service and records the answers.
"""

import asyncio
import copy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from rolloutlab import runtime
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, Choice, Message
from rolloutlab.api.wire.trajectories import History
from rolloutlab.api.wire.turns import as_message
from rolloutlab.capture.client import RolloutClient
from rolloutlab.capture.gateway import Gateway, OnChunk
from rolloutlab.capture.rollout import CallSettings, CapturedRollout
from rolloutlab.capture.server import serve
from rolloutlab.connection import Connector
from rolloutlab.errors import (
    BudgetError,
    RefusedError,
    RewardError,
    RolloutlabError,
    SamplingError,
    ServiceError,
    described,
)
from rolloutlab.runtime import ThreadCall, finish_despite_cancellation
from rolloutlab.sampling.batches import Batches
from rolloutlab.sampling.chat_player import usage_of
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.programs import commands
from rolloutlab.sampling.rollout import Rollout
from rolloutlab.sampling.sending import EarlierTokens, Outage, Sender, ends_all, make_sender, retries_of
from rolloutlab.sanitize import replace_surrogates
from rolloutlab.settings import Address
from rolloutlab.store.arrivals import Placed, dump_arrival
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group, Score
from rolloutlab.store.rewards import finite, total

_BELOW = runtime.__file__, commands.__file__, str(Path(asyncio.__file__).parent)
"""Files and folders whose frames are left out of the traceback of a program's error."""
_MAX_NAME = 100
_MAX_LOG = 1000
"""The most characters of a component's name, and of an error in a log about what the program returned."""
_MAX_FAILURES = 8
"""Rollouts without an answered call after which the run ends, if no rollout has had an answered call yet."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a rollout ended. reason: `done`, `error` or `timeout`."""

    reason: str
    logs: Sequence[str] = ()
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EndedRollout:
    """A rollout that has ended and has sampled something; a `writer.SampledRecord`."""

    place: int
    position: int
    captured: CapturedRollout
    end: ProgramEnd
    usage: tuple[int, int]
    step: int | None
    begun: int = 1
    done: int = 1
    unscored: int = 0

    @property
    def trouble(self) -> str:
        """Why the rollout did not end well; "" if it did."""
        return "" if self.end.reason == "done" else "; ".join(self.end.logs)

    @property
    def surplus(self) -> int:
        """The number of choices that came beyond those requested."""
        return self.captured.surplus

    @cached_property
    def histories(self) -> list[History]:
        """The main history of the rollout, then the additional ones."""
        return self.captured.histories()

    @property
    def prompt(self) -> list[Message]:
        """The messages before the first answer of the rollout."""
        items = self.histories[0].messages_and_choices
        return [as_message(item) for item in takewhile(lambda item: not isinstance(item, Choice), items)]

    def extra(self, **metadata: str) -> dict[str, Any]:
        """Return further properties of the trajectory on the wire: metadata, tools, additional histories, logs."""
        main, *further = self.histories
        extra: dict[str, Any] = {"metadata": {**metadata, "episode_end": self.end.reason}}
        extra |= {"tools": [tool.to_wire() for tool in main.tools]} if main.tools else {}
        extra |= {"additional_histories": [history.to_wire() for history in further]} if further else {}
        sampled = (each for history in self.histories for each in history.messages_and_choices)
        notes = dict.fromkeys(each.ending_note for each in sampled if isinstance(each, Choice))
        logs = [*filter(None, notes), *self.captured.notes, *self.end.logs]
        return extra | ({"logs": logs} if logs else {})


class ProgramPlayer:
    """Plays the rollouts of a plan with a program, each in a thread of its own."""

    text = ""

    def __init__(self, run: SamplingRun, connector: Connector, address: Address, meter: Meter) -> None:
        assert run.program, "another player plays prompts"
        self._run = run
        self._program = run.program
        self._plan = run.plan
        self._submit = connector.http.submit
        self._gateway, self._outage = make_gateway(connector, address, meter)
        self._successes = self._failures = 0

    @property
    def waits(self) -> bool:
        """Whether the service is unreachable now."""
        return self._outage.lasts

    async def play(
        self,
        concurrency: int,
        take: Callable[[Sequence[EndedRollout]], None],
        fail: Callable[[int, RolloutlabError], None],
    ) -> None:
        """Play all rollouts to their end. Rollouts that have ended are stored even if this is cancelled.

        take: stores rollouts, in a thread. fail: called for each rollout that sampled nothing.

        Raises:
            ServiceError: the service is unreachable, or refuses the token.
            BudgetError: a call does not fit the budget.
            SamplingError: none of the first rollouts had an answered call.
        """

        def store(ended: Sequence[EndedRollout]) -> None:
            for each in ended:
                _ = each.histories  # a cached property: the histories are merged here, before `take` locks the lab
            take(ended)

        self._ended, self._fail = Batches(store), fail
        async with serve(self._gateway) as self._url:
            waiting = iter(self._run.rollouts)
            workers = [asyncio.create_task(self._worker(waiting)) for _ in range(concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                await finish_despite_cancellation(self._end(workers))

    async def _end(self, workers: Sequence[asyncio.Task[None]]) -> None:
        """Cancel the programs under way and store the rollouts that have ended; raise LabError if that fails."""
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._ended.flush_at_end()

    async def _worker(self, waiting: Iterator[Rollout]) -> None:
        for rollout in waiting:
            await self._play(rollout.place, rollout.positions[0])
            await self._ended.flush()

    async def _play(self, place: int, position: int) -> None:
        captured = self._gateway.open(settings_of(self._plan, place, position))
        client = RolloutClient(self._gateway, captured, self._url, self._submit)
        row = copy.deepcopy(dict(self._run.groups[place].row))
        thread = ThreadCall(partial(self._program.solve, row, client), f"rolloutlab-rollout-{place}-{position}")
        try:
            await asyncio.wait([asyncio.wrap_future(thread.outcome)], timeout=self._plan.timeout)
            end = read_program_end(thread, self._plan.timeout)
        finally:
            self._gateway.close(captured)
            await thread.end()
        check_service(captured)
        if not captured.completions:
            self._count_failure(captured, end)
            return
        self._successes += 1
        ended = make_ended_rollout(place, position, captured, check_last_call(captured, end))
        self._ended.add(ended)
        if self._plan.step is None and ended.step is not None:  # a group compares rollouts of one checkpoint
            self._plan = self._plan.model_copy(update={"step": ended.step})

    def _count_failure(self, captured: CapturedRollout, end: ProgramEnd) -> None:
        failure = no_call_error(captured, end, self._program.address)
        self._failures += 1
        self._fail(1, failure)
        if not self._successes and self._failures >= _MAX_FAILURES:
            raise failure


def make_gateway(
    connector: Connector, address: Address, meter: Meter
) -> tuple[Gateway, Outage[tuple[ChatRequest, OnChunk | None]]]:
    """Make a gateway that sends to a service, and the `Outage` that retries while the service is unreachable."""
    send = partial(_send, EarlierTokens(connector.http, address), make_sender(connector, address, meter))
    outage = Outage[tuple[ChatRequest, OnChunk | None]](lambda both: send(*both), retries_of(connector))
    return Gateway(lambda request, on_chunk: outage.complete((request, on_chunk))), outage


async def _send(
    earlier: EarlierTokens, answer: Sender, request: ChatRequest, on_chunk: OnChunk | None
) -> ChatCompletion:
    return await earlier.complete(request, partial(answer, on_chunk=on_chunk))


def put_rollouts(
    lab: Lab, run: SamplingRun, ended: Sequence[EndedRollout], groups: Sequence[Group], *, begins: bool
) -> None:
    """Write rollouts with their rewards, inside a transaction.

    The prompt of a group becomes the messages that all its rollouts begin with.

    Args:
        lab: the lab.
        run: the run.
        ended: the rollouts.
        groups: the stored groups, by place.
        begins: unused, as of `put_answers`.
    """
    del begins
    scores, plan = [], run.plan
    for each in ended:
        fitted = lab.fit_prompt(groups[each.place], each.prompt)
        items = each.histories[0].messages_and_choices[len(fitted.prompt) :]
        sampling = {**plan.sampling(), **each.captured.sampling}
        arrival = dump_arrival(Arrival(each.position, items, 0, each.extra()))
        lab.put_all([Placed(fitted, [arrival], plan.model, each.step, sampling, each.usage)])
        if each.end.reward is not None:
            ref = lab.refs(fitted)[each.position]
            scores.append(Score(ref, each.end.reward, each.end.components))
    if scores:
        lab.rewards.give(scores, "function")


def no_call_error(captured: CapturedRollout, end: ProgramEnd, otherwise: str) -> SamplingError:
    """Make the error of a program that got no answer.

    It says why the last call failed. otherwise: the hint if the program made no call.
    """
    failure, why = captured.failure, [*captured.notes, *end.logs]
    if failure and not any(failure.message in line for line in why):
        why.insert(0, f"its last call failed: {failure.message}")
    hint = failure.hint if failure else no_call_hint(otherwise)
    return SamplingError("; ".join(["no call of the program was answered", *why]), hint=hint)


def no_call_hint(otherwise: str) -> str:
    """Return the hint for a program that has made no call: about DSPy's cache if DSPy is imported, else `otherwise`.

    DSPy caches answers on the disk by model name, prompt and settings, but not by address. So it answers a prompt of an
    earlier run or of another rollout without a call.
    """
    return (
        "dspy.LM(..., cache=False): DSPy may have taken answers from its cache" if "dspy" in sys.modules else otherwise
    )


def check_last_call(captured: CapturedRollout, end: ProgramEnd) -> ProgramEnd:
    """Return the end of a rollout; an error without a reward if its last call failed, even if the program hid that.

    The reward would be for a conversation that the service ended, not the policy. Two cases differ:

    - The service refused the last request. Agents end so where the context is full, and the reward is for all that
      they could do. It is kept, with a log line.
    - The program cancelled its last call. That call did not fail.
    """
    if end.reason != "done" or not (captured.cut_off and captured.failure):
        return end
    logs = [f"its last call failed: {described(captured.failure)}"]
    if isinstance(captured.failure, RefusedError):
        return replace(end, logs=[*end.logs, *logs])
    if end.reward is not None:
        logs.append(f"the reward {end.reward:g} that the program returned after that is not kept")
    return ProgramEnd("error", logs)


def read_program_end(thread: ThreadCall, timeout: float) -> ProgramEnd:
    """Read how a program ended: what it returned or raised, or that it did neither within the time-out."""
    if not thread.outcome.done():
        return ProgramEnd("timeout", (f"ended after {timeout:g} s, the time-out of a rollout",))
    value, error = thread.outcome.result()
    if error is not None:  # not `if error`: the class of an exception may define its truth value
        return ProgramEnd("error", (f"ended by {_describe_error(error)}",))
    try:
        return ProgramEnd("done", (), *_read_reward(value))
    except RewardError as wrong:
        return ProgramEnd("error", (wrong.message[:_MAX_LOG],))
    except Exception as wrong:  # noqa: BLE001 - a mapping that the program defines may raise anything
        return ProgramEnd("error", (f"what the program returned cannot be read: {described(wrong)}",))


def check_service(captured: CapturedRollout) -> None:
    """Raise the error of a rollout if every other rollout would fail with it too: no budget left, or no service.

    The outcome of the program does not tell, because a program may catch the errors of its calls.
    """
    failure = captured.over_budget or captured.failure
    if isinstance(failure, BudgetError) or (isinstance(failure, ServiceError) and ends_all(failure)):
        raise failure


def settings_of(plan: SamplingConfig, place: int, position: int) -> CallSettings:
    """Return the settings of the calls of one rollout."""
    return CallSettings(plan.pinned_model, plan.fixed, partial(plan.seed_of, place, position))


def make_ended_rollout(place: int, position: int, captured: CapturedRollout, end: ProgramEnd) -> EndedRollout:
    """Make the record of a rollout that has ended, with its tokens and checkpoint."""
    usages = [usage_of(completion) for completion in captured.completions]
    usage = sum(prompt for prompt, _ in usages), sum(sampled for _, sampled in usages)
    choices = [choice for completion in captured.completions for choice in completion.choices]
    versions = [(choice.model_extra or {}).get("policy_version") for choice in choices]
    step = next((version for version in versions if isinstance(version, int)), None)
    return EndedRollout(place, position, captured, end, usage, step)


def components_of(value: Mapping[Any, Any]) -> dict[str, float]:
    """Read the components of a reward, with names that can be stored: at most 100 characters, no lone surrogates.

    Raises:
        RewardError: a component is not a finite number, or two have the same name once it is cut.
    """
    named = {replace_surrogates(str(name), _MAX_NAME): each for name, each in value.items()}
    if len(named) < len(value):
        raise RewardError(f"two components have the same name in its first {_MAX_NAME} characters")
    return {name: finite(each, f"the component {name}") for name, each in named.items()}


def _read_reward(value: Any) -> tuple[float | None, dict[str, float]]:
    """Read the reward and the components from what a program returned; raise RewardError for anything else."""
    if value is None or value == {}:
        return None, {}
    if isinstance(value, Mapping):
        parts = components_of(value)
        return total(parts.values(), "the rollout"), parts
    return finite(value, "the rollout"), {}


def _describe_error(error: BaseException) -> str:
    """Describe an exception by its type, its text, and the line of the program that raised it."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(_BELOW)]
    where = f" (line {frames[0].lineno} of {frames[0].name})" if frames else ""
    return described(error) + where
