"""One SQLite file, safe to use from any thread and any number of processes at once."""

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

from rolloutlab.errors import LabError
from rolloutlab.fsutil import NONE_LEFT, TO_HAVE_MORE, any_left, is_read_only, own, to_copy
from rolloutlab.store import readonly
from rolloutlab.store.file_thread import Abandoned, Uninterrupted

T = TypeVar("T")
Row = sqlite3.Row

_TIMEOUT = 30.0
_OUTSIDE = (sqlite3.DatabaseError, sqlite3.OperationalError)
"""What the disk or another process does: full, locked for too long, read-only, damaged. Their subclasses are bugs."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_TO_MEND = "%service check says what is damaged, and what to do"


class Database:
    """A connection with its lock. `read` sees what is committed; what is written is committed or undone whole.

    The main thread, which an interrupt may stop at any instruction, has everything done by a thread of the file's own.

    migrations: SQL scripts; the file's `PRAGMA user_version` counts those it has had, the rest run on opening.
    `read_only`: whether the file, or its folder, may not be written; then it can be read, and nothing else.

    Raises:
        LabError: the file cannot be opened, is not a database, or was written by a newer version.
    """

    read_only: bool

    def __init__(self, path: Path, migrations: Sequence[str], *, durable: bool = False) -> None:
        self.path = path
        self._durable = durable
        self._migrations = migrations
        self._of_parents: list[sqlite3.Connection] = []
        self._moment: object = None
        """Of whom the transaction is in which something is read at one moment."""
        self._writer: int | None = None
        """The thread inside `write`."""
        mode = self._begin()
        if mode != "wal":  # network file systems of hubs have no shared memory
            warnings.warn(f"{path} is on a file system without WAL: using journal mode {mode}", stacklevel=3)

    def read(self, sql: str, *values: Any) -> list[Row]:
        """The rows of a query; LabError when the file cannot be read."""
        return self._do(lambda _: self._read(sql, values))

    def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns, called in a transaction that has the file to itself, or in a part of one.

        An interrupt of the caller undoes it, unless it is on disk already; one inside `work` undoes it as any error.

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
        """What `work` returns; all that it reads here is as it was in the beginning, whatever others write meanwhile.

        An interrupt ends that too. For one thread at a time, outside of `write`. Until it ends nothing is written
        through this object, which would be undone with it; another one of the same file can write.

        Raises:
            LabError: the file cannot be read. RuntimeError: the caller is inside `write`.
        """
        if self._writer == threading.get_ident():
            raise RuntimeError(f"{self.path} is being written: what is read inside is as it was written")
        moment = object()
        return self._here().between(partial(self._begin_moment, moment), work, partial(self._end_moment, moment))

    def execute(self, sql: str, *values: Any) -> None:
        """A change that is one statement."""
        self.change(lambda connection: connection.execute(sql, values))

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """As `change`, around a block; only for threads that no interrupt reaches.

        Raises:
            LabError: the file cannot be written. RuntimeError: while `at_one_moment` lasts, in this thread or another.
        """
        self.check_writable()
        with self._lock, self._translated("written"):
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
                if self._connection.in_transaction:  # SQLite has undone some failures itself
                    self._connection.execute("ROLLBACK")

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if type(error) not in _OUTSIDE:
                raise
            self._check_there()
            if not any_left():
                raise self._short(action) from error
            full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
            hint = _TO_MEND if _is_damage(error) else "free some disk space" if full else None
            raise LabError(f"{self.path} cannot be {action}: {error}", hint=hint) from error

    def _short(self, action: str) -> LabError:
        return LabError(f"{self.path} cannot be {action}: {NONE_LEFT}", hint=TO_HAVE_MORE)

    def check_writable(self) -> None:
        """LabError when the file is only read."""
        if self.read_only:
            raise LabError(
                f"{self.path.parent} is read-only: nothing can be stored in it", hint=to_copy(self.path.parent)
            )

    def changes(self) -> tuple[int, int]:
        """Another pair than before if anything was written in between, by this process or another; takes no time."""
        return self._do(lambda _: self._changes())

    def close(self) -> None:
        if self._process == os.getpid():  # the parent of a fork closes its own
            self._uninterrupted.do(lambda _: self._close())
            self._uninterrupted.end()

    def _do(self, work: Callable[[Abandoned], T]) -> T:
        """Do it where no interrupt reaches it, on a connection of this very process."""
        here = self._here()
        if self._writer == threading.get_ident():  # the file's own thread would wait for this one for ever
            return work(lambda: False)
        return here.do(work)

    def _here(self) -> Uninterrupted:
        """The thread of this very process, with a connection of its own."""
        if self._process != os.getpid():
            self._of_parents.append(self._connection)  # closing it here would end the parent's journal
            self._begin()
        return self._uninterrupted

    def _begin_moment(self, moment: object) -> None:
        with self._lock, self._translated("read"):
            if self._moment:  # of a caller that was interrupted just now
                self._end_moment(self._moment)
            self._connection.execute("BEGIN")
            self._moment = moment

    def _end_moment(self, moment: object) -> None:
        with self._lock:
            if self._moment is moment:
                self._connection.execute("ROLLBACK")
                self._moment = None

    def _begin(self) -> str:
        """A lock, a thread and a connection, none of which outlives a fork; the journal mode."""
        self._lock = threading.RLock()
        self._moment = self._writer = None
        self._uninterrupted = Uninterrupted(f"rolloutlab-{self.path.stem}")
        mode = self._uninterrupted.do(lambda _: self._open())
        self._process = (
            os.getpid()
        )  # not before: a fork whose first try fails must not go on with its parent's connection
        return mode

    def _check_there(self) -> None:
        """LabError when the path leads elsewhere by now: what is written to a file without a name is lost."""
        if self._file and _file_at(self.path) != self._file:
            raise LabError(
                f"{self.path} was deleted or replaced while it was open; nothing more is written to it",
                hint="put it back, or restart the kernel, which begins with what is there",
            )

    def _open(self) -> str:
        """Open the file and bring it up to date; its journal mode."""
        try:
            own(self.path.parent)
            self.read_only = is_read_only(self.path)
            as_opened = readonly.files(self.path) if self.read_only else None
            self._connection = readonly.connected(self.path, _TIMEOUT) if self.read_only else self._connected()
            self._connection.row_factory = Row
            self._file = _file_at(self.path)
            mode = self._configure()
            if not self.read_only:
                self._migrate()
        except (OSError, sqlite3.Error) as error:
            if not any_left():
                raise self._short("opened") from error
            hint = _TO_MEND if _is_damage(error) else "set ROLLOUTLAB_HOME to a folder you can write to"
            raise LabError(f"{self.path} cannot be used: {error}", hint=hint) from error
        if self.read_only:
            self._check_version()
        self._as_opened = as_opened
        return mode

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, check_same_thread=False, timeout=_TIMEOUT, isolation_level=None)

    def _read(self, sql: str, values: Sequence[Any]) -> list[Row]:
        with self._lock, self._translated("read"):
            if self._as_opened not in (None, readonly.files(self.path)) and not self._connection.in_transaction:
                before = self._connection
                self._open()  # its owner writes, and one opened as immutable would go on showing what was there
                before.close()
            return self._connection.execute(sql, values).fetchall()

    def _changes(self) -> tuple[int, int]:
        with self._lock:
            return self._read("PRAGMA data_version", ())[0][0], self._connection.total_changes

    def _close(self) -> None:
        with self._lock:
            self._connection.close()

    def _configure(self) -> str:
        mode = "wal" if self.read_only else self._journal_mode()
        self._connection.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.create_function("holds", 2, _holds, deterministic=True)
        return mode

    def _journal_mode(self) -> str:
        """WAL where it can be. SQLite's own time-out does not hold for this change, so it is asked again."""
        end = time.monotonic() + _TIMEOUT
        while True:
            try:
                return str(self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def _migrate(self) -> None:
        migrations = self._migrations
        with self.write() as connection:
            version = self._version()
            for script in migrations[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(migrations)}")

    def _version(self) -> int:
        version = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
        if version > len(self._migrations):
            raise LabError(f"{self.path} was written by a newer rolloutlab", hint="pip install --upgrade rolloutlab")
        return version

    def _check_version(self) -> None:
        """LabError when a file that is only read is not up to date."""
        if self._version() < len(self._migrations):
            outdated = (
                f"{self.path} was written by an older rolloutlab, and cannot be brought up to date: it is read-only"
            )
            raise LabError(outdated, hint=to_copy(self.path.parent))


def _is_damage(error: Exception) -> bool:
    """Whether a file is not as SQLite writes it; Python's own error, of text that is none, has no code."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.DatabaseError) and (code is None or code & 0xFF in _DAMAGE)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Device and number of the file at a path; None where there is none, as for a database in memory."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; those of a trigger end with semicolons of their own."""
    statement = ""
    for piece in script.split(";"):
        statement += f"{piece};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _holds(text: str, part: str) -> bool:
    """In SQL, `holds(text, part)`: whether a text has that part, which is folded already, in whatever case."""
    return part in text.casefold()
