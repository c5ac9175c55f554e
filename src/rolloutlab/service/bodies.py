"""The folder `jobs`: the body of each job that waits or runs, and drafts of bodies while they arrive."""

import hashlib
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolloutlab.errors import LabError
from rolloutlab.fsutil import remove
from rolloutlab.service.aside import UNLISTED, note_of, set_aside
from rolloutlab.store.sqlite import Database

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DRAFT = re.compile(rf"\.{_UUID}\.draft")
_BODY = re.compile(rf"(?P<id>{_UUID})\.json")


class Bodies:
    """Files named by the ids of their jobs. `.lost` in the folder keeps bodies of jobs that the database does not list.

    folder: `jobs` in the service's folder.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._aside = folder / ".lost"

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Where the body of a job may be written before the job is created; what is not taken over is removed.

        Raises:
            LabError: the disk refuses what is done inside, for instance because it is full.
        """
        path = self._folder / f".{uuid.uuid4()}.draft"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield path
        except OSError as error:
            raise LabError(f"{path.parent} cannot be written: {error}", hint="free some disk space") from error
        finally:
            remove(path)

    def place(self, job_id: str) -> Path:
        """Where the body of a job is."""
        return self._folder / f"{job_id}.json"

    def remove(self, job_id: str) -> None:
        """Remove the body of a job that has ended; one that cannot be removed now goes at the next start."""
        remove(self.place(job_id))

    def tidy(self) -> None:
        """Remove drafts and bodies of ended jobs, which a killed service left; set aside what the database lacks.

        The database may be older than the files beside it, say from a backup, and a body is all that there is of a
        job. Files under other names than the service's own stay where they are.

        Raises:
            LabError: a body cannot be moved.
        """
        listed = {row["id"]: row["status"] for row in self._database.read("SELECT id, status FROM jobs")}
        for path in sorted(self._folder.glob("*")):
            if _DRAFT.fullmatch(path.name):
                remove(path)
            elif (body := _BODY.fullmatch(path.name)) and path.is_file():
                status = listed.get(body["id"])
                if status is None:
                    where = set_aside(path, self._aside, UNLISTED)
                    logging.getLogger(__name__).warning("the body of a job moved to %s: %s", where, UNLISTED)
                elif status not in {"queued", "running"}:
                    remove(path)

    def sent_again(self, job_id: str, digest: str) -> None:
        """Remove what is set aside under the id of a job whose client has sent the same body once more.

        digest: SHA-256 of the body in hexadecimal digits.
        """
        lost = self._aside / f"{job_id}.json"
        with suppress(OSError):
            with lost.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == digest
            if same:
                remove(lost)
                remove(note_of(lost))
