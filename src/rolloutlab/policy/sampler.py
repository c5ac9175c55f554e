"""Continuous batching of completions in a thread, with a batch for each checkpoint; the batches take turns."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.policy.decode import Completion, CompletionRequest, Decoder, Finish
from rolloutlab.policy.model import Adapter, Policy
from rolloutlab.policy.share import release_memory
from rolloutlab.policy.threads import Threads, end_helpers

MAX_BATCH = 256
"""Completions decoded at the same time, over all checkpoints; the others are queued."""
MAX_CACHED = 131_072
"""Tokens, padding included, that are cached at the same time, over all checkpoints.

A token takes 2 · layers · key-value heads · head size · bytes of the dtype: 12 KB in a policy of Qwen2.5-0.5B's shape.
"""
MAX_LANES = 8
"""Checkpoints in use at the same time."""
PREFILL = 8192
"""Prompt tokens, padding included, prefilled between two steps: limits how long newcomers delay running completions."""
LARGE = 32
"""Requests for more completions than this have a batch of their own, so that steps of small requests stay short."""
_LARGE_SHARE = 0.5
"""The share of both limits (completions and cached tokens) that large requests may take together.

So small requests need not wait for room, nor long for a step to end."""
_LARGE_COST = 4.0
"""A second of computation for large requests counts as so many, because small requests wait for their steps.

Measured with the practice policy: beside a request with n = 512 the p95 of short chats was 40 and 47 ms; with a cost of
2.0 it was 52 and 64 ms.
"""
_HEADROOM = 0.125
"""The share of cached tokens left free when completions join, for the tokens that they will sample."""
_TURN = 16
"""At most so many completions of one request join before it is the turn of the next request in the queue."""


Completions = Future[list[Completion]]
Watch = Callable[[Completion], Finish | None]
Watcher = Callable[[CompletionRequest], Watch | None]
Newcomers = list[tuple["_Submission", Completion]]
"""The completions that join a batch."""


@dataclass
class _Submission:
    """The requests of one `submit`: they may join the batch at different steps; the future waits for all.

    waiting: completions that are not in a batch; preempted ones have tokens already.
    """

    adapter: Adapter
    waiting: deque[Completion]
    future: Completions
    count: int
    ended: list[Completion] = field(default_factory=list)

    @property
    def large(self) -> bool:
        return self.count > LARGE

    def take(self, count: int) -> list[Completion]:
        """Take at most `count` waiting completions that continue the same tokens as the first."""
        ids, taken = self.waiting[0].ids, [self.waiting.popleft()]
        while self.waiting and len(taken) < count and self.waiting[0].ids == ids:
            taken.append(self.waiting.popleft())
        return taken

    def end(self, row: Completion) -> None:
        self.ended.append(row)
        if len(self.ended) == self.count:
            with suppress(InvalidStateError):  # the client has just cancelled it
                self.future.set_result(sorted(self.ended, key=lambda r: r.request.index))

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Batch:
    """Completions under one adapter that are decoded together.

    used: seconds of computation so far; the scheduler lets the batch with the fewest go next. used_before: the value of
    `used` before the last step.
    """

    def __init__(self, model: Any, end_ids: frozenset[int], *, large: bool) -> None:
        self._model, self._end_ids = model, end_ids
        self.large = large
        self.used = self.used_before = 0.0
        self.decoder = Decoder(model, end_ids)
        self.running: dict[int, _Submission] = {}
        self.joining: Newcomers = []

    @property
    def count(self) -> int:
        return len(self.running) + len(self.joining)

    @property
    def length(self) -> int:
        """Positions of each completion after the next step."""
        return max([self.decoder.length, *(len(row.ids) for _, row in self.joining)]) + 1

    @property
    def cached(self) -> int:
        """Cached tokens after the next step, without those of prompts that are only kept."""
        return self.count * self.length

    def admit(self) -> None:
        """Prefill what joins; an error of it fails the requests that join, and the running completions go on."""
        newcomers, self.joining = self.joining, []
        self.running.update({id(row): submission for submission, row in newcomers})
        try:
            with self._timed():
                self.decoder.resume([row for _, row in newcomers])
        except Exception as error:  # noqa: BLE001 - it goes to the futures; the thread must not end
            for submission, row in newcomers:
                self.running.pop(id(row), None)
                submission.fail(error)

    def step(self) -> None:
        """Sample a token of each completion; an error fails all of them."""
        try:
            with self._timed():
                ended = self.decoder.step()
        except Exception as error:  # noqa: BLE001 - likewise
            failed, self.running = self.running, {}
            self.decoder = Decoder(self._model, self._end_ids)
            for submission in failed.values():
                submission.fail(error)
            return
        for row in ended:
            self.running.pop(id(row)).end(row)

    def preempt(self, count: int) -> Newcomers:
        """Take the newest completions out."""
        return [(self.running.pop(id(row)), row) for row in self.decoder.preempt(count)]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun, self.used_before = time.perf_counter(), self.used
        try:
            yield
        finally:
            self.used += (time.perf_counter() - begun) * (_LARGE_COST if self.large else 1)


class _Lane:
    """The batches of one adapter: one of large requests and one of small ones. All lanes share the base weights."""

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        self._policy = policy
        self._model: Any = None
        self.load(adapter)

    def load(self, adapter: Adapter) -> None:
        """Load another adapter into an idle lane."""
        self.adapter: Adapter | None = None
        self.batches: dict[bool, _Batch] = {}
        self._model = self._policy.with_adapter(adapter, self._model)
        self._policy.packed.use_in(self._model)
        self.batches = {large: _Batch(self._model, self._policy.end_ids, large=large) for large in (False, True)}
        self.adapter = adapter

    @property
    def idle(self) -> bool:
        return not any(batch.count for batch in self.batches.values())


class Sampler:
    """Continuous batching: completions join and leave at any step. Requests take turns at the room that is free.

    Each checkpoint in use has a batch for large requests and one for the others, over shared base weights. The next
    step is of the batch that has computed for the shortest time, so that neither a large request nor a busy checkpoint
    blocks others. Where the cache outgrows `max_cached`, the newest completions leave and are prefilled again later.
    """

    def __init__(
        self,
        policy: Policy,
        max_batch: int = MAX_BATCH,
        max_lanes: int = MAX_LANES,
        prefill_tokens: int = PREFILL,
        max_cached: int = MAX_CACHED,
        threads: Threads | None = None,
    ) -> None:
        self._policy = policy
        self._threads = threads or Threads()
        self._prefill_tokens = prefill_tokens
        self._max_batch = max_batch
        self._max_lanes = max_lanes
        self._max_cached = max_cached
        self._lanes: list[_Lane] = []
        self._queue: deque[_Submission] = deque()
        """Submissions with waiting completions, in the order of their turns."""
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def submit(
        self, adapter: Adapter, requests: Sequence[CompletionRequest], watch: Watcher = lambda _: None
    ) -> Completions:
        """Queue completions under an adapter; cancelling the future stops their decoding.

        Requests with the same adapter object share a batch. watch: gives the function that watches each completion.
        """
        future: Completions = Future()
        waiting = deque(Completion(request, watch=_until_done(watch(request), future)) for request in requests)
        if not waiting:
            future.set_result([])
        with self._changed:
            if self._closed:
                future.cancel()
            self._queue.append(_Submission(adapter, waiting, future, len(waiting)))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Stop after the current step; unfinished futures are cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        running = [submission for batch in self._batches() for submission in batch.running.values()]
        for submission in {id(r): r for r in [*self._queue, *running]}.values():
            submission.future.cancel()

    def _run(self) -> None:
        while self._wait_for_work():
            self._threads.take_for_sampling()
            self._let_join()
            for batch in [batch for batch in self._batches() if batch.joining]:
                if not batch.running:  # start-time fair queueing: an idle batch keeps neither credit nor debt
                    batch.used = min((each.used_before for each in self._running()), default=0.0)
                batch.admit()
            self._preempt()
            if running := self._running():
                min(running, key=lambda batch: batch.used).step()

    def _batches(self) -> list[_Batch]:
        return [batch for lane in self._lanes for batch in lane.batches.values()]

    def _running(self) -> list[_Batch]:
        return [batch for batch in self._batches() if batch.running]

    def _wait_for_work(self) -> bool:
        with self._changed:
            idle = not self._queue and not self._running()
        if idle and not self._policy.small:  # a small one keeps its last prompts for the next chat
            for batch in self._batches():
                batch.decoder.release()
            release_memory()
            end_helpers()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue or self._running())
            return not self._closed

    def _let_join(self) -> None:
        """Choose the completions that join each batch now: some of each request in the queue while there is room."""
        full: list[_Submission] = []
        prompts: set[tuple[int, ...]] = set()
        while self._queue:
            submission = self._queue[0]
            if submission.future.done():
                self._queue.popleft()
                continue
            prompts.add(submission.waiting[0].ids)
            if len(prompts) > 1 and len(prompts) * max(map(len, prompts)) > self._prefill_tokens:
                break
            try:
                lane = self._lane(submission.adapter)
            except Exception as error:  # noqa: BLE001 - an adapter that does not fit is this request's error alone
                submission.fail(error)
                continue
            if lane is None:
                break
            batch, length = lane.batches[submission.large], len(submission.waiting[0].ids)
            if (room := self._room(batch, length, self._batches(), 1.0)) < 1:
                break
            self._queue.popleft()
            if submission.large:
                room = min(room, self._room(batch, length, [b for b in self._batches() if b.large], _LARGE_SHARE))
            if room < 1:  # for large requests alone: others go on
                full.append(submission)
                continue
            batch.joining += [(submission, row) for row in submission.take(min(room, _TURN))]
            if submission.waiting:
                self._queue.append(submission)
        self._queue.extendleft(reversed(full))

    def _room(self, batch: _Batch, length: int, batches: Sequence[_Batch], share: float) -> int:
        """How many completions of `length` tokens may join, if `batches` may take `share` of both limits together."""
        count = int(self._max_batch * share) - sum(each.count for each in batches)
        cached = int(self._max_cached * share * (1 - _HEADROOM)) - sum(b.cached for b in batches if b is not batch)
        fits = min(count, cached // max(batch.length, length + 1) - batch.count)
        return fits if any(each.count for each in batches) else max(fits, 1)  # one at least, however long it is

    def _preempt(self) -> None:
        """Free cached tokens beyond the limit: kept prompts, then the newest completions, of large requests first.

        One completion of each batch goes on, however long it is.
        """
        running = self._running()
        kept = sum(batch.decoder.kept_tokens for batch in self._batches())  # of idle ones, too
        if sum(batch.cached for batch in running) + kept <= self._max_cached:
            return
        for batch in self._batches():
            batch.decoder.forget_prompts()
        for batch in sorted(running, key=lambda each: (each.large, each.cached), reverse=True):
            excess = sum(each.cached for each in running) - self._max_cached
            count = min(batch.count - 1, -(-excess // batch.length))
            for submission, row in batch.preempt(count) if count > 0 else ():
                if not submission.waiting:
                    self._queue.appendleft(submission)
                submission.waiting.append(row)

    def _lane(self, adapter: Adapter) -> _Lane | None:
        """The lane of this adapter, an idle one or a new one; None while all are busy."""
        idle = None
        for lane in self._lanes:
            if lane.adapter is adapter:
                return lane
            if lane.idle:
                idle = lane
        if idle is not None:
            idle.load(adapter)
        elif len(self._lanes) < self._max_lanes:
            idle = _Lane(self._policy, adapter)
            self._lanes.append(idle)
        return idle


def _until_done(watch: Watch | None, future: Completions) -> Watch:
    """The watch of a completion, and an end when its future is cancelled."""

    def watched(row: Completion) -> Finish | None:
        if future.done():
            return "abandoned"
        try:
            return watch(row) if watch else None
        except Exception as error:  # noqa: BLE001 - it must not fail the other requests of the batch
            with suppress(InvalidStateError):
                future.set_exception(error)
            return "abandoned"

    return watched
