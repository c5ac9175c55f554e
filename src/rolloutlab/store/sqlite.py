"""SQLite database for any number of threads and processes, safe against KeyboardInterrupt."""

import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from rolloutlab.errors import LabError
from rolloutlab.fsutil import (
    NONE_LEFT,
    TO_HAVE_MORE,
    TO_HAVE_SPACE,
    any_left,
    has_space,
    is_full,
    is_read_only,
    keep_for_ever,
    own,
    to_copy,
)
from rolloutlab.store.file_thread import Abandoned, Uninterrupted

T = TypeVar("T")
Row = sqlite3.Row
_TIMEOUT = 30.0
_OUTSIDE = (sqlite3.DatabaseError, sqlite3.OperationalError)
"""Errors of the disk or of other processes: full, locked, read-only, damaged. An error of a subclass is a bug."""
_VAGUE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
"""Errors whose reason may be a full disk."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CHECK_HINT = "%service check says what is damaged, and what to do"


class Database:
    """A connection with a lock. Reads see committed data; writes are atomic.

    Calls of the main thread run in a worker thread, where an interrupt cannot cut them.

    Args:
        path: The file.
        migrations: SQL scripts. `PRAGMA user_version` counts those applied; the others run when the file is opened.
        durable: Whether a write is on the disk before it returns.
        readable_from: The least number of applied migrations with which a read-only file opens; None for all.

    Raises:
        LabError: the file cannot be opened, is not a database, or was written by a newer version.
    """

    def __init__(
        self, path: Path, migrations: Sequence[str], *, durable: bool = False, readable_from: int | None = None
    ) -> None:
        self.path = path
        self._readable_from = len(migrations) if readable_from is None else readable_from
        self._durable = durable
        self._migrations = migrations
        self._moment: object = None
        """The owner of the open read transaction of `at_one_moment`."""
        self._writer: int | None = None
        """The thread inside `write`."""
        mode = self._begin()
        if mode != "wal":  # network file systems of hubs have no shared memory
            warnings.warn(f"{path} is on a file system without WAL: using journal mode {mode}", stacklevel=3)

    def has_table(self, name: str) -> bool:
        """Return whether there is a table: a read-only file of an earlier version lacks those that came later."""
        return bool(self.read("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def read(self, sql: str, *values: Any) -> list[Row]:
        """Run a query and return its rows; raise LabError if the file cannot be read."""
        return self._do(lambda _: self._read(sql, values))

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in a write transaction, or within the open one, and return its result.

        An error in `work` rolls the transaction back. So does an interrupt, unless it comes after the commit.

        Raises:
            LabError: the file cannot be written.
        """

        def whole(abandoned: Abandoned) -> T:
            with self.write() as connection:
                result = work(connection)
                if abandoned():
                    raise KeyboardInterrupt
                return result

        return self._do(whole)

    def at_one_moment(self, work: Callable[[], T]) -> T:
        """Call `work` in a read transaction, a consistent snapshot, and return its result.

        One thread at a time may call it, outside of `write`. Until it ends this object refuses to write, because the
        write would be rolled back with the snapshot. Another `Database` of the same file can write.

        Raises:
            LabError: the file cannot be read. RuntimeError: the caller is inside `write`.
        """
        if self._writer == threading.get_ident():
            raise RuntimeError(f"{self.path} is being written: what is read inside is as it was written")
        moment = object()
        return self._here().between(partial(self._begin_moment, moment), work, partial(self._end_moment, moment))

    def execute(self, sql: str, *values: Any) -> None:
        """Execute one statement as `change` does."""
        self.change(lambda connection: connection.execute(sql, values))

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a block in a write transaction, as `change` does. Not for the main thread, which an interrupt can reach.

        Raises:
            LabError: the file cannot be written. RuntimeError: while `at_one_moment` lasts, in this thread or another.
        """
        self.check_writable()
        with self._lock, self._translate_errors("written"):
            if self._moment:
                raise RuntimeError(f"{self.path} is read at one moment here: what is written now would be undone")
            if self._connection.in_transaction:
                yield self._connection
                return
            self._check_there()
            self._writer = threading.get_ident()
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                self._writer = None
                if self._connection.in_transaction:  # SQLite rolls back after some errors itself
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if type(error) not in _OUTSIDE:
                raise
            self._check_there()
            if not any_left():
                raise self._shortage_error(action) from error
            if self._is_full(error):
                raise LabError(f"{self.path} cannot be {action}: the disk is full", hint=TO_HAVE_SPACE) from error
            hint = _CHECK_HINT if _is_damage(error) else None
            raise LabError(f"{self.path} cannot be {action}: {error}", hint=hint) from error

    def _is_full(self, error: BaseException) -> bool:
        """Whether an error means a full disk. SQLite reports some of these as other errors."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return (
            is_full(error) or code == sqlite3.SQLITE_FULL or (code & 0xFF in _VAGUE and not has_space(self.path.parent))
        )

    def _shortage_error(self, action: str) -> LabError:
        return LabError(f"{self.path} cannot be {action}: {NONE_LEFT}", hint=TO_HAVE_MORE)

    @property
    def read_only(self) -> bool:
        """Whether the file cannot be written. If it has become writable meanwhile, it is opened again for writing."""
        if self._read_only and not is_read_only(self.path):
            self._do(lambda _: self._open_again())
        return self._read_only

    def check_writable(self) -> None:
        """Raise LabError if the file is read-only."""
        if self.read_only:
            folder = self.path.parent
            raise LabError(f"{folder} is read-only: nothing can be stored in it", hint=to_copy(folder))

    def changes(self) -> tuple[int, int]:
        """Return a version that changes with every write of any process. This is fast."""
        return self._do(lambda _: self._changes())

    def close(self) -> None:
        if self._process == os.getpid():  # a forked child must not close its parent's
            self._uninterrupted.do(lambda _: self._close())
            self._uninterrupted.end()

    def _do(self, work: Callable[[Abandoned], T]) -> T:
        """Run `work` where an interrupt cannot cut it, on a connection of this process."""
        here = self._here()
        if self._writer == threading.get_ident():  # a reentrant call: the worker thread would wait for this one forever
            return work(lambda: False)
        return here.do(work)

    def _here(self) -> Uninterrupted:
        """Return the worker thread of this process; after a fork, make a new one with a new connection."""
        if self._process != os.getpid():
            keep_for_ever(self._connection)  # closing it here would close the parent's journal
            self._begin()
        return self._uninterrupted

    def _begin_moment(self, moment: object) -> None:
        with self._lock, self._translate_errors("read"):
            if self._moment:  # left by an interrupted caller
                self._end_moment(self._moment)
            self._connection.execute("BEGIN")
            self._moment = moment

    def _end_moment(self, moment: object) -> None:
        with self._lock:
            if self._moment is moment:
                self._moment = None
                if self._connection.in_transaction:  # SQLite rolls back after some errors itself
                    self._connection.execute("ROLLBACK")

    def _begin(self) -> str:
        """Create lock, thread and connection, none of which survive a fork; return the journal mode."""
        self._lock = threading.RLock()
        self._moment = self._writer = None
        self._uninterrupted = Uninterrupted(f"rolloutlab-{self.path.stem}")
        mode = self._uninterrupted.do(lambda _: self._open())
        # last: if a fork fails to open the file, its next call must try again, not use the parent's connection
        self._process = os.getpid()
        return mode

    def _check_there(self) -> None:
        """Raise LabError if the path names another file now: writes to an unlinked file would be lost."""
        if self._file and _file_at(self.path) != self._file:
            message = f"{self.path} was deleted or replaced while it was open; nothing more is written to it"
            raise LabError(message, hint="put it back, or restart the kernel to use the file that is there now")

    def _open(self) -> str:
        """Open the file and migrate it; return the journal mode."""
        try:
            own(self.path.parent)
            self._read_only = is_read_only(self.path)
            as_opened = _version(self.path) if self._read_only else None
            connect = connect_read_only if self._read_only else _connect
            self._connection = connect(self.path, _TIMEOUT)
            self._connection.row_factory = Row
            self._file = _file_at(self.path)
            mode = self._configure()
            if not self._read_only:
                self._migrate()
        except (OSError, sqlite3.Error) as error:
            if not any_left():
                raise self._shortage_error("opened") from error
            if self._is_full(error):
                raise LabError(f"{self.path} cannot be opened: the disk is full", hint=TO_HAVE_SPACE) from error
            hint = _CHECK_HINT if _is_damage(error) else "set ROLLOUTLAB_HOME to a folder you can write to"
            raise LabError(f"{self.path} cannot be used: {error}", hint=hint) from error
        if self._read_only:
            self._check_version()
        self._as_opened = as_opened
        return mode

    def _open_again(self) -> None:
        with self._lock:
            if not self._connection.in_transaction:
                before = self._connection
                self._open()
                before.close()

    def _read(self, sql: str, values: Sequence[Any]) -> list[Row]:
        with self._lock, self._translate_errors("read"):
            if self._as_opened not in (None, _version(self.path)) and not self._connection.in_transaction:
                self._open_again()  # the owner writes: an immutable connection would keep showing old data
            return self._connection.execute(sql, values).fetchall()

    def _changes(self) -> tuple[int, int]:
        with self._lock:
            return self._read("PRAGMA data_version", ())[0][0], self._connection.total_changes

    def _close(self) -> None:
        with self._lock:
            self._connection.close()

    def _configure(self) -> str:
        mode = "wal" if self._read_only else self._journal_mode()
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.create_function("holds", 2, _holds, deterministic=True)
        return mode

    def _journal_mode(self) -> str:
        """Set WAL if possible, with retries, because SQLite's busy timeout does not cover this change."""
        end = time.monotonic() + _TIMEOUT
        while True:
            try:
                return str(self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _migrate(self) -> None:
        with self.write() as connection:
            for script in self._migrations[self._version() :]:
                for statement in _split_statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._migrations)}")

    def _version(self) -> int:
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(self._migrations):
            raise LabError(f"{self.path} was written by a newer rolloutlab", hint="pip install --upgrade rolloutlab")
        return version

    def _check_version(self) -> None:
        """Raise LabError if a read-only file needs a migration to be read."""
        if self._version() < self._readable_from:
            outdated = f"{self.path} was written by an older rolloutlab"
            message = f"{outdated}, and cannot be brought up to date: it is read-only"
            raise LabError(message, hint=to_copy(self.path.parent))


def _is_damage(error: Exception) -> bool:
    """Whether an error means a damaged file. The error of sqlite3 itself about invalid UTF-8 has no code."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.DatabaseError) and (code is None or code & 0xFF in _DAMAGE)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file; None if there is none, as for a database in memory."""
    status = _status(path)
    return (status.st_dev, status.st_ino) if status else None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _split_statements(script: str) -> Iterator[str]:
    """Split a script into its statements. Those of triggers contain semicolons."""
    statement = ""
    for piece in script.split(";"):
        statement += f"{piece};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _holds(text: str, part: str) -> bool:
    """Whether a text contains a part, ignoring case. It is the SQL function `holds`; `part` is casefolded already."""
    return part in text.casefold()


def _version(path: Path) -> tuple[object, ...]:
    """Return a version that changes when another process writes the file or opens it for writing."""
    return _state_of(path), _state_of(_journal_of(path))


def connect_read_only(path: Path, timeout: float) -> sqlite3.Connection:
    """Connect read-only to a file, which may be in another user's folder or on a read-only mount.

    In WAL mode SQLite needs the files `-wal` and `-shm` even for reading (https://www.sqlite.org/wal.html#readonly).
    Making them would disturb the owner. So a read-only file whose `-wal` is empty or missing is opened as immutable,
    which needs neither. That is correct as long as no other process writes; `_version` detects when one does.

    Raises:
        LabError: the latest writes are in a journal that cannot be read. sqlite3.Error: it is not a database.
    """
    newer = (_state_of(_journal_of(path)) or (0,))[-1]
    try:
        return _open_and_read(path, "mode=ro" if newer or not is_read_only(path) else "mode=ro&immutable=1", timeout)
    except sqlite3.OperationalError as error:
        if not newer or error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        unreadable = f"{path} is read-only, and its latest writes are in {_journal_of(path).name}, which cannot be read"
        raise LabError(unreadable, hint=to_copy(path.parent)) from error


def _open_and_read(path: Path, how: str, timeout: float) -> sqlite3.Connection:
    """Open a connection and read once, because SQLite opens the file only then."""
    uri = f"file:{quote(str(path))}?{how}"
    connection = _connect(uri, timeout, uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _connect(path: Path | str, timeout: float, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, uri=uri, check_same_thread=False, timeout=timeout, isolation_level=None)


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Return the inode, mtime and size of a file; None if it does not exist."""
    status = _status(path)
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else None


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
