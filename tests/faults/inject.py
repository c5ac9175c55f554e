"""An error of the disk in the place of one chosen file-system call of this process.

Counted are, for paths in one folder, the calls of `os` that make, rename, remove, flush and list, `open` and the writes
of what it opened, locks, and the files of safetensors. SQLite reads and writes by itself, out of Python's sight; in the
place of its own failures stand those of the statements that write, BEGIN and COMMIT included, before they are executed.
ROLLBACK is none of them, since SQLite's own cannot fail. A call is known by the line of rolloutlab that it comes from
and by how many came from there before, so that threads do not change which call is meant.
"""

import builtins
import errno
import fcntl
import io
import os
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

Point = tuple[str, int]
"""A line of rolloutlab with the call that it leads to, and how many such calls came before."""

_OF_PATHS = ("open", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "scandir", "listdir", "chmod")
_OF_HANDLES = ("fsync", "fdatasync", "ftruncate")
_WRITING = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "BEGIN", "COMMIT", "VACUUM", "PRAGMA")
_HARMLESS = ("PRAGMA data_version", "PRAGMA busy_timeout", "PRAGMA quick_check", "PRAGMA integrity_check")


class Faults:
    """Patches this process for good: it is one that was forked for it.

    folder: paths elsewhere are left alone. target: the call that fails, once; None counts only.
    """

    def __init__(self, folder: Path, target: Point | None) -> None:
        self._folder = str(folder)
        self._target = target
        self._lock = threading.Lock()
        self._seen: Counter[str] = Counter()
        self._handles: dict[int, object] = {}
        """Paths of descriptors that `os.open` gave; `os.fdopen` knows numbers alone."""
        self.fired = False

    @property
    def points(self) -> list[Point]:
        """All calls so far."""
        return [(site, i) for site, count in sorted(self._seen.items()) for i in range(count)]

    def install(self) -> None:
        for name in _OF_PATHS:
            setattr(os, name, self._of_path(f"os.{name}", getattr(os, name)))
        os.fdopen = self._of_descriptor(os.fdopen)
        for name in _OF_HANDLES:
            setattr(os, name, self._always(f"os.{name}", getattr(os, name)))
        fcntl.flock = self._locking(fcntl.flock)
        io.open = builtins.open = self._opening(io.open)  # type: ignore[assignment]
        safetensors.torch.serialize_file = self._always("serialize_file", safetensors.torch.serialize_file)
        connect = sqlite3.connect
        sqlite3.connect = lambda *arguments, **options: connect(*arguments, factory=self._connection(), **options)

    def meet(self, call: str, error: Callable[[], Exception]) -> None:
        """Count a call, and raise in its place if it is the target."""
        site = f"{_line()} {call}"
        with self._lock:
            point = site, self._seen[site]
            self._seen[site] += 1
            hit = point == self._target and not self.fired
            self.fired |= hit
        if hit:
            raise error()

    def _within(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        if str(Path(__file__).parent) in sys._getframe(2).f_code.co_filename:  # these scripts' own
            return False
        return os.path.abspath(os.fspath(path)).startswith(self._folder)  # noqa: PTH100

    def _of_path(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if self._within(path):
                self.meet(name, lambda: _full(path))
            result = call(path, *arguments, **options)
            if name == "os.open":
                self._handles[result] = path
            return result

        return wrapped

    def _of_descriptor(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(handle: int, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            path = self._handles.get(handle)
            file = call(handle, mode, *arguments, **options)
            return file if not self._within(path) or set(mode).isdisjoint("wax+") else _Writing(file, self, path)

        return wrapped

    def _always(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.meet(name, lambda: _full(None))
            return call(*arguments, **options)

        return wrapped

    def _locking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(handle: Any, operation: int) -> Any:
            if not operation & fcntl.LOCK_UN:  # which no file system refuses
                self.meet("flock", lambda: _full(None))
            return call(handle, operation)

        return wrapped

    def _opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not self._within(path):
                return call(path, mode, *arguments, **options)
            self.meet(f"open {mode}", lambda: _full(path))
            file = call(path, mode, *arguments, **options)
            return file if set(mode).isdisjoint("wax+") else _Writing(file, self, path)

        return wrapped

    def _connection(self) -> type[sqlite3.Connection]:
        def meet(sql: str) -> None:
            words = sql.split()
            if words and words[0].upper() in _WRITING and not sql.strip().startswith(_HARMLESS):
                self.meet(f"sqlite {words[0].upper()}", _disk_full)

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                meet(sql)
                return super().execute(sql, *values)

            def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
                meet(sql)
                return super().executemany(sql, *values)

        return Connection


class _Writing:
    """A file whose writes are calls of their own."""

    def __init__(self, file: Any, faults: Faults, path: object) -> None:
        self._file, self._faults, self._path = file, faults, path

    def write(self, *arguments: Any) -> Any:
        self._faults.meet("write", lambda: _full(self._path))
        return self._file.write(*arguments)

    def __enter__(self) -> "_Writing":
        self._file.__enter__()
        return self

    def __exit__(self, *raised: Any) -> Any:
        return self._file.__exit__(*raised)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _full(path: object) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    return error


def _line() -> str:
    """The innermost line of rolloutlab that a call comes from."""
    frame = sys._getframe(2)
    while frame:
        name = frame.f_code.co_filename
        if "/rolloutlab/" in name and "/tests/" not in name:
            return f"{name.rpartition('/rolloutlab/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere"
