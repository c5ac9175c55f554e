"""Training jobs, as a client sees them."""

import asyncio
import json
import math
import re
from uuid import uuid4

import pytest

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import NotFoundError, RefusedError, SignInError

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


def trajectory(choice, reward, **overrides):
    messages = [{"role": "user", "content": "hello"}, choice.to_wire()]
    return {"messages_and_choices": messages, "reward": reward, **overrides}


@pytest.fixture
def job(service):
    """A job on fresh completions of a model's checkpoint 0, two groups of four."""

    def make(name="first", rewards=(0.0, 1.0, 0.5, 1.0), **overrides):
        model = service.register(name)
        groups = [
            {
                "trajectories": [
                    trajectory(choice, reward)
                    for choice, reward in zip(
                        service.chat(model=f"lab/{name}@0", n=4, seed=seed).choices, rewards, strict=True
                    )
                ]
            }
            for seed in (1, 2)
        ]
        return CreateTrainingJob.model_validate({"model_id": str(model.id), "trajectory_groups": groups, **overrides})

    return make


def kinds(events):
    return [event.type for event in events]


def data(events, kind):
    return [event.data for event in events if event.type == kind]


def test_a_job_reports_its_start_its_steps_its_checkpoint_and_its_end(service, job):
    events = service.ended(service.train(job()))
    [started] = data(events, "training_started")
    assert kinds(events) == [
        "training_started",
        "preflight",
        *["gradient_step"] * started["num_sequences"],
        "checkpoint_saved",
        "training_ended",
    ]
    assert started["num_sequences"] >= 1
    assert started["learning_rate"] == 2e-3


def test_every_value_of_a_gradient_step_is_a_finite_number(service, job):
    steps = data(service.ended(service.train(job())), "gradient_step")
    assert all(isinstance(v, int | float) and math.isfinite(v) for step in steps for v in step.values())


def test_with_fresh_data_the_first_step_has_ratio_one(service, job):
    step = data(service.ended(service.train(job())), "gradient_step")[0]
    assert step["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert step["ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert step["old_new_correlation"] > 0.999


def test_a_checkpoint_is_listed_once_training_ended_can_be_read(service, job):
    wanted = job()
    service.ended(service.train(wanted))
    listed = service.call("GET", f"/v1/preview/models/{wanted.model_id}/checkpoints")
    assert [checkpoint["step"] for checkpoint in listed["data"]] == [0, 1]
    assert listed["data"][1]["metrics"]["reward"] == pytest.approx(0.625)


def test_the_newest_checkpoint_answers_under_the_bare_name(service, job):
    service.ended(service.train(job()))
    assert service.chat(model="lab/first").model == "lab/first@1"
    assert service.chat(model="lab/first@0").model == "lab/first@0"


def test_the_same_job_twice_from_the_same_step_gives_bit_identical_adapters(service, job):
    for name in ("first", "second"):
        service.ended(service.train(job(name)))
    adapters = [
        (service.folder / "models" / str(service.register(name).id) / "1" / "adapter_model.safetensors").read_bytes()
        for name in ("first", "second")
    ]
    assert adapters[0] == adapters[1]


def test_a_job_in_which_nothing_trains_succeeds_with_the_same_weights_and_says_why(service, job):
    wanted = job(rewards=(1.0, 1.0, 1.0, 1.0))
    events = service.ended(service.train(wanted))
    assert kinds(events) == ["training_started", "preflight", "checkpoint_saved", "training_ended"]
    assert data(events, "preflight")[0]["reasons"] == {"equal_rewards": 8}
    folder = service.folder / "models" / str(wanted.model_id)
    before, after = ((folder / step / "adapter_model.safetensors").read_bytes() for step in ("0", "1"))
    assert before == after


def test_empty_arrays_are_valid(service, job):
    wanted = job().to_wire() | {"trajectory_groups": [{"trajectories": []}]}
    events = service.ended(service.train(CreateTrainingJob.model_validate(wanted)))
    assert data(events, "training_started")[0]["num_sequences"] == 0


def test_unknown_options_are_accepted_and_named(service, job):
    events = service.ended(service.train(job(experimental_config={"brand_new": 1, "epsilon": None})))
    assert data(events, "preflight")[0]["unknown_options"] == ["brand_new"]


def test_a_trajectory_without_logprobs_is_reported_apart_from_equal_rewards(service, job):
    body = job().to_wire()
    for member in body["trajectory_groups"][0]["trajectories"][:2]:
        del member["messages_and_choices"][1]["logprobs"]
    events = service.ended(service.train(CreateTrainingJob.model_validate(body)))
    assert data(events, "preflight")[0]["reasons"] == {"no_logprobs": 2}


def test_a_trajectory_whose_tokens_are_not_the_policys_is_left_out_and_named(service, job):
    body = job().to_wire()
    body["trajectory_groups"][1]["trajectories"][2]["messages_and_choices"][1]["logprobs"]["content"] = [
        {"token": "no such token", "logprob": -1.0, "top_logprobs": []}
    ]
    events = service.ended(service.train(CreateTrainingJob.model_validate(body)))
    assert kinds(events)[-1] == "training_ended"
    [report] = [event.data for event in events if event.type == "preflight"]
    [(reason, places)] = report["unreadable"].items()
    assert "'no such token', is not in the policy's vocabulary" in reason
    assert places == ["group 1, trajectory 2"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("trajectory_groups", 0, "trajectories", 3, "reward"), "high"),
        (("trajectory_groups", 1, "trajectories", 0, "messages_and_choices", 0, "role"), "robot"),
        (("experimental_config", "advantage_balance"), 2),
        (("experimental_config", "importance_sampling_level"), "word"),
        (("model_id",), "not-a-uuid"),
    ],
)
def test_a_malformed_job_is_refused_with_the_path_to_the_item(service, job, path, value):
    body = job(experimental_config={"epsilon": 0.2}).to_wire()
    place = body
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises(RefusedError, match=r"422 body\." + r"\.".join(map(str, path)) + ": "):
        service.call("POST", "/v1/preview/training-jobs", json=body)


def test_a_job_that_ruins_the_weights_fails_and_the_model_answers_as_before(service, job):
    before = service.chat(model="lab/first", seed=1) if service.register() else None
    events = service.ended(service.train(job(experimental_config={"learning_rate": 1e30})))
    assert kinds(events)[-1] == "training_failed"
    assert "a lower learning_rate" in events[-1].data["error_message"]
    assert service.chat(model="lab/first", seed=1).choices == before.choices


def test_a_job_makes_a_checkpoint_unless_it_says_that_it_was_cancelled(service, job):
    wanted = job(rewards=(1.0, 1.0, 1.0, 1.0))
    first, second = service.train(job()), service.train(wanted)
    service.call("POST", f"/v1/preview/training-jobs/{second}/cancel")
    service.ended(first)
    end = service.ended(second)[-1].type
    steps = service.call("GET", f"/v1/preview/models/{wanted.model_id}/checkpoints")["data"]
    assert (end, len(steps)) in {("training_cancelled", 2), ("training_ended", 3)}


def test_a_key_that_is_a_uuid_becomes_the_id_of_the_job(service, job):
    key = str(uuid4())
    assert service.train(job(), key) == key


def test_a_job_for_an_unknown_model_is_not_found(service, job):
    body = job().to_wire() | {"model_id": UNKNOWN}
    with pytest.raises(NotFoundError, match="there is no model with id"):
        service.call("POST", "/v1/preview/training-jobs", json=body)


def test_the_same_idempotency_key_is_the_same_job(service, job):
    wanted, key = job(), str(uuid4())
    assert service.train(wanted, key) == service.train(wanted, key)
    assert service.train(wanted, "another") != service.train(wanted, key)


def test_a_key_whose_job_was_deleted_with_its_model_begins_a_job_that_nobody_has_cancelled(service, job):
    key, first = str(uuid4()), job()
    service.ended(service.train(first, key))
    service.call("DELETE", f"/v1/preview/models/{first.model_id}")
    assert kinds(service.ended(service.train(job("second"), key)))[-1] == "training_ended"


def test_the_same_key_with_another_body_is_refused(service, body):
    model, other, key = service.register(), service.register("other"), "a key"
    first = service.http.run(submit(service, body(model.id), key))
    assert service.http.run(submit(service, body(model.id), key)) == first
    with pytest.raises(RefusedError, match=f"409 the Idempotency-Key was used for the job {first}"):
        service.http.run(submit(service, body(other.id), key))
    with pytest.raises(RefusedError, match=f"409 the Idempotency-Key was used for the job {first}"):
        service.http.run(submit(service, body(other.id), first))


@pytest.mark.parametrize(
    "key", ["a key", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "1B4E28BA-2FA1-11D2-883F-0016D3CCA427"]
)
def test_requests_with_one_key_at_once_are_one_job(service, body, key):
    wanted = body(service.register().id)

    async def at_once():
        return await asyncio.gather(*(submit(service, wanted, key) for _ in range(16)))

    [job_id] = set(service.http.run(at_once()))
    service.ended(job_id)
    assert service.http.run(submit(service, wanted, key.lower())) == job_id
    assert service.database.read("SELECT count(*) FROM jobs")[0][0] == 1
    assert list((service.folder / "jobs").iterdir()) == []


def test_without_a_key_every_request_is_a_job(service, body):
    wanted = body(service.register().id)
    assert len({service.http.run(submit(service, wanted, key)) for key in ("", "", None)}) == 3


async def submit(service, body, key):
    url = f"{service.address.base_url}/v1/preview/training-jobs"
    headers = {} if key is None else {"Idempotency-Key": key}
    return (await service.http.request("POST", url, token=service.address.token, json=body, headers=headers))["id"]


def test_a_refused_body_leaves_nothing_behind(service, body):
    for wrong in (body(service.register().id, trajectory_groups=5), body(UNKNOWN)):
        with pytest.raises((RefusedError, NotFoundError)):
            service.call("POST", "/v1/preview/training-jobs", json=wrong)
    assert list((service.folder / "jobs").iterdir()) == []


def test_a_job_is_created_only_for_who_may(start, body):
    service = start()
    with pytest.raises(SignInError, match="401"):
        service.call("POST", "/v1/preview/training-jobs", json=body(service.register().id), token="wrong")
    assert not (service.folder / "jobs").exists()


def test_the_client_sends_the_same_job_that_it_was_given(service, trajectory, body, monkeypatch):
    wanted = CreateTrainingJob.model_validate(
        body(
            service.register().id,
            trajectory_groups=[{"trajectories": [trajectory(1.0)] * 2, "note": 1}, {"trajectories": []}],
            experimental_config={"kimi_k2_tau": 0.1},
            more={"a": "b"},
        )
    )
    sent = []

    async def request(*_, content, **__):
        sent.extend([piece async for piece in content()])
        return {"id": UNKNOWN}

    monkeypatch.setattr(service.http, "request", request)
    service.train(wanted)
    expected = wanted.to_wire()
    expected["experimental_config"] = {"vendor_k2_tau": 0.1, "kimi_k2_tau": 0.1}  # a service reads the one or the other
    assert json.loads(b"".join(sent)) == expected


def test_events_are_read_on_from_a_cursor(service, job):
    job_id = service.train(job())
    events = service.ended(job_id)
    path = f"/v1/preview/training-jobs/{job_id}/events"
    page = service.call("GET", path, params={"limit": 2})
    assert [event["id"] for event in page["data"]] == [event.id for event in events[:2]]
    assert page["has_more"] is True
    rest = service.call("GET", path, params={"after": page["data"][-1]["id"]})
    assert [event["id"] for event in rest["data"]] == [event.id for event in events[2:]]


def test_a_job_is_looked_up_by_its_id(service, job):
    wanted = job()
    job_id = service.train(wanted)
    service.ended(job_id)
    found = service.call("GET", f"/v1/preview/training-jobs/{job_id}")
    assert (found["id"], found["status"], found["step"], found["final_step"]) == (job_id, "succeeded", 0, 1)
    with pytest.raises(NotFoundError, match="there is no training job with id"):
        service.call("GET", f"/v1/preview/training-jobs/{UNKNOWN}")


def test_the_openapi_document_names_the_operation_of_the_specification(service):
    document = service.call("GET", "/openapi.json", token=None)
    create = document["paths"]["/v1/preview/training-jobs"]["post"]
    assert create["operationId"] == "create_training_job_v1_preview_training_jobs_post"
    body = create["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert body == "#/components/schemas/CreateTrainingJob"
    named = set(re.findall(r'"#/components/schemas/([^"]*)"', json.dumps(document)))
    assert named <= document["components"]["schemas"].keys()
    assert create["tags"] == ["training-jobs"]
    assert document["info"]["version"] == "1.0.0"
    assert create["responses"]["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/HTTPValidationError")


def test_a_job_that_waits_is_cancelled_at_once(service, body):
    model = service.register()
    groups = [body(model.id)["trajectory_groups"][0]] * 400
    long = service.train(CreateTrainingJob.model_validate(body(model.id, trajectory_groups=groups)), "long")
    waiting = service.train(CreateTrainingJob.model_validate(body(model.id)), "waiting")
    found = service.call("POST", f"/v1/preview/training-jobs/{waiting}/cancel")
    assert (found["status"], found.get("started_at")) == ("cancelled", None)
    assert [event.type for event in service.ended(waiting)] == ["training_cancelled"]
    service.call("POST", f"/v1/preview/training-jobs/{long}/cancel")
    assert service.ended(long)[-1].type == "training_cancelled"
