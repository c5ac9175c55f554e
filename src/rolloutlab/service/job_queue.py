"""The queue of training jobs: durable, one job at a time, oldest first."""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from rolloutlab.api.wire.training import Event, TrainingJob
from rolloutlab.errors import Cancelled, ConflictError, LabError, NotFoundError, RolloutlabError
from rolloutlab.fsutil import flush, remove
from rolloutlab.policy.trainer import train
from rolloutlab.service.bodies import Bodies
from rolloutlab.service.endpoints import job_upload as job_file
from rolloutlab.service.model_registry import Registry
from rolloutlab.store.sqlite import Database, Row

T = TypeVar("T")

_PAUSE = 1.0


@dataclass(frozen=True)
class _End:
    """How a job ended. step: the checkpoint that it made, if any; metrics: those of its last gradient step."""

    status: str
    kind: str
    data: dict[str, object]
    error: str | None = None
    step: int | None = None
    metrics: dict[str, object] = field(default_factory=dict)


class Jobs:
    """Accepts jobs, and trains them in a thread of its own while chat is answered.

    A job that was running when the service was killed is queued again: it starts over from its starting checkpoint.
    bodies: their files, in the service's folder `jobs`.
    pause: seconds until what the disk refused is tried again.
    """

    def __init__(self, database: Database, folder: Path, registry: Registry, *, pause: float = _PAUSE) -> None:
        self._database = database
        self._registry = registry
        self._pause = pause
        self._changed = threading.Condition()
        self._closed = False
        self.listened_to = True
        self._listeners: set[Callable[[], None]] = set()
        self._model = registry.policy.lora_copy()
        self.bodies = Bodies(database, folder / "jobs")
        self.bodies.tidy()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def create(self, draft: Path, digest: str, key: str | None = None) -> str:
        """Queue the job whose body is in a draft and return its id. A key that is a UUID becomes the id.

        The same key again is the same job. digest: of the body, which must be the same then.

        Raises:
            InvalidBody: the draft is no job. NotFoundError: there is no such model. ConflictError: the key is another
            job's.
        """
        job_id = self._new_id(key)
        known = "SELECT id, digest FROM jobs WHERE idempotency_key = ? OR id = ?", (key or None, job_id)
        if row := self._database.read(known[0], *known[1]):
            return _same(row[0], digest)
        model_id = str(job_file.check(draft).model_id)
        moved = None
        try:
            with self._changed, self._database.write() as connection:
                if row := connection.execute(*known).fetchall():
                    return _same(row[0], digest)
                moved = draft.replace(self.bodies.place(job_id))
                flush(moved.parent)
                queued = connection.execute(
                    "INSERT INTO jobs (id, model_id, status, created_at, idempotency_key, digest)"
                    " SELECT ?, id, 'queued', ?, ?, ? FROM models WHERE id = ?",
                    (job_id, _now(), key or None, digest, model_id),
                )
                self._changed.notify()
        except BaseException:
            if moved:  # the job is not queued: its body would lie there until the next start
                remove(moved)
            raise
        if not queued.rowcount:
            remove(moved)
            raise NotFoundError(f"there is no model with id {model_id}")
        self.bodies.sent_again(job_id, digest)
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

    def ended(self, job_id: str) -> bool:
        """Whether a job reports nothing more."""
        return self.job(job_id).status not in {"queued", "running"}

    @contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Have `listener` called, in any thread, whenever a job may have something new to say."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def hang_up(self) -> None:
        """Nobody is to listen any more: the service is about to stop."""
        self.listened_to = False
        self._tell()

    def cancel(self, job_id: str) -> TrainingJob:
        """Ask a job to end: one that waits ends at once, one that runs at its next row; its step does not count."""
        self.job(job_id)
        with self._database.write() as connection:
            connection.execute("UPDATE jobs SET cancel_wanted = 1 WHERE id = ?", (job_id,))
            waited = connection.execute(
                "UPDATE jobs SET status = 'cancelled', ended_at = ? WHERE id = ? AND status = 'queued'",
                (_now(), job_id),
            ).rowcount
            if waited:
                _say(connection, job_id, "training_cancelled", {})
        if waited:
            self._tell()
            self.bodies.remove(job_id)
        return self.job(job_id)

    def forget(self, model_id: str) -> None:
        """Delete a model with all that belongs to it; a job of it that runs ends quietly.

        Raises:
            NotFoundError: there is no such model.
        """
        bodies = self._database.read("SELECT id FROM jobs WHERE model_id = ?", model_id)
        self._registry.delete(model_id)
        for row in bodies:
            self.bodies.remove(row["id"])
        self._tell()

    def busy(self) -> bool:
        """Whether a job waits or runs, or it cannot be known."""
        try:
            return bool(self._database.read("SELECT 1 FROM jobs WHERE status IN ('queued', 'running') LIMIT 1"))
        except LabError:
            return True

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
        self._insist(self._queue_again)
        while row := self._insist(self._next):
            if end := self._outcome(row):
                self._insist(partial(self._record, row, end))

    def _insist(self, work: Callable[[], T]) -> T | None:
        """Do what the queue cannot go on without, however long the disk is full or locked; None when it is closed."""
        while True:
            try:
                return work()
            except Exception as error:  # noqa: BLE001 - the queue must go on
                logging.getLogger(__name__).warning("%s; it is tried again", error)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, timeout=self._pause):
                    return None

    def _next(self) -> Row | None:
        with self._changed:
            while not self._closed:
                rows = self._database.read("SELECT * FROM jobs WHERE status = 'queued' ORDER BY rowid LIMIT 1")
                if rows:
                    return rows[0]
                self._changed.wait()
        return None

    def _outcome(self, row: Row) -> _End | None:
        """Train a job: how it ended, or None when the service is closing and the job starts over with the next."""
        try:
            return self._train(row)
        except Cancelled:
            return None if self._closed else _End("cancelled", "training_cancelled", {})
        except RolloutlabError as error:
            return _failed(f"{error.message} ({error.hint})" if error.hint else error.message)
        except Exception as error:  # noqa: BLE001 - the queue must go on, and the client must hear of it
            return _failed(f"{type(error).__name__}: {error}")

    def _train(self, row: Row) -> _End | None:
        job_id, model_id = row["id"], row["model_id"]
        step = self._registry.newest_step(model_id)
        with self._database.write() as connection:
            begun = connection.execute(
                "UPDATE jobs SET status = 'running', started_at = ?, step = ? WHERE id = ? AND status = 'queued'",
                (_now(), step, job_id),
            )
        if not begun.rowcount:  # it was cancelled in this very moment
            return None
        self._stop_if_wanted(job_id)
        config, groups = job_file.read(self.bodies.place(job_id))
        start = self._registry.state(model_id, step)
        last: dict[str, object] = {}

        def report(kind: str, data: dict[str, object]) -> None:
            last.update(data if kind == "gradient_step" else {})
            with self._database.write() as connection:
                _say(connection, job_id, kind, data)
            self._tell()

        stop = partial(self._should_stop, job_id)
        state = train(self._registry.policy, self._model, start, groups, config, step, report, stop)
        self._stop_if_wanted(job_id)
        made = self._registry.next_step(model_id)
        self._registry.save(model_id, made, state, metrics=last, job_id=job_id)
        return _End("succeeded", "training_ended", {"step": made}, step=made, metrics=last)

    def _should_stop(self, job_id: str) -> bool:
        rows = self._database.read("SELECT cancel_wanted FROM jobs WHERE id = ?", job_id)
        return self._closed or not rows or bool(rows[0][0])

    def _stop_if_wanted(self, job_id: str) -> None:
        if self._should_stop(job_id):
            raise Cancelled

    def _record(self, row: Row, end: _End) -> None:
        """Everything that ends a job becomes visible in one transaction. One whose model was deleted ends quietly."""
        job_id, model_id = row["id"], row["model_id"]
        with self._database.write() as connection:
            ended = connection.execute(
                "UPDATE jobs SET status = ?, final_step = ?, ended_at = ?, error = ? WHERE id = ?",
                (end.status, end.step, _now(), end.error, job_id),
            )
            if ended.rowcount and end.step is not None:
                values = model_id, end.step, json.dumps(end.metrics), _now()
                connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", values)
                connection.execute("UPDATE models SET last_step = ? WHERE id = ?", (end.step, model_id))
                _say(connection, job_id, "checkpoint_saved", {"step": end.step})
            _say(connection, job_id, end.kind, end.data)
        self._tell()
        if not ended.rowcount:
            self._registry.discard(model_id)
        self.bodies.remove(job_id)

    def _queue_again(self) -> None:
        with self._database.write() as connection:
            for row in connection.execute("SELECT id FROM jobs WHERE status = 'running'").fetchall():
                connection.execute("UPDATE jobs SET status = 'queued' WHERE id = ?", (row["id"],))
                connection.execute("DELETE FROM events WHERE job_id = ?", (row["id"],))
                _say(connection, row["id"], "restarted", {"reason": "the service stopped while it trained"})

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()


def _say(connection: Connection, job_id: str, kind: str, data: dict[str, object]) -> None:
    """Add an event to a job, if it is still there."""
    values = kind, json.dumps(data, allow_nan=False), job_id
    connection.execute("INSERT INTO events (job_id, type, data) SELECT id, ?, ? FROM jobs WHERE id = ?", values)


def _same(row: Row, digest: str) -> str:
    """The id of a job whose key was sent again; ConflictError when it came with another body."""
    if row["digest"] not in {None, digest}:
        raise ConflictError(f"the Idempotency-Key is that of the job {row['id']}, whose body was another")
    return str(row["id"])


def _failed(message: str) -> _End:
    return _End("failed", "training_failed", {"error_message": message}, error=message)


def _now() -> str:
    return datetime.now(UTC).isoformat()
