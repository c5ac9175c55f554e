"""The folder `files`: fine-tuning data that was uploaded, each kept for a day; a job has a copy of its own."""

import re
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from rolloutlab.fsutil import flush, remove

KEPT_SECONDS = 24 * 60 * 60
_SCHEME = "rolloutlab-file:///"
"""URLs name no host: there is nothing to fetch, and they stay valid when the service gets another port."""
_URL = re.compile(re.escape(_SCHEME) + r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class FileSize(NamedTuple):
    """The conversations of a file that a job would learn from, and the rows that they fill."""

    trainable: int
    rows: int


class UploadedFiles:
    """Files `ID.jsonl`. folder: `files` in the service's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[Path, FileSize] = {}

    def keep(self, draft: Path, size: FileSize | None = None) -> tuple[str, str, int]:
        """Keep a draft, which must be on the same file system; return its id, its URL, and when it expires (Unix time).

        Raises:
            OSError: it cannot be moved.
        """
        self.clean_up()
        self._folder.mkdir(parents=True, exist_ok=True)
        file_id = str(uuid.uuid4())
        moved = draft.replace(self._folder / f"{file_id}.jsonl")
        flush(self._folder)
        if size:
            self._sizes[moved] = size
        return file_id, f"{_SCHEME}{file_id}", int(moved.stat().st_mtime) + KEPT_SECONDS

    def path(self, url: str) -> Path | None:
        """Find the file of a URL; None if the URL was not issued here, or the file has expired."""
        match = _URL.fullmatch(url)
        path = self._folder / f"{match[1]}.jsonl" if match else None
        return path if path and path.is_file() and not _expired(path) else None

    def size(self, path: Path) -> FileSize | None:
        """Return what was counted in a file at its upload; None if that was before this service started."""
        return self._sizes.get(path)

    def clean_up(self) -> None:
        """Remove expired files, at the start of the service and at each upload."""
        for path in self._folder.glob("*.jsonl"):
            if _expired(path):
                remove(path)
                self._sizes.pop(path, None)


def _expired(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > KEPT_SECONDS
    except FileNotFoundError:
        return True
