"""Read-only SQLite files: in another user's folder, or on a read-only mount.

In WAL mode SQLite needs `-wal` and `-shm` also for reading (https://www.sqlite.org/wal.html#readonly). If `-wal` is
empty, the file is opened as immutable, which needs neither, because new files would disturb the owner. That is correct
as long as no other process writes; `files` detects when one does.
"""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from rolloutlab.errors import LabError
from rolloutlab.fsutil import is_read_only, to_copy


def files(path: Path) -> tuple[object, ...]:
    """A version that changes when another process writes the file or opens it to write."""
    return _state(path), _state(_journal(path))


def connected(path: Path, timeout: float) -> sqlite3.Connection:
    """A read-only connection.

    Raises:
        LabError: the latest writes are in a journal that cannot be read. sqlite3.Error: it is not a database.
    """
    newer = (_state(_journal(path)) or (0,))[-1]
    try:
        return _opened(path, "mode=ro" if newer or not is_read_only(path) else "mode=ro&immutable=1", timeout)
    except sqlite3.OperationalError as error:
        if not newer or error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        unreadable = f"{path} is read-only, and its latest writes are in {_journal(path).name}, which cannot be read"
        raise LabError(unreadable, hint=to_copy(path.parent)) from error


def _opened(path: Path, how: str, timeout: float) -> sqlite3.Connection:
    """A connection after a first read, since SQLite opens files lazily."""
    uri = f"file:{quote(str(path))}?{how}"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=timeout, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _state(path: Path) -> tuple[int, ...] | None:
    """Inode, mtime and size of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
