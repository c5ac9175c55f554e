"""/v1/preview/training-jobs: create, look at, cancel, follow."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rolloutlab.service.body import describe, spool
from rolloutlab.service.event_stream import STREAM, stream
from rolloutlab.service.jobs import Jobs
from rolloutlab.wire.events import EventList
from rolloutlab.wire.training import CreateTrainingJob, TrainingJob, TrainingJobResponse

_LARGEST = 2**63 - 1


def router(jobs: Jobs) -> APIRouter:
    """The jobs of the training half of the service."""
    routes = APIRouter(prefix="/v1/preview/training-jobs", tags=["training-jobs"])

    @routes.post(
        "",
        operation_id="create_training_job_v1_preview_training_jobs_post",
        openapi_extra=describe(CreateTrainingJob),
    )
    async def create_training_job(
        request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> TrainingJobResponse:
        with jobs.bodies.draft() as draft:
            digest = await spool(request, draft)
            job_id = await run_in_threadpool(jobs.create, draft, digest, idempotency_key)
        return TrainingJobResponse(id=UUID(job_id))

    @routes.get("/{job_id}", response_model=TrainingJob, response_model_exclude_unset=True)
    def get_training_job(job_id: UUID) -> TrainingJob:
        return jobs.job(str(job_id))

    @routes.post("/{job_id}/cancel", response_model=TrainingJob, response_model_exclude_unset=True)
    def cancel_training_job(job_id: UUID) -> TrainingJob:
        return jobs.cancel(str(job_id))

    @routes.get("/{job_id}/events", response_model=EventList, responses={200: {"content": {STREAM: {}}}})
    def list_events(
        request: Request,
        job_id: UUID,
        after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        last_event_id: Annotated[int | None, Header(ge=0, le=_LARGEST)] = None,
    ) -> EventList | StreamingResponse:
        if STREAM in request.headers.get("Accept", ""):
            jobs.job(str(job_id))
            lines = stream(jobs, str(job_id), after if last_event_id is None else last_event_id)
            return StreamingResponse(lines, media_type=STREAM, headers={"Cache-Control": "no-store"})
        found = jobs.events(str(job_id), after, limit + 1)
        return EventList(object="list", data=found[:limit], has_more=len(found) > limit)

    return routes
