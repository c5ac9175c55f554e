"""Notes and tags of runs. They are stored with the first job of the run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rolloutlab.sanitize import replace_surrogates
from rolloutlab.store.sqlite import Database


@dataclass(frozen=True)
class RunNote:
    """What a user has written about a run."""

    text: str = ""
    tags: tuple[str, ...] = ()


class RunNotes:
    """The notes of a lab. They stay with a job, so they are not lost if a run begins at another job later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def by_job(self) -> dict[str, RunNote]:
        """Read the notes, by the ids of their jobs."""
        if not self._database.has_table("run_notes"):  # a read-only lab of an earlier version
            return {}
        rows = self._database.read("SELECT job_id, note, tags FROM run_notes")
        return {row["job_id"]: RunNote(row["note"], _tags(row["tags"])) for row in rows}

    # Each method writes its own column, because another kernel may have written the other one since it was read.

    def write_note(self, job_id: str, text: str) -> None:
        """Replace the note of a job, and leave its tags."""
        sql = "INSERT INTO run_notes (job_id, note, tags) VALUES (?, ?, '[]') ON CONFLICT DO UPDATE SET note = ?"
        self._database.execute(sql, job_id, text, text)

    def write_tags(self, job_id: str, tags: Sequence[str]) -> None:
        """Replace the tags of a job, and leave its note."""
        sql = "INSERT INTO run_notes (job_id, note, tags) VALUES (?, '', ?) ON CONFLICT DO UPDATE SET tags = ?"
        written = json.dumps(list(tags))
        self._database.execute(sql, job_id, written, written)


def _tags(stored: str) -> tuple[str, ...]:
    """Read tags as texts. Earlier versions also stored numbers, empty tags and lone surrogates."""
    return tuple(tag for each in json.loads(stored) if (tag := replace_surrogates(str(each))).strip())
