"""Trajectories that are stored before they are complete: each write replaces the whole trajectory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from sqlite3 import Connection

from rolloutlab.store.models import Recorded, StoredCollection, dump_items, now
from rolloutlab.store.sqlite import Database
from rolloutlab.store.trajectory_summaries import keep_outline

_SPEND = """
    UPDATE collections SET prompt_tokens = prompt_tokens + ?, completion_tokens = completion_tokens + ? WHERE id = ?
"""


@dataclass(frozen=True)
class _Place:
    """Where a trajectory is stored."""

    id: int
    group: int
    position: int


class GrowingTrajectories:
    """The trajectories that one process stores in a collection, each by a name. Those with equal prompts are a group.

    Scorings and the search index rely on this: what is stored under the id of a trajectory never changes. So when a
    trajectory has gone on, it is stored under a new id, and its earlier state is deleted. If the earlier state was
    scored meanwhile, it is kept too, because the reward belongs to it.
    """

    def __init__(self, database: Database, collection: StoredCollection) -> None:
        self._database = database
        self._collection = collection
        rows = database.read("SELECT id, prompt FROM groups WHERE collection_id = ?", collection.id)
        self._groups = {_digest(row["prompt"]): row["id"] for row in rows}
        self._places: dict[str, _Place] = {}

    def put(self, trajectories: Mapping[str, Recorded], usage: tuple[int, int]) -> list[str]:
        """Store trajectories in one transaction. Return the names of those whose scored earlier state is kept.

        trajectories: the trajectories by name. usage: prompt and completion tokens to add to the collection.

        Raises:
            LabError: the file cannot be written.
        """
        groups, places, kept = dict(self._groups), dict(self._places), list[str]()

        def put(connection: Connection) -> None:
            for name, new in trajectories.items():
                before = places.get(name)
                if before and not _can_replace(connection, before):
                    kept.append(name)
                    before = None
                group = self._find_or_add_group(connection, groups, dump_items(new.prompt))
                places[name] = _replace(connection, before, group, new)
                if before and before.group != group and _remove_if_empty(connection, before.group):
                    groups.pop(next(key for key, number in groups.items() if number == before.group))
            connection.execute(_SPEND, (*usage, self._collection.id))

        self._database.change(put)
        self._groups, self._places = groups, places
        return kept

    def _find_or_add_group(self, connection: Connection, groups: dict[bytes, int], prompt: str) -> int:
        if (key := _digest(prompt)) not in groups:
            sql = (
                "INSERT INTO groups (collection_id, position, prompt, row)"
                " SELECT ?1, coalesce(max(position), -1) + 1, ?2, '{}' FROM groups WHERE collection_id = ?1"
            )
            groups[key] = int(connection.execute(sql, (self._collection.id, prompt)).lastrowid or 0)
        return groups[key]


def _digest(prompt: str) -> bytes:
    return sha256(prompt.encode()).digest()


def _can_replace(connection: Connection, place: _Place) -> bool:
    """Whether a trajectory is there and was never scored."""
    sql = "SELECT NOT EXISTS (SELECT 1 FROM edits WHERE trajectory_id = t.id) FROM trajectories t WHERE id = ?"
    row = connection.execute(sql, (place.id,)).fetchone()
    return bool(row and row[0])


def _replace(connection: Connection, before: _Place | None, group: int, new: Recorded) -> _Place:
    """Store a trajectory in a group, and delete its earlier state. In the same group it keeps its position."""
    # the id is chosen before anything is deleted: SQLite would use the id of a deleted last row again
    (row_id,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM trajectories").fetchone()
    (position,) = connection.execute(
        "SELECT coalesce(max(position), -1) + 1 FROM trajectories WHERE group_id = ?", (group,)
    ).fetchone()
    if before:
        connection.execute("DELETE FROM trajectories WHERE id = ?", (before.id,))
        position = before.position if before.group == group else position
    values = (row_id, group, position, dump_items(new.items), json.dumps(new.extra), json.dumps(new.sampling))
    connection.execute(
        "INSERT INTO trajectories (id, group_id, position, items, extra, sampling, model, step, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*values, new.model, new.step, now()),
    )
    keep_outline(connection, row_id, new.items, new.extra)
    return _Place(row_id, group, position)


def _remove_if_empty(connection: Connection, group: int) -> bool:
    sql = "DELETE FROM groups WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM trajectories WHERE group_id = ?1)"
    return connection.execute(sql, (group,)).rowcount > 0
