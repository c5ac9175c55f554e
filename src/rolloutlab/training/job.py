"""Training jobs: the events that a service reports, and a handle to wait for a job, cancel it and show it live."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rolloutlab.api import training
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.job_state import NO_REASON, STATUS, fraction_done, job_progress, since_restart, status, step_made
from rolloutlab.api.wire.base import moment
from rolloutlab.api.wire.training import ENDINGS, Event, TrainingJob
from rolloutlab.errors import JobFailedError, NotFoundError, NotOfferedError, RolloutlabError, interrupted
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import Address
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import job as render
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.overview import Overview
from rolloutlab.widgets.pages import Bundle
from rolloutlab.widgets.plot import Panels
from rolloutlab.widgets.progress import Progress

if TYPE_CHECKING:
    import pandas as pd


class RemainingTime:
    """Estimates the time left from the gradient steps that are done, fractions included.

    Steps that were done before the first update are left out, because it is not known when they were done.
    """

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last: tuple[float, float] | None = None

    def update(self, done: float) -> None:
        """Record that so many gradient steps are done now."""
        if done and (self._last is None or done > self._last[1]):
            self._last = (monotonic(), done)
            self._first = self._first or self._last

    def seconds_left(self, done: float, rows: int | None) -> float | None:
        """Estimate the seconds until all rows (gradient steps) are done; None if there is no estimate."""
        if not rows or self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        pace = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, (rows - done) * pace)


_AS_EVENT = {status: kind for kind, status in STATUS.items() if status != "queued"}
_POLL = 0.05
_SLOWEST_POLL = 1.0


Newest = Callable[[Address], Awaitable[int | None]]
"""Asks a service for the step of the newest checkpoint of a model; None if it is not known."""


class EventReader:
    """Reads the events of a job: `events` has those read so far, each once and in order.

    Several tasks may read at once. If a service has no events endpoint, events are derived from the job's status. If it
    has no job endpoint either, the reader is `silent` and has ended: the job trains, and its progress is unknown.

    Args:
        http: the client.
        job_id: the job.
        known: recorded events of the job.
        on_events: called on the thread of the event loop when events have come, with the number of gradient steps done
            before these events; 0 after a restart of the job.
        newest: asks for the checkpoint that the job made, if the event of its end does not report it.
    """

    def __init__(
        self,
        http: HttpClient,
        job_id: str,
        known: Sequence[Event],
        on_events: Callable[[int], None],
        newest: Newest | None = None,
    ) -> None:
        self._http = http
        self._newest = newest
        self._job_id = job_id
        self._on_events = on_events
        self._remaining = RemainingTime()
        self.events: list[Event] = list(known)
        self.silent = False

    @property
    def has_ended(self) -> bool:
        """Whether no further events will come."""
        return self.silent or (bool(self.events) and self.events[-1].type in ENDINGS)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the job has ended, if the pace is known."""
        return self._remaining.seconds_left(fraction_done(self.events), job_progress(self.events)[1])

    async def read(self, address: Address) -> bool:
        """Poll once; return whether there were new events."""
        last = self.events[-1] if self.events else None
        try:
            new = await training.events(self._http, address, self._job_id, last.id if last else None)
        except NotOfferedError:
            new = await self._derive_from_status(address)
        except NotFoundError as error:
            raise NotFoundError(
                f"the service has no job {self._job_id[:8]}: it never arrived there, or was deleted with its model",
                hint="%%train submits another",
            ) from error
        new = [await self._add_step(address, event) for event in new]
        if new and last is (self.events[-1] if self.events else None):  # no other task has read them meanwhile
            self._take(new)
        return bool(new)

    async def follow(self, address: Address, is_watched: Callable[[], bool] = lambda: True) -> None:
        """Read until the job has ended, or is not watched any more."""
        pause = least = max(_POLL, dialect_of(address).poll_seconds)
        while not self.has_ended and is_watched():
            pause = least if await self.read(address) else min(pause * 1.5, _SLOWEST_POLL)
            if not self.has_ended:
                await asyncio.sleep(pause)

    async def _add_step(self, address: Address, event: Event) -> Event:
        """Return the event. If it is the end of a job without a checkpoint, add the newest checkpoint of the model."""
        if event.type != "training_ended" or "step" in event.data or self._newest is None:
            return event
        step = await self._newest(address)
        return event if step is None else event.model_copy(update={"data": {**event.data, "step": step}})

    async def _derive_from_status(self, address: Address) -> list[Event]:
        """Derive new events from the job's status, for a service without an events endpoint."""
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
            data = {"error_message": job.error or NO_REASON}
        elif kind == "training_ended" and job.final_step is not None:
            data = {"step": job.final_step}
        saved = [Event(id="saved", type="checkpoint_saved", data=data | _duration_of(job))] if data.get("step") else []
        return [*saved, Event(id=kind, type=kind, data=data)]

    def _take(self, new: Sequence[Event]) -> None:
        restarted = any(event.type == "restarted" for event in new)
        before = 0 if restarted else job_progress(self.events)[0]
        self.events += new
        if restarted:
            self._remaining = RemainingTime()
        self._remaining.update(fraction_done(self.events))
        self._on_events(before)


def _duration_of(job: TrainingJob) -> dict[str, float]:
    """Return how long a job trained, as data of an event; empty unless its service has both times."""
    if not job.started_at or not job.ended_at:
        return {}
    return {"seconds": (moment(job.ended_at) - moment(job.started_at)).total_seconds()}


_RETRY_SECONDS = 3.0
_SILENT = "accepted; the service does not report on its jobs, so how it goes is not known here"
_LEASE = 900.0
"""Seconds for which a job is still followed after a browser's last `watch` call; a page calls every minute."""


class Job(NotebookView):
    """A submitted job. Its view is computed from the events read so far; `wait` reads until the job has ended.

    In a notebook it is a live view of the events as they come.

    Args:
        http: the client.
        find: returns the address of its service; `find(False)` never starts the service. Views use that.
        job_id: its id at the service.
        model: the model that it trains.
        collections: names of the collections that it trains on.
        ended: called at the end of the job with all of its events.
        known: its events that the lab has recorded.
        compare: the command that compares checkpoints on one of its collections.
        options: the options that it was submitted with.
        newest: see `EventReader`.
        trained_on: finds the overview of its collection, if that is a single one.
    """

    module = "job"

    def __init__(
        self,
        http: HttpClient,
        find: Callable[[bool], Address],
        job_id: str,
        model: str,
        collections: Sequence[str] = (),
        ended: Callable[[Sequence[Event]], None] = lambda _: None,
        known: Sequence[Event] = (),
        compare: str = "",
        options: Mapping[str, Any] | None = None,
        newest: Newest | None = None,
        trained_on: Callable[[], Overview | None] = lambda: None,
    ) -> None:
        self._http = http
        self._find = find
        self._on_end = ended
        self.id = job_id
        self.model = model
        self._collections = tuple(collections)
        self._compare = compare
        self._find_trained_on = trained_on
        self._options = options or {}
        self._reader = EventReader(http, job_id, known, self._push_events, newest)
        self._follower: Future[Any] | None = None
        self._waits = False
        self._watched_at = 0.0
        self._trouble = ""
        self._listeners: list[Callable[..., None]] = []

    def events(self) -> list[Event]:
        """Return all events so far; only new ones are requested."""
        if not self._reader.has_ended:  # an ended job needs no service, which may be gone
            self._http.run(self._reader.read(self._find(True)))
            self._notify()
        return list(self._events)

    @property
    def status(self) -> str:
        """queued, running, succeeded, failed or cancelled."""
        self.events()
        return status(self._events)

    @property
    def step(self) -> int | None:
        """The checkpoint that the job made, once it has."""
        self.events()
        return step_made(self._events)

    def metrics(self) -> "pd.DataFrame":
        """Return a row per gradient step: loss, entropy, grad_norm, ratio_mean, ratio_max, clipped, masked and more."""
        steps = [e.data for e in since_restart(self.events()) if e.type == "gradient_step"]
        return data_frame(steps, range(len(steps)), None)

    def plot(self, *names: str) -> Panels:
        """Plot each of these numbers over the gradient steps; by default reward, loss, entropy and grad_norm.

        A number that no step reports, such as the reward in supervised fine-tuning, gets no chart.
        """
        steps = [e.data for e in since_restart(self.events()) if e.type == "gradient_step"]
        return render.plot(self.model, steps, names or render.PLOTTED)

    def wait(self, *, progress: bool = True) -> "Job":
        """Follow the job until it has ended. Interrupting the wait leaves the job running.

        Raises:
            JobFailedError: it failed or was cancelled; the message says why.
        """
        if not self._reader.has_ended:
            self._wait(progress)
        self._notify()
        if self._reader.silent:
            return self
        end = self._events[-1]
        if end.type == "training_failed":
            raise JobFailedError(f"the job failed: {end.data.get('error_message') or NO_REASON}", hint="%service log")
        if end.type == "training_cancelled":
            raise JobFailedError(f"the job {self.id} was cancelled", hint="%%train submits another")
        return self

    def _wait(self, progress: bool) -> None:
        address = self._find(True)
        live = self if progress and self.can_be_seen() else None
        with Progress(f"training {self.model}", visible=progress, view=live) as bar:
            self._waits = True
            try:
                self._http.run(self._reader.follow(address), lambda: self._update(bar))
            except KeyboardInterrupt as error:
                short = self.id[:8]
                interrupted(error, "the job goes on", f"%job {short} --wait follows it, %job {short} --cancel ends it")
                raise
            finally:
                self._waits = False
                if status(self._events) != "succeeded":
                    bar.leave()
                    self.follow()

    def _update(self, bar: Progress) -> None:
        done, rows, note = job_progress(self._events)
        part = fraction_done(self._events) - done
        bar.update(done, rows, render.step_under_way(self._events) or note, part=part)

    def cancel(self) -> "Job":
        """Have the service end the job, even within a gradient step. A cancelled job makes no checkpoint."""
        self._http.run(training.cancel_job(self._http, self._find(True), self.id))
        return self

    def follow(self) -> None:
        """Read events in the background for views, until the job ends or no view has called for `_LEASE` seconds."""
        self._watched_at = monotonic()
        under_way = self._waits or (self._follower is not None and not self._follower.done())
        if self._has_views() and not under_way and not self._reader.has_ended:
            self._follower = self._http.begin(self._follow_for_a_view())

    def listen(self, listener: Callable[..., None]) -> None:
        """Pass every `push` to another widget too, which shows the job inside."""
        self._listeners.append(listener)

    def push(self, event: str, **data: Any) -> None:
        super().push(event, **data)
        for listener in self._listeners:
            listener(event, **data)

    def state(self) -> Mapping[str, Any]:
        """Return the state of the view: `head` (see `widgets.job.head`), curves, and numbers of every gradient step."""
        known = render.curves_of(self._options)
        numbers = render.numbers_of(since_restart(list(self._events)), curves=known)
        curves = [{"title": c.title, "names": c.names, "healthy": c.healthy, "first": c.first} for c in known]
        return {"head": self._head(), "curves": curves, "numbers": numbers}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"watch": self._watch, "cancel": self._stop}

    def _watch(self) -> Mapping[str, Any]:
        """For a browser: follow the job and return its full state. New events will be pushed."""
        self.follow()
        return self.state()

    def _stop(self) -> Mapping[str, Any]:
        """For a browser: cancel the job; return the head of its view."""
        self.cancel()
        self.follow()
        return self._head()

    def _repr_mimebundle_(self, **options: Any) -> Bundle:
        bundle = super()._repr_mimebundle_(**options)
        self.follow()
        return bundle

    def _head(self) -> dict[str, Any]:
        events = list(self._events)
        about = self._collections, self._compare, self._options, self._trained_on
        head = render.head(self.model, events, *about)
        return {**head, "id": self.id[:8], "left": self._reader.seconds_left, "trouble": self._trouble}

    @cached_property
    def _trained_on(self) -> Overview | None:
        """The overview of its collection when the job was first shown; None if the collection was deleted."""
        try:
            return self._find_trained_on()
        except NotFoundError:
            return None

    @property
    def _events(self) -> list[Event]:
        return self._reader.events

    def _has_views(self) -> bool:
        return "widget" in self.__dict__ or bool(self._listeners)

    def _notify(self) -> None:
        """Pass on that the job has ended, or set why its end will not be known here."""
        if self._reader.silent:
            self._trouble = _SILENT
        elif self._reader.has_ended:
            self._on_end(list(self._events))

    def _push_events(self, before: int) -> None:
        """Push what new events change in the view. before: the gradient steps that were done before them."""
        self._trouble = ""
        if self._has_views():
            numbers = render.numbers_of(since_restart(self._events), before, render.curves_of(self._options))
            self.push("news", head=self._head(), begin=before, numbers=numbers)

    async def _follow_for_a_view(self) -> None:
        """Read events until the job ends. Show any error; after a RolloutlabError try again, else raise it."""
        while not self._reader.has_ended and self._is_watched():
            try:
                await self._reader.follow(await asyncio.to_thread(self._find, False), self._is_watched)
                await asyncio.to_thread(self._notify)
            except RolloutlabError as error:
                self._push_trouble(f"{error.message} -> {error.hint}" if error.hint else error.message)
                if isinstance(error, NotFoundError):
                    return
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception as error:
                self._push_trouble(f"{type(error).__name__}: {error}")
                raise

    def _push_trouble(self, trouble: str) -> None:
        self._trouble = escape_control_chars(trouble)
        self.push("news", head=self._head(), begin=job_progress(self._events)[0], numbers={})

    def _is_watched(self) -> bool:
        return monotonic() - self._watched_at < _LEASE

    def __repr__(self) -> str:
        return render.text(self.model, self._events, self._options) + f"\n  {_SILENT}" * self._reader.silent

    def _repr_html_(self) -> str:
        about = self._options, self._collections, self._compare, self._trained_on
        shown = render.html(self.model, self._events, *about)
        return for_notebook(shown + f"<p>{_SILENT}</p>" * self._reader.silent)
