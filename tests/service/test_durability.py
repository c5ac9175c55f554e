"""What is kept and what is said when the disk is full, a checkpoint is damaged, or a service was cut off."""

import errno
import json
from pathlib import Path

import pytest
from safetensors import SafetensorError

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import FullError, RefusedError, ServiceError, TrainingError

FULL = "I/O error: No space left on device (os error 28)"


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


def submit(service, body):
    return service.call("POST", "/v1/preview/training-jobs", json=body)["id"]


def steps(service, model):
    listed = service.call("GET", f"/v1/preview/models/{model.id}/checkpoints")
    return [checkpoint["step"] for checkpoint in listed["data"]]


def last(service, job_id):
    return service.ended(job_id)[-1]


def left_over(service):
    """Whatever lies in the service's folder besides the database, and checkpoints that are listed."""
    listed = {f"models/{row['model_id']}/{row['step']}" for row in service.database.read("SELECT * FROM checkpoints")}
    found = {str(path.relative_to(service.folder)) for path in service.folder.glob("models/*/*")}
    return (found - listed) | {path.name for path in service.folder.glob("jobs/*")}


@pytest.fixture
def failing(monkeypatch):
    """Training fails, and the error needs more room in the database than there is."""

    def fail(*_):
        raise TrainingError("x" * 50_000)

    monkeypatch.setattr("rolloutlab.service.job_queue.read_task", fail)


def fill(service):
    [[pages]] = service.database.read("PRAGMA page_count")
    service.database.read(f"PRAGMA max_page_count = {pages}")


def make_room(service):
    service.database.read("PRAGMA max_page_count = 1000000")


def damage(path: Path):
    path.write_bytes(path.read_bytes()[:-1] + b"#")


@pytest.fixture
def full_for_tensors(monkeypatch):
    """Makes the disk too full for tensors, until it is asked again."""

    def fail(*_, **__):
        raise SafetensorError(FULL)

    monkeypatch.setattr("rolloutlab.policy.checkpoints.save_file", fail)
    return monkeypatch.undo


def test_a_disk_too_full_for_a_checkpoint_fails_the_job_and_keeps_the_last_good_one(service, body, request):
    model = service.register()
    make_room_again = request.getfixturevalue("full_for_tensors")
    end = last(service, submit(service, body(model.id)))
    assert end.type == "training_failed"
    assert "No space left on device" in end.data["error_message"]
    assert "free some disk space" in end.data["error_message"]
    assert steps(service, model) == [0]
    assert left_over(service) == set()
    assert service.chat(model="lab/first").model == "lab/first@0"
    make_room_again()
    assert last(service, submit(service, body(model.id))).type == "training_ended"
    assert steps(service, model) == [0, 1]


def test_a_disk_too_full_for_a_new_model_is_told_as_what_it_is(service, full_for_tensors):
    with pytest.raises(ServiceError, match=r"507 the checkpoint .* cannot be written: .*No space left"):
        service.register()
    assert left_over(service) == set()


def test_a_disk_too_full_for_a_body_refuses_the_job(service, body, monkeypatch):
    model = service.register()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rolloutlab.service.endpoints.body.flush", fail)
    with pytest.raises(ServiceError, match=r"507 .*jobs cannot be written: .*No space left"):
        submit(service, body(model.id))
    assert left_over(service) == set()
    monkeypatch.undo()
    assert last(service, submit(service, body(model.id))).type == "training_ended"


def test_a_job_that_a_full_disk_refused_is_told_as_such_and_is_no_job_of_the_lab(session, service, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    session.chat("capitals", "Capital of Peru?", n=4, max_tokens=4, seed=1)
    session.reward("capitals", lambda trajectory, answer, messages, row: int(trajectory.name[-1]))
    monkeypatch.setattr("rolloutlab.service.endpoints.body.flush", fail)
    with pytest.raises(FullError, match=r"507 .*No space left on device \(free some disk space\)"):
        session.train("capitals", say=lambda line: None)
    assert session.jobs().empty
    assert left_over(service) == set()


def test_the_body_of_a_job_that_could_not_be_queued_does_not_stay(service, body):
    model = service.register()
    fill(service)
    with pytest.raises(FullError, match=r"507 .*service\.db cannot be written: .*full"):
        service.train(CreateTrainingJob.model_validate(body(model.id)), "k" * 50_000)
    assert left_over(service) == set()
    make_room(service)
    assert last(service, submit(service, body(model.id))).type == "training_ended"


@pytest.mark.usefixtures("failing")
def test_the_end_of_a_job_that_cannot_be_recorded_is_recorded_once_it_can(service, body, monkeypatch, caplog):
    model = service.register()
    fill(service)
    job_id = submit(service, body(model.id))
    while "; retrying" not in caplog.text:
        assert service.call("GET", f"/v1/preview/training-jobs/{job_id}")["status"] in {"queued", "running"}
    make_room(service)
    assert last(service, job_id).type == "training_failed"
    monkeypatch.undo()
    assert last(service, submit(service, body(model.id))).data == {"step": 1}


def test_a_body_that_cannot_be_removed_keeps_no_job_from_ending(service, body, monkeypatch, caplog):
    model, unlink = service.register(), Path.unlink

    def refuse(path, missing_ok=False):
        if path.suffix == ".json":
            raise OSError("Input/output error")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):
        job_id = submit(service, body(model.id))
        while service.call("GET", f"/v1/preview/training-jobs/{job_id}")["status"] != "succeeded":
            assert "; retrying" not in caplog.text


@pytest.mark.usefixtures("failing")
def test_a_job_whose_end_cannot_be_recorded_does_not_keep_the_service_from_stopping(start, body, caplog):
    service = start()
    model = service.register()
    fill(service)
    job_id = submit(service, body(model.id))
    while "; retrying" not in caplog.text:
        service.call("GET", f"/v1/preview/training-jobs/{job_id}")
    assert [event.type for event in start().ended(job_id)] == ["restarted", "training_failed"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"])
def test_a_damaged_checkpoint_fails_jobs_and_chats_with_its_path_and_the_way_out(start, body, name):
    service = start()
    model = service.register()
    last(service, submit(service, body(model.id)))
    damaged = service.folder / "models" / str(model.id) / "1" / name
    damage(damaged)
    service = start()
    request = f'DELETE /v1/preview/models/{model.id}/checkpoints {{"steps": \\[1\\]}}'
    way_out = f"delete that step: .*%models --delete lab/first@1, or {request}"
    with pytest.raises(RefusedError, match=f"410 {damaged} is damaged.*{way_out}"):
        service.chat(model="lab/first")
    end = last(service, submit(service, body(model.id)))
    assert end.type == "training_failed"
    assert f"{damaged} is damaged" in end.data["error_message"]


def test_what_a_killed_service_left_behind_is_swept_at_the_next_start(start, body):
    service = start()
    model = service.register()
    last(service, submit(service, body(model.id)))
    models = service.folder / "models"
    for stale in (models / str(model.id) / ".2-abc", models / str(model.id) / ".2-deleted", models / ".0a-deleted"):
        stale.mkdir(parents=True)
        (stale / "adapter_model.safetensors").write_bytes(b"x")
    (models / str(model.id) / "1").rename(models / str(model.id) / ".1-deleted")  # killed before that was recorded
    ended = service.database.read("SELECT id FROM jobs")[0]["id"]
    for name in (f"{ended}.json", f".{ended}.draft"):
        (service.folder / "jobs" / name).write_text("{")
    service = start()
    assert left_over(service) == set()
    assert {path.name for path in models.iterdir()} == {str(model.id)}
    assert steps(service, model) == [0, 1]
    assert service.chat(model="lab/first").model == "lab/first@1"


def test_a_job_that_was_running_starts_over_from_its_checkpoint_and_says_so(start, body):
    service = start()
    model = service.register()
    job_id = submit(service, body(model.id))
    last(service, job_id)
    assert left_over(service) == set()
    with service.database.write() as connection:  # as a kill half way would have left it
        connection.execute("UPDATE jobs SET status = 'running', final_step = NULL WHERE id = ?", (job_id,))
        connection.execute("DELETE FROM checkpoints WHERE step = 1")
        connection.execute("UPDATE models SET last_step = 0")
    (service.folder / "jobs" / f"{job_id}.json").write_text(json.dumps(body(model.id)))
    adapter = Path("1", "adapter_model.safetensors")
    made = (service.folder / "models" / str(model.id) / adapter).read_bytes()
    service = start()
    events = service.ended(job_id)
    assert events[0].type == "restarted"
    assert events[-1].data == {"step": 1}
    aside = f"models/.lost/{model.id}"  # a database that was restored looks the same, so a start removes no step
    assert left_over(service) == {aside}
    assert (service.folder / aside / adapter).read_bytes() == made
