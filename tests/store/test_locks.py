"""Who holds a collection, with real processes: no lock's file stays, and none is taken from a process that holds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from rolloutlab.errors import ConflictError, LabError
from rolloutlab.store.locks import let_go, lock_for_sampling

KILLED = """
import os, signal, sys
from pathlib import Path
from rolloutlab.store.locks import lock_for_sampling

lock_for_sampling(Path(sys.argv[1]), 7, "x:7")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.process
def test_the_lock_of_a_killed_process_goes_with_the_next_one_and_one_that_is_held_stays(tmp_path):
    folder = tmp_path / "sampling"
    mine = lock_for_sampling(folder, 3, "x:3")
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False, timeout=240)
    assert sorted(path.name for path in folder.iterdir()) == ["3.lock", "7.lock", "lock"]
    other = lock_for_sampling(folder, 4, "x:4")
    assert sorted(path.name for path in folder.iterdir()) == ["3.lock", "4.lock", "lock"]
    with pytest.raises(ConflictError, match="x:3 is being sampled"):
        lock_for_sampling(folder, 3, "x:3")
    for lock in (mine, other):
        let_go(lock)
    assert [path.name for path in folder.iterdir()] == ["lock"]


@pytest.mark.parametrize("refused", ["", "lock", "3.lock"])
def test_a_folder_or_a_lock_that_is_refused_is_an_error_in_words(tmp_path, refused):
    folder = tmp_path / "sampling"
    if refused:
        (folder / refused).mkdir(parents=True)
    else:
        folder.touch()
    with pytest.raises(LabError, match=r"cannot be (used|locked)") as error:
        lock_for_sampling(folder, 3, "x:3")
    place = folder / refused
    assert error.value.hint == f"!mv {place} {place}.old"


def test_a_collection_is_let_go_also_where_the_locks_file_cannot_be_removed(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("Read-only file system")

    folder = tmp_path / "sampling"
    lock = lock_for_sampling(folder, 3, "x:3")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        let_go(lock)
    assert not lock.is_locked
    assert sorted(path.name for path in folder.iterdir()) == ["3.lock", "lock"]
    again = lock_for_sampling(folder, 3, "x:3")
    assert again.is_locked
    with pytest.raises(ConflictError):
        lock_for_sampling(folder, 3, "x:3")
    let_go(again)
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_listed_is_an_error_in_words(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", refuse)
        with pytest.raises(LabError, match="sampling cannot be used: Input/output error"):
            lock_for_sampling(tmp_path / "sampling", 3, "x:3")
    let_go(lock_for_sampling(tmp_path / "sampling", 3, "x:3"))
