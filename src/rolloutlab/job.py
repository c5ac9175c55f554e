"""A training job, as a notebook holds it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from rolloutlab.client import training
from rolloutlab.errors import JobFailedError
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.widgets import job as view
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.events import ENDINGS, Event

if TYPE_CHECKING:
    import pandas as pd

_POLL = 0.05
_SLOWEST_POLL = 1.0


class Job:
    """A submitted job. What it shows is a fold over the events that it has read; `wait` reads on until the end."""

    def __init__(self, http: Http, find: Callable[[], Address], job_id: str, model: str) -> None:
        self._http = http
        self._find = find
        self.id = job_id
        self.model = model
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """All events so far; only the new ones are asked for."""
        if not self._ended():
            self._http.run(self._read(self._find()))
        return list(self._events)

    @property
    def status(self) -> str:
        """queued, running, succeeded, failed or cancelled."""
        self.events()
        return view.status(self._events)

    @property
    def step(self) -> int | None:
        """The checkpoint that the job made, once it has."""
        ends = [event.data.get("step") for event in self.events() if event.type == "training_ended"]
        return ends[0] if ends else None

    def metrics(self) -> "pd.DataFrame":
        """One row per gradient step: loss, entropy, grad_norm, ratio_mean, ratio_max, clipped, masked and more."""
        import pandas as pd

        return pd.DataFrame([e.data for e in view.since_restart(self.events()) if e.type == "gradient_step"])

    def wait(self, *, progress: bool = True) -> "Job":
        """Follow the job until it has ended. Interrupting the wait leaves the job running.

        Raises:
            JobFailedError: it failed or was cancelled; the message says why.
        """
        address = self._find()
        with Progress(f"training {self.model}", visible=progress) as shown:
            try:
                self._http.run(self._follow(address), lambda: shown.update(*view.progress(self._events)))
            except KeyboardInterrupt:
                shown.keep(f"the job goes on: %job {self.id[:8]} --wait")
                raise
        end = self._events[-1]
        if end.type == "training_failed":
            raise JobFailedError(f"the job failed: {end.data.get('error_message')}", hint="%service log")
        if end.type == "training_cancelled":
            raise JobFailedError(f"the job {self.id} was cancelled", hint="%%train submits another")
        return self

    def cancel(self) -> "Job":
        """Ask the service to end the job at its next row; its step then does not count."""
        self._http.run(training.cancel_job(self._http, self._find(), self.id))
        return self

    async def _read(self, address: Address) -> bool:
        new = await training.events(self._http, address, self.id, self._events[-1].id if self._events else None)
        self._events += new
        return bool(new)

    async def _follow(self, address: Address) -> None:
        pause = _POLL
        while not self._ended():
            pause = _POLL if await self._read(address) else min(pause * 1.5, _SLOWEST_POLL)
            if not self._ended():
                await asyncio.sleep(pause)

    def _ended(self) -> bool:
        return bool(self._events) and self._events[-1].type in ENDINGS

    def __repr__(self) -> str:
        return view.text(self.model, self._events)

    def _repr_html_(self) -> str:
        return view.html(self.model, self._events)
