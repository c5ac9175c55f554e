"""A thread that decodes everything asked for at the moment in one batch."""

import threading
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rolloutlab.policy.decode import Ask, Decoder, Sampled
from rolloutlab.policy.model import Adapter, Policy, write_adapter

MAX_BATCH = 256
"""Completions decoded at the same time; the others wait their turn."""


@dataclass
class _Request:
    """A client's request: its completions may join the batch at different steps, its answer is given when all ended."""

    key: Hashable
    adapter: Adapter
    waiting: deque[Ask]
    future: "Future[list[Sampled]]"
    wanted: int
    ended: list[Sampled] = field(default_factory=list)


class Sampler:
    """Continuous batching over one copy of the policy. One adapter is in use at a time; requests go first come first.

    A request for another adapter waits until the running batch has drained; requests for the same one join it.
    """

    def __init__(self, policy: Policy, max_batch: int = MAX_BATCH) -> None:
        self._policy = policy
        self._max_batch = max_batch
        self._model = policy.carrier()
        self._decoder = Decoder(self._model, policy.end_ids)
        self._current: Hashable = None
        self._queue: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def submit(self, key: Hashable, adapter: Adapter, asks: Sequence[Ask]) -> "Future[list[Sampled]]":
        """Queue completions under the adapter that `key` names; cancelling the future stops their decoding."""
        future: Future[list[Sampled]] = Future()
        waiting = deque(replace(ask, abandoned=future.cancelled) for ask in asks)
        with self._changed:
            if self._closed:
                future.cancel()
            self._queue.append(_Request(key, adapter, waiting, future, len(waiting)))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Stop after the current step; what was not answered is cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        for request in {id(r): r for r in [*self._queue, *self._running.values()]}.values():
            request.future.cancel()

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._admit()
                if len(self._decoder):
                    for row in self._decoder.step():
                        self._end(row)
            except Exception as error:  # noqa: BLE001 - whatever it was, those who wait must hear of it
                self._fail(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._queue or len(self._decoder))
            return not self._closed

    def _admit(self) -> None:
        """Fill the batch from the head of the queue while the adapter stays the same."""
        asks: list[Ask] = []
        while self._queue and (room := self._max_batch - len(self._decoder) - len(asks)) > 0:
            request = self._queue[0]
            if request.future.cancelled():
                self._queue.popleft()
                continue
            if request.key != self._current:
                if len(self._decoder) or asks:
                    break
                if not self._switch(request):
                    continue
            joining = [request.waiting.popleft() for _ in range(min(room, len(request.waiting)))]
            self._running.update({id(ask): request for ask in joining})
            asks += joining
            if not request.waiting:
                self._queue.popleft()
        if asks:
            self._decoder.admit(asks)

    def _switch(self, request: _Request) -> bool:
        """Put the request's adapter in use; one that does not fit is that request's error alone."""
        self._current = None
        try:
            write_adapter(self._model, request.adapter)
        except Exception as error:  # noqa: BLE001 - whatever it was, the one who waits must hear of it
            self._queue.popleft()
            with suppress(InvalidStateError):
                request.future.set_exception(error)
            return False
        self._current = request.key
        return True

    def _end(self, row: Sampled) -> None:
        request = self._running.pop(id(row.ask))
        request.ended.append(row)
        if len(request.ended) == request.wanted:
            with suppress(InvalidStateError):  # the client gave up in this very moment
                request.future.set_result(sorted(request.ended, key=lambda r: r.ask.index))

    def _fail(self, error: Exception) -> None:
        self._decoder = Decoder(self._model, self._policy.end_ids)
        self._current = None
        failed = {id(r): r for r in self._running.values()}
        self._running.clear()
        for request in failed.values():
            request.waiting.clear()
            with suppress(InvalidStateError):
                request.future.set_exception(error)
        with self._changed:
            self._queue = deque(r for r in self._queue if not r.future.done())
