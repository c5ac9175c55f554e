"""The jobs that a lab submitted: lookup by id, status as their services report it, prompts they trained on."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rolloutlab.api import training
from rolloutlab.api.events import status, step_made
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire import training as wire
from rolloutlab.connection import Connector
from rolloutlab.errors import NotFoundError, RefusedError, ServiceError, SignInError, UnreachableError
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob, minute
from rolloutlab.training.job import Job
from rolloutlab.training.model import SelectedModel
from rolloutlab.trajectories.scoring import Scorers

if TYPE_CHECKING:
    import pandas as pd

ENDED = frozenset({"succeeded", "failed", "cancelled"})
UNKNOWN, UNREACHABLE = "unknown", "unreachable"
_PATIENCE = 3.0
_AT_ONCE = 16


def meant(jobs: Sequence[SubmittedJob], beginning: str | None) -> SubmittedJob:
    """The job whose id begins so, or the newest; `jobs` are newest first.

    Raises:
        NotFoundError: there is none, or more than one.
    """
    if beginning is None and not jobs:
        raise NotFoundError("this lab has not submitted a job", hint="%%train NAME")
    matches = [job for job in jobs if job.id.startswith(str(beginning))] if beginning else list(jobs[:1])
    if len(matches) != 1:
        matching = "no job" if not matches else f"{len(matches)} jobs"
        raise NotFoundError(f"{matching} of this lab begins with {beginning!r}", hint="%jobs lists them")
    return matches[0]


def refreshed(store: SubmittedJobs, http: HttpClient, address: Address | None, service: str) -> list[SubmittedJob]:
    """Every job of the lab, newest first, with its status now.

    Those known to have ended are not asked again, nor those of another service than `service`; without an address
    none is. Their answers are remembered.
    """
    known = store.newest_first()
    asked = [job for job in known if address and job.service == service and job.status not in ENDED]
    answered = {job.id: job for job in http.run(ask(http, address, asked))} if address and asked else {}
    for job in answered.values():
        if job.status and job.status not in {UNKNOWN, UNREACHABLE}:
            store.set_status(job.id, job.status, job.step)
    return [answered.get(job.id, job) for job in known]


async def ask(http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
    """The same jobs with what their service says of them now; all are asked at once and briefly.

    A status is `unknown` where the service knows no such job, and `unreachable` where it does not answer.
    """
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(job: SubmittedJob) -> SubmittedJob:
        try:
            async with free:
                answer = await training.job(http, address, job.id, patience=_PATIENCE, retry=False)
        except NotFoundError:
            return replace(job, status=UNKNOWN)
        except UnreachableError:
            return replace(job, status=UNREACHABLE)
        except ServiceError:
            return replace(job, status=UNKNOWN)
        return replace(job, status=answer.status, step=answer.final_step)

    return list(await asyncio.gather(*map(one, jobs)))


async def trained_models(
    http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]
) -> dict[str, wire.TrainingJob]:
    """What a service says of those jobs that it knows, by id: which model each trained, and the checkpoint it made.

    Raises:
        UnreachableError, ServiceError: it failed: a comparison would otherwise give a verdict on trained prompts.
    """
    free = asyncio.Semaphore(_AT_ONCE)

    async def one(job: SubmittedJob) -> wire.TrainingJob | None:
        try:
            async with free:
                return await training.job(http, address, job.id, patience=_PATIENCE)
        except (NotFoundError, RefusedError, SignInError):
            return None

    answers = await asyncio.gather(*map(one, jobs))
    return {job.id: answer for job, answer in zip(jobs, answers, strict=True) if answer}


def table(jobs: Sequence[SubmittedJob], called: Callable[[str], str]) -> "pd.DataFrame":
    """One row per job, indexed by the beginning of its id; step is the checkpoint that it made.

    called: what a collection that had this label is called now.

    What matters comes first: a narrow terminal leaves out columns in the middle.
    """
    import pandas as pd

    from rolloutlab.trajectories.frame import Frame

    columns = {
        "status": [job.status or UNKNOWN for job in jobs],
        "step": pd.array([job.step for job in jobs], dtype="Int64"),
        "model": [job.model for job in jobs],
        "options": [_said(job) for job in jobs],
        "collections": [", ".join(map(called, job.collections)) for job in jobs],
        "created (UTC)": [minute(job.created_at) for job in jobs],
    }
    return Frame(columns, index=pd.Index([job.id[:8] for job in jobs], name="job"))


def _said(job: SubmittedJob) -> str:
    return ", ".join(f"{name} {value}" for name, value in job.options.items())


class LabJobs:
    """The jobs of a lab, each looked up at the service that it was submitted to.

    lab: opens the lab, or has it open; a `Job` may outlive what is open now.
    """

    def __init__(self, lab: Callable[[], Lab], connector: Connector, scorers: Scorers) -> None:
        self._lab = lab
        self._connector = connector
        self._scorers = scorers

    def job(self, job_id: str | None) -> Job:
        """A job by its id, the beginning of it, or None for the newest. Raises as `Session.job`."""
        submitted = meant(self._lab().jobs.newest_first(), job_id)
        events = self._lab().jobs.events(submitted.id)
        if not events:  # those may be all there is of a job; without them its service has to be known
            self._connector.known_address(submitted.service)
        names = [self._name_now(label) for label in submitted.collections]
        compare = next(filter(None, map(self._compare_command, names)), "")
        find, ended = partial(self._address, submitted), partial(self._ended, submitted.id)
        return Job(self._connector.http, find, submitted.id, submitted.model, names, ended, events, compare)

    def table(self) -> "pd.DataFrame":
        """One row per job, newest first, with its status now; no service is started for it."""
        return table(self._refreshed(self._connector.running()), self._name_now)

    def trained_prompts(self, model: SelectedModel, steps: tuple[int, int]) -> set[str]:
        """The prompts of the jobs of this lab that made the checkpoints between two steps, each as JSON.

        A model and a service have several names: the service is asked which model each job trained. A job that it does
        not know is one of this model by the names it was submitted under, may have made a checkpoint, and counts.
        """
        between = range(min(steps) + 1, max(steps) + 1)
        address, service = self._connector.running(), self._connector.name
        submitted, http = self._refreshed(address), self._connector.http
        known = http.run(trained_models(http, address, submitted)) if address else {}
        labels: list[str] = []
        for job in submitted:
            if answer := known.get(job.id):
                step, lost, same = answer.final_step, False, str(answer.model_id) == model.id
            else:
                step, lost = job.step, job.status in {UNKNOWN, UNREACHABLE, None}
                same = job.service == service and job.model in {model.name, model.id}
            labels += job.collections if same and (step in between or lost) else ()
        return self._lab().prompts(labels)

    def _refreshed(self, address: Address | None) -> list[SubmittedJob]:
        return refreshed(self._lab().jobs, self._connector.http, address, self._connector.name)

    def _address(self, job: SubmittedJob, start: bool) -> Address:
        return self._connector.address_of(job.service, start=start, hint=f"%job {job.id[:8]} --wait")

    def _ended(self, job_id: str, events: Sequence[wire.Event]) -> None:
        """Record the last status of a job, and all events."""
        self._lab().jobs.set_status(job_id, status(events), step_made(events))
        self._lab().jobs.keep_events(job_id, events)

    def _name_now(self, label: str) -> str:
        """What a collection is called now; one that was deleted or renamed since, as it was."""
        try:
            return self._lab().find(label).label
        except NotFoundError:
            return label

    def _compare_command(self, label: str) -> str:
        """The command that compares checkpoints on a collection; empty if its prompts cannot be sampled again."""
        try:
            collection = self._lab().collection(label)
        except NotFoundError:
            return ""
        if not collection.plan or collection.plan.get("continues"):
            return ""
        over = " --over ROWS" if "{{" in str(collection.plan.get("template")) else ""  # its own rows were trained on
        return f"{'%' if self._scorers.of(collection) else '%%'}compare {label}{over}"
