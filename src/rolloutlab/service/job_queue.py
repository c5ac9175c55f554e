"""Durable FIFO queue of training jobs, which runs one at a time in a thread."""

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from rolloutlab.api.wire.base import moment
from rolloutlab.api.wire.fine_tuning import CreateSFTTrainingJob, SFTTrainingConfig
from rolloutlab.api.wire.training import Event, ExperimentalTrainingConfig, TrainingJob
from rolloutlab.engines.engine import Engine
from rolloutlab.errors import Cancelled, ConflictError, LabError, NotFoundError, RolloutlabError, TrainingError
from rolloutlab.fsutil import flush, remove
from rolloutlab.objective.options import not_honoured
from rolloutlab.policy.checkpoints import check_checkpoint
from rolloutlab.policy.fine_tuning import read_fine_tuning
from rolloutlab.policy.task import Callbacks, Task, read_task
from rolloutlab.service.endpoints import job_upload, sft_upload
from rolloutlab.service.endpoints.body import invalid_option
from rolloutlab.service.job_bodies import Bodies, reading
from rolloutlab.service.loss_files import LossFiles
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.uploaded_files import UploadedFiles
from rolloutlab.store.models import now
from rolloutlab.store.sqlite import Database, Row

T = TypeVar("T")
_RETRY_SECONDS = 1.0
_CRASHED = (
    "the service's process ended while the loss of this job ran: either the loss ended it (os._exit, a crash in a"
    " library), or it was killed from outside (correct the loss; if the service was killed, train again)"
)
_BY_KEY = "SELECT id, digest FROM jobs WHERE idempotency_key = ? OR id = ?"


@dataclass(frozen=True)
class _Outcome:
    """How a job ended. step: the number of its checkpoint, if it made one. metrics: those of its last gradient step."""

    status: str
    kind: str
    data: dict[str, object]
    error: str | None = None
    step: int | None = None
    metrics: dict[str, object] = field(default_factory=dict)


class Jobs:
    """Accepts jobs, and trains them in a thread of its own.

    A job that was running when the service was killed is queued again, and resumes from the last gradient steps that
    its engine kept. But if its custom loss was running at that moment, the job fails: the loss may have ended the
    service, and might end it again each time. pause: seconds between retries of failed disk writes.
    """

    def __init__(
        self, database: Database, folder: Path, registry: Registry, engine: Engine, *, pause: float = _RETRY_SECONDS
    ) -> None:
        self._database = database
        self._registry = registry
        self._engine = engine
        self._pause = pause
        self._changed = threading.Condition()
        self._closed = False
        self._waiting: set[str] = set()  # ids of queued jobs that need another engine or base
        self._cancelling: set[str] = set()  # ids of jobs to cancel; in memory, because each piece of work looks them up
        self.streaming = True
        """False once the service stops, which ends event streams."""
        self._listeners: set[Callable[[], None]] = set()
        self._losses = LossFiles(folder / "losses")
        self.bodies = Bodies(database, folder / "jobs")
        self.files = UploadedFiles(folder / "files")
        self._losses.clean_up()
        self.bodies.clean_up()
        self.files.clean_up()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def create(
        self,
        draft: Path,
        digest: str,
        key: str | None = None,
        fine_tuning: CreateSFTTrainingJob | None = None,
        *,
        by_owner: bool = False,
    ) -> str:
        """Queue the job whose body is in a draft and return its id. A key that is a UUID becomes the id.

        Args:
            draft: The file with the body.
            digest: The SHA-256 of the body.
            key: An idempotency key; None for none. The same key with the same body returns the same job.
            fine_tuning: The job, if the draft is one of `sft_upload`.
            by_owner: Whether the request came from this machine with the lab's own token. A `custom_loss` requires it.

        Raises:
            InvalidBodyError: the draft is not a job, or names a checkpoint or loss that this service does not have.
            HTTPException: 403, a `custom_loss` that is not the owner's.
            NotFoundError: there is no such model.
            ConflictError: the model was made on another base policy or with other adapters, or the key was used with
                another body.
        """
        job_id = _new_id(key)
        if present := self.find_by_key(key, digest):
            return present
        model_id, kind = str(fine_tuning.model_id) if fine_tuning else "", "sft" if fine_tuning else "rl"
        if fine_tuning is None:
            body = job_upload.check(draft)
            model_id = str(body.model_id)
            self._check_options(model_id, body.experimental_config, by_owner=by_owner)
        else:
            self._check_honoured(fine_tuning.config, "config")
        if conflict := self._registry.conflict(model_id):
            raise conflict
        moved = None
        try:
            with self._changed, self._database.write() as connection:
                if rows := connection.execute(_BY_KEY, (key or None, job_id)).fetchall():
                    return _check_digest(rows[0], digest)
                self._cancelling.discard(job_id)  # left by a job of this id that was deleted with its model
                moved = draft.replace(self.bodies.path(job_id))
                flush(moved.parent)
                queued = connection.execute(
                    "INSERT INTO jobs (id, model_id, status, created_at, idempotency_key, digest, kind)"
                    " SELECT ?, id, 'queued', ?, ?, ?, ? FROM models WHERE id = ?",
                    (job_id, now(), key or None, digest, kind, model_id),
                )
                self._changed.notify()
        except BaseException:
            if moved:  # the job is not queued, and nothing else would remove its body before the next start
                remove(moved)
            raise
        if not queued.rowcount:
            remove(moved)
            raise NotFoundError(f"there is no model with id {model_id}")
        self.bodies.remove_lost_copy(job_id, digest)
        return job_id

    def find_by_key(self, key: str | None, digest: str) -> str | None:
        """Find the id of the job that was created with this key; ConflictError if it had another body."""
        rows = self._database.read(_BY_KEY, key or None, _new_id(key))
        return _check_digest(rows[0], digest) if rows else None

    def _check_honoured(self, config: ExperimentalTrainingConfig | SFTTrainingConfig | None, field: str) -> None:
        for name, why in not_honoured(config, self._engine.unsupported).items():
            raise invalid_option(name, f"the engine {self._engine.name} does not honour it: {why}", field)

    def _check_options(self, model_id: str, config: ExperimentalTrainingConfig | None, *, by_owner: bool) -> None:
        """Check that the engine honours the options, and that a checkpoint and a loss that they name exist."""
        self._check_honoured(config, "experimental_config")
        if config and config.custom_loss is not None:
            self._losses.check_owner(by_owner=by_owner)
            try:
                self._losses.read(config.custom_loss)
            except TrainingError as error:
                raise invalid_option("custom_loss", f"{error.message} -> {error.hint}") from error
        if config and config.kl_ref_step:
            steps = {each.step for each in self._registry.checkpoints(model_id)}
            if steps and config.kl_ref_step not in steps:
                raise invalid_option("kl_ref_step", f"there is no checkpoint {config.kl_ref_step} of this model")

    def job(self, job_id: str) -> TrainingJob:
        """Read the job with this id; NotFoundError if there is none."""
        if not (rows := self._database.read("SELECT * FROM jobs WHERE id = ?", job_id)):
            raise NotFoundError(f"there is no training job with id {job_id}")
        return TrainingJob.model_validate({name: rows[0][name] for name in TrainingJob.model_fields})

    def events(self, job_id: str, after: int, limit: int) -> list[Event]:
        """Read up to `limit` events of a job whose ids are larger than `after`, in order."""
        self.job(job_id)
        sql = "SELECT * FROM events WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._database.read(sql, job_id, after, limit)
        return [Event(id=str(row["id"]), type=row["type"], data=json.loads(row["data"])) for row in rows]

    def has_ended(self, job_id: str) -> bool:
        """Whether a job has ended, so that no further event comes."""
        return self.job(job_id).status not in {"queued", "running"}

    @contextmanager
    def subscribe(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, in any thread, whenever a job may have new events."""
        self._listeners.add(listener)
        try:
            yield
        finally:
            self._listeners.discard(listener)

    def end_streams(self) -> None:
        """End all event streams, because the service is about to stop, and take no other job."""
        self.streaming = False
        self._stop()
        self._notify()

    def cancel(self, job_id: str) -> TrainingJob:
        """Cancel a job: a queued one at once, a running one before its next batch. It makes no checkpoint."""
        self.job(job_id)
        with self._database.write() as connection:
            connection.execute("UPDATE jobs SET cancel_wanted = 1 WHERE id = ?", (job_id,))
            sql = "UPDATE jobs SET status = 'cancelled', ended_at = ? WHERE id = ? AND status = 'queued'"
            was_queued = connection.execute(sql, (now(), job_id)).rowcount
            if was_queued:
                _add_event(connection, job_id, "training_cancelled", {})
        if was_queued:
            self._notify()
            self.bodies.remove(job_id)
        else:
            self._cancelling.add(job_id)
        return self.job(job_id)

    def delete_model(self, model_id: str) -> None:
        """Delete a model with its jobs and checkpoints; a running job of it ends without an outcome.

        Raises:
            NotFoundError: there is no such model.
        """
        jobs = self._database.read("SELECT id FROM jobs WHERE model_id = ?", model_id)
        self._registry.delete(model_id)
        for row in jobs:
            self._cancelling.add(row["id"])
            self.bodies.remove(row["id"])
        self._notify()

    def busy(self) -> bool:
        """Whether a job is queued or running, or the database cannot be read; jobs of other engines do not count."""
        try:
            rows = self._database.read("SELECT id FROM jobs WHERE status IN ('queued', 'running')")
            return any(row["id"] not in self._waiting for row in rows)
        except LabError:
            return True

    def close(self) -> None:
        """Stop at the next row or piece of work. The running job goes on when the service starts again."""
        self._stop()
        self._thread.join()

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        self._retry(self._requeue_running)
        self._retry(self._find_waiting)
        while row := self._retry(self._next):
            if outcome := self._train_or_fail(row):
                self._retry(partial(self._record, row, outcome))

    def _retry(self, operation: Callable[[], T]) -> T | None:
        """Repeat an operation until it succeeds, for example while the disk is full; None if the queue is closed."""
        while True:
            try:
                return operation()
            except Exception as error:  # noqa: BLE001 - the thread must not end
                logging.getLogger(__name__).warning("%s; retrying", error)
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, timeout=self._pause):
                    return None

    def _next(self) -> Row | None:
        with self._changed:
            while not self._closed:
                for row in self._database.read("SELECT * FROM jobs WHERE status = 'queued' ORDER BY rowid"):
                    if row["id"] not in self._waiting:
                        return row
                self._changed.wait()
        return None

    def _train_or_fail(self, row: Row) -> _Outcome | None:
        """Train a job; None if it was cancelled before it began, or was queued again because the service stops."""
        try:
            return self._train(row)
        except Cancelled:
            if not self._closed:
                return _Outcome("cancelled", "training_cancelled", {})
            with suppress(LabError):  # otherwise the next start queues it again
                self._requeue(row["id"])
            return None
        except RolloutlabError as error:
            message = error.with_hint
        except BaseException as error:  # noqa: BLE001 - the thread must go on, and the error is the job's outcome
            message = f"{type(error).__name__}: {error}"
        return _failed(message)

    def _train(self, row: Row) -> _Outcome | None:
        job_id, model_id = row["id"], row["model_id"]
        step = self._registry.newest_step(model_id)
        with self._database.write() as connection:
            sql = "UPDATE jobs SET status = 'running', started_at = ?, step = ? WHERE id = ? AND status = 'queued'"
            started = connection.execute(sql, (now(), step, job_id))
        if not started.rowcount:  # it was cancelled since `_next`
            return None
        if row["cancel_wanted"]:  # the service was killed before it had cancelled the job
            raise Cancelled
        self._raise_if_stopped(job_id)
        last: dict[str, object] = {}

        def report(kind: str, data: dict[str, object]) -> None:
            if kind == "training_started" and self._engine.unsupported:
                data = {**data, "not_honoured": dict(self._engine.unsupported)}
            last.update(data if kind == "gradient_step" else {})
            with self._database.write() as connection:
                _add_event(connection, job_id, kind, data)
            self._notify()

        stop = partial(self._should_stop, job_id)
        callbacks = Callbacks(report, stop, partial(self._losses.running, job_id))
        with self._registry.checkpoint(model_id, step) as source:
            with reading(self.bodies.path(job_id)):
                task = self._read_task(row, step, callbacks)
            draft = self._registry.draft(model_id, job_id)
            self._engine.train(source, draft, task, callbacks)
        self._raise_if_stopped(job_id)
        new_step = self._registry.next_step(model_id)
        self._registry.save(model_id, new_step, draft, metrics=last, job_id=job_id)
        return _Outcome("succeeded", "training_ended", {"step": new_step}, step=new_step, metrics=last)

    def _read_task(self, row: Row, step: int, callbacks: Callbacks) -> Task:
        """Read the gradient steps of a job from its body."""
        base, body = self._registry.base, self.bodies.path(row["id"])
        if row["kind"] == "sft":
            job, conversations = sft_upload.read(body)
            return read_fine_tuning(base, conversations, job.config, step, callbacks)
        config, groups = job_upload.read(body)
        source = self._losses.read(config.custom_loss) if config and config.custom_loss else None
        reference = None
        if config and config.kl_ref_step:
            with self._registry.checkpoint(row["model_id"], config.kl_ref_step) as reference:
                check_checkpoint(reference)
        return read_task(base, groups, config, step, callbacks, reference, source)

    def _should_stop(self, job_id: str) -> bool:
        return self._closed or job_id in self._cancelling

    def _raise_if_stopped(self, job_id: str) -> None:
        if self._should_stop(job_id):
            raise Cancelled

    def _record(self, row: Row, outcome: _Outcome) -> None:
        """Record an outcome in one transaction, so that no client sees a part of it."""
        job_id, model_id, step = row["id"], row["model_id"], outcome.step
        with self._database.write() as connection:
            sql = "UPDATE jobs SET status = ?, final_step = ?, ended_at = ?, error = ? WHERE id = ?"
            updated = connection.execute(sql, (outcome.status, step, now(), outcome.error, job_id)).rowcount
            if updated and step is not None:
                values = model_id, step, json.dumps(outcome.metrics), now()
                connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", values)
                connection.execute("UPDATE models SET last_step = ? WHERE id = ?", (step, model_id))
                [started] = connection.execute("SELECT started_at FROM jobs WHERE id = ?", (job_id,)).fetchone()
                seconds = round((moment(now()) - moment(started)).total_seconds(), 3)
                _add_event(connection, job_id, "checkpoint_saved", {"step": step, "seconds": seconds})
            _add_event(connection, job_id, outcome.kind, outcome.data)
        self._notify()
        if not updated:  # its model was deleted while it ran
            self._registry.discard(model_id)
        self._registry.remove_draft(model_id, job_id)
        self.bodies.remove(job_id)
        self._cancelling.discard(job_id)

    def _requeue_running(self) -> None:
        """Queue jobs that a killed service was training again; a job whose custom loss may have ended it fails."""
        sql = "SELECT * FROM jobs WHERE id = ? AND status = 'running' AND NOT cancel_wanted"
        for row in self._database.read(sql, self._losses.marked_job()):
            self._record(row, _failed(_CRASHED))
        jobs = self._database.read("SELECT id FROM jobs WHERE status IN ('queued', 'running')")
        self._registry.remove_drafts([row["id"] for row in jobs])
        for row in self._database.read("SELECT id FROM jobs WHERE status = 'running'"):
            self._requeue(row["id"])
        self._losses.remove_mark()

    def _requeue(self, job_id: str) -> None:
        """Queue a job that was running again."""
        with self._database.write() as connection:
            connection.execute("UPDATE jobs SET status = 'queued' WHERE id = ? AND status = 'running'", (job_id,))
            connection.execute("DELETE FROM events WHERE job_id = ?", (job_id,))
            _add_event(connection, job_id, "restarted", {"reason": "the service stopped while it trained"})

    def _find_waiting(self) -> None:
        """Find queued jobs that wait for a start with another engine or base; `create` refuses new ones."""
        jobs = self._database.read("SELECT id, model_id FROM jobs WHERE status = 'queued'")
        conflicts = {row["id"]: conflict for row in jobs if (conflict := self._registry.conflict(row["model_id"]))}
        with self._database.write() as connection:
            for job_id, conflict in conflicts.items():
                _add_event(connection, job_id, "waiting", {"reason": conflict.with_hint})
        self._waiting = set(conflicts)
        self._notify()

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


def _failed(message: str) -> _Outcome:
    return _Outcome("failed", "training_failed", {"error_message": message}, error=message)


def _new_id(key: str | None) -> str:
    """Return the client's key if it is a UUID, so that a client that loses the response still knows the id."""
    try:
        return str(uuid.UUID(key or ""))
    except ValueError:
        return str(uuid.uuid4())


def _add_event(connection: Connection, job_id: str, kind: str, data: dict[str, object]) -> None:
    """Add an event to a job, unless it has been deleted."""
    values = kind, json.dumps(data, allow_nan=False), job_id
    connection.execute("INSERT INTO events (job_id, type, data) SELECT id, ?, ? FROM jobs WHERE id = ?", values)


def _check_digest(row: Row, digest: str) -> str:
    """Return the id of a job whose key was sent again; ConflictError if the body differs."""
    if row["digest"] not in {None, digest}:
        raise ConflictError(f"the Idempotency-Key was used for the job {row['id']} with another body")
    return str(row["id"])
