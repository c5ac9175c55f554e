"""Files and folders that outlive a crash: flushed before they count, locked where processes share them."""

import asyncio
import errno
import os
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from rolloutlab.errors import LabError

NONE_LEFT = "this process has no file descriptor left"
TO_HAVE_MORE = (
    "close files that the notebook has open, or restart the kernel; ulimit -n 4096 before Jupyter starts allows more"
)
_NEEDED = 3
"""Of SQLite, for a file, its journal and what its processes share."""


def short_of_descriptors(error: BaseException) -> bool:
    """Whether an error of the operating system says so."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def any_left() -> bool:
    """Whether SQLite could open a file now: of its own errors none says that it could not for want of descriptors."""
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(_NEEDED))
    except OSError as error:
        if short_of_descriptors(error):
            return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


_MOMENTS = 10.0
"""Seconds to wait for a lock that processes hold for moments only."""
_POLL = 0.05


class Lock(FileLock):
    """A lock that another process may hold; the operating system frees it when its holder ends.

    Raises:
        LabError: the file system refuses to make or to lock the file. Timeout: another holds it.
    """

    def acquire(self, *arguments: Any, **options: Any) -> "AcquireReturnProxy[Any]":
        try:
            return super().acquire(*arguments, **options)
        except Timeout:
            raise
        except OSError as error:
            hint = "set ROLLOUTLAB_HOME to a folder where files can be locked"
            raise refused(f"{self.lock_file} cannot be locked", error, hint) from error

    def taken(self, patience: float = 0.0) -> bool:
        """Take it, waiting up to `patience` seconds for another that holds it; whether it is taken."""
        try:
            self.acquire(timeout=patience)
        except Timeout:
            return False
        return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that processes hold for moments only.

    Raises:
        LabError: another process holds it for ten seconds, for instance because it is suspended; and as `Lock`.
    """
    lock = Lock(path, thread_local=False)
    if not lock.taken(_MOMENTS):
        raise _kept(path, _MOMENTS)
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def locked_async(path: Path, patience: float) -> AsyncIterator[None]:
    """Hold a lock while requests are made that take up to `patience` seconds; raises as `alone` after them."""
    lock, end = Lock(path, thread_local=False), time.monotonic() + patience
    while not lock.taken():
        if time.monotonic() > end:
            raise _kept(path, patience)
        await asyncio.sleep(_POLL)
    try:
        yield
    finally:
        lock.release()


def _kept(path: Path, seconds: float) -> LabError:
    """Another process does not let go of a lock."""
    hint = f"!lsof {shlex.quote(str(path))} says which; end it, and run the cell again"
    return LabError(f"another process has held {path} for {seconds:.0f} s: it is suspended or hangs", hint=hint)


def refused(what: str, error: OSError, hint: str) -> LabError:
    """What cannot be done, and why.

    The hint is another one for want of file descriptors, and for a file where a folder should be, or the reverse.
    """
    if short_of_descriptors(error):
        return LabError(f"{what}: {NONE_LEFT}", hint=TO_HAVE_MORE)
    if isinstance(error, FileExistsError | IsADirectoryError):
        path = error.filename2 or error.filename  # the second one is where a file should have been moved to
        wanted = "file" if isinstance(error, IsADirectoryError) else "folder"
        away = f"!mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"
        return LabError(f"{what}: {error.strerror}: {path} should be a {wanted}", hint=away)
    return LabError(f"{what}: {error.strerror or error}", hint=hint)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def own(folder: Path) -> None:
    """Make a folder that only its owner can open, and so every folder above it that is not there."""
    for path in [*reversed(folder.parents), folder]:
        path.mkdir(mode=0o700, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; what cannot be removed stays, and raises nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_read_only(path: Path) -> bool:
    """Whether a file that is there cannot be written, or nothing can be made beside it."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK))


def may_fill(folder: Path) -> bool:
    """Whether something can be made in a folder, which is made first where it is not there."""
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    return os.access(there, os.W_OK | os.X_OK)


def to_copy(folder: Path) -> str:
    """What to type to have what is in a folder in one that can be written."""
    return (
        f"!cp -r --no-preserve=mode {shlex.quote(str(folder))} my-lab, then start Jupyter with ROLLOUTLAB_HOME=my-lab"
    )
