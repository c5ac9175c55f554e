"""A job's events as server-sent events: in process, and from a real server whose client may leave."""

import asyncio
import json
import threading

import httpx
import pytest
import uvicorn

from rolloutlab.errors import NotFoundError, RefusedError
from rolloutlab.service.endpoints import training_jobs
from rolloutlab.service.serve import Server

UNKNOWN = "00000000-0000-4000-8000-000000000000"
PATIENCE = 240.0


def submit(service, body, **overrides):
    return service.call("POST", "/v1/preview/training-jobs", json=body(service.register().id, **overrides))["id"]


def asked(service, job_id, params=None, **headers):
    """The whole text of the stream, once it has been closed."""
    url = f"http://127.0.0.1/v1/preview/training-jobs/{job_id}/events"
    wanted = {"Accept": "text/event-stream", "Authorization": f"Bearer {service.address.token}", **headers}

    async def get():
        async with httpx.AsyncClient(transport=service.http._transport) as client:
            answer = await client.get(url, params=params, headers=wanted)
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            return answer.text

    return service.http.run(get())


def parsed(text):
    """The events of a stream as (id, type, data)."""
    events = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.split("\n\n") if part.strip()]
    return [(event["id"], event["event"], json.loads(event["data"])) for event in events if "id" in event]


def as_parsed(events):
    return [(event.id, event.type, event.data) for event in events]


@pytest.fixture
def service(start):
    """One for each test: a server that stops hangs up on all who listen to jobs."""
    return start()


@pytest.fixture
def held(monkeypatch):
    """Holds the training of jobs until it is set."""
    from rolloutlab.service import job_queue

    go_on, read_task = threading.Event(), job_queue.read_task

    def held_up(*values):
        assert go_on.wait(PATIENCE)
        return read_task(*values)

    monkeypatch.setattr(job_queue, "read_task", held_up)
    yield go_on
    go_on.set()


def test_the_stream_has_every_event_and_ends_with_the_job(service, body):
    job_id = submit(service, body)
    text = asked(service, job_id)
    assert parsed(text) == as_parsed(service.ended(job_id))
    assert parsed(asked(service, job_id)) == parsed(text)  # also when the job had ended before


def test_the_stream_begins_after_a_cursor_or_the_last_event_that_a_client_has_seen(service, body):
    job_id = submit(service, body)
    events = as_parsed(service.ended(job_id))
    assert parsed(asked(service, job_id, {"after": events[1][0]})) == events[2:]
    assert parsed(asked(service, job_id, {"after": events[0][0]}, **{"Last-Event-ID": events[2][0]})) == events[3:]
    assert asked(service, job_id, {"after": events[-1][0]}) == ""


def test_a_cursor_that_is_no_number_is_refused(service, body):
    job_id = submit(service, body)
    path = f"/v1/preview/training-jobs/{job_id}/events"
    with pytest.raises(RefusedError, match=r"422 header\.last-event-id"):
        service.call("GET", path, headers={"Accept": "text/event-stream", "Last-Event-ID": "x"})
    with pytest.raises(RefusedError, match=r"422 query\.after"):
        service.call("GET", path, headers={"Accept": "text/event-stream"}, params={"after": "x"})


def test_the_stream_of_an_unknown_job_is_not_found(service):
    with pytest.raises(NotFoundError, match="there is no training job"):
        service.call("GET", f"/v1/preview/training-jobs/{UNKNOWN}/events", headers={"Accept": "text/event-stream"})


def test_a_job_whose_model_is_deleted_ends_its_stream(service, body, held, monkeypatch):
    model = service.register()
    delete = iter([lambda: service.call("DELETE", f"/v1/preview/models/{model.id}")])

    stream = training_jobs.stream

    async def deleted_half_way(*values):
        async for line in stream(*values, heartbeat=0.01):
            for do in delete:
                await asyncio.to_thread(do)
            yield line

    monkeypatch.setattr("rolloutlab.service.endpoints.training_jobs.stream", deleted_half_way)
    assert parsed(asked(service, submit(service, body))) == []


class Live:
    """The application on a real server, and raw connections to it."""

    def __init__(self, service):
        self.service = service
        app = service.http._transport.app
        config = uvicorn.Config(app, port=0, log_level="critical", lifespan="off")
        self._server = Server(config, service.jobs.end_streams)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    async def follow(self, job_id):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = [f"GET /v1/preview/training-jobs/{job_id}/events HTTP/1.1", "Host: 127.0.0.1"]
        lines += ["Accept: text/event-stream", f"Authorization: Bearer {self.service.address.token}", "", ""]
        writer.write("\r\n".join(lines).encode())
        return reader, writer

    def stop(self):
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.fixture
def live(service):
    live = Live(service)
    yield live
    live.stop()


def test_events_arrive_from_a_real_server_while_the_job_runs(live, service, body, held, monkeypatch):
    monkeypatch.setattr(training_jobs.stream, "__defaults__", (0.01,))
    job_id = submit(service, body)

    async def follow():
        reader, writer = await live.follow(job_id)
        early = await reader.readuntil(b": the job goes on\n\n")
        held.set()
        late = await reader.readuntil(b"event: training_ended\n")
        writer.close()
        return early, late

    early, late = service.http.run(asyncio.wait_for(follow(), PATIENCE))
    assert b"200 OK" in early
    assert b"event: training_started\n" in late


def test_the_stream_ends_when_its_client_leaves(live, service, body, held, monkeypatch):
    left = threading.Event()

    stream = training_jobs.stream

    async def watched(*values):
        try:
            async for line in stream(*values, heartbeat=0.01):
                yield line
        finally:
            left.set()

    monkeypatch.setattr("rolloutlab.service.endpoints.training_jobs.stream", watched)
    job_id = submit(service, body)

    async def follow_and_leave():
        reader, writer = await live.follow(job_id)
        await reader.readuntil(b": the job goes on\n\n")
        writer.close()

    service.http.run(asyncio.wait_for(follow_and_leave(), PATIENCE))
    assert left.wait(PATIENCE)


def test_a_service_that_stops_ends_its_streams(live, service, body, held, monkeypatch):
    monkeypatch.setattr(training_jobs.stream, "__defaults__", (0.01,))
    job_id = submit(service, body)

    async def follow():
        reader, writer = await live.follow(job_id)
        await reader.readuntil(b": the job goes on\n\n")
        await asyncio.to_thread(live.stop)
        rest = await reader.read()
        writer.close()
        return rest

    assert b"event:" not in service.http.run(asyncio.wait_for(follow(), PATIENCE))
