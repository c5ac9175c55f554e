"""A start removes no checkpoint."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from rolloutlab.policy.trainer import train

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
            monkeypatch.setattr("rolloutlab.service.jobs.train", train)
            return train(*arguments)

        monkeypatch.setattr("rolloutlab.service.jobs.train", copying)
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
