"""Losses of the user's own: private files in the lab folder, which jobs name by the SHA-256 of their source.

A job never carries code. Code runs only if it lies in a file that the user of this process owns and no other can read
or write, and if the owner of the lab names it from this machine; see docs/security.md.
"""

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from starlette.exceptions import HTTPException

from rolloutlab.errors import LabError, TrainingError
from rolloutlab.fsutil import Lock, refused, remove

_LARGEST = 1_000_000
"""The most bytes of a source."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""On Linux, its content is another one after each start of the machine."""
_AGAIN = "lab.train(..., loss=fn) writes it again, and trains"


class LossFiles:
    """Files `HASH.py` of mode 0600. folder: `losses` in the service's folder, of mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = folder / "running"

    def clean_up(self) -> None:
        """Remove drafts of notebooks that were killed, unless another notebook is writing one."""
        drafts = sorted(self._folder.glob("*.draft"))
        lock = Lock(self._folder / "lock")
        with suppress(LabError):
            if drafts and lock.try_acquire():
                for draft in drafts:
                    remove(draft)
                lock.release()

    @contextmanager
    def running(self, job_id: str) -> Iterator[None]:
        """Write a mark file while the loss of a job runs. If the process ends meanwhile, the mark stays.

        Raises:
            LabError: the file cannot be written.
        """
        try:
            try:
                self._mark.write_text(f"{job_id} {_boot_id()}")
            except OSError as error:
                raise refused(f"{self._mark} cannot be written", error, "free some disk space") from error
            yield
        finally:
            self.remove_mark()

    def marked_job(self) -> str | None:
        """Return the id of the job whose loss ran when the last process ended; None after a restart of the machine."""
        try:
            job_id, _, boot_id = self._mark.read_text().partition(" ")
        except (OSError, UnicodeDecodeError):
            return None
        return job_id if boot_id == _boot_id() else None

    def remove_mark(self) -> None:
        remove(self._mark)

    @staticmethod
    def check_owner(*, by_owner: bool) -> None:
        """Refuse a job with a loss of the user's own unless the owner of the lab sent it.

        Raises:
            HTTPException: 403.
        """
        if not by_owner:
            raise HTTPException(403, "custom_loss is accepted from this machine with the lab's own token alone")

    def read(self, digest: str) -> str:
        """Read the source of a loss by its SHA-256 in hexadecimal digits: the very bytes that were hashed.

        Raises:
            TrainingError: it is missing, changed, a link or not private; the hint writes it again.
        """
        path, name = self._folder / f"{digest}.py", f"the loss {digest[:8]}"
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(handle, "rb") as file:
                state = os.fstat(handle)
                if not stat.S_ISREG(state.st_mode) or not _is_private(state):
                    message = f"{name} is in a file that other users can read or write: {path}"
                    raise TrainingError(message, hint=f"!chmod 600 {shlex.quote(str(path))}, and train again")
                source = file.read(_LARGEST + 1)
        except FileNotFoundError as error:
            raise TrainingError(f"{name} was removed from the lab folder: {path}", hint=_AGAIN) from error
        except OSError as error:
            message = f"{name} cannot be read from the lab folder: {error.strerror or error}: {path}"
            raise TrainingError(message, hint=_AGAIN) from error
        if len(source) > _LARGEST:
            raise TrainingError(f"{name} is longer than {_LARGEST:,} bytes", hint="a shorter function")
        if hashlib.sha256(source).hexdigest() != digest:
            raise TrainingError(f"{name} was changed after it was hashed: {path}", hint=_AGAIN)
        try:
            return source.decode()
        except UnicodeDecodeError as error:
            raise TrainingError(f"{name} is not UTF-8: {error}", hint=_AGAIN) from error


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _is_private(state: os.stat_result) -> bool:
    """Whether this user owns a file and no other can read or write it; true on Windows, where modes mean nothing."""
    if os.name == "nt":
        return True
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
