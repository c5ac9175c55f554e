"""Files of a lab that may only be read: on a shared folder of someone else, or on a disk that is mounted so.

A file in WAL mode needs two others beside it, `-wal` and `-shm`, also for reading
(https://www.sqlite.org/wal.html#readonly). Where nothing lies in `-wal`, it is opened as immutable, which needs
neither: files made here would be in its owner's way. That is right as long as no other process writes, and `files`
tells when one does.
"""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from rolloutlab.errors import LabError
from rolloutlab.fsutil import is_read_only, to_copy


def files(path: Path) -> tuple[object, ...]:
    """Another value than before once another process has written to the file, or opened it to write."""
    return _state(path), _state(_journal(path))


def connected(path: Path, timeout: float) -> sqlite3.Connection:
    """A connection that reads.

    Raises:
        LabError: what was written last lies beside the file, and cannot be read. sqlite3.Error: it is no database.
    """
    newer = (_state(_journal(path)) or (0,))[-1]
    try:
        return _opened(path, "mode=ro" if newer or not is_read_only(path) else "mode=ro&immutable=1", timeout)
    except sqlite3.OperationalError as error:
        if not newer or error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        unreadable = (
            f"{path} is read-only, and what was written last lies in {_journal(path).name}, which cannot be read"
        )
        raise LabError(unreadable, hint=to_copy(path.parent)) from error


def _opened(path: Path, how: str, timeout: float) -> sqlite3.Connection:
    """A connection that has read once, since SQLite opens no file before."""
    uri = f"file:{quote(str(path))}?{how}"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=timeout, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with a file, its size last; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
