"""Collections that appear whole or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.fsutil import Lock
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded, Score
from rolloutlab.store.staging import Draft


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def recorded(question, choice):
    return lambda i=0: Recorded(f"line {i}", "capitals", i, question(), [choice()], reward=float(i))


def count(lab, table):
    return lab._database.read(f"SELECT count(*) FROM {table}")[0][0]


def test_nothing_is_seen_before_it_is_published(lab, recorded):
    with lab.draft() as draft:
        draft.add(recorded(i) for i in range(600))
        assert lab.collections() == []
        assert count(lab, "trajectories") == 600
        assert draft.publish() == ["capitals:1"]
    assert lab.collection("capitals").trajectories == 600


def test_a_draft_that_fails_leaves_nothing(lab, recorded):
    def failing():
        yield from map(recorded, range(300))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), lab.draft() as draft:
        draft.add(failing())
    assert [count(lab, table) for table in ("collections", "groups", "trajectories")] == [0, 0, 0]


def test_two_drafts_of_one_name_become_two_generations(lab, recorded):
    with lab.draft() as first, lab.draft() as second:
        first.add([recorded()])
        second.add([recorded()])
        assert (second.publish(), first.publish()) == (["capitals:1"], ["capitals:2"])


def test_a_draft_cannot_be_restored_or_renamed_and_a_killed_process_leaves_nothing_to_see(tmp_path, lab, recorded):
    code = f"""
import os, signal, pathlib
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded
draft = Lab(pathlib.Path({str(tmp_path / "lab.db")!r})).draft().__enter__()
draft.add([Recorded("", "capitals", 0, [], [])])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == -signal.SIGKILL
    ((name,),) = lab._database.read("SELECT name FROM collections")
    assert lab.collections() == []
    with pytest.raises(NotFoundError):
        lab.lifecycle.restore(name)
    with lab._database.write() as connection:
        connection.execute("UPDATE collections SET deleted_at = '2026-01-01'")
    with lab.draft():
        assert count(lab, "trajectories") == 0  # what was abandoned is swept


def test_what_was_abandoned_and_cannot_be_removed_now_is_removed_by_the_next_draft(lab, recorded, monkeypatch):
    abandoned = lab.draft()
    abandoned.__enter__()
    abandoned.add([recorded()])
    abandoned._held.release()  # as at the end of its process

    def refuse(*_):
        raise LabError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "_remove", refuse)
        with pytest.raises(LabError) as refused, lab.draft():
            pass
    with lab.draft():
        assert count(lab, "trajectories") == 0
    assert refused.value.message == "the disk is full"  # whose frames had the lock until here


def test_a_draft_that_cannot_be_removed_at_its_end_is_removed_by_the_next(lab, recorded, monkeypatch):
    def refuse(*_):
        raise LabError("the disk is full")

    draft = lab.draft()
    draft.__enter__()
    draft.add([recorded()])
    with monkeypatch.context() as patched:
        patched.setattr(Draft, "_remove", refuse)
        with pytest.raises(LabError) as refused:
            draft.__exit__()
    with lab.draft():
        assert count(lab, "trajectories") == 0
    assert refused.value.message == "the disk is full"


def test_a_process_that_hangs_with_the_folder_of_drafts_is_told_with_what_to_type(lab, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.fsutil._BRIEF", 0.0)
    path = tmp_path / "drafts" / "lock"
    path.parent.mkdir()
    with Lock(path), pytest.raises(LabError, match=f"another process has held {path} for 0 s") as refused, lab.draft():
        pass
    assert refused.value.hint == f"!lsof {path} says which; end it, and run the cell again"
    with lab.draft():
        pass


def test_what_was_published_takes_rewards_like_anything_sampled(lab, recorded):
    with lab.draft() as draft:
        draft.add([recorded()])
        draft.publish()
    ((found,),) = (group.trajectories for group in lab.groups(lab.find("capitals")))
    (edit,) = lab.rewards.give([Score(found, 1.0)], "hand")
    assert (edit.old, edit.new) == (0.0, 1.0)
