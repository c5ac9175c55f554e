"""A service that offers the two documented operations and nothing else: what a notebook can do with it."""

import json
import uuid

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import NotOfferedError, RefusedError
from rolloutlab.session import Session
from rolloutlab.settings import Settings

MODEL = "6a3c2f8e-5f1f-4d0e-9a6b-0c1d2e3f4a5b"
NOT_THERE = [(404, b'{"detail": "Not Found"}'), (404, b""), (405, b'{"detail": "Method Not Allowed"}'), (501, b"no")]


class Stub:
    """Chat completions and the creation of jobs; whatever else is asked gets one answer."""

    def __init__(self, status=404, body=b""):
        self.missing = status, body
        self.jobs, self.chats, self.asked = [], [], []

    def __call__(self, request):
        route = request.method, request.url.path
        self.asked.append(route)
        if route == ("POST", "/v1/chat/completions"):
            return self.chat(json.loads(request.content))
        if route == ("POST", "/v1/preview/training-jobs"):
            return self.job(json.loads(request.content))
        return httpx.Response(self.missing[0], content=self.missing[1])

    def chat(self, body):
        if body["model"] != MODEL:
            return httpx.Response(404, json={"error": {"message": f"no model {body['model']}"}})
        self.chats.append(body)
        tokens = [{"token": "yes", "token_id": 5, "logprob": -0.5, "top_logprobs": []}]
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": "yes"},
                "finish_reason": "stop",
                "logprobs": {"content": tokens},
            }
            for i in range(body.get("n", 1))
        ]
        made = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices}
        return httpx.Response(200, json=made)

    def job(self, body):
        if "model_id" not in body:
            missing = [{"loc": ["body", "model_id"], "msg": "Field required", "type": "missing"}]
            return httpx.Response(422, json={"detail": missing})
        self.jobs.append(body)
        return httpx.Response(200, json={"id": str(uuid.uuid4())})


@pytest.fixture(params=NOT_THERE, ids=lambda missing: f"{missing[0]} {missing[1].decode()[:12]}")
def stub(request):
    return Stub(*request.param)


@pytest.fixture
def remote(stub, tmp_path):
    http = HttpClient(httpx.MockTransport(stub), backoff=0)
    session = Session(Settings(home=tmp_path), http=http)
    yield session
    session.close()


def test_it_is_connected_to_sampled_and_trained_by_the_id_of_a_model(remote, stub):
    state = repr(remote.connect("http://train.example"))
    assert "http://train.example answers: it samples and trains; it does not list its models" in state
    assert stub.jobs == []
    assert repr(remote.model(MODEL)) == f"model {MODEL}: its service lists no checkpoints"
    remote.chat("answers", "yes?", n=4)
    values = iter([0.0, 1.0, 0.5, 0.25])
    remote.reward("answers", lambda trajectory, answer, messages, row: next(values))
    job = remote.train("answers", {"learning_rate": 1e-4}, say=lambda _: None)
    assert "the service does not report on its jobs" in str(job)
    [sent] = stub.jobs
    assert sent["model_id"] == MODEL
    assert stub.chats[0]["model"] == MODEL
    assert ("POST", "/v1/preview/models") not in stub.asked


def test_a_loop_goes_on_where_jobs_are_not_reported(remote, stub):
    remote.connect("http://train.example")
    remote.model(MODEL)
    values = iter(range(100))
    loop = remote.loop(
        "answers", "yes?", lambda trajectory, answer, messages, row: next(values), n=4, jobs=2, over=[{}]
    )
    assert len(stub.jobs) == 2
    assert len(loop.rounds) == 2


def test_what_it_does_not_offer_is_said_in_words(remote):
    remote.connect("http://train.example")
    with pytest.raises(NotOfferedError, match=r"http://train\.example/v1 does not list its models") as caught:
        remote.models.list()
    assert caught.value.hint == "%model NAME_OR_UUID, of a model that it has"
    with pytest.raises(NotOfferedError, match=r"http://train\.example registers no models") as caught:
        remote.model("lab/other")
    assert caught.value.hint == "%model UUID, the id of a model that it has"
    remote.model(MODEL)
    remote.chat("a", "yes?")
    remote.reward("a", lambda trajectory, answer, messages, row: 1.0)
    with pytest.raises(NotOfferedError, match="its service lists no checkpoints"):
        remote.compare("a")


def test_a_service_whose_jobs_can_be_looked_at_is_followed_without_events(tmp_path):
    class Shows(Stub):
        def __call__(self, request):
            _, jobs, job_id = request.url.path.rpartition("/v1/preview/training-jobs/")
            if jobs and request.method == "GET" and "/" not in job_id:
                shown = {"id": job_id, "model_id": MODEL, "final_step": 3, "status": "succeeded"}
                return httpx.Response(200, json={**shown, "created_at": "2026-01-01T00:00:00Z"})
            return super().__call__(request)

    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(Shows()), backoff=0))
    session.connect("http://train.example")
    session.model(MODEL)
    session.chat("answers", "yes?", n=2)
    values = iter([0.0, 1.0])
    session.reward("answers", lambda trajectory, answer, messages, row: next(values))
    job = session.train("answers", say=lambda _: None)
    assert (job.status, job.step) == ("succeeded", 3)
    session.close()


@pytest.mark.parametrize("status", [404, 405, 301])
def test_what_answers_neither_is_no_service(tmp_path, status):
    http = HttpClient(httpx.MockTransport(lambda request: httpx.Response(status)), backoff=0)
    session = Session(Settings(home=tmp_path), http=http)
    with pytest.raises(Exception, match="is not such a service"):
        session.connect("http://nothing.example")
    session.close()


def test_the_penalty_is_sent_under_both_names_to_any_service(remote, stub):
    remote.connect("http://train.example")
    remote.model(MODEL)
    remote.chat("answers", "yes?", n=2)
    values = iter([0.0, 1.0])
    remote.reward("answers", lambda trajectory, answer, messages, row: next(values))
    remote.train("answers", {"vendor_k2_tau": 0.25}, say=lambda _: None)
    assert stub.jobs[0]["experimental_config"] == {"vendor_k2_tau": 0.25, "kimi_k2_tau": 0.25}


def test_here_either_name_is_read_and_two_values_are_refused_at_the_second(service, body):
    model = service.register()
    for config in ({"kimi_k2_tau": 0.5}, {"vendor_k2_tau": 0.5}, {"vendor_k2_tau": 0.5, "kimi_k2_tau": 0.5}):
        job_id = service.train(
            CreateTrainingJob.model_validate(body(model.id, experimental_config=config)), str(config)
        )
        report = next(event.data for event in service.ended(job_id) if event.type == "preflight")
        assert report["unknown_options"] == []
    both = {"vendor_k2_tau": 0.5, "kimi_k2_tau": 0.25}
    with pytest.raises(RefusedError, match=r"422 body\.experimental_config\.kimi_k2_tau: .* differ: 0\.25 and 0\.5"):
        service.call("POST", "/v1/preview/training-jobs", json=body(model.id, experimental_config=both))


def test_here_too_a_model_is_sampled_and_trained_by_its_id(session, service):
    model = str(service.register("by-id").id)
    assert session.model(model).steps == (0,)
    session.chat("answers", "hello", n=4, max_tokens=4, seed=1)
    values = iter([0.0, 1.0, 0.5, 0.25])
    session.reward("answers", lambda trajectory, answer, messages, row: next(values))
    assert session.train("answers", say=lambda _: None).step == 1
    assert service.chat(model=model).model == "lab/by-id@1"
