"""The table of docs/service.md: where the service is stricter than the specification, and where more tolerant."""

import json

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.session import Session
from rolloutlab.settings import Settings

UNKNOWN = "6a3c2f8e-5f1f-4d0e-9a6b-0c1d2e3f4a5b"


@pytest.fixture
def post(service):
    """Sends a text to an endpoint; the status of the answer, and its text."""

    def send(path, text, **headers):
        async def answer():
            head = {"Authorization": f"Bearer {service.address.token}", **headers}
            async with httpx.AsyncClient(transport=service.http._transport, headers=head) as client:
                return await client.post(f"{service.address.base_url}{path}", content=text)

        found = service.http.run(answer())
        return found.status_code, found.text

    return send


@pytest.fixture
def job(service, trajectory):
    """Makes the body of a job of one group; what is given replaces parts of its first trajectory, `body` of itself."""
    model = str(service.register("spec").id)

    def make(body=(), **overrides):
        group = {"trajectories": [trajectory(0.0) | overrides, trajectory(1.0)]}
        return {"model_id": model, "trajectory_groups": [group], **dict(body)}

    return make


def with_entry(trajectory, **entry):
    made = json.loads(json.dumps(trajectory(0.0)))
    made["messages_and_choices"][-1]["logprobs"]["content"][0] |= entry
    return {"messages_and_choices": made["messages_and_choices"]}


def test_where_a_job_is_refused_that_the_specification_allows(post, job, trajectory):
    choice = trajectory(0.0)["messages_and_choices"][-1]
    refused = [
        job(messages_and_choices=[{**choice, "index": 0.5}]),
        job(initial_policy_version=1.5),
        job(**with_entry(trajectory, logprob=0.5)),
        job({"experimental_config": {"advantage_balance": 1.5}}),
        job({"experimental_config": {"epsilon": -0.1}}),
        job({"experimental_config": {"learning_rate": -1}}),
        job({"experimental_config": {"vendor_k2_tau": 1, "kimi_k2_tau": 2}}),
    ]
    for body in refused:
        assert post("/v1/preview/training-jobs", json.dumps(body))[0] == 422, body
    assert post("/v1/preview/training-jobs", json.dumps(job(reward=1.0)).replace("1.0", "NaN"))[0] == 422
    doubled = json.dumps(job()).replace('"trajectory_groups"', '"trajectory_groups": [], "trajectory_groups"')
    assert post("/v1/preview/training-jobs", doubled)[0] == 422
    assert post("/v1/preview/training-jobs", json.dumps(job({"model_id": UNKNOWN})))[0] == 404


def test_an_integer_is_one_without_a_decimal_point(post, job):
    body = json.dumps(job(initial_policy_version=1234))
    assert post("/v1/preview/training-jobs", body)[0] == 200
    assert post("/v1/preview/training-jobs", body.replace("1234", "1234.0"))[0] == 422


def test_where_a_job_is_taken_that_the_specification_does_not_allow(post, job):
    plain = job()
    both = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    user = {"role": "user", "content": "hello", "name": None, **both}
    choice = plain["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"][-1]
    taken = [
        job(metrics=None, logs=None, additional_histories=None, metadata=None),
        job(messages_and_choices=[user, choice]),
        job(seen="kept"),
        job({"more": 1, "experimental_config": {"kimi_k2_tau": 0.1, "newest": 1}}),
        job({"trajectory_groups": []}),
        job({"trajectory_groups": [{"trajectories": []}]}),
        job(messages_and_choices=[]),
        job({"model_id": plain["model_id"].replace("-", "")}),
        job({"model_id": f"urn:uuid:{plain['model_id']}"}),
        *[job(start_time=time) for time in ("2026-01-31 12:00:00", "2026-01-31t12:00:00z", "2026-01-31T12:00:00")],
    ]
    for body in taken:
        assert post("/v1/preview/training-jobs", json.dumps(body), **{"Content-Type": "text/plain"})[0] == 200, body


def test_a_user_message_with_properties_of_a_choice_trains_as_a_message(service, job):
    both = {"message": "a note", "finish_reason": "done"}
    items = job()["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"]
    body = job(messages_and_choices=[{**items[0], **both}, items[1]])
    events = service.ended(service.call("POST", "/v1/preview/training-jobs", json=body)["id"])
    report = next(event.data for event in events if event.type == "preflight")
    assert report["trainable_trajectories"] == 2


def test_where_a_chat_is_refused_and_where_it_is_taken(post):
    asked = {"model": "tiny", "max_tokens": 1}
    user = {"role": "user", "content": [{"type": "text", "text": "a"}], "name": None, "more": 1}
    assert post("/v1/chat/completions", json.dumps({**asked, "messages": []}))[0] == 400
    status, text = post("/v1/chat/completions", json.dumps({**asked, "messages": [user]}))
    assert status == 200
    [entry] = json.loads(text)["choices"][0]["logprobs"]["content"]
    assert isinstance(entry["token_id"], int)
    assert json.loads(text)["choices"][0]["policy_version"] == 0


def test_a_notebook_takes_any_finish_reason_and_trains_on_it_under_one_that_jobs_have(tmp_path):
    jobs = []

    def respond(request):
        if request.url.path == "/v1/chat/completions":
            entry = {"token": "a", "token_id": 4, "logprob": -0.5, "top_logprobs": []}
            choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "eos"}
            made = {**choice, "logprobs": {"content": [entry]}}
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [made] * 2}
            return httpx.Response(200, json=whole)
        if request.url.path == "/v1/preview/models":
            named = {"id": UNKNOWN, "entity": "e", "project": "lab", "name": "practice", "base_model": "b"}
            return httpx.Response(200, json={**named, "run_id": None})
        if request.method == "POST" and request.url.path == "/v1/preview/training-jobs":
            jobs.append(json.loads(request.content))
            return httpx.Response(200, json={"id": UNKNOWN})
        return httpx.Response(404)

    session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(respond), backoff=0))
    session.connect("http://train.example")
    session.chat("answers", "yes?", n=2)
    values = iter([0.0, 1.0])
    session.reward("answers", lambda trajectory, answer, messages, row: next(values))
    session.train("answers", say=lambda _: None)
    sent = jobs[-1]["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"][-1]
    assert (sent["finish_reason"], sent["reported_finish_reason"]) == ("stop", "eos")
    session.close()
