"""Continuous batching of completions in a thread, with one batch per checkpoint in use."""

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlab.policy.decode import Completion, CompletionRequest, Decoder, Finish
from rolloutlab.policy.model import Adapter, Policy

MAX_BATCH = 256
"""Completions decoded at the same time, over all checkpoints; the others are queued."""
MAX_LANES = 8
"""Checkpoints in use at the same time."""
PREFILL = 8192
"""Prompt tokens, padding included, prefilled between two steps: what newcomers may delay the running completions."""


Completions = Future[list[Completion]]
Newcomers = list[tuple["_Submission", CompletionRequest]]
"""The requests that join a batch."""


@dataclass
class _Submission:
    """The requests of one `submit`: they may join the batch at different steps; the future waits for all."""

    adapter: Adapter
    waiting: deque[CompletionRequest]
    future: Completions
    count: int
    ended: list[Completion] = field(default_factory=list)

    def end(self, row: Completion) -> None:
        self.ended.append(row)
        if len(self.ended) == self.count:
            with suppress(InvalidStateError):  # the client has just cancelled it
                self.future.set_result(sorted(self.ended, key=lambda r: r.request.index))

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Lane:
    """The batch of one adapter. Base weights are shared by all lanes."""

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        self._policy = policy
        self._model: Any = None
        self.running: dict[int, _Submission] = {}
        self.load(adapter)

    def load(self, adapter: Adapter) -> None:
        """Load another adapter into an empty lane."""
        self.adapter: Adapter | None = None
        self._model = self._policy.with_adapter(adapter, self._model)
        self._decoder = Decoder(self._model, self._policy.end_ids)
        self.adapter = adapter

    def admit(self, newcomers: Newcomers) -> None:
        self.running.update({id(request): submission for submission, request in newcomers})
        self._decoder.admit([request for _, request in newcomers])

    def step(self) -> None:
        if self.running:
            for row in self._decoder.step():
                self.running.pop(id(row.request)).end(row)

    def refuse(self, newcomers: Newcomers, error: Exception) -> None:
        """Fail the newcomers; the running completions go on."""
        for submission, request in newcomers:
            self.running.pop(id(request), None)
            submission.fail(error)

    def fail(self, error: Exception) -> None:
        """Fail the whole batch, and start with an empty one."""
        failed, self.running = self.running, {}
        self._decoder = Decoder(self._model, self._policy.end_ids)
        for submission in failed.values():
            submission.fail(error)


class Sampler:
    """Continuous batching: requests join and leave at any step, first come first served.

    Each checkpoint in use has its own batch over shared base weights; batches step in turn, so that a busy checkpoint
    does not block another.
    """

    def __init__(
        self, policy: Policy, max_batch: int = MAX_BATCH, max_lanes: int = MAX_LANES, prefill_tokens: int = PREFILL
    ) -> None:
        self._policy = policy
        self._prefill_tokens = prefill_tokens
        self._max_batch = max_batch
        self._max_lanes = max_lanes
        self._lanes: list[_Lane] = []
        self._queue: deque[_Submission] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def submit(self, adapter: Adapter, requests: Sequence[CompletionRequest]) -> Completions:
        """Queue completions under an adapter; cancelling the future stops their decoding.

        Requests with the same adapter object share a batch.
        """
        future: Completions = Future()
        waiting = deque(replace(request, watch=_until_done(request, future)) for request in requests)
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
        running = [submission for lane in self._lanes for submission in lane.running.values()]
        for submission in {id(r): r for r in [*self._queue, *running]}.values():
            submission.future.cancel()

    def _run(self) -> None:
        while self._wait_for_work():
            for lane, newcomers in self._joining():
                try:
                    lane.admit(newcomers)
                except Exception as error:  # noqa: BLE001 - it goes to the futures; the thread must not end
                    lane.refuse(newcomers, error)
            for lane in self._lanes:
                try:
                    lane.step()
                except Exception as error:  # noqa: BLE001 - likewise
                    lane.fail(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue or any(lane.running for lane in self._lanes))
            return not self._closed

    def _joining(self) -> list[tuple[_Lane, Newcomers]]:
        """The requests that join each lane now: from the head of the queue while there is room."""
        joining: dict[int, tuple[_Lane, Newcomers]] = {}
        room = self._max_batch - sum(len(lane.running) for lane in self._lanes)
        prompts = longest = 0
        while self._queue and room > 0:
            submission = self._queue[0]
            if submission.future.done() or not submission.waiting:
                self._queue.popleft()
                continue
            prompts, longest = prompts + 1, max(longest, len(submission.waiting[0].prompt))
            if prompts > 1 and prompts * longest > self._prefill_tokens:
                break
            try:
                lane = self._lane(submission.adapter, joining)
            except Exception as error:  # noqa: BLE001 - an adapter that does not fit is this request's error alone
                submission.fail(error)
                continue
            if lane is None:
                break
            newcomers = [(submission, submission.waiting.popleft()) for _ in range(min(room, len(submission.waiting)))]
            joining.setdefault(id(lane), (lane, []))[1].extend(newcomers)
            room -= len(newcomers)
        return list(joining.values())

    def _lane(self, adapter: Adapter, taken: Container[int]) -> _Lane | None:
        """The lane of this adapter, an idle one or a new one; None while all are busy."""
        idle = None
        for lane in self._lanes:
            if lane.adapter is adapter:
                return lane
            if not lane.running and id(lane) not in taken:
                idle = lane
        if idle is not None:
            idle.load(adapter)
        elif len(self._lanes) < self._max_lanes:
            idle = _Lane(self._policy, adapter)
            self._lanes.append(idle)
        return idle


def _until_done(request: CompletionRequest, future: Completions) -> Callable[[Completion], Finish | None]:
    """The request's `watch`, and an end when its future is cancelled."""

    def watch(row: Completion) -> Finish | None:
        if future.done():
            return "abandoned"
        try:
            return request.watch(row) if request.watch else None
        except Exception as error:  # noqa: BLE001 - it must not fail the other requests of the batch
            with suppress(InvalidStateError):
                future.set_exception(error)
            return "abandoned"

    return watch
