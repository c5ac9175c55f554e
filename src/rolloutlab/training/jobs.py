"""Jobs submitted by a lab: lookup by id, status from their services, prompts they trained on."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import xor
from typing import TYPE_CHECKING

from rolloutlab.api import training
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.job_state import ENDED, status, step_made
from rolloutlab.api.wire import training as wire
from rolloutlab.connection import Connector
from rolloutlab.errors import NotFoundError, RefusedError, RolloutlabError, ServiceError, SignInError, UnreachableError
from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.scoring.functions import Scorers
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob
from rolloutlab.training.job import Job
from rolloutlab.training.job_results import job_results, job_table, read_course
from rolloutlab.training.models import Checkpoint, SelectedModel
from rolloutlab.trajectories.first_reward import first_body, is_body
from rolloutlab.trajectories.overview import summarize_job
from rolloutlab.trajectories.rewards_data import shared_rewards
from rolloutlab.widgets.dry_run import LastJob
from rolloutlab.widgets.job_list import JobCourse
from rolloutlab.widgets.overview import Overview

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN, UNREACHABLE = "unknown", "unreachable"
_TIMEOUT = 3.0
_CONCURRENT = 16
_SHORTEST = 4
"""The fewest characters that stand for an id. A user who types fewer may mean a number, and jobs have no numbers."""
_CANDIDATES = 3


def find_job(jobs: Sequence[SubmittedJob], name: str | None, selected: str) -> SubmittedJob:
    """Find a job by the beginning of its id, or by the checkpoint that it made. None is the newest job.

    jobs: newest first. selected: the model that `@3` is a checkpoint of.

    Raises:
        NotFoundError: no job matches, several match, or the beginning has fewer than 4 characters.
    """
    model, at, step = str(name or "").rpartition("@")
    if not at:
        return _find_by_prefix(jobs, name)
    made = [job for job in jobs if job.model == (model or selected) and str(job.step) == step]
    if not made:
        raise NotFoundError(f"no job of this lab made {model or selected}@{step}", hint="%jobs lists them")
    return made[0]


def _find_by_prefix(jobs: Sequence[SubmittedJob], beginning: str | None) -> SubmittedJob:
    if beginning is None and not jobs:
        raise NotFoundError("this lab has not submitted a job", hint="%%train NAME")
    matches = [job for job in jobs if job.id.startswith(str(beginning))] if beginning else list(jobs[:1])
    if beginning and matches and len(str(beginning)) < _SHORTEST:
        named = [job.id[:8] + (f" made {job.model}@{job.step}" if job.step is not None else "") for job in matches]
        listed = ", ".join(named[:_CANDIDATES]) + (f" and {len(named) - _CANDIDATES} more" * (len(named) > _CANDIDATES))
        what = f"{beginning!r} is too short for a job's id: {_SHORTEST} characters, or MODEL@STEP ({listed})"
        raise NotFoundError(what, hint=f"%job {matches[0].id[:8]}")
    if len(matches) != 1:
        matching = "no job" if not matches else f"{len(matches)} jobs"
        raise NotFoundError(f"{matching} of this lab begins with {beginning!r}", hint="%jobs lists them")
    return matches[0]


def refresh_jobs(
    store: SubmittedJobs,
    http: HttpClient,
    address: Address | None,
    service: str,
    tick: Callable[[], None] | None = None,
) -> list[SubmittedJob]:
    """Update the status of the jobs of a service, and return every job of the lab, newest first.

    Only jobs of `service` that have not ended are requested. The new statuses are recorded, and so are the events of
    jobs that have ended since.

    Args:
        store: The jobs of the lab.
        http: The client.
        address: The address of the service; if it is None, no job is requested.
        service: The name of the service.
        tick: Called again and again while the service answers.
    """
    known = store.newest_first()
    running = [job for job in known if address and job.service == service and job.status not in ENDED]
    asked = http.run(request_status(http, address, running), tick) if address and running else []
    current = {job.id: job for job in asked}
    # a job that succeeded without a known checkpoint is not recorded yet: `Job` still asks the service for it
    complete = [job for job in asked if job.status != "succeeded" or job.step is not None]
    for job in complete:
        if job.status and job.status not in {UNKNOWN, UNREACHABLE}:
            store.set_status(job.id, job.status, job.step)
    ended = [job for job in complete if job.status in ENDED]
    if address and ended:
        for job_id, events in http.run(read_events(http, address, ended), tick).items():
            store.keep_events(job_id, events)
    return [current.get(job.id, job) for job in known]


async def request_status(http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
    """Request the present status of jobs, all at once and with a short timeout.

    A status is `unknown` if the service has no such job, and `unreachable` if the service does not answer.
    """
    free = asyncio.Semaphore(_CONCURRENT)

    async def one(job: SubmittedJob) -> SubmittedJob:
        try:
            async with free:
                if not dialect_of(address).has("GET", f"training-jobs/{job.id}"):
                    events = await asyncio.wait_for(training.events(http, address, job.id), _TIMEOUT)
                    return replace(job, status=status(events), step=step_made(events))
                response = await training.job(http, address, job.id, timeout=_TIMEOUT, retry=False)
        except NotFoundError:
            return replace(job, status=UNKNOWN)
        except (TimeoutError, UnreachableError):
            return replace(job, status=UNREACHABLE)
        except ServiceError:
            return replace(job, status=UNKNOWN)
        return replace(job, status=response.status, step=response.final_step)

    return list(await asyncio.gather(*map(one, jobs)))


async def read_events(
    http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]
) -> dict[str, Sequence[wire.Event]]:
    """Request the events of jobs, by id, but those about a part of a step. Jobs that take too long are left out."""
    free = asyncio.Semaphore(_CONCURRENT)

    async def one(job: SubmittedJob) -> Sequence[wire.Event]:
        async with free:
            with suppress(RolloutlabError, asyncio.TimeoutError):
                return await asyncio.wait_for(training.events(http, address, job.id), _TIMEOUT)
        return ()

    listed = await asyncio.gather(*map(one, jobs))
    return {job.id: whole_steps(events) for job, events in zip(jobs, listed, strict=True) if events}


async def request_jobs(http: HttpClient, address: Address, jobs: Sequence[SubmittedJob]) -> dict[str, wire.TrainingJob]:
    """Request the jobs that a service has, by id: which model each trained, and the checkpoint it made.

    Raises:
        UnreachableError, ServiceError: a request failed. If that were ignored, a comparison could give a verdict on
            prompts that were trained on.
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


def whole_steps(events: Sequence[wire.Event]) -> list[wire.Event]:
    """Return all events but those about a part of a step."""
    return [event for event in events if event.type != "step_progress"]


def _steps_apart(base: Checkpoint, other: Checkpoint) -> list[tuple[SelectedModel, Set[int]]]:
    """Find the steps that lead to one of two checkpoints but not to both, by model."""
    first, second = _steps_to(base), _steps_to(other)
    apart: list[tuple[SelectedModel, Set[int]]] = []
    for model_id in first | second:
        both = [history[model_id] for history in (first, second) if model_id in history]
        model, _ = max(both, key=lambda each: len(each[1]))
        apart.append((model, reduce(xor, (frozenset(steps) for _, steps in both))))
    return apart


def _steps_to(checkpoint: Checkpoint) -> dict[str, tuple[SelectedModel, range]]:
    """Find the steps that lead to a checkpoint, by the id of the model that made them."""
    line = checkpoint.model.made_from
    begins = [*(each.step for each in line), 0]
    steps = {checkpoint.model.id: (checkpoint.model, range(begins[0] + 1, checkpoint.step + 1))}
    for each, begin in zip(line, begins[1:], strict=True):
        made = range(begin + 1, each.step + 1)
        # The model that this one was made from may be deleted, so its checkpoints cannot be listed. Each of its steps
        # counts as a checkpoint: if no job of this lab made it, a note says that its prompts are not known.
        steps[str(each.model_id)] = SelectedModel(each.model, str(each.model_id), "", tuple(made)), made
    return steps


class LabJobs:
    """The jobs of a lab, each looked up at the service that it was submitted to.

    lab: opens the lab if needed, and returns it. A `Job` may outlive the lab that is open when it is made.
    """

    def __init__(self, lab: Callable[[], Lab], connector: Connector, scorers: Scorers) -> None:
        self._lab = lab
        self._connector = connector
        self._scorers = scorers
        self._courses: dict[str, JobCourse] = {}
        """What the events of ended jobs tell, by id."""

    def job(self, job_id: str | None, selected: str) -> Job:
        """Find a job by the beginning of its id, or by the checkpoint that it made. None is the newest job.

        selected: the model that `@3` is a checkpoint of. Raises as `Session.job`.
        """
        submitted = find_job(self._lab().jobs.newest_first(), job_id, selected)
        events = self._lab().jobs.events(submitted.id)
        if not events:  # a job whose events are recorded can be shown even if its service is not known
            self._connector.known_address(submitted.service)
        names = [self._find_present_name(label) for label in submitted.collections]
        compare = next(filter(None, map(self._compare_command, names)), "")
        find, ended = partial(self._find_address, submitted), partial(self._record_end, submitted.id)
        about = names, ended, events, compare, submitted.options, partial(self._request_newest, submitted)
        trained_on = partial(self._summarize_trained_on, submitted)
        return Job(self._connector.http, find, submitted.id, submitted.model, *about, trained_on)

    def last(self, model: str) -> LastJob | None:
        """Find the last job of a model at the present service that has neither failed nor been cancelled."""
        for job in self._lab().jobs.newest_first():
            mine = job.model == model and job.service == self._connector.name
            if mine and job.status not in {"failed", "cancelled"}:
                names = [*map(self._find_present_name, job.collections), *job.options.get("files", ())]
                tuned = bool(job.options.get("sft"))
                return LastJob(job.id[:8], tuple(names), {} if tuned else job.options, is_fine_tuning=tuned)
        return None

    def _summarize_trained_on(self, submitted: SubmittedJob) -> Overview | None:
        """Summarize the collection that a job trains on; None if it trains on several, or on files.

        Its hints are about the present rewards. If the rewards have changed since the job, the only hint says so.
        """
        if len(submitted.collections) != 1 or submitted.options.get("sft"):
            return None
        lab = self._lab()
        collection = lab.find(submitted.collections[0])
        shared = shared_rewards(lab, [collection], None)
        with shared.lock:
            shared.refresh()
            overview = summarize_job(shared, lab)
        overview = replace(overview, checkpoints=lab.results.checkpoints(collection.id))
        if lab.rewards.is_changed_since(collection, submitted.created_at):
            changed = f"Rewards of {self._find_present_name(submitted.collections[0])} have changed since this job."
            return replace(overview, hints=[Hint(changed, kind="info")])
        return replace(overview, hints=[hint for hint in overview.hints if hint.kind == "warn"])

    def refresh(self, tick: Callable[[], None] | None = None) -> None:
        """Record what has become of jobs that had not ended, if their service runs; no service is started.

        tick: called again and again while the service answers.
        """
        if any(job.status not in ENDED for job in self._lab().jobs.newest_first()):
            self._refresh(self._connector.running(), tick)

    def table(self, shown: int, tick: Callable[[], None] | None = None) -> "pd.DataFrame":
        """List every job, newest first, with its present status; no service is started. shown: rows of the view.

        tick: called again and again while the service answers.
        """
        address = self._connector.running()
        jobs = self._refresh(address, tick)
        running = [job for job in jobs if job.status == "running" and job.service == self._connector.name]
        current = self._connector.http.run(read_events(self._connector.http, address, running), tick) if address else {}
        for job in jobs:
            if job.status in ENDED and job.id not in self._courses:
                course = read_course(partial(self._lab().jobs.events, job.id))
                self._courses |= {job.id: course} if course != JobCourse() else {}  # its events may still come
        courses = self._courses | {job_id: read_course(partial(list, events)) for job_id, events in current.items()}
        return job_table(job_results(self._lab(), jobs, courses, self._find_present_name), shown)

    def trained_between(self, base: Checkpoint, others: Sequence[Checkpoint]) -> list[tuple[set[str], list[str]]]:
        """Find, for each other checkpoint, the prompts that only it or only the base was trained on, and notes.

        The prompts, as JSON texts, are those of jobs of this lab: of the jobs between two checkpoints of one model, or
        of all jobs that led to either of two checkpoints of different models.

        A note is a line about prompts that are not known: of fine-tuning on files, of fine-tuning on a part of a
        collection, or of checkpoints that no job of this lab made.

        Which model a job trained is asked of the service, because models and services can have several names. A job
        that the service does not have is matched by the names that it was submitted under. Such a job counts, because
        it may have made a checkpoint.
        """
        address, http = self._connector.running(), self._connector.http
        submitted = self._refresh(address)
        known = http.run(request_jobs(http, address, submitted)) if address else {}
        return [self._find_trained_apart(_steps_apart(base, other), submitted, known) for other in others]

    def _find_trained_apart(
        self,
        spans: Sequence[tuple[SelectedModel, Set[int]]],
        submitted: Sequence[SubmittedJob],
        known: Mapping[str, wire.TrainingJob],
    ) -> tuple[set[str], list[str]]:
        labels, notes = list[str](), list[str]()
        for model, steps in spans:
            foreign = set(model.steps) & steps  # checkpoints that no job of this lab made
            for job, step in self._jobs_of(model, submitted, known):
                foreign = foreign - {step} if step is not None else set()  # a lost job may have made any of them
                if step is None or step in steps:
                    labels += job.collections
                    notes += self._notes_on(job)
            if foreign:
                which = f"{count(len(foreign), 'checkpoint')} of {model.name}"
                notes.append(f"no job of this lab made {which} in between: what it trained on there is not known")
        return self._lab().prompts(labels), list(dict.fromkeys(notes))

    def _jobs_of(
        self, model: SelectedModel, submitted: Sequence[SubmittedJob], known: Mapping[str, wire.TrainingJob]
    ) -> Iterator[tuple[SubmittedJob, int | None]]:
        """Yield the jobs that may have made a checkpoint of a model, each with its step; None if that is not known."""
        service = self._connector.name
        for job in submitted:
            if response := known.get(job.id):
                step, lost, same = response.final_step, False, str(response.model_id) == model.id
            else:
                step, lost = job.step, job.status in {UNKNOWN, UNREACHABLE, None}
                lost = lost or (job.step is None and job.status == "succeeded")
                same = job.service == service and job.model in {model.name, model.id}
            if same and (lost or step is not None):
                yield job, None if lost else step

    def find_lineage(self, checkpoint: Checkpoint) -> tuple[list[tuple[SubmittedJob, int | None]], list[int]]:
        """Find the jobs of this lab that led to a checkpoint, oldest first, and the steps that no job of this lab made.

        Each job has the step that it made; None if that is not known.
        """
        address, http = self._connector.running(), self._connector.http
        submitted = self._refresh(address)
        known = http.run(request_jobs(http, address, submitted)) if address else {}
        of_model = self._jobs_of(checkpoint.model, submitted, known)
        made = [(job, step) for job, step in of_model if step is None or step <= checkpoint.step]
        steps = range(1, checkpoint.step + 1)
        foreign = {*checkpoint.model.steps} & {*steps} - {step for _, step in made if step is not None}
        return made[::-1], sorted(foreign)

    def trained_last(self, checkpoints: Sequence[Checkpoint]) -> list[str]:
        """Find the collections that the models of these checkpoints were trained on last, as far as they exist."""
        labels: dict[str, None] = {}
        for names in {
            checkpoint.model.id: {checkpoint.model.name, checkpoint.model.id} for checkpoint in checkpoints
        }.values():
            newest = next((job for job in self._lab().jobs.newest_first() if job.model in names), None)
            for label in newest.collections if newest else ():
                with suppress(NotFoundError):
                    labels[self._lab().find(label).label] = None
        return list(labels)

    def _notes_on(self, job: SubmittedJob) -> Iterator[str]:
        """Yield lines about what a fine-tuning job trained on that cannot be told from its collections."""
        if files := ", ".join(job.options.get("files", ())):
            yield f"also fine-tuned on {files} in between: whether these prompts are in it is not checked"
        if where := job.options.get("where"):
            names = ", ".join(map(self._find_present_name, job.collections))
            yield f"fine-tuned on {names} where {where} in between: all its prompts count as trained on"

    def _refresh(self, address: Address | None, tick: Callable[[], None] | None = None) -> list[SubmittedJob]:
        return refresh_jobs(self._lab().jobs, self._connector.http, address, self._connector.name, tick)

    def _find_address(self, job: SubmittedJob, start: bool) -> Address:
        return self._connector.address_of(job.service, start=start, hint=f"%job {job.id[:8]} --wait")

    async def _request_newest(self, job: SubmittedJob, address: Address) -> int | None:
        """Request the newest checkpoint of the model of a job; None if this session has not registered the model."""
        if not (model_id := self._connector.model_ids.get((job.service, job.model))):
            return None
        try:
            listed = await training.checkpoints(self._connector.http, address, model_id)
        except RolloutlabError:
            return None
        return max((checkpoint.step for checkpoint in listed), default=None)

    def _record_end(self, job_id: str, events: Sequence[wire.Event]) -> None:
        """Record the final status of a job, and its events but those about a part of a step."""
        self._lab().jobs.set_status(job_id, status(events), step_made(events))
        self._lab().jobs.keep_events(job_id, whole_steps(events))

    def _find_present_name(self, label: str) -> str:
        """Find the present name of a collection; the given one if it was deleted or renamed since."""
        try:
            return self._lab().find(label).label
        except NotFoundError:
            return label

    def _compare_command(self, label: str) -> str:
        """Return the cell that compares checkpoints on a collection; empty if its prompts cannot be sampled again.

        If this notebook does not have the function that scored the collection, the cell has a body that scores.
        """
        try:
            collection = self._lab().collection(label)
        except NotFoundError:
            return ""
        if not collection.plan or collection.plan.get("continues") or collection.plan.get("sessions"):
            return ""
        if self._scorers.of(collection):
            return f"%compare {label}"
        gives_reward = collection.plan.get("env") or collection.plan.get("program")
        last = self._lab().scorings.last(collection)
        # several functions are one text, and a judge's is its rubric: neither can be typed as a body
        is_cell = last is not None and last.source == "function" and len(last.names) == 1 and is_body(last.code)
        known = last.code if last and is_cell else first_body(self._lab().scorings.columns(collection))
        body = "" if gives_reward else f"\n{known.rstrip()}"
        return f"%%compare {label}{body}"
