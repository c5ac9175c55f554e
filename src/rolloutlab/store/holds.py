"""Who is sampling a collection: one process at a time, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, Timeout

from rolloutlab.errors import ConflictError, LabError
from rolloutlab.store.disk import Lock, own, refused, remove


def hold(folder: Path, number: int, label: str) -> BaseFileLock:
    """Hold the collection with that number until `let_go`, or until this process ends.

    The files of locks whose processes were killed are removed.

    Raises:
        ConflictError: another process, or another cell, holds it. LabError: the folder cannot be written or locked.
    """
    lock = Lock(folder / f"{number}.lock", thread_local=False)
    try:
        own(folder)
        with _alone(folder):
            for path in folder.glob("*.lock"):
                _remove_unheld(path)
            lock.acquire(blocking=False)
    except Timeout as error:
        raise ConflictError(
            f"{label} is being sampled by another kernel or cell", hint="%collections shows how far it is"
        ) from error
    except OSError as error:
        hint = "set ROLLOUTLAB_HOME to a folder you can write to"
        raise refused(f"{folder} cannot be used", error, hint) from error
    return lock


def let_go(lock: BaseFileLock) -> None:
    """Let others hold the collection, and leave no file behind; one that cannot be removed goes with the next hold."""
    path = Path(lock.lock_file)
    with suppress(LabError), _alone(path.parent):
        remove(path)
    lock.release()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process opens or removes a lock's file meanwhile.

    Without that, one that had opened a file just before it is removed would lock what has no name any more, and the
    next one would lock another file of the same name.
    """
    with Lock(folder / "lock"):
        yield


def _remove_unheld(path: Path) -> None:
    lock = Lock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return
    remove(path)
    lock.release()
