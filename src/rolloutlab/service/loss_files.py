"""Losses of the user's own: private files in the lab folder, which jobs name by the SHA-256 of their source.

A job never carries code. Code runs only if it lies in a file that the user of this process owns and no other can read
or write, and if the owner of the lab names it from this machine; see docs/security.md.
"""

import hashlib
import os
import stat
from pathlib import Path

from starlette.exceptions import HTTPException

from rolloutlab.service.endpoints.body import invalid_option

_LARGEST = 1_000_000
"""Bytes of a source."""


class LossFiles:
    """Files `HASH.py` of mode 0600. folder: `losses` in the service's folder, of mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @staticmethod
    def check_owner(*, by_owner: bool) -> None:
        """Refuse a job with a loss of one's own unless the owner of the lab sent it.

        Raises:
            HTTPException: 403.
        """
        if not by_owner:
            raise HTTPException(403, "custom_loss is accepted from this machine with the lab's own token alone")

    def read(self, digest: str) -> str:
        """The source of a loss by its SHA-256 in hexadecimal digits.

        Raises:
            InvalidBodyError: it is missing, is not private, or is not of this hash.
        """
        path = self._folder / f"{digest}.py"
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(handle, "rb") as file:
                state = os.fstat(handle)
                if not stat.S_ISREG(state.st_mode) or not _is_private(state):
                    raise invalid_option("custom_loss", "its file can be read or written by other users")
                source = file.read(_LARGEST)
        except OSError as error:
            why = error.strerror or str(error)
            raise invalid_option("custom_loss", f"its source cannot be read from the lab folder: {why}") from error
        if hashlib.sha256(source).hexdigest() != digest:
            raise invalid_option("custom_loss", "its source has another hash: it was changed")
        return source.decode()


def _is_private(state: os.stat_result) -> bool:
    """Whether this user owns a file and no other can read or write it; modes mean nothing on Windows."""
    if os.name == "nt":
        return True
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
