"""/v1/preview/training-jobs: create, get and cancel jobs, list and stream their events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rolloutlab.api.wire.training import CreateTrainingJob, EventList, TrainingJob, TrainingJobResponse
from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.service.endpoints.body import describe, spool
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.oauth.bearer import from_owner

STREAM = "text/event-stream"
_HEARTBEAT = 15.0
_PAGE = 200
_MAX_INTEGER = 2**63 - 1
"""The largest integer of SQLite."""


async def stream(jobs: Jobs, job_id: str, after: int, heartbeat: float = _HEARTBEAT) -> AsyncIterator[str]:
    """Yield the server-sent events after a cursor, until the job has ended or is deleted, or the service stops.

    heartbeat: seconds of silence after which a comment is sent, so that a broken connection is noticed.
    """
    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(changed.set)

    with jobs.subscribe(wake), suppress(NotFoundError, LabError):  # its model may be deleted, the disk full
        while jobs.streaming:
            changed.clear()
            ended = await run_in_threadpool(jobs.has_ended, job_id)  # before the events: none can follow then
            events = await run_in_threadpool(jobs.events, job_id, after, _PAGE)
            for event in events:
                after = int(event.id)
                yield f"id: {event.id}\nevent: {event.type}\ndata: {json.dumps(event.data)}\n\n"
            if events:
                continue
            if ended:
                return
            try:
                await asyncio.wait_for(changed.wait(), heartbeat)
            except TimeoutError:
                yield ": the job goes on\n\n"


def router(jobs: Jobs, **common: Any) -> APIRouter:
    """Make the router of training jobs and their events."""
    routes = APIRouter(prefix="/v1/preview/training-jobs", tags=["training-jobs"], **common)

    @routes.post(
        "", operation_id="create_training_job_v1_preview_training_jobs_post", openapi_extra=describe(CreateTrainingJob)
    )
    async def create_training_job(
        request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> TrainingJobResponse:
        with jobs.bodies.draft() as draft:
            digest = await spool(request, draft)
            create = partial(jobs.create, draft, digest, idempotency_key, by_owner=from_owner(request))
            job_id = await run_in_threadpool(create)
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
        after: Annotated[int, Query(ge=0, le=_MAX_INTEGER)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        last_event_id: Annotated[int | None, Header(ge=0, le=_MAX_INTEGER)] = None,
    ) -> EventList | StreamingResponse:
        if STREAM in request.headers.get("Accept", ""):
            jobs.job(str(job_id))
            lines = stream(jobs, str(job_id), after if last_event_id is None else last_event_id)
            return StreamingResponse(lines, media_type=STREAM, headers={"Cache-Control": "no-store"})
        events = jobs.events(str(job_id), after, limit + 1)
        return EventList(object="list", data=events[:limit], has_more=len(events) > limit)

    return routes
