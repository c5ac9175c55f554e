"""The jobs that this lab submitted."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rolloutlab.connection import known_address
from rolloutlab.errors import NotFoundError, UnreachableError
from rolloutlab.session.base import SessionBase
from rolloutlab.settings import Address
from rolloutlab.settings_file import EMBEDDED
from rolloutlab.store.records import SubmittedJob
from rolloutlab.training.job import Job
from rolloutlab.training.jobs import meant, refreshed, table
from rolloutlab.widgets.job import status, step_made
from rolloutlab.wire.events import Event

if TYPE_CHECKING:
    import pandas as pd


class JobCalls(SessionBase):
    """Jobs, asked of the services that have them."""

    def job(self, job_id: str | None = None) -> Job:
        """A job submitted from this lab, by its id or the beginning of it, from any kernel; without one, the newest.

        Raises:
            NotFoundError: there is none, or more than one, or its service is not known here.
        """
        found = meant(self.store.jobs.newest_first(), job_id)
        known = self.store.jobs.events(found.id)
        # what is kept of a job may be all that there is of it, and needs no service
        find = partial(self._asked_of, found) if known else self._service_of(found)
        called = [self._called(label) for label in found.collections]
        compare = next(filter(None, map(self._compares, called)), "")
        return Job(self._http, find, found.id, found.model, called, partial(self._ended, found.id), known, compare)

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first, with its status and the step it made.

        What may have changed is asked of the service, where one runs; none is started.
        """
        return table(refreshed(self.store.jobs, self._http, self._running_service(), self._service), self._called)

    def _ended(self, job_id: str, events: Sequence[Event]) -> None:
        """Remember what became of a job, and all that it reported."""
        self.store.jobs.heard(job_id, status(events), step_made(events))
        self.store.jobs.keep_events(job_id, events)

    def _called(self, label: str) -> str:
        """What a collection is called now; one that was deleted or renamed since, as it was."""
        try:
            return self.store.find(label).label
        except NotFoundError:
            return label

    def _compares(self, label: str) -> str:
        """The command that compares checkpoints on a collection; nothing where its prompts cannot be sampled again."""
        try:
            collection = self.store.collection(label)
        except NotFoundError:
            return ""
        if not collection.plan or collection.plan.get("continues"):
            return ""
        scored = self._scorer_of(collection)
        over = " --over ROWS" if "{{" in str(collection.plan.get("template")) else ""  # its own rows were trained on
        return f"{'%' if scored else '%%'}compare {label}{over}"

    def _asked_of(self, job: SubmittedJob, start: bool) -> Address:
        return self._service_of(job)(start)

    def _service_of(self, job: SubmittedJob) -> Callable[[bool], Address]:
        """Where to ask for a job. The embedded service has another port each time it starts; with False it is not."""
        known = known_address(job.service, self.settings, self._former)
        return (lambda _start: self._bearing(known)) if known else partial(self._embedded_of, job)

    def _embedded_of(self, job: SubmittedJob, start: bool) -> Address:
        if start:
            return self._embedded_address()
        if running := self.embedded.running():
            return replace(running, project=self.settings.project)
        raise UnreachableError("the embedded service does not run", hint=f"%job {job.id[:8]} --wait")

    def _running_service(self) -> Address | None:
        """The present service, where one runs; none is started."""
        service = self.settings.service
        with suppress(UnreachableError):  # it hangs: what is known here is said all the same
            return self._bearing(service) if service else self.embedded.running()
        return None

    @property
    def _service(self) -> str:
        """What the present service is called where jobs are remembered."""
        return self.settings.service.base_url if self.settings.service else EMBEDDED
