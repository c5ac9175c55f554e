"""Rollouts: conversations sampled turn by turn, each completion passed on as it arrives."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.wire.chat import (
    ChatCompletion,
    ChatRequest,
    Choice,
    FunctionTool,
    Message,
    MessageOrChoice,
    ToolMessage,
)
from rolloutlab.api.wire.turns import as_message
from rolloutlab.environments.record import EpisodeRecord
from rolloutlab.errors import RefusedError, ServiceError
from rolloutlab.objective.preflight import count
from rolloutlab.runtime import finish_despite_cancellation
from rolloutlab.sampling.batches import Batches
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.sending import Complete, Outage, ends_all
from rolloutlab.sampling.tools import Tools, call_name, offered_tools
from rolloutlab.store.models import Group, NewGroup, StoredTrajectory

if TYPE_CHECKING:
    from rolloutlab.sampling.episodes import Episodes

_MAX_N = 128  # OpenAI's own limit of `n`

_MAX_FAILURES = 8  # failed requests after which the run ends, if none has succeeded yet

_MAX_UNSTORED = 1024
"""Completions waiting for the disk at which requests pause, so that a slow disk does not fill the memory."""

_GC_THRESHOLD = 50_000
"""Objects between garbage collections while sampling; Python's 700 are reached by two completions' tokens."""

T = TypeVar("T")
Prepare = Callable[[Sequence["Rollout"], ChatCompletion | None], T]
"""A function that makes the record to store for conversations of one group after one completion.

The completion is None if the conversations ended without one: the service refused it, or the environment ended them."""


@dataclass(frozen=True)
class Rollout:
    """A conversation in progress.

    Before the first completion, one Rollout with several positions stands for all conversations of a group. With an
    environment, each conversation has a Rollout of its own from the start.

    place: the index of its group in the plan.
    positions: the positions of its conversations in the group.
    pending: the number of answers that are still to come; 0 once the conversation has ended.
    items: messages and choices after the prompt.
    logs: notes that are stored with the conversation.
    episode: the record of its episode in an environment.
    tools: the tools that this conversation alone is offered, besides those of the plan.
    """

    place: int
    positions: tuple[int, ...]
    pending: int
    items: tuple[MessageOrChoice, ...] = ()
    logs: tuple[str, ...] = ()
    episode: EpisodeRecord | None = None
    tools: tuple[FunctionTool, ...] = ()


def new_rollouts(place: int, positions: Sequence[int], group: Group | NewGroup, plan: SamplingConfig) -> list[Rollout]:
    """List new conversations of one group, in as few requests as possible.

    Each rollout of a program, and each episode, is a `Rollout` of its own.
    """
    size = _MAX_N if plan.env is None and plan.program is None else 1
    chunks = [positions[i : i + size] for i in range(0, len(positions), size)]
    tools = offered_tools(group.row, plan)
    return [Rollout(place, tuple(chunk), len(group.script), tools=tools) for chunk in chunks]


def missing_rollouts(place: int, group: Group, plan: SamplingConfig) -> list[Rollout]:
    """List the missing conversations of a stored group: unfinished ones, and those that have not begun."""
    stored = {t.position: t for t in group.trajectories}
    begun = [_read_stored(place, group, t, t.pending, plan.tools) for t in stored.values() if t.pending]
    missing = [] if plan.continues else [i for i in range(plan.size_of(place)) if i not in stored]
    return begun + new_rollouts(place, missing, group, plan)


def continued_rollouts(place: int, group: Group, turns: int, tools: Sequence[FunctionTool]) -> list[Rollout]:
    """List the conversations of a stored group, to be continued by `turns` answers. tools: the tools of the plan.

    A tool call without a result gets an error as its result.
    """
    return [_read_stored(place, group, t, turns, tools, _close_calls(t)) for t in group.trajectories]


def _read_stored(
    place: int,
    group: Group,
    trajectory: StoredTrajectory,
    pending: int,
    tools: Sequence[FunctionTool],
    closed: Sequence[ToolMessage] = (),
) -> Rollout:
    """Read a stored conversation. Tools that its environment or row offered besides `tools` are offered again."""
    items, logs = (*trajectory.items[len(group.prompt) :], *closed), tuple(trajectory.extra.get("logs", ()))
    known = {tool.function.name for tool in tools}
    described = map(FunctionTool.model_validate, trajectory.extra.get("tools") or ())
    own = tuple(tool for tool in described if tool.function.name not in known)
    return Rollout(place, (trajectory.position,), pending, items, logs, tools=own)


def with_next_prompt(rollout: Rollout, group: Group | NewGroup) -> Rollout:
    """Add the next lines of its script to a rollout."""
    return replace(rollout, items=(*rollout.items, *group.script[len(group.script) - rollout.pending]))


def request_of(rollout: Rollout, group: Group | NewGroup, plan: SamplingConfig) -> ChatRequest:
    """Make the request for the next answer of a rollout."""
    turn = sum(isinstance(item, Choice) for item in rollout.items)
    seed = plan.seed_of(rollout.place, rollout.positions[0], turn)
    return plan.request(messages_of(rollout, group), len(rollout.positions), seed, rollout.tools)


def messages_of(rollout: Rollout, group: Group | NewGroup) -> list[Message]:
    """Return the conversation of a rollout so far."""
    return [*group.prompt, *map(as_message, rollout.items)]


class RolloutRunner(Generic[T]):
    """Runs rollouts with concurrent requests.

    Args:
        plan: the settings of the requests.
        groups: the groups of the rollouts; `Rollout.place` is an index into them.
        complete: sends a request.
        tools: answers tool calls.
        prepare: called with each completion as it arrives; returns the record that waits to be stored.
        store: called with batches of these records, in a thread, so that requests continue while it writes.
        on_failure: called with the number of conversations of a failed request and its error; the others continue.
        retries: for an outage of the service; None for no retry.
        episodes: the environments of the rollouts, if the plan has one.
    """

    def __init__(
        self,
        plan: SamplingConfig,
        groups: Sequence[Group | NewGroup],
        complete: Complete,
        tools: Tools,
        prepare: Prepare[T],
        store: Callable[[Sequence[T]], None],
        on_failure: Callable[[int, ServiceError], None],
        retries: Retries | None = None,
        episodes: "Episodes | None" = None,
    ) -> None:
        self._plan = plan
        self._episodes = episodes
        self._groups = groups
        self._outage = Outage(complete, retries)
        self._tools = tools
        self._on_failure = on_failure
        self._prepare = prepare
        self._answered = Batches[T](store)
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._successes = 0
        self._failures = 0

    @property
    def waits(self) -> bool:
        """Whether the service is unreachable now."""
        return self._outage.lasts

    async def play(self, rollouts: Iterable[Rollout], concurrency: int) -> None:
        """Run all rollouts to their end. Conversations that have begun go first.

        Everything that has arrived is passed to `store`, even after an error or a cancellation at any time.

        Raises:
            ServiceError: the service is unreachable, it refuses the token, or every request fails. If the service is
                lost after it has answered, the requests under way are awaited first. Any other error cancels them.
        """
        waiting: asyncio.PriorityQueue[tuple[int, int, int, Rollout]] = asyncio.PriorityQueue()
        for rollout in rollouts:
            waiting.put_nowait(_rank(rollout))
        workers = [asyncio.create_task(self._worker(waiting)) for _ in range(concurrency)]
        tasks = [asyncio.create_task(waiting.join()), asyncio.create_task(self._store_batches()), *workers]
        try:
            with _collect_garbage_rarely():
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._queue_ended(self._episodes.take_held_back(any_answer=bool(self._successes)) if self._episodes else ())
        finally:
            await finish_despite_cancellation(self._end(tasks))

    async def _end(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        """Cancel the requests under way and store everything that has arrived; raise LabError if that fails."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._answered.flush_at_end()
        finally:
            if self._episodes:
                await self._episodes.close_all()

    async def _store_batches(self) -> None:
        """Store answers in batches: all that became ready in one iteration of the event loop are stored together."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            self._room.set()
            await self._answered.flush()

    def _queue_answer(self, rollouts: Sequence[Rollout], completion: ChatCompletion | None) -> None:
        self._answered.add(self._prepare(rollouts, completion))
        self._arrived.set()
        if len(self._answered) >= _MAX_UNSTORED:
            self._room.clear()

    def _queue_ended(self, rollouts: Iterable[Rollout]) -> None:
        for rollout in rollouts:
            self._queue_answer([rollout], None)

    async def _worker(self, waiting: "asyncio.PriorityQueue[tuple[int, int, int, Rollout]]") -> None:
        while True:
            await self._room.wait()
            *_, rollout = await waiting.get()
            for following in await self._advance(rollout):
                waiting.put_nowait(_rank(following))
            waiting.task_done()

    async def _advance(self, rollout: Rollout) -> list[Rollout]:
        """Sample one more answer; returns the rollouts that still have turns to come."""
        ready = await self._prepare_next(rollout)
        if self._episodes and not ready.pending:
            self._queue_ended(self._episodes.take_ended(ready, any_answer=bool(self._successes)))
            return []
        try:
            completion = await self._outage.complete(request_of(ready, self._groups[ready.place], self._plan))
        except ServiceError as error:
            self._failures += 1
            if ends_all(error) or (not self._successes and self._failures >= _MAX_FAILURES):
                raise
            if isinstance(error, RefusedError) and any(isinstance(item, Choice) for item in ready.items):
                ended = _end_rollout(rollout, f"ended: {error.message}")
                self._queue_ended([await self._episodes.end_refused(ready, error) if self._episodes else ended])
                return []
            self._on_failure(len(rollout.positions), error)
            if self._episodes:
                await self._episodes.close(rollout)
            return []
        self._successes += 1
        # a service may return more choices than requested: they are left out here, and `prepare` counts them
        new = [self._add_answer(ready, *pair) for pair in zip(ready.positions, completion.choices, strict=False)]
        self._queue_answer(new, completion)
        # or fewer: the missing ones are requested again, each time as many as it has returned
        missing = ready.positions[len(new) :]
        rest = [replace(ready, positions=missing[i : i + len(new)]) for i in range(0, len(missing), len(new))]
        return rest + [following for following in new if following.pending]

    async def _prepare_next(self, rollout: Rollout) -> Rollout:
        """Add the messages before the next answer: from the environment, the tools, or the script."""
        if self._episodes:
            return await self._episodes.prepare_next(rollout)
        last = rollout.items[-1] if rollout.items else None
        if isinstance(last, Choice) and last.message.tool_calls:
            results, troubles = await self._tools.answer(last.message.tool_calls)
            return replace(rollout, items=(*rollout.items, *results), logs=(*rollout.logs, *troubles))
        return with_next_prompt(rollout, self._groups[rollout.place])

    def _add_answer(self, rollout: Rollout, position: int, choice: Choice) -> Rollout:
        """Add an answer to one conversation of a rollout, and decide whether the conversation goes on."""
        note = choice.ending_note
        logs = (*rollout.logs, note) if note else rollout.logs
        after = replace(rollout, positions=(position,), items=(*rollout.items, choice), logs=logs)
        if self._episodes:  # the environment decides whether the episode goes on, once it has the answer
            return after
        described = {tool.function.name for tool in rollout.tools}
        if called := described.intersection(map(call_name, choice.message.tool_calls or ())):
            early = [f"ended with a call of {min(called)}, which no function answers"]
            return _end_rollout(after, *(early if rollout.pending > 1 else []))
        if choice.message.tool_calls and self._tools.schemas:
            if _calls_in_a_row(after.items) < self._plan.max_turns:
                return after
            return _end_rollout(after, f"ended after {self._plan.max_turns} answers in a row that called tools")
        if choice.finish_reason in {"length", "content_filter"} and rollout.pending > 1:
            why = "is incomplete" if note else "was cut off by max_tokens"
            return _end_rollout(after, f"ended {count(rollout.pending - 1, 'turn')} early: the last answer {why}")
        return replace(after, pending=rollout.pending - 1)


@contextmanager
def _collect_garbage_rarely() -> Iterator[None]:
    """Collect garbage less often in the block.

    Tokens are freed by reference counts, and scanning them takes a third of the CPU time.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _GC_THRESHOLD:  # collection is off, or another run has set the threshold and will reset it
        yield
        return
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _end_rollout(rollout: Rollout, *why: str) -> Rollout:
    return replace(rollout, pending=0, logs=(*rollout.logs, *why))


def _rank(rollout: Rollout) -> tuple[int, int, int, Rollout]:
    """Put a rollout behind its rank in the queue: the longest conversations first, then in the order of the plan."""
    return -len(rollout.items), rollout.place, rollout.positions[0], rollout


def _calls_in_a_row(items: Sequence[MessageOrChoice]) -> int:
    """Count the answers at the end of a conversation that have only tool results between them."""
    since = takewhile(lambda item: isinstance(item, Choice | ToolMessage), reversed(items))
    return sum(isinstance(item, Choice) for item in since)


def _close_calls(trajectory: StoredTrajectory) -> list[ToolMessage]:
    """Make an error as the result of each tool call in the last answer, which has none yet."""
    last = trajectory.items[-1] if trajectory.items else None
    calls = (last.message.tool_calls or []) if isinstance(last, Choice) else []
    return [ToolMessage(role="tool", tool_call_id=call.id, content="error: not called") for call in calls]
