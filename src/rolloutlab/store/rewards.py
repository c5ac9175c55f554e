"""Rewards as the lab keeps them: the present one of each trajectory, and every change that led to it."""

import getpass
import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime

from rolloutlab.store.records import Edit, Given, Group, Score, StoredCollection, Trajectory
from rolloutlab.store.sqlite import Database, Row

_STATE = """
    SELECT reward, components, source,
        (SELECT note FROM edits WHERE trajectory_id = t.id ORDER BY id DESC LIMIT 1) AS note
    FROM trajectories t WHERE id = ?
"""

_EDITS = """
    SELECT e.*, g.position AS place, t.position AS seat
    FROM edits e JOIN trajectories t ON t.id = e.trajectory_id JOIN groups g ON g.id = t.group_id
    WHERE g.collection_id = ?
"""

_UNDOABLE = f"""
    SELECT max(change) FROM ({_EDITS}) WHERE undoes IS NULL
        AND change NOT IN (SELECT undoes FROM ({_EDITS}) WHERE undoes IS NOT NULL)
"""


class Rewards:
    """The rewards of a lab. One call of `give` is one change, whole or not at all; `undo` takes changes back."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def give(self, scores: Sequence[Score], source: str, *, keep_hand: bool = False) -> list[Edit]:
        """Give rewards and log each: who, when, old, new. What stays the same, its source too, is not logged.

        keep_hand: leave alone what was last given by hand, also when that happened a moment ago.
        """
        edits = []
        with self._database.write() as connection:
            log = _Log(connection, source)
            for score in scores:
                had = connection.execute(_STATE, (score.trajectory.id,)).fetchone()
                parts = dict(score.components)
                same = had["reward"] == score.reward and json.loads(had["components"]) == parts
                if (keep_hand and had["source"] == "hand") or (
                    same and (had["source"], had["note"]) == (source, score.note)
                ):
                    continue
                log.write(score.trajectory.id, score.reward, json.dumps(parts), source, note=score.note)
                old, new = had["reward"], score.reward
                name = score.trajectory.name
                edits.append(Edit(name, log.at, log.who, source, old, new, parts, log.change, score.note))
        return edits

    def undo(self, collection: StoredCollection) -> list[Edit]:
        """Take back the newest change in a collection that is not taken back yet, as a change of its own.

        The edits say what each reward was and is again, None where there was none. Empty: there is nothing to undo.
        """
        edits = []
        with self._database.write() as connection:
            (undone,) = connection.execute(_UNDOABLE, (collection.id, collection.id)).fetchone()
            rows = connection.execute(f"{_EDITS} AND change = ? ORDER BY e.id DESC", (collection.id, undone)).fetchall()
            log = _Log(connection, "undo", undone)
            for row in rows:
                parts = row["old_components"]
                log.write(row["trajectory_id"], row["old"], parts, row["old_source"])
                name, old, new = _name(collection, row), row["new"], row["old"]
                edits.append(
                    Edit(name, log.at, log.who, "undo", old, new, json.loads(parts), log.change, undoes=undone)
                )
        return edits[::-1]

    def history(self, trajectory: Trajectory) -> list[Edit]:
        """Every change of a trajectory's reward, oldest first."""
        rows = self._database.read("SELECT * FROM edits WHERE trajectory_id = ? ORDER BY id", trajectory.id)
        return [_edit(trajectory.name, row) for row in rows]

    def history_of(self, collection: StoredCollection) -> list[Edit]:
        """Every change of every reward of a collection, newest change first."""
        rows = self._database.read(f"{_EDITS} ORDER BY change DESC, place, seat, e.id", collection.id)
        return [_edit(_name(collection, row), row) for row in rows]

    def of_group(self, group: Group) -> dict[int, Given]:
        """What each finished trajectory of a group has now, by its id."""
        sql = "SELECT id, reward, components, source FROM trajectories WHERE group_id = ? AND pending = 0"
        rows = self._database.read(f"{sql} ORDER BY position", group.id)
        return {row["id"]: Given(row["reward"], json.loads(row["components"]), row["source"]) for row in rows}

    def newest_source(self, collection: StoredCollection) -> str | None:
        """By which source the change was given that `undo` would take back; None when there is none."""
        sql = f"SELECT source FROM edits WHERE change = ({_UNDOABLE}) LIMIT 1"
        rows = self._database.read(sql, collection.id, collection.id)
        return rows[0]["source"] if rows else None

    def by_hand(self, collection: StoredCollection) -> int:
        """How many rewards of a collection were last given by hand."""
        sql = "SELECT count(*) FROM trajectories t JOIN groups g ON g.id = t.group_id WHERE g.collection_id = ?"
        return int(self._database.read(f"{sql} AND t.source = 'hand'", collection.id)[0][0])


class _Log:
    """Writes one change into an open transaction: each reward, and what it was before."""

    def __init__(self, connection: sqlite3.Connection, source: str, undoes: int | None = None) -> None:
        (self.change,) = connection.execute("SELECT coalesce(max(change), 0) + 1 FROM edits").fetchone()
        self.at, self.who = datetime.now(UTC).isoformat(), _user()
        self._connection = connection
        self._source = source
        self._undoes = undoes

    def write(
        self, row_id: int, reward: float | None, components: str, source: str | None, note: str | None = None
    ) -> None:
        """Set the reward of a trajectory, its components and its source."""
        shared = (self.change, self.at, self.who, self._source, note, self._undoes, reward, components, row_id)
        self._connection.execute(
            "INSERT INTO edits (trajectory_id, old, old_components, old_source,"
            " change, at, who, source, note, undoes, new, components)"
            " SELECT id, reward, components, source, ?, ?, ?, ?, ?, ?, ?, ? FROM trajectories WHERE id = ?",
            shared,
        )
        self._connection.execute(
            "UPDATE trajectories SET reward = ?, components = ?, source = ? WHERE id = ?",
            (reward, components, source, row_id),
        )


def _edit(name: str, row: Row) -> Edit:
    told = (row["at"], row["who"], row["source"], row["old"], row["new"], json.loads(row["components"]))
    return Edit(name, *told, row["change"], row["note"], row["undoes"])


def _name(collection: StoredCollection, row: Row) -> str:
    return f"{collection.label}/{row['place']}/{row['seat']}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no user database
        return "unknown"
