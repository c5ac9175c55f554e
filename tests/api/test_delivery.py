"""A training job whose answer is lost: it is not forgotten, and the next one does not train a second time."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from rolloutlab.api import training
from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import BrokenOffError, LabError, RefusedError, ServiceError, UnreachableError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

JOBS = "/v1/preview/training-jobs"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


class Proxy(httpx.AsyncBaseTransport):
    """Passes requests on to the service; `spoil` may lose the answer to a job, or the job before it gets there."""

    def __init__(self, behind: httpx.AsyncBaseTransport) -> None:
        self.behind = behind
        self.before: list[Any] = []
        """What becomes of the next jobs instead of passing them on; None passes one on."""
        self.after: list[Any] = []
        """What becomes of the answers to the next jobs; None passes one back."""
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.foreign = False
        """Whether it has no health check of rolloutlab."""
        self.lookups: list[Any] = []
        """What becomes of the next questions for a job."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if request.method == "GET" and path.startswith(JOBS) and self.lookups:
            return _spoilt(self.lookups.pop(0))
        if self.foreign and path == "/v1/health":
            return _spoilt(404)
        if request.method != "POST" or path != JOBS:
            return await self.behind.handle_async_request(request)
        self.bodies.append(await request.aread())
        self.keys.append(request.headers["Idempotency-Key"])
        if self.before and (trouble := self.before.pop(0)):
            return _spoilt(trouble)
        answer = await self.behind.handle_async_request(request)
        return _spoilt(self.after.pop(0)) if self.after and self.after[0] else answer


def _spoilt(trouble: Any) -> httpx.Response:
    if isinstance(trouble, httpx.Response):
        return trouble
    if not isinstance(trouble, int):
        raise trouble("on the way")
    return httpx.Response(trouble, json={"detail": "no"})


LOST = httpx.ReadError
REFUSED = httpx.ConnectError


@pytest.fixture
def proxy(service) -> Proxy:
    return Proxy(service.http._transport)


def _session(service, proxy, home, url="http://127.0.0.1") -> Session:
    address = Address(url, f"{url}/v1", service.address.token)
    session = Session(Settings(home=home, service=address), http=HttpClient(proxy, backoff=0))
    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    return session


@pytest.fixture
def scored(service, proxy, tmp_path) -> Iterator[Session]:
    session = _session(service, proxy, tmp_path)
    yield session
    session.close()


def train(session: Session):
    return session.train("capitals", say=lambda line: None)


def jobs_of(service) -> int:
    return len(service.database.read("SELECT id FROM jobs"))


@pytest.mark.parametrize("trouble", [LOST, httpx.ReadTimeout, 500, 502, 503])
def test_a_job_whose_answer_was_lost_is_found_and_followed(scored, service, proxy, trouble):
    proxy.after = [trouble]
    job = train(scored)
    assert (job.status, job.step) == ("succeeded", 1)
    assert jobs_of(service) == 1
    assert len(proxy.bodies) == 1
    assert scored.jobs().index.tolist() == [job.id[:8]]


def test_a_job_that_was_lost_on_its_way_is_sent_once_more_whole_and_under_the_same_key(scored, service, proxy):
    proxy.before = [LOST]
    assert train(scored).status == "succeeded"
    assert jobs_of(service) == 1
    assert len(set(proxy.bodies)) == len(set(proxy.keys)) == 1
    assert len(proxy.bodies) == 2


@pytest.mark.parametrize("then", [REFUSED, LOST, 500, 401])
def test_where_nothing_more_can_be_learned_the_job_stays_listed_and_is_found_later(scored, service, proxy, then):
    proxy.after, proxy.lookups = [LOST], [then] * 4
    with pytest.raises(BrokenOffError, match="may have been accepted, but the response was lost") as lost:
        train(scored)
    proxy.lookups = []
    [key] = proxy.keys
    assert lost.value.hint == f"%job {key[:8]}"
    assert scored.job(key[:8]).wait().step == 1
    assert scored.jobs().index.tolist() == [key[:8]]
    assert jobs_of(service) == 1


@pytest.mark.parametrize("lookup", [404, 405])
def test_a_service_that_is_not_rolloutlabs_gets_a_lost_job_no_second_time(scored, service, proxy, lookup):
    proxy.foreign, proxy.after, proxy.lookups = True, [LOST], [lookup] * 4
    with pytest.raises(BrokenOffError, match="may have been accepted"):
        train(scored)
    assert len(proxy.bodies) == jobs_of(service) == 1


@pytest.mark.parametrize("body", [{"id": None}, {"job_id": "x"}, []])
def test_an_answer_without_the_id_of_the_job_leaves_it_listed(scored, service, proxy, body):
    proxy.after, proxy.lookups = [httpx.Response(200, json=body)], [500] * 4
    with pytest.raises(BrokenOffError, match="may have been accepted"):
        train(scored)
    assert scored.jobs().index.tolist() == [key[:8] for key in proxy.keys]


def test_a_job_that_is_lost_twice_stays_listed(scored, proxy):
    proxy.before = [LOST, LOST]
    with pytest.raises(BrokenOffError):
        train(scored)
    assert scored.jobs()["status"].tolist() == ["unknown"]


@pytest.mark.parametrize(("trouble", "kind"), [(REFUSED, UnreachableError), (422, RefusedError), (401, ServiceError)])
def test_a_job_that_was_refused_or_never_sent_is_forgotten(scored, proxy, trouble, kind):
    proxy.before = [trouble]
    with pytest.raises(kind):
        train(scored)
    assert scored.jobs().empty
    assert len(proxy.bodies) == 1


def test_a_service_elsewhere_that_may_not_know_the_key_gets_a_job_only_once(service, proxy, tmp_path):
    class Elsewhere(httpx.AsyncBaseTransport):
        """Names the service behind by the one host that it answers to."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.headers["Host"] = "127.0.0.1"
            return await proxy.handle_async_request(request)

    session = _session(service, Elsewhere(), tmp_path, "https://elsewhere")
    proxy.before = [LOST]
    with pytest.raises(BrokenOffError):
        train(session)
    assert len(proxy.bodies) == 1
    assert session.jobs()["status"].tolist() == ["unknown"]
    session.close()


PATIENCE = 240.0
"""Seconds after which a test that waits for something is a test that fails."""


@pytest.fixture
def over_a_socket(service, tmp_path) -> Iterator[Session]:
    """As `scored`, over a real connection: where a body breaks off there, the transport says it in words of its own."""
    import uvicorn

    from rolloutlab.service.listen import ListenAddress

    listener = ListenAddress("127.0.0.1").listen(0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(service.http._transport.app, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    session = Session(Settings(home=tmp_path, service=Address(url, f"{url}/v1", service.address.token)))
    session.chat("capitals", "Capital of {{of}}?", over=[{"of": "Peru"}, {"of": "Chile"}], n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    yield session
    session.close()
    server.should_exit = True
    thread.join()
    listener.close()


def before_each_read(session: Session, monkeypatch, deed) -> None:
    """Have `deed` done with the number of each group that a job's body reads from the lab."""
    each_group = session.store.each_group

    def read(collection):
        for number, group in enumerate(each_group(collection)):
            deed(number)
            yield group

    monkeypatch.setattr(session.store, "each_group", read)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_lab_that_fails_while_a_job_is_sent_says_so_and_no_job_is_listed(
    over_a_socket, service, monkeypatch, failing
):
    def fail(number: int) -> None:
        if number == failing:
            raise LabError("lab.db cannot be read: disk I/O error", hint="%service check")

    monkeypatch.setattr(training, "_CHUNK_BYTES", 1)
    with pytest.raises(LabError, match="disk I/O error") as error:
        over_a_socket.train("capitals", say=lambda _: before_each_read(over_a_socket, monkeypatch, fail))
    assert error.value.hint == "%service check"
    assert over_a_socket.jobs().empty
    assert jobs_of(service) == 0


def test_while_a_job_is_read_from_the_disk_other_requests_go_on(over_a_socket, monkeypatch):
    alive = threading.Event()

    def wait_for_another_answer(_: int) -> None:
        over_a_socket._connector.http._loop.start().call_soon_threadsafe(alive.set)
        assert alive.wait(PATIENCE), "the loop of all requests waits for the disk"

    job = over_a_socket.train(
        "capitals", say=lambda _: before_each_read(over_a_socket, monkeypatch, wait_for_another_answer)
    )
    assert job.status == "succeeded"


@pytest.mark.parametrize("at_once", [1, 1000, 256 * 1024])
def test_a_body_is_the_same_in_whatever_pieces_it_is_made(scored, proxy, monkeypatch, at_once):
    monkeypatch.setattr(training, "_CHUNK_BYTES", at_once)
    assert train(scored).status == "succeeded"
    [body] = proxy.bodies
    assert [len(group["trajectories"]) for group in json.loads(body)["trajectory_groups"]] == [4]
