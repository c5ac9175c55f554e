"""Jobs submitted by a lab: lookup by id, status from their services, prompts they trained on."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rolloutlab.api import training
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.job_state import status, step_made
from rolloutlab.api.kinds import kind_of
from rolloutlab.api.wire import training as wire
from rolloutlab.connection import Connector
from rolloutlab.errors import NotFoundError, RefusedError, RolloutlabError, ServiceError, SignInError, UnreachableError
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob
from rolloutlab.training.job import Job
from rolloutlab.training.models import SelectedModel
from rolloutlab.trajectories.scoring.functions import Scorers
from rolloutlab.trajectories.tables import data_frame, minute

if TYPE_CHECKING:
    import pandas as pd

ENDED = frozenset({"succeeded", "failed", "cancelled"})
UNKNOWN, UNREACHABLE = "unknown", "unreachable"
_TIMEOUT = 3.0
_CONCURRENT = 16


def by_prefix(jobs: Sequence[SubmittedJob], beginning: str | None) -> SubmittedJob:
    """The job whose id begins so, or the newest; `jobs` are newest first. NotFoundError: none, or several."""
    if beginning is None and not jobs:
        raise NotFoundError("this lab has not submitted a job", hint="%%train NAME")
    matches = [job for job in jobs if job.id.startswith(str(beginning))] if beginning else list(jobs[:1])
    if len(matches) != 1:
        matching = "no job" if not matches else f"{len(matches)} jobs"
        raise NotFoundError(f"{matching} of this lab begins with {beginning!r}", hint="%jobs lists them")
    return matches[0]


def refreshed(store: SubmittedJobs, http: HttpClient, address: Address | None, service: str) -> list[SubmittedJob]:
    """Every job of the lab, newest first, with its status now.

    Jobs that have ended are not requested again, nor those of another service than `service`; without an address none
    is. The new statuses are recorded.
    """
    known = store.newest_first()
    running = [job for job in known if address and job.service == service and job.status not in ENDED]
    current = {job.id: job for job in http.run(with_status(http, address, running))} if address and running else {}
    for job in current.values():
        if job.status and job.status not in {UNKNOWN, UNREACHABLE}:
            store.set_status(job.id, job.status, job.step)
    return [current.get(job.id, job) for job in known]


async def with_status(http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
    """The same jobs with their present status; all are requested at once, with a short timeout.

    A status is `unknown` where the service has no such job, and `unreachable` where it does not answer.
    """
    free = asyncio.Semaphore(_CONCURRENT)

    async def one(job: SubmittedJob) -> SubmittedJob:
        try:
            async with free:
                if not kind_of(address).has("GET", f"training-jobs/{job.id}"):
                    return replace(job, status=status(await training.events(http, address, job.id)))
                response = await training.job(http, address, job.id, timeout=_TIMEOUT, retry=False)
        except NotFoundError:
            return replace(job, status=UNKNOWN)
        except UnreachableError:
            return replace(job, status=UNREACHABLE)
        except ServiceError:
            return replace(job, status=UNKNOWN)
        return replace(job, status=response.status, step=response.final_step)

    return list(await asyncio.gather(*map(one, jobs)))


async def trained_models(
    http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]
) -> dict[str, wire.TrainingJob]:
    """The jobs that a service has, by id: which model each trained, and the checkpoint it made.

    Raises:
        UnreachableError, ServiceError: it failed: a comparison would otherwise give a verdict on trained prompts.
    """
    free = asyncio.Semaphore(_CONCURRENT)

    async def one(job: SubmittedJob) -> wire.TrainingJob | None:
        try:
            async with free:
                return await training.job(http, address, job.id, timeout=_TIMEOUT)
        except (NotFoundError, RefusedError, SignInError):
            return None

    responses = await asyncio.gather(*map(one, jobs))
    return {job.id: response for job, response in zip(jobs, responses, strict=True) if response}


def table(jobs: Sequence[SubmittedJob], name_now: Callable[[str], str]) -> "pd.DataFrame":
    """One row per job, indexed by the beginning of its id; step is the checkpoint that it made.

    name_now: the present name of a collection that had this label. A narrow terminal leaves out columns in the middle.
    """
    columns = {
        "status": [job.status or UNKNOWN for job in jobs],
        "step": [job.step for job in jobs],
        "model": [job.model for job in jobs],
        "options": [", ".join(f"{name} {value}" for name, value in job.options.items()) for job in jobs],
        "collections": [", ".join(map(name_now, job.collections)) for job in jobs],
        "created (UTC)": [minute(job.created_at) for job in jobs],
    }
    return data_frame(columns, [job.id[:8] for job in jobs], "job", types={"step": "Int64"})


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
        submitted = by_prefix(self._lab().jobs.newest_first(), job_id)
        events = self._lab().jobs.events(submitted.id)
        if not events:  # those may be all there is of a job; without them its service has to be known
            self._connector.known_address(submitted.service)
        names = [self._name_now(label) for label in submitted.collections]
        compare = next(filter(None, map(self._compare_command, names)), "")
        find, ended = partial(self._address, submitted), partial(self._ended, submitted.id)
        shown = names, ended, events, compare, submitted.options, partial(self._newest, submitted)
        return Job(self._connector.http, find, submitted.id, submitted.model, *shown)

    def table(self) -> "pd.DataFrame":
        """One row per job, newest first, with its status now; no service is started for it."""
        return table(self._refreshed(self._connector.running()), self._name_now)

    def trained_between(self, model: SelectedModel, steps: tuple[int, int]) -> tuple[set[str], list[str]]:
        """The prompts of the jobs of this lab that made the checkpoints between two steps, each as JSON; and notes.

        A note says what is not known of prompts: a line for fine-tuning on files, and on a part of a collection.

        A model and a service have several names, so the service decides which model each job trained. A job that it
        does not have is matched by the names it was submitted under; it may have made a checkpoint, and counts.
        """
        between = range(min(steps) + 1, max(steps) + 1)
        address, service = self._connector.running(), self._connector.name
        submitted, http = self._refreshed(address), self._connector.http
        known = http.run(trained_models(http, address, submitted)) if address else {}
        labels, notes = list[str](), list[str]()
        for job in submitted:
            if response := known.get(job.id):
                step, lost, same = response.final_step, False, str(response.model_id) == model.id
            else:
                step, lost = job.step, job.status in {UNKNOWN, UNREACHABLE, None}
                lost = lost or (job.step is None and job.status == "succeeded")
                same = job.service == service and job.model in {model.name, model.id}
            if same and (step in between or lost):
                labels += job.collections
                notes += self._notes(job)
        return self._lab().prompts(labels), list(dict.fromkeys(notes))

    def _notes(self, job: SubmittedJob) -> Iterator[str]:
        if files := ", ".join(job.options.get("files", ())):
            yield f"also fine-tuned on {files} in between: whether these prompts are in it is not checked"
        if where := job.options.get("where"):
            names = ", ".join(map(self._name_now, job.collections))
            yield f"fine-tuned on {names} where {where} in between: all its prompts count as trained on"

    def _refreshed(self, address: Address | None) -> list[SubmittedJob]:
        return refreshed(self._lab().jobs, self._connector.http, address, self._connector.name)

    def _address(self, job: SubmittedJob, start: bool) -> Address:
        return self._connector.address_of(job.service, start=start, hint=f"%job {job.id[:8]} --wait")

    async def _newest(self, job: SubmittedJob, address: Address) -> int | None:
        """The newest checkpoint of the model of a job; None where this session has not registered the model."""
        if not (model_id := self._connector.model_ids.get((job.service, job.model))):
            return None
        try:
            listed = await training.checkpoints(self._connector.http, address, model_id)
        except RolloutlabError:
            return None
        return max((checkpoint.step for checkpoint in listed), default=None)

    def _ended(self, job_id: str, events: Sequence[wire.Event]) -> None:
        """Record the last status of a job, and all events but those about a part of a step, as it is over."""
        self._lab().jobs.set_status(job_id, status(events), step_made(events))
        self._lab().jobs.keep_events(job_id, [event for event in events if event.type != "step_progress"])

    def _name_now(self, label: str) -> str:
        """The present name of a collection; the old one if it was deleted or renamed since."""
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
        if not collection.plan or collection.plan.get("continues") or collection.plan.get("sessions"):
            return ""
        over = " --over ROWS" if "{{" in str(collection.plan.get("template")) else ""  # its own rows were trained on
        return f"{'%' if self._scorers.of(collection) else '%%'}compare {label}{over}"
