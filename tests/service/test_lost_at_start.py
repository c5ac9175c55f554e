"""A start removes no checkpoint, and one that the disk refuses to read keeps neither it nor the others from use."""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rolloutlab.errors import ServiceError
from rolloutlab.policy.trainer import take_steps

JOBS = "/v1/preview/training-jobs"
LOST = "/v1/preview/lost-checkpoints"
TENSORS = "adapter_model.safetensors"


@pytest.fixture
def copied_while_a_job_runs(monkeypatch, tmp_path):
    """Copies the database and the bodies of jobs of a service, as a backup does, when its next job begins to train."""

    def begin(service):
        copy = tmp_path / "copy"

        def copying(*arguments):
            copy.mkdir()
            here, there = (sqlite3.connect(folder / "service.db") for folder in (service.folder, copy))
            with closing(here), closing(there):
                here.backup(there)
            shutil.copytree(service.folder / "jobs", copy / "jobs")
            monkeypatch.setattr("rolloutlab.engines.local.take_steps", take_steps)
            return take_steps(*arguments)

        monkeypatch.setattr("rolloutlab.engines.local.take_steps", copying)
        return copy

    return begin


@pytest.mark.parametrize("restored", [["service.db"], ["service.db", "jobs"]], ids=" and ".join)
def test_the_checkpoint_of_a_job_that_a_restored_database_still_runs_is_kept(
    start, body, copied_while_a_job_runs, restored
):
    service = start()
    model = service.register()
    copy = copied_while_a_job_runs(service)
    job = service.call("POST", JOBS, json=body(model.id))["id"]
    assert service.ended(job)[-1].data == {"step": 1}
    service.stop()
    made = (service.folder / "models" / str(model.id) / "1" / TENSORS).read_bytes()
    for path in service.folder.glob("service.db*"):
        path.unlink()
    shutil.rmtree(service.folder / "jobs")
    for name in restored:
        (copy / name).rename(service.folder / name)
    service = start()
    assert service.call("GET", LOST)["data"][0]["step"] == 1
    assert (service.folder / "models" / ".lost" / str(model.id) / "1" / TENSORS).read_bytes() == made
    assert service.ended(job)[0].type == "restarted"
    again = "jobs" in restored  # its body is there: it makes another step 1
    assert len(service.call("POST", f"{LOST}/recover")["remaining" if again else "recovered"]) == 1
    assert service.chat(model="lab/first").model == "lab/first@1"


def refused_at(place):
    """A checkpoint whose `checkpoint.json` cannot be read: a folder lies there."""
    shutil.copytree(place.with_name("1"), place)
    (place / "checkpoint.json").unlink()
    (place / "checkpoint.json").mkdir()


@pytest.fixture
def failing_disk(monkeypatch):
    """The disk answers EIO to whatever is asked of files under a name in folders under another, from now on."""

    def begin(folder, name):
        look, read = os.stat, Path.open

        def check(path):
            if isinstance(path, str | Path) and Path(path).parts[-2:] == (folder, name):
                raise OSError(errno.EIO, "Input/output error")

        def refuse_look(path, *arguments, **options):
            check(path)
            return look(path, *arguments, **options)

        def refuse_read(path, *arguments, **options):
            check(path)
            return read(path, *arguments, **options)

        monkeypatch.setattr(os, "stat", refuse_look)
        monkeypatch.setattr(Path, "open", refuse_read)

    return begin


def test_a_checkpoint_that_cannot_be_read_keeps_no_service_from_its_start(start, trained, notebook_of):
    _, model, answer = trained(1)
    (model / "9" / "checkpoint.json").mkdir(parents=True)
    service = start()
    notebook = notebook_of(service)
    assert notebook.models.list().loc["lab/first", ["newest", "checkpoints"]].tolist() == [1, 2]
    assert service.chat(model="lab/first", seed=1).choices[0].logprobs == answer
    [lost] = notebook.models.lost().checkpoints
    assert lost.step == 9
    assert lost.reason.startswith("the service's database does not list it, and ")
    assert lost.reason.endswith("checkpoint.json cannot be read: Is a directory")


def test_a_checkpoint_that_cannot_be_read_keeps_no_other_from_coming_back_nor_from_being_removed(
    start, trained, notebook_of
):
    folder, model, answer = trained(1)
    refused_at(model / "9")
    for path in folder.glob("service.db*"):
        path.unlink()
    service = start(start_empty=True)
    notebook = notebook_of(service)
    done = notebook.models.recover()
    assert [lost.step for lost in done.recovered] == [0, 1]
    assert [(lost.step, lost.reason.rpartition(" cannot ")[2]) for lost in done.remaining] == [
        (9, "be read: Is a directory")
    ]
    assert service.chat(model="lab/first", seed=1).choices[0].logprobs == answer
    assert [lost.step for lost in notebook.models.purge().checkpoints] == [9]
    assert not notebook.models.lost()


def test_a_file_that_the_disk_does_not_even_look_at_is_told_with_its_checkpoint(
    start, trained, notebook_of, failing_disk
):
    _, model, answer = trained(1)
    shutil.copytree(model / "1", model / "9")
    failing_disk("9", "checkpoint.json")
    service = start()
    notebook = notebook_of(service)
    [lost] = notebook.models.lost().checkpoints
    assert "checkpoint.json cannot be read: Input/output error" in lost.reason
    assert lost.bytes > 0
    assert len(notebook.models.recover().remaining) == 1
    assert service.chat(model="lab/first", seed=1).choices[0].logprobs == answer
    assert [lost.step for lost in notebook.models.purge().checkpoints] == [9]


def test_a_service_that_cannot_say_what_is_set_aside_is_not_taken_for_one_without(session, service, monkeypatch):
    def refuse(_lost):
        raise ServiceError("models/.lost cannot be read: Input/output error")

    monkeypatch.setattr("rolloutlab.service.lost_checkpoints.LostCheckpoints.all", refuse)
    with pytest.raises(ServiceError, match=r"answered 503 models/\.lost cannot be read"):
        session.models.lost()
