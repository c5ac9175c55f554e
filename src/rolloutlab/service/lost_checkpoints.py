"""Recovery of checkpoints that the database does not list: set aside at start, listed again or removed on demand.

The database may be missing, older than the folders beside it, or copied without its write-ahead log. The checkpoints
took hours to train, so a start removes the service's own temporary files and nothing else.
"""

import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection
from uuid import UUID

from rolloutlab.api.wire.levels import LARGEST_STEP
from rolloutlab.api.wire.training import LostCheckpoint, RecoveredCheckpoints
from rolloutlab.engines.engine import Engine
from rolloutlab.errors import CheckpointError, ConflictError, LabError, RolloutlabError, ServiceError
from rolloutlab.fsutil import flush, remove
from rolloutlab.objective.preflight import count
from rolloutlab.policy.checkpoints import CheckpointMetadata, check_checkpoint, read_metadata
from rolloutlab.service.quarantine import UNLISTED, note_of, reason_of, set_aside
from rolloutlab.store.models import now
from rolloutlab.store.sqlite import Database

_DRAFT = re.compile(r"\.\d+-[a-z0-9_]{1,8}")
"""A checkpoint that is being written, or that was replaced by one."""
_DELETED = re.compile(r"\.(?P<name>[0-9a-f-]+)-deleted")
"""A checkpoint or model during its deletion: renamed before the commit, removed after it."""
_STEP = re.compile(r"[0-9]{1,18}(-[0-9]{1,6})?")
Metadata = CheckpointMetadata | None
_RUNNING = "SELECT 1 FROM jobs WHERE model_id = ? AND status = 'running'"


class LostCheckpoints:
    """The folder `models/.lost`: `MODEL_ID/STEP` per checkpoint, each with a note beside it.

    models: the folder of all models, `MODEL_ID/STEP` per checkpoint.
    """

    def __init__(self, database: Database, models: Path, engine: Engine) -> None:
        self._database = database
        self._models = models
        self._lost = models / ".lost"
        self._engine = engine

    def reconcile(self, *, start_empty: bool) -> None:
        """Finish interrupted deletions and set aside unlisted checkpoints, at the start of the service.

        start_empty: go on even if the database lists no model but trained checkpoints lie beside it.

        Raises:
            LabError: a folder cannot be moved; or the database lists no model, and `start_empty` would be needed.
        """
        listed = self._listed_steps()
        if not listed and not start_empty:
            self._check_not_lost()
        self._finish_deletions(self._models, set(listed))
        unlisted = []
        for model in self._model_folders(self._models):
            steps = listed.get(model.name, set())
            self._finish_deletions(model, {str(step) for step in steps})
            unlisted += [path for path in _step_folders(model) if path.name not in map(str, steps)]
        for path in unlisted:
            self.set_aside(path)
        for model in self._model_folders(self._models):
            if model.name not in listed:
                with suppress(OSError):  # it is not empty
                    model.rmdir()

    def set_aside(self, path: Path) -> None:
        """Move the folder of an unlisted checkpoint to `.lost`, or raise LabError."""
        try:
            check_checkpoint(path)
            reason = UNLISTED
        except (CheckpointError, ServiceError) as error:
            reason = f"{UNLISTED}, and {error.message}"
        set_aside(path, self._lost / path.parent.name, reason)

    def all(self) -> list[LostCheckpoint]:
        """Return all lost checkpoints, by model and step."""
        return [_describe(path) for path in self._find_all()]

    def recover(self) -> RecoveredCheckpoints:
        """List intact checkpoints again under their model and step, with their models where those are unlisted.

        A checkpoint that cannot be recovered remains, with the reason.
        """
        recovered, remaining = [], []
        for path in self._find_all():
            lost = _describe(path)
            try:
                recovered.append(lost.model_copy(update={"model": self._recover(path, lost)}))
            except RolloutlabError as error:
                remaining.append(lost.model_copy(update={"reason": error.message}))
            except Exception as error:  # noqa: BLE001 - one damaged folder must not stop the recovery of the others
                remaining.append(lost.model_copy(update={"reason": f"{type(error).__name__}: {error}"}))
        return RecoveredCheckpoints(recovered=recovered, remaining=remaining)

    def purge(self) -> list[LostCheckpoint]:
        """Delete lost checkpoints, and return the deleted ones. Nothing behind a symbolic link is deleted."""
        removed = []
        for path in self._find_all():
            lost = _describe(path)
            if not path.parent.is_symlink():
                remove(path)
            if not os.path.lexists(path):
                remove(note_of(path))
                removed.append(lost)
        for folder in [*self._model_folders(self._lost), self._lost]:
            with suppress(OSError):  # it is not empty, or not there
                folder.rmdir()
        return removed

    def _recover(self, path: Path, lost: LostCheckpoint) -> str:
        """Move a checkpoint back, list it, and return the name of its model.

        Raises:
            CheckpointError: it is damaged, or of another model or step than its path says.
            ConflictError: it conflicts with a listed checkpoint or a running job, or it cannot be moved.
            LabError: the database cannot be written.
        """
        for each in (path.parent, path, *path.rglob("*")):
            if each.is_symlink():
                raise CheckpointError(f"{each} is a symbolic link", hint="put the files themselves in its place")
        check_checkpoint(path)
        metadata, fits = _read_matching_metadata(path, lost), self._engine.fits(path)
        if not metadata and not fits:
            raise ConflictError("its tensors are for another base policy than the one that is served")
        target = self._models / str(lost.model_id) / str(lost.step)
        try:
            with self._database.write() as connection:
                name = self._insert(connection, lost, metadata, target)
                target.parent.mkdir(exist_ok=True)
                path.rename(target)  # last, so that an earlier failure leaves it in `.lost`
                flush(target.parent)
        except BaseException as error:
            if not path.exists() and target.exists():  # the commit has failed
                target.rename(path)
            if isinstance(error, OSError):
                raise ConflictError(f"it cannot be moved to {target}: {error}") from error
            raise
        remove(note_of(path))
        return name

    def _insert(self, connection: Connection, lost: LostCheckpoint, metadata: Metadata, target: Path) -> str:
        """Insert the row of a checkpoint, and of its model if that is not listed; return the model's name.

        Raises:
            ConflictError: a job of the model is running, or the model has a checkpoint of this step.
        """
        model_id = str(lost.model_id)
        if connection.execute(_RUNNING, (model_id,)).fetchone():
            raise ConflictError("a job of its model is running; try again once that has ended")
        row = connection.execute("SELECT project, name FROM models WHERE id = ?", (model_id,)).fetchone()
        name = f"{row['project']}/{row['name']}" if row else self._insert_model(connection, model_id, metadata)
        metrics, saved_at = (metadata.metrics, metadata.saved_at) if metadata else ({}, now())
        values = model_id, lost.step, json.dumps(metrics), saved_at
        inserted = connection.execute("INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?)", values)
        if not inserted.rowcount or os.path.lexists(target):
            raise ConflictError(f"{name} has another checkpoint {lost.step} by now")
        connection.execute("UPDATE models SET last_step = max(last_step, ?) WHERE id = ?", (lost.step, model_id))
        return name

    def _insert_model(self, connection: Connection, model_id: str, metadata: Metadata) -> str:
        """Insert the row of a model under its name or the next free one, and return that name with its project."""
        short = model_id[:8]
        if metadata:
            entity, project, first = metadata.entity, metadata.project, metadata.name
            made_from = json.dumps([each.to_wire() for each in metadata.made_from]) if metadata.made_from else None
            columns = metadata.base_model, metadata.run_id, metadata.created_at, metadata.base, made_from
        else:
            entity, project, first = "local", "recovered", short
            columns = self._engine.base.name, short, now(), None, None
        query = "SELECT name FROM models WHERE entity = ? AND project = ?"
        taken = {row["name"] for row in connection.execute(query, (entity, project))}
        name = next(each for each in (first, *(f"{first}-{i}" for i in range(2, len(taken) + 3))) if each not in taken)
        values = model_id, entity, project, name, *columns
        connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?)", values)
        return f"{project}/{name}"

    def _check_not_lost(self) -> None:
        """Raise LabError if there are trained checkpoints, but no model is listed. Step 0 is just the base policy."""
        unlisted = [path for model in self._model_folders(self._models) for path in _step_folders(model)]
        trained = [path for path in unlisted if path.name != "0" and _may_be_intact(path)]
        if trained:
            models = count(len({path.parent for path in trained}), "model")
            raise LabError(
                f"{self._database.path} lists no model, but {count(len(trained), 'trained checkpoint')} of {models} lie"
                f" in {self._models}: the database was lost, or copied without the file service.db-wal beside it",
                hint="put service.db and service.db-wal back; or %models --recover, which lists the checkpoints anew",
            )

    @staticmethod
    def _finish_deletions(folder: Path, listed: set[str]) -> None:
        """Remove drafts, finish the deletions that were committed, and undo the others."""
        for path in sorted(folder.glob(".*")):
            deleted = _DELETED.fullmatch(path.name)
            if deleted and deleted["name"] in listed and not (folder / deleted["name"]).exists():
                path.rename(folder / deleted["name"])
            elif deleted or _DRAFT.fullmatch(path.name):
                remove(path)

    def _listed_steps(self) -> dict[str, set[int]]:
        steps: dict[str, set[int]] = {row["id"]: set() for row in self._database.read("SELECT id FROM models")}
        for row in self._database.read("SELECT model_id, step FROM checkpoints"):
            steps[row["model_id"]].add(row["step"])
        return steps

    @staticmethod
    def _model_folders(folder: Path) -> list[Path]:
        """Find the folders of models, without symbolic links, which the service never makes."""
        return [path for path in _id_folders(folder) if not path.is_symlink()]

    def _find_all(self) -> list[Path]:
        """Find the folders of lost checkpoints, by model and step."""
        return [path for model in _id_folders(self._lost) for path in _step_folders(model)]


def mark_deleted(path: Path) -> Path:
    """Rename a folder before its deletion, so that the next start can finish or undo it; return the new path."""
    renamed = path.with_name(f".{path.name}-deleted")
    remove(renamed)
    if path.exists():
        path.rename(renamed)
    return renamed


def _id_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and _is_id(path.name))


def _step_folders(model: Path) -> list[Path]:
    """Find the folders `STEP`; in `.lost` also `STEP-2` and so on, for further checkpoints of the same step."""
    paths = [path for path in model.glob("*") if path.is_dir() and _STEP.fullmatch(path.name)]
    return sorted(paths, key=lambda path: [*map(int, path.name.split("-"))])


def _describe(path: Path) -> LostCheckpoint:
    reason, model = reason_of(path), {}
    try:
        if metadata := read_metadata(path):
            model = {"model": f"{metadata.project}/{metadata.name}"}
    except (CheckpointError, ServiceError) as error:
        reason = reason if error.message in reason else f"{reason}, and {error.message}"
    step = int(path.name.partition("-")[0])
    return LostCheckpoint(model_id=UUID(path.parent.name), step=step, bytes=_size(path), reason=reason, **model)


def _size(path: Path) -> int:
    """Count the bytes of the regular files in a folder. Files behind links and unreadable ones are left out."""
    if path.is_symlink():
        return 0
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                file = Path(folder, name).lstat()
                size += file.st_size if stat.S_ISREG(file.st_mode) else 0
    return size


def _read_matching_metadata(path: Path, lost: LostCheckpoint) -> Metadata:
    """Read the metadata of a checkpoint, or raise CheckpointError if its path says another model or step."""
    metadata = read_metadata(path)
    if metadata and (metadata.id, metadata.step) != (lost.model_id, lost.step):
        message = f"{path} holds step {metadata.step} of the model {metadata.id}"
        raise CheckpointError(message, hint="move it to a folder of that name")
    if lost.step > LARGEST_STEP:
        raise CheckpointError(f"{path} is of a step beyond {LARGEST_STEP:,}", hint="move it to a folder of its step")
    return metadata


def _may_be_intact(path: Path) -> bool:
    """False only if a checkpoint is known to be damaged."""
    try:
        with suppress(ServiceError):  # it cannot be read now
            check_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False
