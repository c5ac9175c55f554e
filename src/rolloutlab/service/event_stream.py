"""A job's events as a stream of server-sent events (HTML standard, section 9.2), from a cursor to the job's end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.concurrency import run_in_threadpool

from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.service.jobs import Jobs
from rolloutlab.wire.events import Event

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
