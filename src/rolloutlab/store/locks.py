"""Who is sampling a collection: one process at a time, however it ends."""

from contextlib import suppress
from pathlib import Path

from rolloutlab.errors import ConflictError, LabError
from rolloutlab.fsutil import Lock, locked, own, refused, remove

_ONE = "lock"
"""Held by the one process that opens or removes a lock's file at the moment.

Without that, one that had opened a file just before it is removed would lock what has no name any more, and the next
one would lock another file of the same name.
"""


def lock_for_sampling(folder: Path, number: int, label: str) -> Lock:
    """Hold the collection with that number until `let_go`, or until this process ends.

    The files of locks whose processes were killed are removed.

    Raises:
        ConflictError: another process, or another cell, holds it. LabError: the folder cannot be written or locked.
    """
    lock = Lock(folder / f"{number}.lock", thread_local=False)
    try:
        own(folder)
        with locked(folder / _ONE):
            for path in folder.glob("*.lock"):
                _remove_unheld(path)
            acquired = lock.try_acquire()
    except OSError as error:
        hint = "set ROLLOUTLAB_HOME to a folder you can write to"
        raise refused(f"{folder} cannot be used", error, hint) from error
    if not acquired:
        shown = "%collections shows how far it is"
        raise ConflictError(f"{label} is being sampled by another kernel or cell", hint=shown)
    return lock


def let_go(lock: Lock) -> None:
    """Let others hold the collection, and leave no file behind; one that cannot be removed goes with the next hold."""
    path = Path(lock.lock_file)
    try:
        with suppress(LabError), locked(path.parent / _ONE):
            remove(path)
    finally:
        lock.release()


def _remove_unheld(path: Path) -> None:
    lock = Lock(path, thread_local=False)
    if lock.try_acquire():
        remove(path)
        lock.release()
