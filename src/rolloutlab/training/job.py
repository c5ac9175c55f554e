"""A training job, as a notebook holds it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from rolloutlab.client import training
from rolloutlab.errors import JobFailedError, NotFoundError
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.widgets import job as view
from rolloutlab.widgets.plot import Panels
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.events import ENDINGS, Event

if TYPE_CHECKING:
    import pandas as pd

_POLL = 0.05
_SLOWEST_POLL = 1.0


class Job:
    """A submitted job. What it shows is a fold over the events that it has read; `wait` reads on until the end.

    heard: told its status and its step, once the job has ended.
    """

    def __init__(
        self,
        http: Http,
        find: Callable[[], Address],
        job_id: str,
        model: str,
        heard: Callable[[str, int | None], None] = lambda *_: None,
    ) -> None:
        self._http = http
        self._find = find
        self._heard = heard
        self.id = job_id
        self.model = model
        self._events: list[Event] = []

    def events(self) -> list[Event]:
        """All events so far; only the new ones are asked for."""
        if not self._ended():
            self._http.run(self._read(self._find()))
            self._tell()
        return list(self._events)

    @property
    def status(self) -> str:
        """queued, running, succeeded, failed or cancelled."""
        self.events()
        return view.status(self._events)

    @property
    def step(self) -> int | None:
        """The checkpoint that the job made, once it has."""
        self.events()
        return self._made()

    def metrics(self) -> "pd.DataFrame":
        """One row per gradient step: loss, entropy, grad_norm, ratio_mean, ratio_max, clipped, masked and more."""
        import pandas as pd

        return pd.DataFrame([e.data for e in view.since_restart(self.events()) if e.type == "gradient_step"])

    def plot(self, *names: str) -> Panels:
        """A chart of each of these numbers over the gradient steps: reward, loss, entropy and grad_norm by default."""
        steps = [e.data for e in view.since_restart(self.events()) if e.type == "gradient_step"]
        return view.plot(self.model, steps, names or view.PLOTTED)

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
        self._tell()
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

    def _made(self) -> int | None:
        ends = [event.data.get("step") for event in self._events if event.type == "training_ended"]
        return ends[0] if ends else None

    def _tell(self) -> None:
        if self._ended():
            self._heard(view.status(self._events), self._made())

    async def _read(self, address: Address) -> bool:
        try:
            new = await training.events(self._http, address, self.id, self._events[-1].id if self._events else None)
        except NotFoundError as error:
            raise NotFoundError(
                f"the service has no job {self.id[:8]}: it never arrived there, or was deleted with its model",
                hint="%%train submits another",
            ) from error
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
