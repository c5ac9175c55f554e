"""Deleting checkpoints and models, as a client sees it."""

import shutil

import pytest

from rolloutlab.api import training
from rolloutlab.errors import InputError, NotFoundError, RefusedError

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture
def trained(service, body):
    """A model after so many jobs."""

    def make(jobs, name="first"):
        model = service.register(name)
        for _ in range(jobs):
            service.ended(service.call("POST", "/v1/preview/training-jobs", json=body(model.id))["id"])
        return model

    return make


def steps(service, model, **params):
    listed = service.call("GET", f"/v1/preview/models/{model.id}/checkpoints", params=params)
    return [checkpoint["step"] for checkpoint in listed["data"]]


def delete(service, model, wanted):
    return service.http.run(training.delete_checkpoints(service.http, service.address, str(model.id), wanted))


def folders(service, model):
    return sorted(path.name for path in (service.folder / "models" / str(model.id)).glob("*"))


def test_deleted_checkpoints_are_counted_and_gone_and_unknown_steps_are_named(service, trained):
    model = trained(2)
    answer = delete(service, model, [0, 1, 1, 7, -1, 10**30, 7])
    assert answer.to_wire() == {"deleted_count": 2, "not_found_steps": [7, -1, 10**30]}
    assert steps(service, model) == [2]
    assert folders(service, model) == ["2"]
    with pytest.raises(NotFoundError, match="has no checkpoint 1"):
        service.chat(model="lab/first@1")


def test_a_model_keeps_at_least_one_checkpoint(service, trained):
    model = trained(1)
    with pytest.raises(RefusedError, match="409 lab/first would be left without a checkpoint"):
        delete(service, model, [0, 1])
    assert steps(service, model) == [0, 1]
    assert folders(service, model) == ["0", "1"]
    assert delete(service, model, []).deleted_count == 0


def test_a_deleted_step_is_never_used_again_and_the_model_goes_on_from_the_newest_that_is_left(service, trained, body):
    model = trained(2)
    delete(service, model, [2])
    assert service.chat(model="lab/first").model == "lab/first@1"
    job_id = service.call("POST", "/v1/preview/training-jobs", json=body(model.id))["id"]
    assert service.ended(job_id)[-1].data == {"step": 3}
    assert service.call("GET", f"/v1/preview/training-jobs/{job_id}")["step"] == 1
    assert steps(service, model) == [0, 1, 3]


def test_a_damaged_checkpoint_is_deleted_and_the_model_goes_on(start, body):
    service = start()
    model = service.register()
    job = body(model.id)
    service.ended(service.call("POST", "/v1/preview/training-jobs", json=job)["id"])
    shutil.rmtree(service.folder / "models" / str(model.id) / "1")
    service = start()
    with pytest.raises(RefusedError, match="410 there is no checkpoint at"):
        service.chat(model="lab/first")
    assert delete(service, model, [1]).deleted_count == 1
    assert service.chat(model="lab/first").model == "lab/first@0"
    assert service.ended(service.call("POST", "/v1/preview/training-jobs", json=job)["id"])[-1].data == {"step": 2}


def test_a_damaged_checkpoint_is_deleted_by_its_name_in_a_notebook(session, service, trained):
    model = trained(1)
    (service.folder / "models" / str(model.id) / "1" / "adapter_model.safetensors").write_bytes(b"x")
    with pytest.raises(RefusedError, match="%models --delete lab/first@1") as refused:
        session.chat("capitals", "Capital of Peru?", model="lab/first@1")
    assert "410" in refused.value.message
    assert session.models.delete("lab/first@1").steps == (0,)
    session.chat("capitals", "Capital of Peru?", model="lab/first", max_tokens=2)
    with pytest.raises(InputError, match="a step is missing") as missing:
        session.models.delete("lab/first")
    assert missing.value.hint == "%models --delete lab/first@3"
    with pytest.raises(NotFoundError, match="lab/first has no checkpoint 7"):
        session.models.delete("lab/first@7")
    with pytest.raises(RefusedError, match="would be left without a checkpoint"):
        session.models.delete("lab/first@0")


def test_a_deleted_model_is_gone_with_its_jobs_and_its_name_is_free(service, trained, body):
    model, other = trained(1), trained(1, "other")
    queued = [service.call("POST", "/v1/preview/training-jobs", json=body(model.id))["id"] for _ in range(3)]
    service.http.run(training.delete_model(service.http, service.address, str(model.id)))
    for job_id in queued:
        with pytest.raises(NotFoundError, match="there is no training job"):
            service.call("GET", f"/v1/preview/training-jobs/{job_id}")
    with pytest.raises(NotFoundError, match="there is no model 'lab/first'"):
        service.chat(model="lab/first")
    with pytest.raises(NotFoundError, match="there is no model with id"):
        service.call("DELETE", f"/v1/preview/models/{model.id}")
    assert service.register().id != model.id
    last = service.call("POST", "/v1/preview/training-jobs", json=body(other.id))["id"]
    assert service.ended(last)[-1].data == {"step": 2}  # the queue has gone on, past the deleted jobs
    assert folders(service, model) == []
    assert list((service.folder / "jobs").iterdir()) == []


def test_a_running_job_whose_model_is_deleted_ends_quietly(service, body, monkeypatch, caplog):
    from rolloutlab.engines import local

    take_steps = local.take_steps
    model, other = service.register(), service.register("other")

    def deleted_half_way(*values):
        monkeypatch.setattr(local, "take_steps", take_steps)
        service.call("DELETE", f"/v1/preview/models/{model.id}")
        return take_steps(*values)

    monkeypatch.setattr(local, "take_steps", deleted_half_way)
    service.call("POST", "/v1/preview/training-jobs", json=body(model.id))
    last = service.call("POST", "/v1/preview/training-jobs", json=body(other.id))["id"]
    assert service.ended(last)[-1].type == "training_ended"
    assert folders(service, model) == []
    assert caplog.text == ""


def test_checkpoints_are_listed_in_pages_either_way(service, trained):
    model = trained(3)
    path = f"/v1/preview/models/{model.id}/checkpoints"
    first = service.call("GET", path, params={"limit": 2})
    assert (first["first_id"], first["last_id"], first["has_more"]) == (f"{model.id}:0", f"{model.id}:1", True)
    delete(service, model, [1])
    assert steps(service, model, after=first["last_id"]) == [2, 3]  # a cursor outlives its checkpoint
    assert steps(service, model, after=f"{model.id}:3", order="desc") == [2, 0]


@pytest.mark.parametrize("after", ["junk", "1", "", f"{UNKNOWN}:x", f"{UNKNOWN}:1"])
def test_a_cursor_that_is_none_is_refused(service, after):
    with pytest.raises(RefusedError, match=r"4(00|22) "):
        steps(service, service.register(), after=after)


@pytest.mark.parametrize(
    "body", ["", "{}", '{"steps": 1}', '{"steps": [true]}', '{"steps": [1.5]}', '["steps"]', "NaN"]
)
def test_a_malformed_list_of_steps_is_refused_with_its_place(service, body):
    path = f"/v1/preview/models/{service.register().id}/checkpoints"
    with pytest.raises(RefusedError, match="422 body"):
        service.call("DELETE", path, content=body)


def test_a_million_steps_are_no_trouble(service):
    answer = delete(service, service.register(), range(1, 1_000_001))
    assert len(answer.not_found_steps) == 1_000_000


def test_what_is_not_there_cannot_be_deleted(service):
    for path in (f"/v1/preview/models/{UNKNOWN}", f"/v1/preview/models/{UNKNOWN}/checkpoints"):
        with pytest.raises(NotFoundError, match="there is no model with id"):
            service.call("DELETE", path, json={"steps": [1]})


@pytest.mark.parametrize("field", ["project", "name", "entity"])
def test_a_name_that_is_too_long_is_refused_at_its_place(service, field):
    wanted = {"project": "lab", "name": "x", field: "x" * 256}
    with pytest.raises(RefusedError, match=rf"422 body\.{field}: .*at most 255"):
        service.call("POST", "/v1/preview/models", json=wanted)
    service.call("POST", "/v1/preview/models", json=wanted | {field: "x" * 255})
