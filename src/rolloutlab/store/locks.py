"""File locks for sampling: one process at a time samples a collection. The OS releases the lock when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolloutlab.errors import ConflictError, LabError
from rolloutlab.fsutil import Lock, locked, own, refused, remove

_ONE = "lock"
"""The lock around creating and removing lock files.

Without it a process could lock a file that another has just unlinked, while a third locks a new file of the same
name.
"""


def lock_for_sampling(folder: Path, number: int, label: str) -> Lock:
    """Lock a collection until `let_go`, or until this process ends. Remove the lock files of dead processes.

    folder: the folder of lock files. number: the id of the collection. label: its label, for an error.

    Raises:
        ConflictError: another process, or another cell, holds the lock.
        LabError: the folder cannot be written or locked.
    """
    lock = Lock(folder / f"{number}.lock", thread_local=False)
    try:
        own(folder)
        with locked(folder / _ONE):
            for path in folder.glob("*.lock"):
                other = Lock(path, thread_local=False)
                if other.try_acquire():
                    remove(path)
                    other.release()
            acquired = lock.try_acquire()
    except OSError as error:
        hint = "set ROLLOUTLAB_HOME to a folder you can write to"
        raise refused(f"{folder} cannot be used", error, hint) from error
    if not acquired:
        shown = "%collections shows how far it is"
        raise ConflictError(f"{label} is being sampled by another kernel or cell", hint=shown)
    return lock


def let_go(lock: Lock) -> None:
    """Release a lock and remove its file. If the file cannot be removed, the next `lock_for_sampling` does it."""
    path = Path(lock.lock_file)
    try:
        with suppress(LabError), locked(path.parent / _ONE):
            remove(path)
    finally:
        lock.release()


class CollectionLock:
    """The lock of the collection that a run writes, once there is one.

    A second interrupt ends the wait for a run while a thread may still be writing. `close` then leaves the lock to the
    end of `under_way`. `let_go` never waits.
    """

    def __init__(self) -> None:
        self._lock: Lock | None = None
        self.is_under_way = False

    def keep(self, lock: Lock) -> None:
        """Keep this lock until `close`."""
        self._lock = lock

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Make a context in which the collection is written; it lets the lock go at its end."""
        self.is_under_way = True
        try:
            yield
        finally:
            self.is_under_way = False
            self.let_go()

    def close(self) -> None:
        """Let the lock go, unless the run is under way."""
        if not self.is_under_way:
            self.let_go()

    def let_go(self) -> None:
        """Let the lock go now."""
        lock, self._lock = self._lock, None
        if lock:
            let_go(lock)
