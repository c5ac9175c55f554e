"""Notes and tags of runs, each kept with the first job of its run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

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
        """The notes by the ids of their jobs."""
        if not self._database.has_table("run_notes"):  # a read-only lab of an earlier version
            return {}
        rows = self._database.read("SELECT job_id, note, tags FROM run_notes")
        return {row["job_id"]: RunNote(row["note"], tuple(json.loads(row["tags"]))) for row in rows}

    def write(self, job_id: str, text: str, tags: Sequence[str]) -> None:
        """Replace the note of a job."""
        sql = "INSERT OR REPLACE INTO run_notes (job_id, note, tags) VALUES (?, ?, ?)"
        self._database.execute(sql, job_id, text, json.dumps(list(tags)))
