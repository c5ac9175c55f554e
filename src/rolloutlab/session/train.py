"""Training on scored collections, the dry run of it, and the form for it."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rolloutlab.client import inference
from rolloutlab.client.delivery import deliver, never_arrived
from rolloutlab.errors import RolloutlabError
from rolloutlab.selection import select
from rolloutlab.session.jobs import JobCalls
from rolloutlab.session.model import ModelCalls
from rolloutlab.store.records import SubmittedJob
from rolloutlab.training.check import Check
from rolloutlab.training.form import TrainingForm
from rolloutlab.training.job import Job
from rolloutlab.training.submission import Submission, gather, prepare

_PATIENCE = 3.0
"""Seconds for a service to say which checkpoint is the newest; without it the report only lacks the lag."""


class TrainCalls(JobCalls, ModelCalls):
    """Scored collections to jobs."""

    def train(
        self,
        names: str | Sequence[str],
        options: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        say: Callable[[str], None] = print,
    ) -> Job:
        """Train the selected model on scored collections: check, submit, and follow until the job has ended.

        names: collections, or patterns such as `cap*` that mean the newest generation of each that fits. options: the
        eleven of `rolloutlab.objective.glossary`. say: gets the pre-flight report, line by line.
        wait: False returns as soon as the job is submitted. Interrupting the wait leaves the job running.

        Raises:
            InputError: options are wrong. NotFoundError: no such collection. NothingTrainsError: no trajectory would
            train. JobFailedError: the job failed. BrokenOffError: the answer was lost; `jobs` lists what may train.
        """
        self.store.check_writable()
        submission = prepare(select(self.store, names), options or {}, self._selected, self._text_only)
        model, address, key = self._register(self._selected), self._address(), str(uuid.uuid4())
        submission = submission.beginning(self._newest_known())
        for line in submission.report():
            say(line)
        asked, now = submission.config.to_wire(), datetime.now(UTC).isoformat()
        # recorded first: a kernel that dies before the answer must not lose sight of a job that trains
        self.store.jobs.add(SubmittedJob(key, self._service, self._selected, submission.collections, asked, now))
        try:
            job_id = self._http.run(
                deliver(self._http, address, submission.to_job(str(model.id)), key, submission.groups)
            )
        except RolloutlabError as error:
            if never_arrived(error):
                self.store.jobs.forget(key)
            raise
        self.store.jobs.rename(key, job_id)
        self.store.jobs.heard(job_id, "queued")
        job = self.job(job_id)
        return job.wait() if wait else job

    def check(self, names: str | Sequence[str], options: Mapping[str, Any] | None = None) -> Check:
        """What `train` would train, and why the rest would not; nothing is submitted, no service is started.

        Raises:
            InputError: options are wrong. NotFoundError: no such collection.
        """
        submission = gather(select(self.store, names), options or {}, self._selected, self._text_only)
        return Check(submission.beginning(self._newest_known()))

    @property
    def _text_only(self) -> bool:
        """Whether the policy reads nothing but text: the embedded service's do, of others it is not known."""
        return self.settings.service is None

    def train_form(self, names: str | Sequence[str], options: Mapping[str, Any] | None = None) -> TrainingForm:
        """A form of the options for training on these collections, beginning with `options`; it shows what would train.

        A pattern means what fits it now. The form stays with its collections when they are renamed or newer ones come.

        Raises:
            InputError: an option is unknown. NotFoundError: no such collection.
        """
        collections = select(self.store, names)

        def gathered() -> Submission:
            return gather(collections, {}, self._selected, self._text_only).beginning(self._newest_known())

        def version() -> object:
            return self.store.changes(), self._selected

        def submit(chosen: Mapping[str, Any]) -> Job:
            return self.train([each.name for each in collections], chosen, wait=False, say=lambda _: None)

        return TrainingForm(collections, options or {}, gathered, version, submit, self.store.rewards.listen)

    def _newest_known(self) -> int | None:
        """The newest checkpoint of the selected model, where a job would start; no service is started to know it."""
        address = self._running_service()
        if address:
            with suppress(RolloutlabError):
                cards = self._http.run(inference.models(self._http, address, patience=_PATIENCE, retry=False))
                return next((card.newest_step for card in cards if card.id == self._selected), None)
        return None
