"""A large job, with the real service: what it needs of memory does not grow with the body."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from rolloutlab.api import training
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.training import RegisterModel
from rolloutlab.errors import SignInError, UnreachableError
from rolloutlab.settings import Settings
from tests.forked import fork_embedded

pytestmark = pytest.mark.process

MEGABYTES = 24


@pytest.fixture(scope="module")
def embedded(tmp_path_factory, tiny_policy):
    """The client of a real service, which has ended when the tests have."""
    http = HttpClient()
    embedded = Embedded(Settings(home=tmp_path_factory.mktemp("lab"), policy=str(tiny_policy), linger=30.0), http)
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        embedded.address()
    yield embedded
    embedded.stop()
    embedded.close()
    http.close()


async def sized(head: bytes, trajectory: bytes, count: int):
    """A body of one group, made while it is sent."""
    yield head + b'"trajectory_groups": [{"trajectories": ['
    for i in range(count):
        yield b"," * bool(i) + trajectory
    yield b"]}]}"


def peak(pid: int) -> int:
    """The most memory that a process has had at once, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


@pytest.fixture
def send(embedded, trajectory):
    """Sends a job of so many megabytes; its id and its size in bytes. Rewards are equal: there is nothing to train."""
    http, address = embedded._http, embedded.running()
    model = http.run(
        training.register_model(http, address, RegisterModel(project="lab", name="large", return_existing=True))
    )
    head, text = b'{"model_id": "%s", ' % str(model.id).encode(), json.dumps(trajectory(1.0, tokens=60)).encode()

    async def post(megabytes, token=address.token):
        count = megabytes * 1_000_000 // len(text)
        content = sized(head, text, count)
        url = f"{address.base_url}/v1/preview/training-jobs"
        job = await http.request("POST", url, token=token, content=content, timeout=300.0)
        return job["id"], count * len(text)

    return post


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_a_large_job_is_accepted_in_less_memory_than_its_size(embedded, send):
    http, address = embedded._http, embedded.running()
    http.run(training.cancel_job(http, address, http.run(send(1))[0]))  # whatever the first job needs once
    before = peak(embedded.pid())
    job_id, size = http.run(send(MEGABYTES))
    accepted = peak(embedded.pid())
    http.run(training.cancel_job(http, address, job_id))
    assert accepted - before < size / 2


def test_the_service_answers_others_while_it_takes_in_a_large_job(embedded, send):
    http, address = embedded._http, embedded.running()

    async def meanwhile():
        sending, answers = asyncio.create_task(send(MEGABYTES)), 0
        while not sending.done():
            await http.request("GET", f"{address.base_url}/v1/health")
            answers += 1
        return await sending, answers

    (job_id, _), answers = http.run(meanwhile())
    http.run(training.cancel_job(http, address, job_id))
    assert answers > 10


def test_who_may_not_send_a_large_job_is_told_so(embedded, send):
    with pytest.raises(SignInError, match="401 a valid bearer token is required"):
        embedded._http.run(send(MEGABYTES, token="wrong"))


def test_a_body_that_breaks_off_leaves_nothing_behind(embedded, send):
    http, address = embedded._http, embedded.running()

    async def half():
        yield b'{"model_id": "'
        raise OSError("the client is gone")

    url = f"{address.base_url}/v1/preview/training-jobs"
    with pytest.raises((UnreachableError, OSError)):
        http.run(http.request("POST", url, token=address.token, content=half()))
    while list((embedded.log.parent / "jobs").glob("*")):
        http.run(http.request("GET", f"{address.base_url}/v1/health"))
    http.run(training.cancel_job(http, address, http.run(send(1))[0]))
