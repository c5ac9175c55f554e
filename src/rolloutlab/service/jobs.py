"""The queue of training jobs: durable, one job at a time, oldest first."""

import json
import threading
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rolloutlab.errors import Cancelled, NotFoundError, RolloutlabError
from rolloutlab.policy.trainer import train
from rolloutlab.service.registry import Registry
from rolloutlab.store.sqlite import Database, Row
from rolloutlab.wire.events import Event
from rolloutlab.wire.training import CreateTrainingJob, TrainingJob


class Jobs:
    """Accepts jobs, and trains them in a thread of its own while chat is answered.

    A job that was running when the service was killed is queued again: it starts over from its starting checkpoint.
    """

    def __init__(self, database: Database, folder: Path, registry: Registry) -> None:
        self._database = database
        self._folder = folder
        self._registry = registry
        self._changed = threading.Condition()
        self._closed = False
        self._model = registry.policy.carrier()
        self._queue_again()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def create(self, job: CreateTrainingJob, idempotency_key: str | None = None) -> str:
        """Queue a job and return its id; the same key again returns the same job. A key that is a UUID becomes its id.

        Raises:
            NotFoundError: there is no such model.
        """
        self._registry.model(str(job.model_id))
        job_id = self._new_id(idempotency_key)
        self._body(job_id).parent.mkdir(parents=True, exist_ok=True)
        self._body(job_id).write_text(job.to_json())
        with self._changed, self._database.write() as connection:
            known = connection.execute("SELECT id FROM jobs WHERE idempotency_key = ?", (idempotency_key,)).fetchone()
            if known:
                if known["id"] != job_id:
                    self._body(job_id).unlink()
                return str(known["id"])
            connection.execute(
                "INSERT INTO jobs (id, model_id, status, created_at, idempotency_key) VALUES (?, ?, 'queued', ?, ?)",
                (job_id, str(job.model_id), _now(), idempotency_key),
            )
            self._changed.notify()
        return job_id

    def job(self, job_id: str) -> TrainingJob:
        """The job with this id, or NotFoundError."""
        rows = self._database.read("SELECT * FROM jobs WHERE id = ?", job_id)
        if not rows:
            raise NotFoundError(f"there is no training job with id {job_id}")
        return TrainingJob.model_validate({name: rows[0][name] for name in TrainingJob.model_fields})

    def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """Up to `limit` events of a job whose id is larger than `after`, in order."""
        self.job(job_id)
        rows = self._database.read(
            "SELECT * FROM events WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?", job_id, after, limit
        )
        return [Event(id=str(row["id"]), type=row["type"], data=json.loads(row["data"])) for row in rows]

    def cancel(self, job_id: str) -> TrainingJob:
        """Ask a job to end: a running one ends at its next row, and its step does not count."""
        self.job(job_id)
        with self._database.write() as connection:
            connection.execute("UPDATE jobs SET cancel_wanted = 1 WHERE id = ?", (job_id,))
        return self.job(job_id)

    def busy(self) -> bool:
        return bool(self._database.read("SELECT 1 FROM jobs WHERE status IN ('queued', 'running') LIMIT 1"))

    def close(self) -> None:
        """Stop at the next row; the running job starts over when the service does."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @staticmethod
    def _new_id(key: str | None) -> str:
        """The client's key where it can be an id: a client that was cut off before the answer then knows it."""
        try:
            return str(uuid.UUID(key or ""))
        except ValueError:
            return str(uuid.uuid4())

    def _run(self) -> None:
        while (row := self._next()) is not None:
            try:
                self._train(row)
            except Cancelled:
                if self._closed:
                    return
                self._end(row["id"], "cancelled", "training_cancelled", {})
            except RolloutlabError as error:
                self._fail(row["id"], f"{error.message} ({error.hint})" if error.hint else error.message)
            except Exception as error:  # noqa: BLE001 - the queue must go on, and the client must hear of it
                self._fail(row["id"], f"{type(error).__name__}: {error}")

    def _next(self) -> Row | None:
        with self._changed:
            while not self._closed:
                rows = self._database.read("SELECT * FROM jobs WHERE status = 'queued' ORDER BY rowid LIMIT 1")
                if rows:
                    return rows[0]
                self._changed.wait()
        return None

    def _train(self, row: Row) -> None:
        job_id, model_id = row["id"], row["model_id"]
        step = self._registry.newest_step(model_id)
        with self._database.write() as connection:
            connection.execute(
                "UPDATE jobs SET status = 'running', started_at = ?, step = ? WHERE id = ?", (_now(), step, job_id)
            )
        self._stop_if_wanted(job_id)
        job = CreateTrainingJob.model_validate_json(self._body(job_id).read_bytes())
        start = self._registry.state(model_id, step)
        last: dict[str, Any] = {}

        def report(kind: str, data: dict[str, object]) -> None:
            last.update(data if kind == "gradient_step" else {})
            with self._database.write() as connection:
                connection.execute(*_event(job_id, kind, data))

        groups = [group.trajectories for group in job.trajectory_groups]
        end = train(
            self._registry.policy,
            self._model,
            start,
            groups,
            job.experimental_config,
            step,
            report,
            lambda: self._should_stop(job_id),
        )
        self._stop_if_wanted(job_id)
        self._registry.save(model_id, step + 1, end)
        saved = _event(job_id, "checkpoint_saved", {"step": step + 1})
        checkpoint = "INSERT INTO checkpoints VALUES (?, ?, ?, ?)", (model_id, step + 1, json.dumps(last), _now())
        final = "UPDATE jobs SET final_step = ? WHERE id = ?", (step + 1, job_id)
        self._end(job_id, "succeeded", "training_ended", {"step": step + 1}, also=(checkpoint, saved, final))

    def _should_stop(self, job_id: str) -> bool:
        return self._closed or bool(self._database.read("SELECT cancel_wanted FROM jobs WHERE id = ?", job_id)[0][0])

    def _stop_if_wanted(self, job_id: str) -> None:
        if self._should_stop(job_id):
            raise Cancelled

    def _fail(self, job_id: str, message: str) -> None:
        self._end(job_id, "failed", "training_failed", {"error_message": message}, error=message)

    def _end(
        self,
        job_id: str,
        status: str,
        kind: str,
        data: dict[str, object],
        *,
        error: str | None = None,
        also: Sequence[tuple[str, tuple[Any, ...]]] = (),
    ) -> None:
        """Everything that ends a job becomes visible in one transaction."""
        with self._database.write() as connection:
            for statement in also:
                connection.execute(*statement)
            connection.execute(
                "UPDATE jobs SET status = ?, ended_at = ?, error = ? WHERE id = ?", (status, _now(), error, job_id)
            )
            connection.execute(*_event(job_id, kind, data))
        self._body(job_id).unlink(missing_ok=True)

    def _queue_again(self) -> None:
        for row in self._database.read("SELECT id FROM jobs WHERE status = 'running'"):
            with self._database.write() as connection:
                connection.execute("UPDATE jobs SET status = 'queued' WHERE id = ?", (row["id"],))
                connection.execute("DELETE FROM events WHERE job_id = ?", (row["id"],))
                connection.execute(*_event(row["id"], "restarted", {"reason": "the service stopped while it trained"}))

    def _body(self, job_id: str) -> Path:
        return self._folder / "jobs" / f"{job_id}.json"


def _event(job_id: str, kind: str, data: dict[str, object]) -> tuple[str, tuple[Any, ...]]:
    return "INSERT INTO events (job_id, type, data) VALUES (?, ?, ?)", (job_id, kind, json.dumps(data, allow_nan=False))


def _now() -> str:
    return datetime.now(UTC).isoformat()
