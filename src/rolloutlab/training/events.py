"""Events of a training job, polled from its service, and the time that is left."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from pydantic import ValidationError

from rolloutlab.api import training
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.job_state import STATUS, job_progress
from rolloutlab.api.wire.training import ENDINGS, Event
from rolloutlab.errors import NotFoundError, NotOfferedError
from rolloutlab.settings import Address


class Clock:
    """Estimates the time left from the rows that are done. Rows done before its first update do not count."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def update(self, done: int) -> None:
        if done and (self._last is None or done > self._last[1]):
            self._last = (monotonic(), done)
            self._first = self._first or self._last

    def left(self, done: int, rows: int | None) -> float | None:
        """Seconds until all rows are done; None where there is no estimate."""
        if not rows or self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        pace = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, (rows - done) * pace)


_AS_EVENT = {status: kind for kind, status in STATUS.items() if status != "queued"}
_POLL = 0.05
_SLOWEST_POLL = 1.0


class EventReader:
    """`events` are those read so far, each once and in order; several tasks may read at once.

    Where a service has no events endpoint, they are derived from the job's status; where it has no job endpoint either,
    the reader is `silent` and has ended: the job trains, and its progress is unknown.
    known: recorded events of the job. on_events: called on the loop's thread whenever events have come, with the number
    of rows that were done before them; 0 where the job began again.
    """

    def __init__(self, http: HttpClient, job_id: str, known: Sequence[Event], on_events: Callable[[int], None]) -> None:
        self._http = http
        self._job_id = job_id
        self._on_events = on_events
        self._clock = Clock()
        self.events: list[Event] = list(known)
        self.silent = False

    @property
    def has_ended(self) -> bool:
        return self.silent or (bool(self.events) and self.events[-1].type in ENDINGS)

    @property
    def left(self) -> float | None:
        """Seconds until the job has ended, if the pace is known."""
        done, rows, _ = job_progress(self.events)
        return self._clock.left(done, rows)

    async def read(self, address: Address) -> bool:
        """Poll once; whether there were new events."""
        last = self.events[-1] if self.events else None
        try:
            new = await training.events(self._http, address, self._job_id, last.id if last else None)
        except NotOfferedError:
            new = await self._from_status(address)
        except NotFoundError as error:
            raise NotFoundError(
                f"the service has no job {self._job_id[:8]}: it never arrived there, or was deleted with its model",
                hint="%%train submits another",
            ) from error
        if new and last is (self.events[-1] if self.events else None):  # no other task has read them meanwhile
            self._take(new)
        return bool(new)

    async def follow(self, address: Address, is_watched: Callable[[], bool] = lambda: True) -> None:
        """Read until the job has ended, or is not watched any more."""
        pause = _POLL
        while not self.has_ended and is_watched():
            pause = _POLL if await self.read(address) else min(pause * 1.5, _SLOWEST_POLL)
            if not self.has_ended:
                await asyncio.sleep(pause)

    async def _from_status(self, address: Address) -> list[Event]:
        """The new events that follow from the job's status."""
        try:
            job = await training.job(self._http, address, self._job_id)
        except (NotFoundError, ValidationError):
            self.silent = True
            return []
        kind = _AS_EVENT.get(job.status)
        if kind is None or kind in {event.type for event in self.events}:
            return []
        data: dict[str, Any] = {}
        if kind == "training_failed":
            data = {"error_message": job.error or "the service gave no reason"}
        elif kind == "training_ended" and job.final_step is not None:
            data = {"step": job.final_step}
        saved = [Event(id="saved", type="checkpoint_saved", data=data)] if data.get("step") else []
        return [*saved, Event(id=kind, type=kind, data=data)]

    def _take(self, new: Sequence[Event]) -> None:
        restarted = any(event.type == "restarted" for event in new)
        before = 0 if restarted else job_progress(self.events)[0]
        self.events += new
        if restarted:
            self._clock = Clock()
        self._clock.update(job_progress(self.events)[0])
        self._on_events(before)
