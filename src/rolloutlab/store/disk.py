"""Files and folders that outlive a crash: flushed before they count, locked where processes share them."""

import asyncio
import os
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from rolloutlab.descriptors import NONE_LEFT, TO_HAVE_MORE, short_of_descriptors
from rolloutlab.errors import LabError

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
def alone(path: Path) -> Iterator[None]:
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
async def alone_async(path: Path, patience: float) -> AsyncIterator[None]:
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
