"""A loss of one's own that ends the service: its job fails at the next start, and is not run again."""

import hashlib
import json
import os
from contextlib import suppress

import pytest

from rolloutlab.errors import JobFailedError, RolloutlabError
from rolloutlab.service import loss_files
from rolloutlab.service.loss_files import LossFiles
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.training.custom_loss import source_of
from tests.forked import fork_embedded

GATE = ""


def exits(new, old, advantage, weight, history):
    import os

    os.close(os.open(GATE, os.O_RDONLY))
    os._exit(1)


def crashes(new, old, advantage, weight, history):
    import ctypes
    import os

    os.close(os.open(GATE, os.O_RDONLY))
    ctypes.string_at(0)


def trains(new, old, advantage, weight, history):
    return -(weight * advantage * new).sum() / len(new)


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """Where a loss waits until this is opened for writing: its job has been answered for by then."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    monkeypatch.setitem(globals(), "GATE", str(path))
    return path


@pytest.fixture
def notebook(tmp_path, tiny_policy, monkeypatch):
    """A session whose embedded service is a process of its own."""
    fork_embedded(monkeypatch)
    session = Session(Settings(home=tmp_path / "lab", policy=str(tiny_policy), linger=30.0))
    yield session
    session.embedded.stop()
    session.close()


@pytest.mark.process
@pytest.mark.parametrize("loss", [exits, crashes])
def test_a_loss_that_ends_the_process_fails_its_job_and_the_next_one_trains(notebook, gate, loss):
    rewards = iter([0.0, 1.0])
    notebook.chat("own", "yes?", n=2, max_tokens=4)
    notebook.reward("own", lambda trajectory, answer, messages, row: next(rewards))
    job = notebook.train("own", loss=loss, wait=False, say=lambda _: None)
    gate.open("w").close()
    with suppress(RolloutlabError):  # the connection, or after a new start of the service the failure of the job
        job.wait(progress=False)
    with pytest.raises(JobFailedError, match="the service's process ended while the loss of this job ran"):
        notebook.job(job.id).wait(progress=False)
    assert notebook.train("own", loss=trains, say=lambda _: None).status == "succeeded"


@pytest.fixture
def interrupted(start, body):
    """The service's folder as a kill leaves it in the middle of a job with a loss of its own; the job's id."""
    service = start()
    source = source_of(trains).encode()
    digest = hashlib.sha256(source).hexdigest()
    path = service.folder / "losses" / f"{digest}.py"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(source)
    path.chmod(0o600)
    wanted = body(service.register().id, experimental_config={"custom_loss": digest})
    with service.jobs.bodies.draft() as draft:
        draft.write_text(json.dumps(wanted))
        job_id = service.jobs.create(draft, "digest", by_owner=True)
    assert service.ended(job_id)[-1].type == "training_ended"
    service.stop()
    start()  # after whatever the job does once it has ended
    service = start()
    service.jobs.close()  # its thread looks for running jobs when it starts
    with service.database.write() as connection:
        connection.execute("UPDATE jobs SET status = 'running', final_step = NULL WHERE id = ?", (job_id,))
    service.jobs.bodies.path(job_id).write_text(json.dumps(wanted))
    return service, job_id


def losses(service):
    return service.folder / "losses"


def test_a_job_in_whose_loss_the_process_ended_has_failed_after_the_next_start(interrupted, start):
    service, job_id = interrupted
    with LossFiles(losses(service)).running(job_id):
        service = start()
        events = service.ended(job_id)
    assert "restarted" not in {event.type for event in events}
    assert events[-1].type == "training_failed"
    assert "train again" in events[-1].data["error_message"]
    assert service.call("GET", f"/v1/preview/training-jobs/{job_id}")["error"] == events[-1].data["error_message"]
    again = start()
    assert again.ended(job_id) == events
    assert not again.jobs.bodies.path(job_id).exists()
    assert not (losses(again) / "running").exists()


def test_a_job_that_was_killed_outside_its_loss_starts_over(interrupted, start):
    service, job_id = interrupted
    with LossFiles(losses(service)).running(job_id):
        pass
    events = start().ended(job_id)
    assert (events[0].type, events[-1].type) == ("restarted", "training_ended")


def test_a_job_whose_machine_ended_during_its_loss_starts_over(interrupted, start, tmp_path, monkeypatch):
    service, job_id = interrupted
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("one")
    monkeypatch.setattr(loss_files, "_BOOT_ID", boot_id)
    with LossFiles(losses(service)).running(job_id):
        boot_id.write_text("another")
        events = start().ended(job_id)
    assert (events[0].type, events[-1].type) == ("restarted", "training_ended")


def test_a_cancelled_job_whose_loss_hung_until_a_kill_is_cancelled(interrupted, start):
    service, job_id = interrupted
    with service.database.write() as connection:
        connection.execute("UPDATE jobs SET cancel_wanted = 1 WHERE id = ?", (job_id,))
    with LossFiles(losses(service)).running(job_id):
        assert start().ended(job_id)[-1].type == "training_cancelled"


@pytest.mark.parametrize("mark", [b"", b"\xff", b"another-job"])
def test_a_mark_of_another_job_or_of_a_power_cut_fails_no_job(interrupted, start, mark):
    service, job_id = interrupted
    (losses(service) / "running").write_bytes(mark)
    assert start().ended(job_id)[-1].type == "training_ended"
    assert not (losses(service) / "running").exists()


def test_a_mark_that_cannot_be_written_fails_the_job_in_words(interrupted, start, monkeypatch):
    def refuse(path, text):
        raise OSError(28, "No space left on device")

    _, job_id = interrupted
    monkeypatch.setattr(loss_files.Path, "write_text", refuse)
    message = start().ended(job_id)[-1].data["error_message"]
    assert message.endswith("running cannot be written: No space left on device (free some disk space)")
