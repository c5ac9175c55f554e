"""A thread that decodes everything asked for at the moment, one batch per checkpoint in use."""

import threading
from collections import deque
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlab.policy.decode import Ask, Decoder, Finish, Sampled
from rolloutlab.policy.model import Adapter, Policy

MAX_BATCH = 256
"""Completions decoded at the same time, over all checkpoints; the others wait their turn."""

MAX_LANES = 8
"""Checkpoints in use at the same time."""

PREFILL_TOKENS = 8192
"""Prompt tokens, padding included, read between two steps: what a newcomer may cost those who are under way."""


@dataclass
class _Request:
    """A client's request: its completions may join the batch at different steps, its answer is given when all ended."""

    adapter: Adapter
    waiting: deque[Ask]
    future: "Future[list[Sampled]]"
    wanted: int
    ended: list[Sampled] = field(default_factory=list)

    def end(self, row: Sampled) -> None:
        self.ended.append(row)
        if len(self.ended) == self.wanted:
            with suppress(InvalidStateError):  # the client gave up in this very moment
                self.future.set_result(sorted(self.ended, key=lambda r: r.ask.index))

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class _Lane:
    """A batch under one adapter. The base's tensors are shared by all lanes."""

    def __init__(self, policy: Policy, adapter: Adapter) -> None:
        self._policy = policy
        self._model: Any = None
        self.running: dict[int, _Request] = {}
        self.carry(adapter)

    def carry(self, adapter: Adapter) -> None:
        """Put another adapter in use; the lane is empty."""
        self.adapter: Adapter | None = None
        self._model = self._policy.speaker(adapter, self._model)
        self._decoder = Decoder(self._model, self._policy.end_ids)
        self.adapter = adapter

    def admit(self, joining: Sequence[tuple[_Request, Ask]]) -> None:
        self.running.update({id(ask): request for request, ask in joining})
        self._decoder.admit([ask for _, ask in joining])

    def step(self) -> None:
        if self.running:
            for row in self._decoder.step():
                self.running.pop(id(row.ask)).end(row)

    def refuse(self, joining: Sequence[tuple[_Request, Ask]], error: Exception) -> None:
        """Tell those who could not join; the others of the batch go on."""
        for request, ask in joining:
            self.running.pop(id(ask), None)
            request.fail(error)

    def fail(self, error: Exception) -> None:
        """Tell everyone in this batch, and begin with an empty one."""
        failed, self.running = self.running, {}
        self._decoder = Decoder(self._model, self._policy.end_ids)
        for request in failed.values():
            request.fail(error)


class Sampler:
    """Continuous batching: requests join and leave at any step, first come first served.

    Every checkpoint in use has a batch of its own over shared base weights, and the batches take a step in turn, so a
    busy checkpoint does not keep another waiting.
    """

    def __init__(
        self,
        policy: Policy,
        max_batch: int = MAX_BATCH,
        max_lanes: int = MAX_LANES,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        self._policy = policy
        self._prefill_tokens = prefill_tokens
        self._max_batch = max_batch
        self._max_lanes = max_lanes
        self._lanes: list[_Lane] = []
        self._queue: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def submit(self, adapter: Adapter, asks: Sequence[Ask]) -> "Future[list[Sampled]]":
        """Queue completions under an adapter; cancelling the future stops their decoding.

        Requests with the very same adapter object share a batch.
        """
        future: Future[list[Sampled]] = Future()
        waiting = deque(replace(ask, watch=_leaving(ask, future)) for ask in asks)
        if not waiting:
            future.set_result([])
        with self._changed:
            if self._closed:
                future.cancel()
            self._queue.append(_Request(adapter, waiting, future, len(waiting)))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Stop after the current step; what was not answered is cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        running = [request for lane in self._lanes for request in lane.running.values()]
        for request in {id(r): r for r in [*self._queue, *running]}.values():
            request.future.cancel()

    def _run(self) -> None:
        while self._wait_for_work():
            for lane, joining in self._joining():
                try:
                    lane.admit(joining)
                except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
                    lane.refuse(joining, error)
            for lane in self._lanes:
                try:
                    lane.step()
                except Exception as error:  # noqa: BLE001 - likewise
                    lane.fail(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue or any(lane.running for lane in self._lanes))
            return not self._closed

    def _joining(self) -> list[tuple[_Lane, list[tuple[_Request, Ask]]]]:
        """Who joins which lane now: from the head of the queue, for as long as there is room."""
        found: dict[int, tuple[_Lane, list[tuple[_Request, Ask]]]] = {}
        room = self._max_batch - sum(len(lane.running) for lane in self._lanes)
        prompts = longest = 0
        while self._queue and room > 0:
            request = self._queue[0]
            if request.future.done() or not request.waiting:
                self._queue.popleft()
                continue
            prompts, longest = prompts + 1, max(longest, len(request.waiting[0].prompt))
            if prompts > 1 and prompts * longest > self._prefill_tokens:
                break
            try:
                lane = self._lane(request.adapter, found)
            except Exception as error:  # noqa: BLE001 - an adapter that does not fit is this request's error alone
                request.fail(error)
                continue
            if lane is None:
                break
            some = [(request, request.waiting.popleft()) for _ in range(min(room, len(request.waiting)))]
            found.setdefault(id(lane), (lane, []))[1].extend(some)
            room -= len(some)
        return list(found.values())

    def _lane(self, adapter: Adapter, taken: Container[int]) -> _Lane | None:
        """The lane of this adapter, else an idle or a new one, else None: the request waits until one is idle."""
        idle = None
        for lane in self._lanes:
            if lane.adapter is adapter:
                return lane
            if not lane.running and id(lane) not in taken:
                idle = lane
        if idle is not None:
            idle.carry(adapter)
        elif len(self._lanes) < self._max_lanes:
            idle = _Lane(self._policy, adapter)
            self._lanes.append(idle)
        return idle


def _leaving(ask: Ask, future: "Future[list[Sampled]]") -> Callable[[Sampled], Finish | None]:
    """What the ask watches for, and whether anyone still waits for the answer."""

    def watch(row: Sampled) -> Finish | None:
        if future.done():
            return "abandoned"
        try:
            return ask.watch(row) if ask.watch else None
        except Exception as error:  # noqa: BLE001 - it is this request's error, not its neighbours'
            with suppress(InvalidStateError):
                future.set_exception(error)
            return "abandoned"

    return watch
