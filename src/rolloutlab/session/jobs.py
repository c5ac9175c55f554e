"""The jobs that this lab submitted."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rolloutlab.connection import known_address
from rolloutlab.errors import NotFoundError
from rolloutlab.session.base import SessionBase
from rolloutlab.settings import Address
from rolloutlab.settings_file import EMBEDDED
from rolloutlab.store.records import SubmittedJob
from rolloutlab.training.job import Job
from rolloutlab.training.jobs import meant, refreshed, table

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
        heard = partial(self.store.jobs.heard, found.id)
        return Job(self._http, self._service_of(found), found.id, found.model, heard)

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first, with its status and the step it made.

        What may have changed is asked of the service, where one runs; none is started.
        """
        address = self.settings.service or self.embedded.running()
        return table(refreshed(self.store.jobs, self._http, address, self._service), self._called)

    def _called(self, label: str) -> str:
        """What a collection is called now; one that was deleted or renamed since, as it was."""
        try:
            return self.store.find(label).label
        except NotFoundError:
            return label

    def _service_of(self, job: SubmittedJob) -> Callable[[], Address]:
        """Where to ask for a job; the embedded service has another port each time it starts."""
        known = known_address(job.service, self.settings, self._former)
        return (lambda: known) if known else self._embedded_address

    @property
    def _service(self) -> str:
        """What the present service is called where jobs are remembered."""
        return self.settings.service.base_url if self.settings.service else EMBEDDED
