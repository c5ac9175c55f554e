"""Durable and private files: fsync, locks between processes, owner-only folders, errors; line numbers of TOML files."""

import asyncio
import ctypes
import errno
import os
import shlex
import shutil
import time
import tomllib
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from rolloutlab.errors import InputError, LabError

NONE_LEFT = "this process has no file descriptor left"
TO_HAVE_MORE = (
    "close files that the notebook has open, or restart the kernel; ulimit -n 4096 before Jupyter starts allows more"
)
TO_HAVE_SPACE = "free some disk space"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBED = 65_536  # bytes: SQLite's files beside a database grow by 32 KiB
_SQLITE_DESCRIPTORS = 3  # for a database file, its journal and its shared memory
_BRIEF = 10.0  # seconds to wait for a lock that processes hold briefly
_POLL = 0.05
_WITHOUT_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of flock(2) on file systems without it."""


def path_of(name: str | os.PathLike[str], hint: str) -> Path:
    """The path that a person wrote, with `~` replaced. The file need not exist.

    Raises:
        InputError: no file can have this path: `~name` is not a user, or a character cannot be in a file name.
    """
    try:
        path = Path(name).expanduser()
        if b"\0" not in os.fsencode(path):
            return path
        why = "it contains a NUL character"
    except (RuntimeError, ValueError) as error:
        why = "no file name can hold its characters" if isinstance(error, UnicodeError) else str(error)
    raise InputError(f"{os.fspath(name)!r} is not a file path: {why}", hint=hint)


def short_of_descriptors(error: BaseException) -> bool:
    """Whether this is EMFILE or ENFILE."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def any_left() -> bool:
    """Whether SQLite could open a file now; its own errors do not tell when descriptors have run out."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_SQLITE_DESCRIPTORS))
    except OSError as error:
        if short_of_descriptors(error):
            return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def is_full(error: BaseException) -> bool:
    """Whether an error of the file system is that of a full disk, or of a used-up quota."""
    return isinstance(error, OSError) and error.errno in _FULL


def has_space(folder: Path) -> bool:
    """Whether a file could be written in a folder now; SQLite calls a full disk an I/O error."""
    probe = folder / f".{uuid.uuid4().hex}.draft"
    try:
        probe.write_bytes(bytes(_PROBED))
    except OSError as error:
        return not is_full(error)
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return True


def keep_for_ever(inherited: object) -> None:
    """Keep an object that a fork has copied until this process ends, so that its finalizer never runs here.

    Parent and child share the epoll instance and the open files. A finalizer in the child would remove the parent's
    connections and locks from them.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


class Lock(FileLock):
    """A lock between processes, freed when its holder ends. LabError: it cannot be locked. Timeout: it is held.

    A process that was forked from its holder does not hold it, and cannot release it.
    """

    def __init__(self, path: Path | str, *, thread_local: bool = True) -> None:
        super().__init__(path, thread_local=thread_local)
        self._process = os.getpid()

    @property
    def is_of_parent(self) -> bool:
        """Whether it was made, and may be held, by a process that this one was forked from."""
        return self._process != os.getpid()

    def acquire(self, *arguments: Any, **options: Any) -> "AcquireReturnProxy[Any]":
        if self.is_of_parent:
            self._leave_parent()
        try:
            return super().acquire(*arguments, **options)
        except Timeout:
            raise
        except OSError as error:
            hint = "set ROLLOUTLAB_HOME to a folder where files can be locked"
            raise refused(f"{self.lock_file} cannot be locked", error, hint) from error

    def release(self, force: bool = False) -> None:
        """Release it, except in a child of its holder: parent and child share the open file that flock(2) locks."""
        if not self.is_of_parent:
            super().release(force)

    def _leave_parent(self) -> None:
        """After a fork: begin anew. Closing the inherited descriptor releases nothing."""
        inherited = self._context.lock_file_fd
        if inherited is not None:
            os.close(inherited)
        self.__init__(self.lock_file, thread_local=self.is_thread_local())  # type: ignore[misc]

    def try_acquire(self, timeout: float = 0.0) -> bool:
        """Acquire it within `timeout` seconds; whether that succeeded."""
        try:
            self.acquire(timeout=timeout)
        except Timeout:
            return False
        return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock briefly. LabError: another process holds it for ten seconds, or it cannot be locked."""
    lock = Lock(path, thread_local=False)
    if not lock.try_acquire(_BRIEF):
        raise _still_held(path, _BRIEF)
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def locked_async(path: Path, timeout: float) -> AsyncIterator[None]:
    """Hold a lock during requests; LabError when another process holds it for `timeout` seconds."""
    lock, end = Lock(path, thread_local=False), time.monotonic() + timeout
    while not lock.try_acquire():
        if time.monotonic() > end:
            raise _still_held(path, timeout)
        await asyncio.sleep(_POLL)
    try:
        yield
    finally:
        lock.release()


def may_be_held(path: Path) -> bool:
    """Whether a process holds the `Lock` of a file; True also where that cannot be tested. LabError: the disk fails.

    The test takes a shared lock: processes that test at once do not exclude each other, and reading suffices.
    """
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(handle)  # which releases it
    except FileNotFoundError:
        return False
    except OSError as error:
        if isinstance(error, BlockingIOError | PermissionError) or error.errno in _WITHOUT_FLOCK:
            return True
        raise refused(f"whether {path} is locked cannot be tested", error, "run the cell again") from error
    return False


def _still_held(path: Path, seconds: float) -> LabError:
    hint = f"!lsof {shlex.quote(str(path))} says which; end it, and run the cell again"
    return LabError(f"another process has held {path} for {seconds:.0f} s: it is suspended or hangs", hint=hint)


def refused(what: str, error: OSError, hint: str) -> LabError:
    """The LabError for an error of the file system.

    hint: used unless the cause has a better one: no descriptors left, a full disk, a file in the place of a folder, or
    a folder in the place of a file.
    """
    if short_of_descriptors(error):
        return LabError(f"{what}: {NONE_LEFT}", hint=TO_HAVE_MORE)
    if is_full(error):
        return LabError(f"{what}: {error.strerror}", hint=TO_HAVE_SPACE)
    if isinstance(error, FileExistsError | IsADirectoryError):
        path = error.filename2 or error.filename  # the second is the destination of a move
        expected = "file" if isinstance(error, IsADirectoryError) else "folder"
        move = f"!mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"
        return LabError(f"{what}: {error.strerror}: {path} should be a {expected}", hint=move)
    return LabError(f"{what}: {error.strerror or error}", hint=hint)


def flush(path: Path) -> None:
    """fsync a file, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 by way of a draft beside it, so that it is never read empty or in part.

    The caller makes sure that one process at a time writes it, since a draft that is already there is replaced: a
    killed process may have left it. Raises OSError.
    """
    draft = path.with_suffix(".draft")
    try:
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        flush(draft)
        draft.replace(path)
        flush(path.parent)
    except OSError:
        remove(draft)
        raise


def own(folder: Path) -> None:
    """Make a folder and its missing parents, each with mode 0700."""
    for path in [*reversed(folder.parents), folder]:
        path.mkdir(mode=0o700, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder as far as possible, without raising."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_read_only(path: Path) -> bool:
    """Whether a file exists and it or its folder cannot be written."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK))


def may_fill(folder: Path) -> bool:
    """Whether files can be made in a folder. If it is missing: whether it can be made."""
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    return os.access(existing, os.W_OK | os.X_OK)


def to_copy(folder: Path) -> str:
    """What to type to copy a read-only lab folder to one that can be written."""
    copy = f"!cp -r --no-preserve=mode {shlex.quote(str(folder))} my-lab"
    return f"{copy}, then start Jupyter with ROLLOUTLAB_HOME=my-lab"


def line_of_key(text: str, keys: tuple[str, ...]) -> int:
    """The line of a TOML text where the statement that sets a key begins; tomllib does not report positions."""
    lines, begin = text.split("\n"), 1
    for end in range(1, len(lines) + 1):
        with suppress(tomllib.TOMLDecodeError):  # within a value of several lines
            table = tomllib.loads("\n".join(lines[:end]))
            with suppress(KeyError):
                reduce(getitem, keys, table)
                break
            begin = end + 1
    return begin
