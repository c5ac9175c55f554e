"""Model registry: models and checkpoints as rows in the database, tensors in folders beside it."""

import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any

from rolloutlab.api.wire.training import Ancestor, Checkpoint, DeletedCheckpoints, Model, ModelCard, RegisterModel
from rolloutlab.engines.engine import Engine, KeepsElsewhere
from rolloutlab.errors import CheckpointError, ConflictError, InputError, NotFoundError
from rolloutlab.fsutil import remove
from rolloutlab.policy.checkpoints import adapter_sums, copy_files, map_write_errors, open_draft, seal
from rolloutlab.service.lost_checkpoints import LostCheckpoints, mark_deleted
from rolloutlab.store.models import now
from rolloutlab.store.sqlite import Database, Row

_ENTITY = "local"
_ARTIFACT = re.compile(
    r"wandb-artifact:///?(?P<entity>[\w.-]+)/(?P<project>[\w.-]+)/(?P<name>[\w.-]+)(?::(?P<version>\w+))?\Z"
)
_ID = re.compile(r"(?P<id>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?:@(?P<version>\w+))?\Z")
_SHORT = re.compile(r"(?P<project>[\w.-]+)/(?P<name>[\w.-]+)(?:@(?P<version>\w+))?\Z")
_MODEL_COLUMNS = ("id", "entity", "project", "name", "base_model", "run_id", "created_at", "base", "made_from")
"""Columns that the folder of a checkpoint repeats, so that it can be listed again without the database."""
_CARD_COLUMNS = ("base_model", "newest_step", "checkpoints")
Columns = Mapping[str, Any]
Metrics = Mapping[str, object]


@dataclass(frozen=True)
class _Beginning:
    """The first checkpoint of a new model.

    Attributes:
        step: Its number.
        base: The base policy and the options that it was made on, as for `Registry._serves`.
        made_from: The checkpoint of another model that it is a copy of, then the ancestors of that one. Empty for a
            checkpoint 0 that the engine makes.
        metrics: The metrics of the original.
    """

    step: int
    base: str | None
    made_from: list[Ancestor] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of an adapter: their folder, and checksums by name. elsewhere: where it is, if there are no files."""

    folder: Path
    sums: Mapping[str, str]
    elsewhere: str = ""


class Registry:
    """The models of one service, all on the base of its one engine.

    start_empty: with an empty database, set trained checkpoints aside instead of raising.

    Raises:
        LabError: the database lists no model, trained checkpoints lie beside it, and `start_empty` is false.
    """

    def __init__(self, database: Database, folder: Path, engine: Engine, *, start_empty: bool = False) -> None:
        self._database = database
        self._folder = folder
        self._engine = engine
        self.base = engine.base
        self._made_on = " ".join([self.base.fingerprint, *self.base.bound_options])
        self._registering = Lock()
        self.lost = LostCheckpoints(database, folder / "models", engine)
        self.lost.reconcile(start_empty=start_empty)

    def register(self, request: RegisterModel) -> Model:
        """Register a model. Its first checkpoint exists at once.

        The first checkpoint is 0, the base policy, or a copy of `from_checkpoint` under the same number.

        Raises:
            InputError: the name is taken and `return_existing` is false, or the base model is not the service's.
            ConflictError: the name is taken by a model that was not made from `from_checkpoint`.
            NotFoundError: there is no such checkpoint.
            CheckpointError: that checkpoint is damaged.
        """
        if request.base_model not in {None, self.base.name}:
            raise InputError(
                f"the base model {request.base_model!r} is not served here; this service serves {self.base.name!r}",
                hint=f"rolloutlab serve --policy {request.base_model}",
            )
        entity, name = request.entity or _ENTITY, (request.project, request.name)
        with self._registering:
            sql = "SELECT * FROM models WHERE entity = ? AND project = ? AND name = ?"
            rows = self._database.read(sql, entity, *name)
            if rows and not request.return_existing:
                raise InputError(f"the model {'/'.join(name)} exists", hint="return_existing: true")
            if not rows:
                return self._create(entity, *name, self._find_beginning(request.from_checkpoint))
            if request.from_checkpoint is not None:
                self._check_made_from(rows[0], request.from_checkpoint)
            conflict = self._find_conflict(rows[0])
            return _model(rows[0]).model_copy(update={"conflict": conflict.with_hint} if conflict else {})

    def model(self, model_id: str) -> Model:
        """Return the model with this id, or raise NotFoundError."""
        return _model(self._row(model_id))

    def _row(self, model_id: str) -> Row:
        if not (rows := self._database.read("SELECT * FROM models WHERE id = ?", model_id)):
            raise NotFoundError(f"there is no model with id {model_id}")
        return rows[0]

    def checkpoints(self, model_id: str) -> list[Checkpoint]:
        """Return all checkpoints of a model, oldest first."""
        rows = self._database.read("SELECT * FROM checkpoints WHERE model_id = ? ORDER BY step", model_id)
        return [_checkpoint(row) for row in rows]

    def files(self, model_id: str, step: int) -> "CheckpointFiles":
        """Return the files of a checkpoint's adapter.

        Raises:
            NotFoundError: there is no such model or checkpoint.
            ConflictError: the model has another base than is served here.
            CheckpointError: the checkpoint is damaged.
        """
        model = self.model(model_id)
        if not any(checkpoint.step == step for checkpoint in self.checkpoints(model_id)):
            raise NotFoundError(f"{model.project}/{model.name} has no checkpoint {step}")
        if conflict := self.conflict(model_id):
            raise conflict
        with self.checkpoint(model_id, step) as folder:
            sums = adapter_sums(folder)
            if sums:
                return CheckpointFiles(folder, sums)
            place = self._engine.place(folder) if isinstance(self._engine, KeepsElsewhere) else "by the engine"
            return CheckpointFiles(folder, {}, f"the adapter of {model.project}/{model.name}@{step} is kept {place}")

    def page(self, model_id: str, after: int | None, limit: int, descending: bool) -> list[Checkpoint]:
        """Return up to `limit` checkpoints of a model beyond the step `after`, which may have been deleted."""
        order, beyond = ("DESC", "<") if descending else ("ASC", ">")
        where = f"model_id = ? AND (? IS NULL OR step {beyond} ?) ORDER BY step {order} LIMIT ?"
        rows = self._database.read(f"SELECT * FROM checkpoints WHERE {where}", model_id, after, after, limit)
        return [_checkpoint(row) for row in rows]

    def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> DeletedCheckpoints:
        """Delete checkpoints. Their step numbers are never used again.

        Raises:
            NotFoundError: there is no such model.
            ConflictError: no checkpoint of the model would remain.
        """
        model = self.model(model_id)
        requested = dict.fromkeys(steps)
        with self._deleting() as (connection, folders):
            rows = connection.execute("SELECT step FROM checkpoints WHERE model_id = ?", (model_id,)).fetchall()
            listed = {row["step"] for row in rows}
            deleted = listed & requested.keys()
            if deleted and deleted == listed:
                raise ConflictError(
                    f"{model.project}/{model.name} would be left without a checkpoint",
                    hint=f"keep one of its steps, or DELETE /v1/preview/models/{model_id}",
                )
            delete = "DELETE FROM checkpoints WHERE model_id = ? AND step = ?"
            connection.executemany(delete, [(model_id, step) for step in deleted])
            folders += [self._path(model_id, step) for step in deleted]
        self._forget(model_id, deleted)
        missing = [step for step in requested if step not in deleted]
        return DeletedCheckpoints(deleted_count=len(deleted), not_found_steps=missing)

    def delete(self, model_id: str) -> None:
        """Delete a model with its jobs and checkpoints, or raise NotFoundError."""
        self._row(model_id)
        steps = {checkpoint.step for checkpoint in self.checkpoints(model_id)}
        with self._deleting() as (connection, folders):
            connection.execute("DELETE FROM models WHERE id = ?", (model_id,))
            folders.append(self._folder / "models" / model_id)
        self._forget(model_id, steps)

    def discard(self, model_id: str) -> None:
        """Remove the files of a model that is no longer listed."""
        remove(mark_deleted(self._folder / "models" / model_id))

    @contextmanager
    def _deleting(self) -> Iterator[tuple[Connection, list[Path]]]:
        """Delete rows and folders together. Yields a transaction, and a list to which the caller adds the folders.

        The folders are renamed before the commit and removed after it. After a kill at any moment, the next start can
        tell from the rows whether to finish the deletion or to undo it.
        """
        moved: dict[Path, Path] = {}
        folders: list[Path] = []
        try:
            with self._database.write() as connection:
                yield connection, folders
                for folder in folders:
                    moved[folder] = mark_deleted(folder)
        except BaseException:
            for folder, renamed in moved.items():
                if renamed.exists():
                    renamed.rename(folder)
            raise
        for renamed in moved.values():
            remove(renamed)

    def newest_step(self, model_id: str) -> int:
        """Return the largest listed step, or raise NotFoundError if the model is not listed."""
        [[step]] = self._database.read("SELECT max(step) FROM checkpoints WHERE model_id = ?", model_id)
        if step is None:
            raise NotFoundError(f"there is no model with id {model_id}")
        return int(step)

    def next_step(self, model_id: str) -> int:
        """Return one more than the largest step there ever was, or raise NotFoundError if the model is not listed."""
        return int(self._row(model_id)["last_step"]) + 1

    def resolve(self, name: str) -> tuple[Model | None, int]:
        """Find the model and step that the `model` of a request names. The model is None for the base policy.

        Accepted: the base model's id; `project/name[@N]`; `UUID[@N]`; `wandb-artifact:///entity/project/name[:stepN|:latest]`,
        also with two slashes. A name without a step is the newest checkpoint.

        Raises:
            NotFoundError: there is no such model or checkpoint.
            ConflictError: the model has another base policy, adapters or dtype than what is served.
        """
        if name == self.base.name:
            return None, 0
        row, version = self._find_row(name)
        model = _model(row)
        if not (steps := [checkpoint.step for checkpoint in self.checkpoints(str(model.id))]):
            raise NotFoundError(f"{model.project}/{model.name} has just been deleted")
        if conflict := self._find_conflict(row):
            raise conflict
        if version in {None, "latest"}:
            return model, steps[-1]
        step = re.fullmatch(r"(?:step)?([0-9]{1,18})", str(version))
        if step is None or int(step[1]) not in steps:
            listed = f"{steps[0]} to {steps[-1]}"
            raise NotFoundError(f"{model.project}/{model.name} has no checkpoint {version}; it has {listed}")
        return model, int(step[1])

    @contextmanager
    def checkpoint(self, model_id: str, step: int) -> Iterator[Path]:
        """Yield the folder of a checkpoint, for an engine to read.

        Raises:
            CheckpointError: the engine refuses it as damaged; the hint is how to delete it.
            NotFoundError: it has just been deleted.
        """
        try:
            yield self._path(model_id, step)
        except CheckpointError as error:
            if not any(checkpoint.step == step for checkpoint in self.checkpoints(model_id)):
                raise NotFoundError(f"the checkpoint {step} has just been deleted") from None
            model = self.model(model_id)
            short = f"{model.project}/{model.name}"
            request = f'DELETE /v1/preview/models/{model_id}/checkpoints {{"steps": [{step}]}}'
            hint = f"{error.hint}: %models --delete {short}@{step}, or {request}"
            raise CheckpointError(error.message, hint=hint) from error

    def _serves(self, base: str | None) -> bool:
        """Whether a model can be sampled here.

        base: the fingerprint of its base policy, then the options that were not the default. Older versions stored no
        dtype: their models fit any dtype. Still older ones stored nothing: their models have the default adapters.
        """
        bound = self.base.bound_options
        adapters = [option for option in bound if not option.startswith("--dtype")]
        return base in {self._made_on, " ".join([self.base.fingerprint, *adapters]), *([] if adapters else [None])}

    def conflict(self, model_id: str) -> ConflictError | None:
        """Find why a model can be neither sampled nor trained here, if so; NotFoundError if there is no such model."""
        return self._find_conflict(self._row(model_id))

    def _find_conflict(self, row: Row) -> ConflictError | None:
        if self._serves(row["base"]):
            return None
        short = f"{row['project']}/{row['name']}"
        made = (row["base"] or "").split()[1:]
        if made == list(self.base.bound_options):
            base = f"on {row['base_model']!r} as it was when the model was registered"
            message = f"{short} was trained on another base policy than is served here: {base}"
            hint = f"%model {row['project']}/{self._free_name(row)}"
            return ConflictError(message, hint=hint)
        options, served = (" ".join(each) or "the default settings" for each in (made, self.base.bound_options))
        return ConflictError(
            f"{short} was made with {options}, and this service runs with {served}",
            hint=" ".join(["rolloutlab serve --policy", row["base_model"], *made])
            + "; for a notebook's own service the settings of these names (docs/connect.md), then %service stop",
        )

    def _free_name(self, row: Row) -> str:
        """Find a name that no model of another policy has, for a new model of the policy that is served."""
        sql = "SELECT name, base FROM models WHERE entity = ? AND project = ?"
        models = self._database.read(sql, row["entity"], row["project"])
        taken = {each["name"] for each in models if not self._serves(each["base"])}
        own = re.sub(r"[^\w.-]+", "-", self.base.name.rpartition("/")[2]).strip("-.") or "policy"
        return next(name for name in chain([own], (f"{own}-{i}" for i in count(2))) if name not in taken)

    def cards(self) -> list[ModelCard]:
        """List what can be sampled, by shortest names: the base policy, and each model that this service serves."""
        rows = self._database.read(
            "SELECT m.*, max(c.step) AS newest_step, count(c.step) AS checkpoints FROM models m"
            " JOIN checkpoints c ON c.model_id = m.id GROUP BY m.id ORDER BY m.created_at, m.rowid"
        )
        served = [row for row in rows if self._serves(row["base"])]
        return [_card(self.base.name), *map(_card_of, served)]

    def remove_drafts(self, job_ids: Collection[str]) -> None:
        """Remove the drafts that an earlier service has left, except those of these jobs, which will be resumed."""
        for path in (self._folder / "models").glob("*/.job-*"):
            if path.name.removeprefix(".job-").partition(".")[0] not in job_ids:
                remove(path)

    def draft(self, model_id: str, job_id: str) -> Path:
        """Make a new, empty folder for the checkpoint of a job, or raise LabError."""
        path = self._draft(model_id, job_id)
        with map_write_errors(path):
            remove(path)
            path.mkdir(parents=True)
        return path

    def remove_draft(self, model_id: str, job_id: str) -> None:
        """Remove the draft of a job that has ended, if it is still there, and what an engine kept beside it."""
        path = self._draft(model_id, job_id)
        for each in path.parent.glob(f"{path.name}*"):
            remove(each)

    def save(self, model_id: str, step: int, draft: Path, *, metrics: Metrics | None = None, job_id: str = "") -> None:
        """Turn a draft that an engine has filled into a checkpoint; its database row lists it later.

        Args:
            model_id: The model.
            step: The number of the checkpoint.
            draft: The folder with its files.
            metrics: The metrics of the last gradient step of its job.
            job_id: The job, if any.

        Raises:
            NotFoundError: the model was deleted.
        """
        row = self._row(model_id)
        self._seal({name: row[name] for name in _MODEL_COLUMNS}, step, draft, metrics or {}, job_id)

    def _seal(self, model: Columns, step: int, draft: Path, metrics: Metrics, job_id: str) -> None:
        path = self._path(model["id"], step)
        if path.exists():  # it was copied there while the service runs
            self.lost.set_aside(path)
        about = {"step": step, "metrics": dict(metrics), "job_id": job_id, "saved_at": now()}
        seal(draft, path, {**model, "made_from": json.loads(model["made_from"] or "null"), **about})

    def _create(self, entity: str, project: str, name: str, first: _Beginning) -> Model:
        """Create a model with its first checkpoint. The folder is whole before its rows exist, and goes with them."""
        model_id, run_id, created_at = str(uuid.uuid4()), uuid.uuid4().hex[:8], now()
        made_from = json.dumps([each.to_wire() for each in first.made_from]) if first.made_from else None
        values = (model_id, entity, project, name, self.base.name, run_id, created_at, first.base, made_from)
        try:
            with open_draft(self._path(model_id, first.step)) as draft:
                self._fill(draft, first)
                self._seal(dict(zip(_MODEL_COLUMNS, values, strict=True)), first.step, draft, first.metrics, "")
            with self._database.write() as connection:
                row = (*values[:-2], first.step, *values[-2:])
                connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                checkpoint = model_id, first.step, json.dumps(first.metrics), created_at
                connection.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?)", checkpoint)
        except BaseException:
            self.discard(model_id)
            raise
        return self.model(model_id)

    def _fill(self, draft: Path, first: _Beginning) -> None:
        """Fill the draft of a model's first checkpoint: by the engine, or with a copy of its files of another model."""
        if not first.made_from:
            self._engine.create_initial(draft)
            return
        with self.checkpoint(str(first.made_from[0].model_id), first.step) as source:
            copy_files(source, draft)

    def _find_beginning(self, from_checkpoint: str | None) -> _Beginning:
        """Find what a new model begins with. Raises as `resolve`, and InputError for the name of the base policy."""
        if from_checkpoint is None:
            return _Beginning(0, self._made_on)
        source, step = self.resolve(from_checkpoint)
        if source is None:
            message = f"{from_checkpoint!r} is the base policy, with which every new model begins"
            raise InputError(message, hint="a checkpoint such as lab/practice@2, or no from_checkpoint")
        row, listed = self._row(str(source.id)), self.checkpoints(str(source.id))
        metrics = next((each.metrics for each in listed if each.step == step), {})
        made_from = [Ancestor(model_id=source.id, model=_name(row), step=step), *(source.made_from or [])]
        return _Beginning(step, row["base"], made_from, metrics)

    def _check_made_from(self, row: Row, from_checkpoint: str) -> None:
        """Raise ConflictError unless a model was made from this checkpoint, which may have been deleted since."""
        first = next(iter(_model(row).made_from or []), None)
        try:
            wanted = next(iter(self._find_beginning(from_checkpoint).made_from))
        except NotFoundError:
            if first and from_checkpoint in {str(first), f"{first.model_id}@{first.step}"}:
                return
            raise
        if first and (first.model_id, first.step) == (wanted.model_id, wanted.step):
            return
        project, name = row["project"], row["name"]
        taken = {each["name"] for each in self._database.read("SELECT name FROM models WHERE project = ?", project)}
        free = next(other for i in count(2) if (other := f"{name}-{i}") not in taken)
        began = f"was made from {first}" if first else "began at the base policy"
        message = f"{project}/{name} exists and {began}, not from {wanted}"
        raise ConflictError(message, hint=f"%model {project}/{free} --from {wanted}")

    def _find_row(self, name: str) -> tuple[Row, str | None]:
        """Find the row of the model that a name stands for, and the version in the name, if any."""
        if match := _ID.match(name):
            return self._row(match["id"].lower()), match["version"]
        match = _ARTIFACT.match(name) or _SHORT.match(name)
        parts = {"entity": _ENTITY, **(match.groupdict() if match else {})}
        sql = "SELECT * FROM models WHERE project = ? AND name = ? AND entity = ?"
        rows = self._database.read(sql, *map(parts.get, ("project", "name", "entity")))
        if not rows:
            raise NotFoundError(f"there is no model {name!r}; there are {', '.join(card.id for card in self.cards())}")
        return rows[0], parts.get("version")

    def _forget(self, model_id: str, steps: Iterable[int]) -> None:
        for step in steps:
            self._engine.forget(self._path(model_id, step))

    def _path(self, model_id: str, step: int) -> Path:
        return self._folder / "models" / model_id / str(step)

    def _draft(self, model_id: str, job_id: str) -> Path:
        return self._folder / "models" / model_id / f".job-{job_id}"


def _checkpoint(row: Row) -> Checkpoint:
    step = row["step"]
    return Checkpoint(id=f"{row['model_id']}:{step}", step=step, metrics=json.loads(row["metrics"]))


def _name(row: Row) -> str:
    short = f"{row['project']}/{row['name']}"
    return short if row["entity"] == _ENTITY else f"wandb-artifact:///{row['entity']}/{short}"


def _card_of(row: Row) -> ModelCard:
    made_from = {"made_from": str(line[0])} if (line := _model(row).made_from) else {}
    return _card(_name(row), **{name: row[name] for name in _CARD_COLUMNS}, **made_from)


def _card(name: str, **columns: Any) -> ModelCard:
    return ModelCard(id=name, object="model", created=0, owned_by="rolloutlab", reads=["token_ids"], **columns)


def _model(row: Row) -> Model:
    columns = {name: row[name] for name in Model.model_fields if name != "conflict"}
    return Model.model_validate({**columns, "made_from": json.loads(row["made_from"] or "null")})
