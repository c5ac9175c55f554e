"""Options that the engine below a service does not honour: refused before data is sent, and asked about only once."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.fine_tuning import CreateSFTTrainingJob
from rolloutlab.engines.local import LocalEngine
from rolloutlab.errors import InputError, RefusedError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.conftest import Service

UNSUPPORTED = {"ppo": "it has no such loss", "learning_rate": "it is fixed"}
NO_PPO, NO_RATE = (f"the engine ray does not honour {name}: {why}" for name, why in UNSUPPORTED.items())


class Recorded(httpx.AsyncBaseTransport):
    """A service whose requests are listed. foreign: the models that it lists are of another owner."""

    def __init__(self, service: Service, *, foreign: bool = False) -> None:
        self.asked: list[str] = []
        self._inner = service.http._transport
        self._foreign = foreign

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        response = await self._inner.handle_async_request(request)
        if not (self._foreign and request.url.path == "/v1/models"):
            return response
        listed = json.loads(await response.aread())
        for card in listed["data"]:
            card["owned_by"] = "another"
        return httpx.Response(200, json=listed)


@pytest.fixture
def partial(start: Callable[..., Service], monkeypatch) -> Service:
    monkeypatch.setattr(LocalEngine, "name", "ray")
    monkeypatch.setattr(LocalEngine, "unsupported", UNSUPPORTED)
    return start()


@pytest.fixture
def open_session(partial, tmp_path, monkeypatch) -> Iterator[Callable[..., tuple[Session, Recorded]]]:
    """A session with scored completions at a service, and the requests that it sends."""
    opened = []
    monkeypatch.setenv("ROLLOUTLAB_API_KEY", str(partial.address.token))

    def open_one(**options) -> tuple[Session, Recorded]:
        transport = Recorded(partial, **options)
        settings = Settings(home=tmp_path / "lab", service=partial.address)
        session = Session(settings, http=HttpClient(transport, backoff=0))
        opened.append(session)
        session.chat("greetings", "hello", n=2, max_tokens=4, seed=1)
        transport.asked.clear()
        rewards = iter([0.0, 1.0])
        session.reward("greetings", lambda answer: next(rewards))
        return session, transport

    yield open_one
    for session in opened:
        session.close()


def asked_for_the_engine(transport: Recorded) -> int:
    return transport.asked.count("GET /v1/preview/engine")


def test_the_form_shows_a_refused_option_and_submits_no_job(open_session):
    session, transport = open_session()
    form = session.train_form("greetings", {"ppo": True})
    outlook = form.look({"ppo": "true"})
    assert outlook["problems"] == {"ppo": NO_PPO}
    assert outlook["blocked"] == f"ppo: {NO_PPO}"
    assert f"no job can begin: {NO_PPO}" in str(outlook["hints"])
    assert "→ leave it out" in str(outlook["hints"])
    with pytest.raises(InputError, match=NO_PPO):
        form.submit()
    assert form.look({})["problems"] == {}
    assert form.job is None
    assert asked_for_the_engine(transport) == 2  # once for the form, and once more before it was refused
    assert "POST /v1/preview/training-jobs" not in transport.asked


def test_a_dry_run_of_fine_tuning_names_a_refused_option(open_session):
    session, _ = open_session()
    report = repr(session.check("greetings", {"learning_rate": 1e-3}, sft=True))
    assert f"no job can begin: {NO_RATE} -> leave it out" in report
    assert "no job can begin" not in repr(session.check("greetings", {"batch_size": 2}, sft=True))


def test_fine_tuning_with_a_refused_option_uploads_nothing(open_session):
    session, transport = open_session()
    with pytest.raises(InputError, match=NO_RATE):
        session.train("greetings", {"learning_rate": 1e-3}, sft=True)
    assert "POST /v1/preview/files" not in transport.asked


def test_a_fine_tuning_job_of_another_client_is_refused_by_name(partial):
    uploaded = partial.call(
        "POST",
        "/v1/preview/files",
        content=b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    )
    job = {"model_id": partial.register().id, "training_data_url": uploaded["url"], "config": {"learning_rate": 1e-3}}
    body = CreateSFTTrainingJob.model_validate(job).to_wire()
    with pytest.raises(RefusedError, match="learning_rate: the engine ray does not honour it: it is fixed"):
        partial.call("POST", "/v1/preview/sft-training-jobs", json=body)


def test_a_connected_service_of_our_own_is_asked_once(open_session):
    session, transport = open_session()
    session.connect("http://127.0.0.1", key_env="ROLLOUTLAB_API_KEY")
    for options in ({}, {"epsilon": 0.3}, {"scale_rewards": False}):
        session.check("greetings", options)
    session.train("greetings", {})
    assert asked_for_the_engine(transport) == 1


def test_a_service_of_others_is_never_asked(open_session):
    session, transport = open_session(foreign=True)
    session.connect("http://127.0.0.1", key_env="ROLLOUTLAB_API_KEY")
    session.check("greetings", {})
    session.train("greetings", {})
    assert asked_for_the_engine(transport) == 0


def test_a_service_that_has_changed_its_engine_meanwhile_is_asked_again_before_a_job_is_refused(
    open_session, monkeypatch
):
    session, transport = open_session()
    assert NO_PPO in repr(session.check("greetings", {"ppo": True}))
    monkeypatch.setattr(LocalEngine, "unsupported", {})
    session.train("greetings", {"ppo": True})
    assert asked_for_the_engine(transport) == 2
    assert "no job can begin" not in repr(session.check("greetings", {"ppo": True}))
