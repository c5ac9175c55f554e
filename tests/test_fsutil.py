"""Files and folders of a lab."""

import errno
import fcntl
import os

import pytest

from rolloutlab.errors import LabError
from rolloutlab.fsutil import Lock, may_be_held, own


@pytest.mark.skipif(os.name != "posix", reason="rights are another thing there")
def test_every_folder_that_is_made_is_its_owners_alone_and_one_that_was_there_stays_as_it_was(tmp_path):
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    own(there / "lab" / "service")
    own(there / "lab" / "service")
    rights = [path.stat().st_mode & 0o777 for path in (there, there / "lab", there / "lab" / "service")]
    assert rights == [0o755, 0o700, 0o700]


def test_a_lock_is_held_until_its_holder_lets_go_and_a_copy_of_its_file_never_is(tmp_path):
    lock, copy = tmp_path / "lock", tmp_path / "copy"
    assert not may_be_held(lock)
    with Lock(lock):
        copy.write_bytes(lock.read_bytes())
        assert (may_be_held(lock), may_be_held(copy)) == (True, False)
    assert not may_be_held(lock)


def test_a_process_that_tests_a_lock_is_not_taken_for_its_holder(tmp_path, monkeypatch):
    """Both are within the test at once: the second begins before the first has let go."""
    lock, inner, flock = tmp_path / "lock", [], fcntl.flock
    lock.touch()

    def and_another_process(handle, operation):
        flock(handle, operation)
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", flock)
            inner.append(may_be_held(lock))

    monkeypatch.setattr(fcntl, "flock", and_another_process)
    assert (may_be_held(lock), inner) == (False, [False])


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EACCES])
def test_a_lock_may_be_held_where_that_cannot_be_tested(tmp_path, monkeypatch, number):
    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", lambda *_: _raise(OSError(number, os.strerror(number))))
    assert may_be_held(tmp_path / "lock")


def test_a_lock_that_cannot_be_tested_for_want_of_descriptors_is_an_error_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", lambda *_: _raise(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    with pytest.raises(LabError, match="no file descriptor left"):
        may_be_held(tmp_path / "lock")


def _raise(error):
    raise error
