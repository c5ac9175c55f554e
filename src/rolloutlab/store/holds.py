"""Who is sampling a collection: one process at a time, however it ends."""

from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from rolloutlab.errors import ConflictError
from rolloutlab.store.disk import own


def hold(folder: Path, number: int, label: str) -> BaseFileLock:
    """Hold the collection with that number until the lock is released, or this process ends.

    Raises:
        ConflictError: another process, or another cell, holds it.
    """
    own(folder)
    lock = FileLock(folder / f"{number}.lock", thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ConflictError(
            f"{label} is being sampled by another kernel", hint="%collections shows how far it is"
        ) from error
    return lock
