"""Checkpoints on disk that the database does not list: set aside at the start, listed again or removed on demand.

The database may be missing, older than the folders beside it, or copied without its write-ahead log. The folders are
what took hours to train, so a start removes temporary names of the service's own, and nothing else.
"""

import json
import os
import re
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from uuid import UUID

from rolloutlab.api.wire.training import LARGEST_STEP, LostCheckpoint, RecoveredCheckpoints
from rolloutlab.errors import CheckpointError, ConflictError, LabError, RolloutlabError, ServiceError
from rolloutlab.fsutil import flush, remove
from rolloutlab.objective.preflight import count
from rolloutlab.policy.checkpoints import CheckpointAbout, about_checkpoint, check_checkpoint, read_checkpoint
from rolloutlab.policy.model import Adapter, Policy
from rolloutlab.service.aside import UNLISTED, note_of, reason_of, set_aside
from rolloutlab.store.sqlite import Database

_DRAFT = re.compile(r"\.\d+-[a-z0-9_]{1,8}")
"""A checkpoint while it is written, or what it replaced."""
_DELETED = re.compile(r"\.(?P<name>[0-9a-f-]+)-deleted")
"""A checkpoint, or a model, from before its deletion is recorded until its files are gone."""
_STEP = re.compile(r"[0-9]{1,18}(-[0-9]{1,6})?")
_RUNNING = "SELECT 1 FROM jobs WHERE model_id = ? AND status = 'running'"


class LostCheckpoints:
    """The folder `models/.lost`: for each checkpoint a folder and, beside it, a JSON file that says why it is there.

    models: the folder of all models, each a folder named by its id with one folder per step.
    """

    def __init__(self, database: Database, models: Path, policy: Policy, initial: Adapter) -> None:
        self._database = database
        self._models = models
        self._aside = models / ".lost"
        self._policy = policy
        self._initial = initial

    def tidy(self, *, start_empty: bool) -> None:
        """Make the disk agree with the database at a start: finish what a kill interrupted, set aside what is unlisted.

        start_empty: also where the database lists no model at all and trained checkpoints lie beside it.

        Raises:
            LabError: it lists none, and `start_empty` is false; or a folder cannot be moved.
        """
        listed = self._listed()
        if not listed and not start_empty:
            self._refuse()
        self._finish_deletions(self._models, set(listed))
        unlisted = []
        for model in self._model_folders(self._models):
            steps = listed.get(model.name, set())
            self._finish_deletions(model, {str(step) for step in steps})
            unlisted += [place for place in _step_folders(model) if place.name not in map(str, steps)]
        for place in unlisted:
            self.set_aside(place)
        for model in self._model_folders(self._models):
            if model.name not in listed:
                with suppress(OSError):  # it is not empty
                    model.rmdir()

    def set_aside(self, place: Path) -> None:
        """Move the folder of a checkpoint that is not listed; LabError when it cannot be moved."""
        try:
            check_checkpoint(place)
            reason = UNLISTED
        except (CheckpointError, ServiceError) as error:
            reason = f"{UNLISTED}, and {error.message}"
        set_aside(place, self._aside / place.parent.name, reason)

    def all(self) -> list[LostCheckpoint]:
        """What is set aside, by model and step."""
        return [_lost(place) for place in self._places()]

    def recover(self) -> RecoveredCheckpoints:
        """List again what is whole, each under its model and step; a model that is not listed any more is, too.

        What cannot be listed remains, with its own reason, and keeps no other from it.
        """
        recovered, remaining = [], []
        for place in self._places():
            lost = _lost(place)
            try:
                recovered.append(lost.model_copy(update={"model": self._recover(place, lost)}))
            except RolloutlabError as error:
                remaining.append(lost.model_copy(update={"reason": error.message}))
            except Exception as error:  # noqa: BLE001 - one odd folder must not end the recovery of the others
                remaining.append(lost.model_copy(update={"reason": f"{type(error).__name__}: {error}"}))
        return RecoveredCheckpoints(recovered=recovered, remaining=remaining)

    def purge(self) -> list[LostCheckpoint]:
        """Remove what is set aside, for good, but nothing behind a link; what is no longer there."""
        removed = []
        for place in self._places():
            lost = _lost(place)
            if not place.parent.is_symlink():
                remove(place)
            if not os.path.lexists(place):
                remove(note_of(place))
                removed.append(lost)
        for folder in [*self._model_folders(self._aside), self._aside]:
            with suppress(OSError):  # it is not empty, or not there
                folder.rmdir()
        return removed

    def _recover(self, place: Path, lost: LostCheckpoint) -> str:
        """Move one back and list it: the name of its model.

        Raises:
            CheckpointError: it is damaged, or of another model or step than its place says. ConflictError: it cannot be
            listed now, or not beside what is listed. LabError: the disk refuses.
        """
        _refuse_links(place)
        state = read_checkpoint(place)
        about = _checked(place, lost)
        if not about and _shapes(state.adapter) != _shapes(self._initial):
            raise ConflictError("its tensors are for another base policy than the one that is served")
        home = self._models / str(lost.model_id) / str(lost.step)
        try:
            with self._database.write() as connection:
                name = self._list(connection, lost, about, home)
                home.parent.mkdir(exist_ok=True)
                place.rename(home)  # last: what fails before leaves it where it was
                flush(home.parent)
        except BaseException as error:
            if not place.exists() and home.exists():  # it is not listed after all
                home.rename(place)
            if isinstance(error, OSError):
                raise ConflictError(f"it cannot be moved to {home}: {error}") from error
            raise
        remove(note_of(place))
        return name

    def _list(self, connection: Connection, lost: LostCheckpoint, about: CheckpointAbout | None, home: Path) -> str:
        """List a checkpoint at `home`, and its model where that is not; the model's name.

        Raises:
            ConflictError: a job of the model is running, or it has a checkpoint of this step.
        """
        model_id = str(lost.model_id)
        if connection.execute(_RUNNING, (model_id,)).fetchone():
            raise ConflictError("a job of its model is running; it can be taken back once that has ended")
        name = _listed_name(connection, model_id) or self._list_model(connection, model_id, about)
        metrics, saved_at = (about.metrics, about.saved_at) if about else ({}, _now())
        values = model_id, lost.step, json.dumps(metrics), saved_at
        added = connection.execute("INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?)", values)
        if not added.rowcount or os.path.lexists(home):
            raise ConflictError(f"{name} has another checkpoint {lost.step} by now")
        connection.execute("UPDATE models SET last_step = max(last_step, ?) WHERE id = ?", (lost.step, model_id))
        return name

    def _list_model(self, connection: Connection, model_id: str, about: CheckpointAbout | None) -> str:
        """List a model again under its name, or under the next one that is free; the name."""
        short = model_id[:8]
        entity, project, wanted = (about.entity, about.project, about.name) if about else ("local", "recovered", short)
        known = "SELECT name FROM models WHERE entity = ? AND project = ?"
        taken = {row["name"] for row in connection.execute(known, (entity, project))}
        names = (wanted, *(f"{wanted}-{i}" for i in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        stands = (about.base_model, about.run_id, about.created_at) if about else (self._policy.name, short, _now())
        values = model_id, entity, project, name, *stands, about.base if about else None
        connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)", values)
        return f"{project}/{name}"

    def _refuse(self) -> None:
        """LabError where the database lists no model and trained checkpoints lie there; a step 0 is the base policy."""
        unlisted = [place for model in self._model_folders(self._models) for place in _step_folders(model)]
        trained = [place for place in unlisted if place.name != "0" and _whole(place)]
        if trained:
            models = len({place.parent for place in trained})
            raise LabError(
                f"{self._database.path} lists no model, but {count(len(trained), 'trained checkpoint')} of"
                f" {count(models, 'model')} lie"
                f" in {self._models}: the database was lost, or copied without the file service.db-wal beside it",
                hint="put service.db and service.db-wal back; or %models --recover, which lists the checkpoints anew",
            )

    @staticmethod
    def _finish_deletions(folder: Path, listed: set[str]) -> None:
        """Remove drafts, and what was being deleted; but a deletion that was never recorded did not happen."""
        for path in sorted(folder.glob(".*")):
            deleted = _DELETED.fullmatch(path.name)
            if deleted and deleted["name"] in listed and not (folder / deleted["name"]).exists():
                path.rename(folder / deleted["name"])
            elif deleted or _DRAFT.fullmatch(path.name):
                remove(path)

    def _listed(self) -> dict[str, set[int]]:
        listed: dict[str, set[int]] = {row["id"]: set() for row in self._database.read("SELECT id FROM models")}
        for row in self._database.read("SELECT model_id, step FROM checkpoints"):
            listed[row["model_id"]].add(row["step"])
        return listed

    @staticmethod
    def _model_folders(folder: Path) -> list[Path]:
        """Folders of models. A link is none: what is behind it was put there by hand."""
        return sorted(
            path for path in folder.glob("*") if path.is_dir() and not path.is_symlink() and _is_id(path.name)
        )

    def _places(self) -> list[Path]:
        """The folders that are set aside, by model and step."""
        return [place for model in _named_by_ids(self._aside) for place in _step_folders(model)]


def deleting(place: Path) -> Path:
    """Move what is being deleted to a name that the next start removes, or takes back where it is still listed."""
    moved = place.with_name(f".{place.name}-deleted")
    remove(moved)
    if place.exists():
        place.rename(moved)
    return moved


def _named_by_ids(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and _is_id(path.name))


def _step_folders(model: Path) -> list[Path]:
    """Folders of steps; one that is set aside beside another of its step has a number of its own after a dash."""
    found = [path for path in model.glob("*") if path.is_dir() and _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: [*map(int, path.name.split("-"))])


def _lost(place: Path) -> LostCheckpoint:
    reason, named = reason_of(place), {}
    try:
        if about := about_checkpoint(place):
            named = {"model": f"{about.project}/{about.name}"}
    except (CheckpointError, ServiceError) as error:
        reason = reason if error.message in reason else f"{reason}, and {error.message}"
    step = int(place.name.partition("-")[0])
    return LostCheckpoint(model_id=UUID(place.parent.name), step=step, bytes=_size(place), reason=reason, **named)


def _size(place: Path) -> int:
    """Bytes of the files in a folder, but not of those behind links, nor of those that the disk refuses to look at."""
    if place.is_symlink():
        return 0
    size = 0
    for folder, _, names in os.walk(place):
        for name in names:
            with suppress(OSError):
                file = Path(folder, name).lstat()
                size += file.st_size if stat.S_ISREG(file.st_mode) else 0
    return size


def _refuse_links(place: Path) -> None:
    """CheckpointError where a folder or a file of a checkpoint is a link."""
    for path in (place.parent, place, *place.rglob("*")):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link", hint="put the files themselves in its place")


def _checked(place: Path, lost: LostCheckpoint) -> CheckpointAbout | None:
    """What its folder says of a checkpoint; CheckpointError where that cannot be so at this place."""
    about = about_checkpoint(place)
    if about and (about.id, about.step) != (lost.model_id, lost.step):
        differs = f"{place} says that it is step {about.step} of the model {about.id}"
        raise CheckpointError(differs, hint="move it to a folder of that name")
    if lost.step > LARGEST_STEP:
        raise CheckpointError(f"{place} is of a step beyond {LARGEST_STEP:,}", hint="move it to a folder of its step")
    return about


def _listed_name(connection: Connection, model_id: str) -> str | None:
    row = connection.execute("SELECT project, name FROM models WHERE id = ?", (model_id,)).fetchone()
    return f"{row['project']}/{row['name']}" if row else None


def _shapes(adapter: Adapter) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in adapter.items()}


def _whole(place: Path) -> bool:
    try:
        check_checkpoint(place)
    except CheckpointError:
        return False
    except ServiceError:  # whether it is whole is not known, and it must not be taken for nothing
        return True
    return True


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


def _now() -> str:
    return datetime.now(UTC).isoformat()
