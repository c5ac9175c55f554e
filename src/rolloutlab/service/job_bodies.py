"""The folder `jobs`: the body of each queued or running job, and drafts of bodies during their upload."""

import hashlib
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pydantic

from rolloutlab.errors import LabError, TrainingError
from rolloutlab.fsutil import remove
from rolloutlab.service.endpoints.body import InvalidBodyError
from rolloutlab.service.endpoints.json_stream import MalformedJsonError
from rolloutlab.service.quarantine import UNLISTED, note_of, set_aside
from rolloutlab.store.sqlite import Database

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DRAFT = re.compile(rf"\.{_UUID}\.draft")
_BODY = re.compile(rf"(?P<id>{_UUID})\.json")
_AGAIN = "submit the job again"


@contextmanager
def reading(body: Path) -> Iterator[None]:
    """Turn errors of the code inside, which reads the body of a job, into TrainingErrors.

    Raises:
        TrainingError: the body cannot be read, or is damaged.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise TrainingError(f"the job's data was removed: {body}", hint=_AGAIN) from error
    except OSError as error:
        what = f"{error.strerror or error}: {body}"
        raise TrainingError(f"the job's data cannot be read: {what}", hint=_AGAIN) from error
    except (InvalidBodyError, MalformedJsonError, pydantic.ValidationError) as error:
        raise TrainingError(f"the job's data is damaged: {body}", hint=_AGAIN) from error


class Bodies:
    """The bodies of jobs, as files `ID.json`. folder: `jobs` in the service's folder.

    Files of jobs that the database does not list are moved to `.lost`.
    """

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._lost = folder / ".lost"

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a path for the body of a job to be created. The file is removed at the end unless it has been moved.

        Raises:
            LabError: an OSError inside, for instance because the disk is full.
        """
        path = self._folder / f".{uuid.uuid4()}.draft"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            yield path
        except OSError as error:
            raise LabError(f"{path.parent} cannot be written: {error}", hint="free some disk space") from error
        finally:
            remove(path)

    def path(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"

    def remove(self, job_id: str) -> None:
        """Remove the body of an ended job; if that fails, the next start removes it."""
        remove(self.path(job_id))

    def clean_up(self) -> None:
        """Remove what a killed service has left: drafts, and bodies of ended jobs. Set aside unlisted bodies.

        Unlisted bodies are not removed: the database may be older than they are, say from a backup. Files with names
        that the service does not use are left alone.

        Raises:
            LabError: a body cannot be moved.
        """
        statuses = {row["id"]: row["status"] for row in self._database.read("SELECT id, status FROM jobs")}
        for path in sorted(self._folder.glob("*")):
            if _DRAFT.fullmatch(path.name):
                remove(path)
            elif (body := _BODY.fullmatch(path.name)) and path.is_file():
                if (status := statuses.get(body["id"])) is None:
                    target = set_aside(path, self._lost, UNLISTED)
                    logging.getLogger(__name__).warning("the body of a job was moved to %s: %s", target, UNLISTED)
                elif status not in {"queued", "running"}:
                    remove(path)

    def remove_lost_copy(self, job_id: str, digest: str) -> None:
        """Remove the lost body of a job whose client has sent the same body again.

        digest: SHA-256 of the body in hexadecimal digits.
        """
        lost = self._lost / f"{job_id}.json"
        with suppress(OSError):
            with lost.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == digest
            if same:
                remove(lost)
                remove(note_of(lost))
                self._lost.rmdir()  # an OSError where it still holds something else
