"""The events of a training job, as its service tells them."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from pydantic import ValidationError

from rolloutlab.api import training
from rolloutlab.api.events import job_progress
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.training import ENDINGS, Event
from rolloutlab.errors import NotFoundError, NotOfferedError
from rolloutlab.settings import Address


class Clock:
    """Counts rows as they are seen to be done. What was done before it first looked says nothing about the pace."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def see(self, done: int) -> None:
        """So many rows are done by now."""
        if done and (self._last is None or done > self._last[1]):
            self._last = (monotonic(), done)
            self._first = self._first or self._last

    def left(self, done: int, rows: int | None) -> float | None:
        """Seconds until all rows are done; None where nobody can know."""
        if not rows or self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        pace = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, (rows - done) * pace)


_AS_EVENT = {
    "running": "training_started",
    "succeeded": "training_ended",
    "failed": "training_failed",
    "cancelled": "training_cancelled",
}
_POLL = 0.05
_SLOWEST_POLL = 1.0


class EventReader:
    """`events` are those read so far, each once and in order; any number of readers may ask for more at once.

    Where a service reports no events, what it says of the job itself stands for them; where it does not even show the
    job, the feed is `silent` and has ended: it trains, and nothing more is heard of it.
    known: events that were kept of the job. news: told, on the loop's thread, whenever events have come, with how many
    rows were done before them; 0 where the job began again.
    """

    def __init__(self, http: HttpClient, job_id: str, known: Sequence[Event], news: Callable[[int], None]) -> None:
        self._http = http
        self._job_id = job_id
        self._news = news
        self._clock = Clock()
        self.events: list[Event] = list(known)
        self.silent = False

    @property
    def has_ended(self) -> bool:
        return self.silent or (bool(self.events) and self.events[-1].type in ENDINGS)

    @property
    def left(self) -> float | None:
        """Seconds until the job has ended, where the pace so far tells."""
        done, rows, _ = job_progress(self.events)
        return self._clock.left(done, rows)

    async def read(self, address: Address) -> bool:
        """Ask once for what is new; whether there was anything."""
        last = self.events[-1] if self.events else None
        try:
            new = await training.events(self._http, address, self._job_id, last.id if last else None)
        except NotOfferedError:
            new = await self._shown(address)
        except NotFoundError as error:
            raise NotFoundError(
                f"the service has no job {self._job_id[:8]}: it never arrived there, or was deleted with its model",
                hint="%%train submits another",
            ) from error
        if new and last is (self.events[-1] if self.events else None):  # nobody else has read them meanwhile
            self._take(new)
        return bool(new)

    async def follow(self, address: Address, wanted: Callable[[], bool] = lambda: True) -> None:
        """Read on until the job has ended, or nobody wants it."""
        pause = _POLL
        while not self.has_ended and wanted():
            pause = _POLL if await self.read(address) else min(pause * 1.5, _SLOWEST_POLL)
            if not self.has_ended:
                await asyncio.sleep(pause)

    async def _shown(self, address: Address) -> list[Event]:
        """What the job itself says that is not known yet, as events."""
        try:
            shown = await training.job(self._http, address, self._job_id)
        except (NotFoundError, ValidationError):
            self.silent = True
            return []
        step, known = shown.final_step, {event.type for event in self.events}
        data: dict[str, dict[str, Any]] = {
            "training_started": {},
            "training_ended": {} if step is None else {"step": step},
            "training_failed": {"error_message": shown.error or "its service does not say why"},
            "training_cancelled": {},
        }
        kind = _AS_EVENT.get(shown.status)
        if kind is None or kind in known:
            return []
        saved = [Event(id="saved", type="checkpoint_saved", data={"step": step})] if data[kind].get("step") else []
        return [*saved, Event(id=kind, type=kind, data=data[kind])]

    def _take(self, new: Sequence[Event]) -> None:
        restarted = any(event.type == "restarted" for event in new)
        before = 0 if restarted else job_progress(self.events)[0]
        self.events += new
        if restarted:
            self._clock = Clock()
        self._clock.see(job_progress(self.events)[0])
        self._news(before)
