"""The jobs that a lab submitted: which one is meant, and what became of each."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rolloutlab.client import training
from rolloutlab.errors import NotFoundError, RefusedError, ServiceError, SignInError, UnreachableError
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.notation import minute
from rolloutlab.store.records import SubmittedJob
from rolloutlab.wire import training as wire

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


def refreshed(store: SubmittedJobs, http: Http, address: Address | None, service: str) -> list[SubmittedJob]:
    """Every job of the lab, newest first, with its status now.

    Those known to have ended are not asked again, nor those of another service than `service`; without an address
    none is. Their answers are remembered.
    """
    known = store.newest_first()
    asked = [job for job in known if address and job.service == service and job.status not in ENDED]
    answered = {job.id: job for job in http.run(ask(http, address, asked))} if address and asked else {}
    for job in answered.values():
        if job.status and job.status not in {UNKNOWN, UNREACHABLE}:
            store.heard(job.id, job.status, job.step)
    return [answered.get(job.id, job) for job in known]


async def ask(http: Http, address: Address, jobs: Sequence[SubmittedJob]) -> list[SubmittedJob]:
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


async def trained_models(http: Http, address: Address, jobs: Sequence[SubmittedJob]) -> dict[str, wire.TrainingJob]:
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

    from rolloutlab.widgets.frame import Frame

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
