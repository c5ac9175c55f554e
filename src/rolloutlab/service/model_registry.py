"""Registered models and their checkpoints: rows in the database, folders of tensors beside it."""

import json
import re
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any

from rolloutlab.api.wire.training import Checkpoint, DeletedCheckpoints, Model, ModelCard, RegisterModel
from rolloutlab.errors import CheckpointError, ConflictError, InputError, LabError, NotFoundError
from rolloutlab.fsutil import remove
from rolloutlab.policy.checkpoints import read_checkpoint, write_checkpoint
from rolloutlab.policy.model import Adapter, Policy, fingerprint, read_adapter
from rolloutlab.policy.trainer import State
from rolloutlab.service.lost_checkpoints import LostCheckpoints, deleting
from rolloutlab.store.sqlite import Database, Row

_ENTITY = "local"
_ARTIFACT = re.compile(
    r"wandb-artifact:///?(?P<entity>[\w.-]+)/(?P<project>[\w.-]+)/(?P<name>[\w.-]+)(?::(?P<at>\w+))?\Z"
)
_ID = re.compile(r"(?P<id>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?:@(?P<at>\w+))?\Z")
_SHORT = re.compile(r"(?P<project>[\w.-]+)/(?P<name>[\w.-]+)(?:@(?P<at>\w+))?\Z")
_CACHED_ADAPTERS = 8
_KEPT = ("id", "entity", "project", "name", "base_model", "run_id", "created_at", "base")
"""What a checkpoint's folder says of its model: columns of the database."""
_COUNTED = ("base_model", "newest_step", "checkpoints")


class Registry:
    """The models of one service. All of them stand on the service's one base policy.

    start_empty: also where the database lists no model and trained checkpoints lie beside it, which are set aside then.

    Raises:
        LabError: the database lists none, trained checkpoints lie beside it, and `start_empty` is false.
    """

    def __init__(self, database: Database, folder: Path, policy: Policy, *, start_empty: bool = False) -> None:
        self._database = database
        self._folder = folder
        self.policy = policy
        self._base = fingerprint(policy)
        self._initial = State(read_adapter(policy.lora_copy()), {})
        self._adapters: OrderedDict[tuple[str, int], Adapter] = OrderedDict()
        self._lock = Lock()
        self._registering = Lock()
        self.lost = LostCheckpoints(database, folder / "models", policy, self._initial.adapter)
        self.lost.tidy(start_empty=start_empty)

    def register(self, wanted: RegisterModel) -> Model:
        """Register a model; checkpoint 0 exists at once and is the base policy.

        Raises:
            InputError: the name is taken and `return_existing` is false, or the base model is not the service's.
        """
        if wanted.base_model not in {None, self.policy.name}:
            raise InputError(
                f"the base model {wanted.base_model!r} is not served here; this service serves {self.policy.name!r}",
                hint=f"rolloutlab serve --policy {wanted.base_model}",
            )
        with self._registering:
            return self._register(wanted.entity or _ENTITY, wanted)

    def _register(self, entity: str, wanted: RegisterModel) -> Model:
        known = self._database.read(
            "SELECT * FROM models WHERE entity = ? AND project = ? AND name = ?", entity, wanted.project, wanted.name
        )
        if known and not wanted.return_existing:
            raise InputError(f"the model {wanted.project}/{wanted.name} exists", hint="return_existing: true")
        return _model(known[0]) if known else self._create(entity, wanted)

    def models(self) -> list[Model]:
        return [_model(row) for row in self._database.read("SELECT * FROM models ORDER BY created_at, rowid")]

    def model(self, model_id: str) -> Model:
        """The model with this id, or NotFoundError."""
        rows = self._database.read("SELECT * FROM models WHERE id = ?", model_id)
        if not rows:
            raise NotFoundError(f"there is no model with id {model_id}")
        return _model(rows[0])

    def checkpoints(self, model_id: str) -> list[Checkpoint]:
        """All checkpoints of a model, oldest first."""
        rows = self._database.read("SELECT * FROM checkpoints WHERE model_id = ? ORDER BY step", model_id)
        return [_checkpoint(row) for row in rows]

    def page(self, model_id: str, after: int | None, limit: int, descending: bool) -> list[Checkpoint]:
        """Up to `limit` checkpoints of a model beyond the step `after`, which need not be there any more."""
        way, beyond = ("DESC", "<") if descending else ("ASC", ">")
        which = f"model_id = ? AND (? IS NULL OR step {beyond} ?) ORDER BY step {way} LIMIT ?"
        rows = self._database.read(f"SELECT * FROM checkpoints WHERE {which}", model_id, after, after, limit)
        return [_checkpoint(row) for row in rows]

    def delete_checkpoints(self, model_id: str, steps: Sequence[int]) -> DeletedCheckpoints:
        """Delete checkpoints: their files go once they are no longer listed. A step is never used again.

        Raises:
            NotFoundError: there is no such model. ConflictError: none of its checkpoints would be left.
        """
        model = self.model(model_id)
        wanted = dict.fromkeys(steps)
        with self._removing() as (connection, places):
            rows = connection.execute("SELECT step FROM checkpoints WHERE model_id = ?", (model_id,)).fetchall()
            listed = {row["step"] for row in rows}
            found = listed & wanted.keys()
            if found and found == listed:
                raise ConflictError(
                    f"{model.project}/{model.name} would be left without a checkpoint",
                    hint=f"keep one of its steps, or DELETE /v1/preview/models/{model_id}",
                )
            deleted = "DELETE FROM checkpoints WHERE model_id = ? AND step = ?"
            connection.executemany(deleted, [(model_id, step) for step in found])
            places += [self._place(model_id, step) for step in found]
        self._forget(model_id, found)
        return DeletedCheckpoints(deleted_count=len(found), not_found_steps=[s for s in wanted if s not in found])

    def delete(self, model_id: str) -> None:
        """Delete a model with its jobs and checkpoints; NotFoundError when there is none."""
        self.model(model_id)
        listed = {checkpoint.step for checkpoint in self.checkpoints(model_id)}
        with self._removing() as (connection, places):
            connection.execute("DELETE FROM models WHERE id = ?", (model_id,))
            places.append(self._folder / "models" / model_id)
        self._forget(model_id, listed)

    def discard(self, model_id: str) -> None:
        """Remove the files of a model that is no longer listed."""
        remove(deleting(self._folder / "models" / model_id))

    @contextmanager
    def _removing(self) -> Iterator[tuple[Connection, list[Path]]]:
        """A transaction after which the folders of a list, which its body fills, are gone; or none of both happened.

        They are renamed before the transaction ends: a kill at any moment leaves what the next start can tell apart.
        """
        moved: dict[Path, Path] = {}
        places: list[Path] = []
        try:
            with self._database.write() as connection:
                yield connection, places
                for place in places:
                    moved[place] = deleting(place)
        except BaseException:
            for place, renamed in moved.items():
                if renamed.exists():
                    renamed.rename(place)
            raise
        for renamed in moved.values():
            remove(renamed)

    def newest_step(self, model_id: str) -> int:
        """The largest step that is listed; NotFoundError when the model is not."""
        [[step]] = self._database.read("SELECT max(step) FROM checkpoints WHERE model_id = ?", model_id)
        if step is None:
            raise NotFoundError(f"there is no model with id {model_id}")
        return int(step)

    def next_step(self, model_id: str) -> int:
        """One more than the largest step there ever was; NotFoundError when the model is not listed."""
        rows = self._database.read("SELECT last_step FROM models WHERE id = ?", model_id)
        if not rows:
            raise NotFoundError(f"there is no model with id {model_id}")
        return int(rows[0]["last_step"]) + 1

    def resolve(self, name: str) -> tuple[Model | None, int]:
        """The model and the step that a name of chat completions means; no model means the base policy.

        Accepted: the base model's id; `project/name[@N]`; `UUID[@N]`; `wandb-artifact:///entity/project/name[:stepN|:latest]`,
        also with two slashes. A name without a step is the newest checkpoint.

        Raises:
            NotFoundError: no such model or checkpoint.
        """
        if name == self.policy.name:
            return None, 0
        model, at = self._named(name)
        steps = [checkpoint.step for checkpoint in self.checkpoints(str(model.id))]
        if not steps:
            raise NotFoundError(f"{model.project}/{model.name} has just been deleted")
        if at in {None, "latest"}:
            return model, steps[-1]
        step = re.fullmatch(r"(?:step)?([0-9]{1,18})", str(at))
        if step is None or int(step[1]) not in steps:
            raise NotFoundError(
                f"{model.project}/{model.name} has no checkpoint {at}; it has {steps[0]} to {steps[-1]}"
            )
        return model, int(step[1])

    def adapter(self, model: Model | None, step: int) -> Adapter:
        """The adapter of a checkpoint; the last few are kept in memory."""
        if model is None:
            return self._initial.adapter
        key = str(model.id), step
        with self._lock:
            if key not in self._adapters:
                self._adapters[key] = self._listed_state(*key).adapter
            self._adapters.move_to_end(key)
            if len(self._adapters) > _CACHED_ADAPTERS:
                self._adapters.popitem(last=False)
            return self._adapters[key]

    def state(self, model_id: str, step: int) -> State:
        """What a checkpoint holds.

        Raises:
            CheckpointError: it is damaged; the hint is the request that is the way out.
            ServiceError: the disk does not answer.
            ConflictError: its model stands on another base policy than the one that is served.
        """
        for row in self._database.read("SELECT * FROM models WHERE id = ?", model_id):
            if row["base"] not in {None, self._base}:
                raise ConflictError(
                    f"{row['project']}/{row['name']} stands on another base policy than is served here: "
                    f"on {row['base_model']!r} as it was when the model was registered",
                    hint="rolloutlab serve --policy with that one",
                )
        try:
            return read_checkpoint(self._place(model_id, step))
        except CheckpointError as error:
            request = f'DELETE /v1/preview/models/{model_id}/checkpoints {{"steps": [{step}]}}'
            way_out = f"%models --delete {self._short(model_id)}@{step}, or {request}"
            raise CheckpointError(error.message, hint=f"{error.hint}: {way_out}") from error

    def _listed_state(self, model_id: str, step: int) -> State:
        """The state; NotFoundError when it was deleted meanwhile."""
        try:
            return self.state(model_id, step)
        except CheckpointError:
            if not any(checkpoint.step == step for checkpoint in self.checkpoints(model_id)):
                raise NotFoundError(f"the checkpoint {step} has just been deleted") from None
            raise

    def names(self) -> list[str]:
        """What can be sampled: the base policy, and each model under its shortest name."""
        return [card.id for card in self.cards()]

    def cards(self) -> list[ModelCard]:
        """The same with what each stands on, its newest step and how many checkpoints it has."""
        rows = self._database.read(
            "SELECT m.*, max(c.step) AS newest_step, count(c.step) AS checkpoints FROM models m"
            " JOIN checkpoints c ON c.model_id = m.id WHERE m.base IS NULL OR m.base = ?"
            " GROUP BY m.id ORDER BY m.created_at, m.rowid",
            self._base,
        )
        return [_card(self.policy.name), *(_card(_name(row), **{k: row[k] for k in _COUNTED}) for row in rows)]

    def save(
        self, model_id: str, step: int, state: State, *, metrics: Mapping[str, object] | None = None, job_id: str = ""
    ) -> None:
        """Put a checkpoint's tensors on disk; it is listed once its row is in the database.

        metrics: of the last gradient step of the job that made it. NotFoundError: the model is not listed any more.
        """
        rows = self._database.read("SELECT * FROM models WHERE id = ?", model_id)
        if not rows:
            raise NotFoundError(f"there is no model with id {model_id}")
        self._write({name: rows[0][name] for name in _KEPT}, step, state, metrics or {}, job_id)

    def _write(
        self, model: Mapping[str, Any], step: int, state: State, metrics: Mapping[str, object], job_id: str
    ) -> None:
        """Write the files of a checkpoint, among them one that says what it is."""
        place = self._place(model["id"], step)
        if place.exists():  # copied there while the service runs
            self.lost.set_aside(place)
        about = {**model, "step": step, "metrics": dict(metrics), "job_id": job_id, "saved_at": _now()}
        write_checkpoint(place, state, self.policy.lora, about)

    def _create(self, entity: str, wanted: RegisterModel) -> Model:
        model_id, run_id, now = str(uuid.uuid4()), uuid.uuid4().hex[:8], _now()
        values = (model_id, entity, wanted.project, wanted.name, self.policy.name, run_id, now, self._base)
        self._write(dict(zip(_KEPT, values, strict=True)), 0, self._initial, {}, "")
        try:
            with self._database.write() as connection:
                connection.execute("INSERT INTO models VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?)", values)
                connection.execute("INSERT INTO checkpoints VALUES (?, 0, '{}', ?)", (model_id, now))
        except LabError:
            self.discard(model_id)
            raise
        return self.model(model_id)

    def _forget(self, model_id: str, steps: Iterable[int]) -> None:
        with self._lock:
            for step in steps:
                self._adapters.pop((model_id, step), None)

    def _named(self, name: str) -> tuple[Model, str | None]:
        if by_id := _ID.match(name):
            return self.model(by_id["id"].lower()), by_id["at"]
        found = _ARTIFACT.match(name) or _SHORT.match(name)
        parts = found.groupdict() if found else {}
        rows = self._database.read(
            "SELECT * FROM models WHERE project = ? AND name = ? AND entity = ?",
            parts.get("project"),
            parts.get("name"),
            parts.get("entity", _ENTITY),
        )
        if not rows:
            raise NotFoundError(f"there is no model {name!r}; there are {', '.join(self.names())}")
        return _model(rows[0]), parts.get("at")

    def _short(self, model_id: str) -> str:
        rows = self._database.read("SELECT project, name FROM models WHERE id = ?", model_id)
        return f"{rows[0]['project']}/{rows[0]['name']}" if rows else model_id

    def _place(self, model_id: str, step: int) -> Path:
        return self._folder / "models" / model_id / str(step)


def _checkpoint(row: Row) -> Checkpoint:
    step = row["step"]
    return Checkpoint(id=f"{row['model_id']}:{step}", step=step, metrics=json.loads(row["metrics"]))


def _name(row: Row) -> str:
    short = f"{row['project']}/{row['name']}"
    return short if row["entity"] == _ENTITY else f"wandb-artifact:///{row['entity']}/{short}"


def _card(name: str, **counted: Any) -> ModelCard:
    return ModelCard(id=name, object="model", created=0, owned_by="rolloutlab", **counted)


def _model(row: Row) -> Model:
    return Model.model_validate({name: row[name] for name in Model.model_fields})


def _now() -> str:
    return datetime.now(UTC).isoformat()
