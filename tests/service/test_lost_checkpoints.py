"""A database that is missing, older than the checkpoints or half copied loses none of them."""

import errno
import hashlib
import json
import shutil
from uuid import UUID, uuid4

import pytest

from rolloutlab.errors import LabError, NotFoundError, PolicyError
from rolloutlab.fsutil import flush, remove
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.forked import fork_embedded

JOBS = "/v1/preview/training-jobs"
LOST = "/v1/preview/lost-checkpoints"


def move_away(folder):
    for path in folder.glob("service.db*"):
        path.unlink()


def steps(folder):
    return sorted(path.name for path in folder.iterdir())


def made_by_an_older_version(checkpoint):
    """Without the file that says what it is."""
    sums = json.loads((checkpoint / "sha256.json").read_text())
    del sums["checkpoint.json"]
    (checkpoint / "sha256.json").write_text(json.dumps(sums))
    (checkpoint / "checkpoint.json").unlink()


def test_a_service_whose_database_is_missing_refuses_to_start_and_deletes_nothing(start, trained):
    folder, model, _ = trained()
    move_away(folder)
    for _ in range(2):
        with pytest.raises(
            LabError, match=r"service\.db lists no model, but 2 trained checkpoints of 1 model"
        ) as refused:
            start()
        assert "%models --recover" in refused.value.hint
    assert steps(model) == ["0", "1", "2"]


def test_a_database_copied_without_its_write_ahead_log_is_no_reason_to_delete(start, body):
    service = start()
    model = service.register()
    service.ended(service.call("POST", JOBS, json=body(model.id))["id"])
    shutil.copy(service.folder / "service.db", service.folder / "copied")
    service.stop()
    move_away(service.folder)
    (service.folder / "copied").rename(service.folder / "service.db")
    with pytest.raises(LabError, match=r"copied without the file service\.db-wal"):
        start()
    assert steps(service.folder / "models" / str(model.id)) == ["0", "1"]


def test_recovered_checkpoints_sample_as_before_and_train_on(start, trained, notebook_of, body):
    folder, model, answer = trained()
    move_away(folder)
    service = start(start_empty=True)
    assert len(service.call("GET", LOST)["data"]) == 3
    assert not model.exists()
    recovered = notebook_of(service).models.recover()
    assert [(lost.model, lost.step) for lost in recovered.recovered] == [("lab/first", i) for i in range(3)]
    assert notebook_of(service).models.list().loc["lab/first", ["newest", "checkpoints"]].tolist() == [2, 3]
    assert not notebook_of(service).models.lost()
    assert service.chat(model="lab/first", seed=1).choices[0].logprobs == answer
    listed = service.call("GET", f"/v1/preview/models/{model.name}/checkpoints")["data"]
    assert listed[2]["metrics"]["loss"] is not None
    job = service.call("POST", JOBS, json=body(model.name))["id"]
    assert service.ended(job)[-1].data == {"step": 3}
    assert start().chat(model="lab/first").model == "lab/first@3"


def test_an_older_database_sets_newer_checkpoints_aside_with_the_reason(start, trained, body, notebook_of):
    folder, model, _ = trained(1)
    shutil.copy(folder / "service.db", folder / "backup")
    service = start()
    service.ended(service.call("POST", JOBS, json=body(model.name))["id"])
    service.stop()
    move_away(folder)
    (folder / "backup").rename(folder / "service.db")
    service = start()
    [lost] = notebook_of(service).models.lost().checkpoints
    assert (lost.model, lost.step) == ("lab/first", 2)
    assert steps(folder / "models" / ".lost" / model.name) == ["2", "2.json"]
    note = json.loads((folder / "models" / ".lost" / model.name / "2.json").read_text())
    assert note["reason"] == lost.reason == "the service's database does not list it"
    assert service.chat(model="lab/first").model == "lab/first@1"
    service.ended(service.call("POST", JOBS, json=body(model.name))["id"])  # makes another step 2
    remaining = notebook_of(service).models.recover().remaining
    assert [lost.reason for lost in remaining] == ["lab/first has another checkpoint 2 by now"]
    service.call("DELETE", f"/v1/preview/models/{model.name}/checkpoints", json={"steps": [2]})
    assert len(notebook_of(service).models.recover().recovered) == 1
    assert service.chat(model="lab/first").model == "lab/first@2"


def test_checkpoints_of_an_older_version_are_recovered_under_the_id_of_their_model(start, trained):
    folder, model, answer = trained()
    for step in steps(model):
        made_by_an_older_version(model / step)
    move_away(folder)
    service = start(start_empty=True)
    service.call("POST", f"{LOST}/recover")
    assert service.chat(model=f"recovered/{model.name[:8]}", seed=1).choices[0].logprobs == answer


def test_a_checkpoint_of_an_older_version_is_not_taken_for_one_of_another_policy(start, trained, practice_policy):
    folder, model, _ = trained(1)
    for step in steps(model):
        made_by_an_older_version(model / step)
    move_away(folder)
    service = start(practice_policy, start_empty=True)
    said = service.call("POST", f"{LOST}/recover")
    assert said["recovered"] == []
    assert {lost["reason"] for lost in said["remaining"]} == {
        "its tensors are for another base policy than the one that is served"
    }


def test_a_name_that_was_given_again_meanwhile_stays_with_its_model(start, trained):
    folder, _, answer = trained()
    move_away(folder)
    service = start(start_empty=True)
    service.register()
    service.call("POST", f"{LOST}/recover")
    assert service.chat(model="lab/first").model == "lab/first@0"
    assert service.chat(model="lab/first-2", seed=1).choices[0].logprobs == answer


def test_a_damaged_checkpoint_that_is_not_listed_is_kept_and_not_listed_again(start, trained):
    folder, model, _ = trained(1)
    shutil.copytree(model / "1", model / "5")
    (model / "5" / "adapter_model.safetensors").write_bytes(b"x")
    service = start()
    [lost] = service.call("POST", f"{LOST}/recover")["remaining"]
    assert "its checksum differs" in lost["reason"]
    assert (folder / "models" / ".lost" / model.name / "5" / "optimizer.safetensors").exists()


def test_what_is_no_checkpoint_stays_where_it_is(start, trained):
    folder, model, _ = trained(1)
    for path in (folder / "models" / "notes.txt", model / "plot.png", folder / "models" / ".DS_Store"):
        path.write_text("mine")
    service = start()
    assert all((folder / "models" / name).exists() for name in ("notes.txt", ".DS_Store"))
    assert (model / "plot.png").read_text() == "mine"
    assert service.call("GET", LOST)["data"] == []


def test_a_lost_checkpoint_that_is_moved_back_by_hand_under_its_name_beside_another_is_set_aside(start, trained):
    _, model, _ = trained(2)
    (model / "2").rename(model / "2-2")  # as it is called where another of its step is set aside already
    service = start()
    assert service.call("GET", "/v1/models")["data"]
    assert not (model / "2-2").exists()
    assert [lost["step"] for lost in service.call("GET", LOST)["data"]] == [2]


def test_lost_checkpoints_are_removed_on_demand_and_told_with_their_bytes(start, trained, notebook_of):
    folder, _, _ = trained()
    move_away(folder)
    notebook = notebook_of(start(start_empty=True))
    lost = notebook.models.lost()
    size = sum(path.stat().st_size for path in (folder / "models" / ".lost").glob("*/*/*"))
    assert lost.bytes == size > 0
    removed = notebook.models.purge()
    assert repr(removed).startswith(f"removed 3 checkpoints ({size:,} bytes):\n  lab/first@0")
    assert not notebook.models.lost()
    assert list((folder / "models").iterdir()) == []
    assert repr(notebook.models.purge()) == "no checkpoint was removed"


def test_a_job_that_runs_keeps_its_model_from_getting_steps_back(start, trained):
    _, model, _ = trained()
    (model / "2").rename(model / "7")
    rewritten(model / "7", step=7)
    service = start()
    assert [lost["step"] for lost in service.call("GET", LOST)["data"]] == [7]
    with service.database.write() as connection:
        values = "INSERT INTO jobs (id, model_id, status, created_at) VALUES ('j', ?, 'running', '')"
        connection.execute(values, (model.name,))
    [lost] = service.call("POST", f"{LOST}/recover")["remaining"]
    assert lost["reason"].startswith("a job of its model is running")
    with service.database.write() as connection:
        connection.execute("DELETE FROM jobs WHERE id = 'j'")
    assert len(service.call("POST", f"{LOST}/recover")["recovered"]) == 1


def rewritten(checkpoint, **changes):
    """Its `checkpoint.json` with other values, and the checksum that goes with them; a text stands for all of it."""
    about = json.loads((checkpoint / "checkpoint.json").read_text()) | changes
    (checkpoint / "checkpoint.json").write_text(changes.get("whole") or json.dumps(about))
    sums = json.loads((checkpoint / "sha256.json").read_text())
    sums["checkpoint.json"] = hashlib.sha256((checkpoint / "checkpoint.json").read_bytes()).hexdigest()
    (checkpoint / "sha256.json").write_text(json.dumps(sums))


ODD = {
    "saved_at": ({"saved_at": {}}, "saved_at: Input should be a valid string"),
    "metrics": ({"metrics": "abc"}, "metrics: Input should be an object"),
    "nan": ({"metrics": {"loss": float("nan")}}, "metrics.loss: Input should be a finite number"),
    "project": ({"project": "../x"}, "project: String should match pattern"),
    "name": ({"name": 5}, "name: Input should be a valid string"),
    "huge": ({"step": 10**400}, "step: Input should be less than or equal to 999999999"),
    "half": ({"base_model": "\ud800"}, "Invalid JSON"),
    "deep": ({"whole": "[" * 100_000}, "Invalid JSON"),
    "list": ({"whole": "[]"}, "it: Input should be an object"),
    "other step": ({"step": 3}, "holds step 3 of the model"),
    "other model": ({"id": str(UUID(int=1))}, f"holds step 1 of the model {UUID(int=1)}"),
}


@pytest.mark.parametrize(("changes", "reason"), ODD.values(), ids=ODD)
def test_an_odd_checkpoint_file_is_told_with_its_reason_and_keeps_no_other_from_coming_back(
    start, trained, notebook_of, changes, reason
):
    folder, model, _ = trained(2)
    rewritten(model / "1", **changes)
    move_away(folder)
    notebook = notebook_of(start(start_empty=True))
    assert [lost.step for lost in notebook.models.lost().checkpoints] == [0, 1, 2]
    done = notebook.models.recover()
    assert [lost.step for lost in done.recovered] == [0, 2]
    [lost] = done.remaining
    assert lost.step == 1
    assert reason in lost.reason
    assert repr(notebook.models.lost()).count("@1") == 1
    assert notebook.models.list().loc["lab/first", ["newest", "checkpoints"]].tolist() == [2, 2]


@pytest.mark.parametrize("linked", ["model", "step", "file"])
def test_a_link_is_neither_followed_nor_listed_again_and_what_is_behind_it_stays(start, trained, notebook_of, linked):
    folder, model, _ = trained(1)
    move_away(folder)
    service = start(start_empty=True)
    aside = folder / "models" / ".lost" / model.name
    place = {"model": aside, "step": aside / "1", "file": aside / "1" / "optimizer.safetensors"}[linked]
    behind = folder / "behind"
    place.rename(behind)
    place.symlink_to(behind)
    kept = sorted(path.name for path in behind.rglob("*"))
    remaining = notebook_of(service).models.recover().remaining
    assert {lost.reason for lost in remaining} == {f"{place} is a symbolic link"}
    assert remaining[-1].step == 1
    removed = notebook_of(service).models.purge().checkpoints
    assert len(removed) == (0 if linked == "model" else 1)
    assert behind.exists()
    assert sorted(path.name for path in behind.rglob("*")) == kept


def test_a_step_beyond_the_largest_is_not_listed_again(start, trained):
    _, model, _ = trained(1)
    made_by_an_older_version(model / "1")
    (model / "1").rename(model / "999999999999999999")
    service = start()
    [lost] = service.call("POST", f"{LOST}/recover")["remaining"]
    assert lost["reason"].endswith("is of a step beyond 999,999,999")


def test_a_disk_that_refuses_one_checkpoint_is_told_with_it_and_the_others_come_back(start, trained, monkeypatch):
    folder, model, _ = trained(2)
    move_away(folder)
    service = start(start_empty=True)

    def refuse(path):
        if (model / "1").exists():  # flushed after it was moved
            monkeypatch.undo()
            raise OSError(errno.EIO, "Input/output error")
        flush(path)

    monkeypatch.setattr("rolloutlab.service.lost_checkpoints.flush", refuse)
    done = service.call("POST", f"{LOST}/recover")
    assert [lost["step"] for lost in done["recovered"]] == [0, 2]
    assert [lost["reason"] for lost in done["remaining"]] == [
        f"it cannot be moved to {model / '1'}: [Errno 5] Input/output error"
    ]
    assert [lost["step"] for lost in service.call("GET", LOST)["data"]] == [1]
    assert len(service.call("POST", f"{LOST}/recover")["recovered"]) == 1


def test_only_what_is_gone_counts_as_removed(start, trained, notebook_of, monkeypatch):
    folder, model, _ = trained(2)
    move_away(folder)
    notebook = notebook_of(start(start_empty=True))
    held = folder / "models" / ".lost" / model.name / "1"
    monkeypatch.setattr(
        "rolloutlab.service.lost_checkpoints.remove", lambda path: None if path == held else remove(path)
    )
    assert [lost.step for lost in notebook.models.purge().checkpoints] == [0, 2]
    assert [lost.step for lost in notebook.models.lost().checkpoints] == [1]
    assert repr(notebook.models.purge()) == "no checkpoint was removed"
    assert held.exists()


def test_a_start_that_is_refused_has_removed_nothing(start, trained):
    folder, model, _ = trained(1)
    for name in (model / ".2-deleted", model.with_name(f".{UUID(int=1)}-deleted"), model / ".3-abc"):
        (name / "1").mkdir(parents=True)
    move_away(folder)
    before = sorted(folder.glob("models/**/*"))
    with pytest.raises(LabError, match="lists no model"):
        start()
    assert sorted(folder.glob("models/**/*")) == before


@pytest.fixture
def unended(monkeypatch):
    """Jobs train until the service stops, and start over with the next."""

    def wait(policy, model, start, task, callbacks, *_):
        while True:
            callbacks.raise_if_cancelled()

    monkeypatch.setattr("rolloutlab.engines.local.take_steps", wait)
    return monkeypatch.undo


def test_the_body_of_a_job_that_a_restored_database_does_not_list_is_kept_with_the_reason(
    start, body, unended, notebook_of, caplog
):
    service = start()
    model = service.register()
    service.stop()
    shutil.copy(service.folder / "service.db", service.folder / "backup")
    service = start()
    job = service.call("POST", JOBS, json=body(model.id))["id"]
    service.stop()
    jobs = service.folder / "jobs"
    sent = (jobs / f"{job}.json").read_bytes()
    (jobs / "notes.txt").write_text("mine")
    move_away(service.folder)
    (service.folder / "backup").rename(service.folder / "service.db")
    unended()
    service = start()
    lost = jobs / ".lost" / f"{job}.json"
    assert lost.read_bytes() == sent
    reason = json.loads((jobs / ".lost" / f"{job}.reason.json").read_text())["reason"]
    assert reason == "the service's database does not list it"
    assert steps(jobs) == [".lost", "notes.txt"]
    assert f"the body of a job was moved to {lost}: {reason}" in caplog.text
    line = notebook_of(service).service("check").splitlines()[-1]
    assert line.startswith(f"{jobs / '.lost'}: 1 body of jobs that service.db does not list -> POST each to")
    headers = {"Idempotency-Key": job}
    assert service.call("POST", JOBS, content=sent, headers=headers)["id"] == job
    assert service.ended(job)[-1].data == {"step": 1}
    assert not (jobs / ".lost").exists()
    assert "jobs/.lost" not in notebook_of(service).service("check")


def test_bodies_of_one_id_that_are_set_aside_one_after_the_other_replace_none(start):
    service = start()
    job, jobs = str(uuid4()), service.folder / "jobs"
    for text in ("first", "second"):
        jobs.mkdir(exist_ok=True)
        (jobs / f"{job}.json").write_text(text)
        start()
    assert [(jobs / ".lost" / f"{job}{number}.json").read_text() for number in ("", "-2")] == ["first", "second"]


def test_a_body_that_cannot_be_set_aside_stays_and_the_start_says_why(start):
    service = start()
    service.stop()
    path = service.folder / "jobs" / f"{uuid4()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    (path.parent / ".lost").write_text("in its way")
    what = rf"{path}, which is not listed, cannot be moved to .*\.lost should be a folder"
    with pytest.raises(LabError, match=what) as refused:
        start()
    assert refused.value.hint == f"!mv {path.parent}/.lost {path.parent}/.lost.old"
    assert path.exists()


@pytest.mark.process
def test_a_notebook_is_told_what_to_type_and_typing_it_lists_the_checkpoints_again(
    trained, tiny_policy, tmp_path, monkeypatch
):
    fork_embedded(monkeypatch)
    folder, _, _ = trained(1)
    move_away(folder)
    session = Session(Settings(home=tmp_path, policy=str(tiny_policy), linger=0.5))
    with pytest.raises(
        PolicyError, match=r"ended at its start: .*service\.db lists no model, but 1 trained"
    ) as refused:
        session.models.list()
    assert "%models --recover" in refused.value.hint
    assert len(session.models.recover().recovered) == 2
    assert session._models.find("lab/first").newest == 1
    session.embedded.stop()
    session.close()


def test_a_service_that_knows_no_lost_checkpoints_lists_its_models_all_the_same(session, service, monkeypatch):
    async def missing(*_, **__):
        raise NotFoundError("Not Found")

    monkeypatch.setattr("rolloutlab.api.training._call", missing)
    assert not session.models.lost()
