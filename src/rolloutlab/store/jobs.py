"""Training jobs submitted from a lab."""

import json
from collections.abc import Sequence

from pydantic import TypeAdapter

from rolloutlab.api.wire.training import Event
from rolloutlab.store.models import SubmittedJob
from rolloutlab.store.sqlite import Database, Row

_EVENTS: TypeAdapter[list[Event]] = TypeAdapter(list[Event])


class SubmittedJobs:
    """The jobs of a lab. Updates of a read-only lab are ignored."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, job: SubmittedJob) -> None:
        """Store a submitted job."""
        values = (job.id, job.service, job.model, json.dumps(job.collections), json.dumps(job.options), job.created_at)
        columns = "id, service, model, collections, options, created_at"
        self._database.execute(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?)", *values)

    def rename(self, old: str, new: str) -> None:
        """Replace a job's local id by the one that its service assigned."""
        self._database.execute("UPDATE jobs SET id = ? WHERE id = ?", new, old)

    def forget(self, job_id: str) -> None:
        """Delete a job that its service rejected."""
        self._database.execute("DELETE FROM jobs WHERE id = ?", job_id)

    def set_status(self, job_id: str, status: str, step: int | None = None) -> None:
        """Store the status of a job and the step it produced."""
        if self._database.read_only:
            return
        stored = status if step is None else f"{status}@{step}"
        self._database.execute("UPDATE jobs SET status = ? WHERE id = ?", stored, job_id)

    def keep_events(self, job_id: str, events: Sequence[Event]) -> None:
        """Store the events of a finished job, for when its service is unavailable."""
        if self._database.read_only:
            return
        stored = _EVENTS.dump_json(list(events)).decode()
        self._database.execute("INSERT OR REPLACE INTO job_events SELECT id, ? FROM jobs WHERE id = ?", stored, job_id)

    def events(self, job_id: str) -> list[Event]:
        """Read the stored events of a job; empty before it has ended."""
        rows = self._database.read("SELECT events FROM job_events WHERE job_id = ?", job_id)
        return _EVENTS.validate_json(rows[0]["events"]) if rows else []

    def newest_first(self) -> list[SubmittedJob]:
        """List all jobs, newest first."""
        return [_read_job(row) for row in self._database.read("SELECT * FROM jobs ORDER BY rowid DESC")]


def _read_job(row: Row) -> SubmittedJob:
    status, _, step = (row["status"] or "").partition("@")
    collections, options = tuple(json.loads(row["collections"])), json.loads(row["options"])
    columns = row["id"], row["service"], row["model"], collections, options, row["created_at"]
    return SubmittedJob(*columns, status or None, int(step) if step else None)
