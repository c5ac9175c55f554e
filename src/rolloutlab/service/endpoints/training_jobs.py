"""/v1/preview/training-jobs: create, look at, cancel, follow."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rolloutlab.api.wire.training import CreateTrainingJob, Event, EventList, TrainingJob, TrainingJobResponse
from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.service.endpoints.body import describe, spool
from rolloutlab.service.job_queue import Jobs

STREAM = "text/event-stream"
"""The media type that asks for it."""

_HEARTBEAT = 15.0
_PAGE = 200


async def stream(jobs: Jobs, job_id: str, after: int, heartbeat: float = _HEARTBEAT) -> AsyncIterator[str]:
    """The events after a cursor, each as soon as it is recorded, until the job has ended or is gone.

    They also end when the service is about to stop.
    heartbeat: seconds of silence after which a comment is sent, so that a broken connection is noticed.
    """
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has been closed: nobody listens any more
            loop.call_soon_threadsafe(news.set)

    with jobs.heard(wake), suppress(NotFoundError, LabError):  # its model may be deleted, the disk full
        while jobs.listened_to:
            news.clear()
            ended = await run_in_threadpool(jobs.ended, job_id)  # asked first: then all its events are there
            found = await run_in_threadpool(jobs.events, job_id, after, _PAGE)
            for event in found:
                after = int(event.id)
                yield _written(event)
            if ended and not found:
                return
            if not found and not await _set(news, heartbeat):
                yield ": the job goes on\n\n"


def _written(event: Event) -> str:
    return f"id: {event.id}\nevent: {event.type}\ndata: {json.dumps(event.data)}\n\n"


async def _set(news: asyncio.Event, patience: float) -> bool:
    try:
        await asyncio.wait_for(news.wait(), patience)
    except TimeoutError:
        return False
    return True


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
