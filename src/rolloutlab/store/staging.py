"""Staged writes of collections: invisible until published, then all at once."""

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import islice
from sqlite3 import Connection, IntegrityError
from typing import Self

from rolloutlab.errors import ConflictError, InputError
from rolloutlab.fsutil import Lock
from rolloutlab.store.locks import let_go, lock_for_sampling
from rolloutlab.store.models import Recorded, dump_items, now
from rolloutlab.store.sqlite import Database
from rolloutlab.store.trajectory_summaries import keep_outline

_BATCH = 256
"""Trajectories that are written in one transaction."""


@dataclass
class _Group:
    """A staged group: a digest of its prompt and row, and its number of trajectories."""

    id: int
    position: int
    shared: bytes
    count: int = 0


@dataclass
class _Collection:
    """A staged collection, and its groups by `Recorded.group`."""

    id: int
    groups: dict[int | str, _Group] = field(default_factory=dict)


class Draft:
    """Collections that are being written; a context manager.

    Leaving it without `publish` deletes the draft. If the process dies, the draft stays invisible, and the next draft
    deletes it.
    """

    def __init__(
        self, database: Database, check_name: Callable[[str], None], keep_name: Callable[[str, int], None]
    ) -> None:
        self._database = database
        self._check_name = check_name
        self._keep_name = keep_name
        self._name = f"draft {uuid.uuid4()}"  # not a valid collection name
        self._collections: dict[tuple[str, int | None], _Collection] = {}

    def __enter__(self) -> Self:
        for row in self._database.read("SELECT DISTINCT name FROM collections WHERE name LIKE 'draft %'"):
            with suppress(ConflictError):  # its process is alive
                lock = self._lock(row["name"])
                try:
                    self._remove(row["name"])
                finally:
                    let_go(lock)
        self._held = self._lock(self._name)
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._remove(self._name)
        finally:
            let_go(self._held)

    def add(self, trajectories: Iterable[Recorded]) -> None:
        """Write trajectories in transactions of a few hundred.

        Raises:
            InputError: a position is used twice, or the trajectories of a group have different prompts or rows.
        """
        coming = iter(trajectories)
        while batch := list(islice(coming, _BATCH)):
            self._database.change(partial(self._add_all, batch))

    def publish(self) -> list[str]:
        """Publish each collection as a new generation, with its recorded number if that is free; return the labels.

        All collections are published in one transaction.
        """
        labels: dict[int, str] = {}

        def show(connection: Connection) -> None:
            for (name, number), collection in sorted(self._collections.items(), key=lambda item: item[0][1] or 0):
                (generation,) = connection.execute(
                    "UPDATE collections SET deleted_at = NULL, name = ?1, generation ="
                    " max(?2, (SELECT coalesce(max(generation), 0) + 1 FROM collections WHERE name = ?1))"
                    " WHERE id = ?3 RETURNING generation",
                    (name, number or 0, collection.id),
                ).fetchone()
                labels[collection.id] = f"{name}:{generation}"

        self._database.change(show)
        for number, label in labels.items():  # in the order of generations: the bare name means the last one
            self._keep_name(label.partition(":")[0], number)
        return [labels[collection.id] for collection in self._collections.values()]

    def _lock(self, name: str) -> Lock:
        number = uuid.UUID(name.removeprefix("draft ")).int
        return lock_for_sampling(self._database.path.parent / "drafts", number, name)

    def _remove(self, name: str) -> None:
        self._database.execute("DELETE FROM collections WHERE name = ?", name)

    def _add_all(self, batch: Sequence[Recorded], connection: Connection) -> None:
        for recorded in batch:
            self._add(connection, recorded)

    def _add(self, connection: Connection, new: Recorded) -> None:
        collection = self._find_or_add_collection(connection, new)
        group = self._find_or_add_group(connection, collection, new)
        position = group.count if new.position is None else new.position
        group.count += 1
        given = [json.dumps(each) for each in (new.extra, new.sampling, new.components)]
        values = (new.model, new.step, new.created_at or now(), new.reward, new.source)
        try:
            cursor = connection.execute(
                "INSERT INTO trajectories (group_id, position, items, extra, sampling, components, model, step,"
                " created_at, reward, source) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (group.id, position, dump_items(new.items), *given, *values),
            )
        except IntegrityError as error:
            name = f"{new.collection}/{group.position}/{position}"
            raise InputError(f"{new.place}: {name} is there twice", hint="keep one of them") from error
        keep_outline(connection, int(cursor.lastrowid or 0), new.items, new.extra)

    def _find_or_add_collection(self, connection: Connection, new: Recorded) -> _Collection:
        key = (new.collection, new.generation)
        if key not in self._collections:
            self._check_name(new.collection)
            (row_id,) = connection.execute(
                "INSERT INTO collections (name, generation, created_at, deleted_at) VALUES (?, ?, ?, ?) RETURNING id",
                (self._name, len(self._collections), now(), now()),
            ).fetchone()
            self._collections[key] = _Collection(row_id)
        return self._collections[key]

    def _find_or_add_group(self, connection: Connection, collection: _Collection, new: Recorded) -> _Group:
        prompt, row = dump_items(new.prompt), json.dumps(new.row, allow_nan=False)
        shared = sha256(f"{prompt}{row}".encode()).digest()
        if new.group not in collection.groups:
            position = new.group if isinstance(new.group, int) else len(collection.groups)
            sql = "INSERT INTO groups (collection_id, position, prompt, row) VALUES (?, ?, ?, ?) RETURNING id"
            (row_id,) = connection.execute(sql, (collection.id, position, prompt, row)).fetchone()
            collection.groups[new.group] = _Group(row_id, position, shared)
        group = collection.groups[new.group]
        if isinstance(new.group, int) and group.shared != shared:
            message = f"{new.place}: its prompt or row is not that of {new.collection}/{new.group}"
            raise InputError(message, hint="trajectories of a group share one prompt and one row")
        return group
