"""Files and folders that outlive a crash: flushed before they count, locked where processes share them."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import AcquireReturnProxy, FileLock, Timeout

from rolloutlab.descriptors import NONE_LEFT, TO_HAVE_MORE, short_of_descriptors
from rolloutlab.errors import LabError


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


def refused(what: str, error: OSError, hint: str) -> LabError:
    """What cannot be done, and why; the hint is another one where it is for want of file descriptors."""
    if short_of_descriptors(error):
        return LabError(f"{what}: {NONE_LEFT}", hint=TO_HAVE_MORE)
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
