"""Rewards of trajectories with a full edit history."""

import getpass
import json
import math
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime
from decimal import Decimal
from numbers import Real
from sqlite3 import Connection
from typing import Any
from weakref import WeakMethod

from rolloutlab.errors import ConflictError, RewardError
from rolloutlab.store.models import Edit, Score, StoredCollection, TrajectoryKey, Undoable
from rolloutlab.store.sqlite import Database, Row

STATE_CHANGE = """
    SELECT made.change FROM edits made WHERE made.trajectory_id = t.id AND made.undoes IS NULL AND NOT EXISTS (
        SELECT 1 FROM edits undo WHERE undo.trajectory_id = t.id AND +undo.undoes = made.change)
    ORDER BY made.id DESC LIMIT 1
"""
"""Selects the change that the reward of trajectory `t` comes from: the newest that is not undone.

`+undo.undoes` keeps SQLite from using the index of that column. A whole collection may share one value in it, so that
the index would be slow."""

_STATE = f"""
    SELECT t.reward, t.components, t.source, e.note, ({STATE_CHANGE}) AS change FROM trajectories t
    LEFT JOIN edits e ON e.id = (SELECT max(id) FROM edits WHERE trajectory_id = t.id) WHERE t.id = ?
"""

_EDITS = """
    SELECT e.*, g.position AS place, t.position AS seat
    FROM edits e JOIN trajectories t ON t.id = e.trajectory_id JOIN groups g ON g.id = t.group_id
    WHERE g.collection_id = ?
"""

_UNDOABLE = """
    SELECT e.change FROM edits e CROSS JOIN trajectories t ON t.id = e.trajectory_id
    CROSS JOIN groups g ON g.id = t.group_id WHERE g.collection_id = ?1 AND e.undoes IS NULL AND NOT EXISTS (
        SELECT 1 FROM edits u JOIN trajectories ut ON ut.id = u.trajectory_id JOIN groups ug ON ug.id = ut.group_id
        WHERE u.undoes = e.change AND ug.collection_id = ?1)
    ORDER BY e.change DESC LIMIT 1
"""

_FORGET = """
    DELETE FROM reward_outcomes WHERE change = ? AND trajectory_id IN (
        SELECT t.id FROM trajectories t JOIN groups g ON g.id = t.group_id WHERE g.collection_id = ?)
"""
CLEARED = "cleared"
"""The note of an edit that removes a reward; the database requires a note on such an edit."""

Listener = Callable[[Set[int]], None]
"""A method that is called with the ids of trajectories whose rewards have changed."""


class Rewards:
    """The rewards of a lab. Each call of `give` is one atomic change, which `undo` can revert."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listeners: dict[int, WeakMethod[Listener]] = {}

    def listen(self, listener: Listener) -> None:
        """Call a method after each change that this process makes, in the thread that makes it.

        The method is held by a weak reference. Changes of other processes are not reported: compare `newest_edit` for
        them.
        """
        listeners = self._listeners
        reference = WeakMethod(listener, lambda dead: listeners.pop(id(dead), None))
        listeners[id(reference)] = reference

    def give(
        self,
        scores: Sequence[Score],
        source: str,
        *,
        cleared: Sequence[TrajectoryKey] = (),
        keep_hand: bool = False,
        who: str | None = None,
    ) -> list[Edit]:
        """Set rewards and log each edit: who, when, old, new. Unchanged rewards are not logged.

        Args:
            scores: The new rewards.
            source: What gives them: function, hand, judge, tool or environment.
            cleared: Trajectories whose rewards are removed.
            keep_hand: Whether to keep rewards that were last set by hand, even those set while this runs.
            who: The user; None is the user of this process.

        Returns:
            The edits that were logged.

        Raises:
            ConflictError: a trajectory has gone on since it was read, as a session of a running program may.
        """
        edits = []

        def change(connection: Connection) -> RewardLog:
            given = [*(score.trajectory for score in scores), *cleared]
            there = ids_there(connection, [each.id for each in given])
            for gone in [each for each in given if each.id not in there][:1]:
                raise ConflictError(f"{gone.name} has gone on since it was read", hint="run the cell again")
            log = RewardLog(connection, source, who=who)
            for score in scores:
                had = log.give(score, keep_hand=keep_hand)
                if had is not None:
                    name, parts = score.trajectory.name, dict(score.components)
                    values = log.at, log.who, source, had["reward"], score.reward, parts, log.change, score.note
                    edits.append(Edit(name, *values))
            for trajectory in cleared:
                had = connection.execute(_STATE, (trajectory.id,)).fetchone()
                if had["reward"] is not None:
                    log.write(trajectory.id, None, "{}", None, note=CLEARED)
                    old, name = had["reward"], trajectory.name
                    edits.append(Edit(name, log.at, log.who, source, old, None, {}, log.change, CLEARED))
            return log

        self.notify(self._database.change(change))
        return edits

    def is_changed_since(self, collection: StoredCollection, at: str) -> bool:
        """Return whether any reward of a collection was given or cleared after a time, as of `now()`."""
        sql = """
            SELECT 1 FROM groups g JOIN trajectories t ON t.group_id = g.id JOIN edits e ON e.trajectory_id = t.id
            WHERE g.collection_id = ? AND e.at > ? LIMIT 1
        """
        return bool(self._database.read(sql, collection.id, at))

    def undoable(self, collection: StoredCollection) -> int | None:
        """Find the newest change of a collection that is not undone yet; None if there is none."""
        rows = self._database.read(_UNDOABLE, collection.id)
        return rows[0]["change"] if rows else None

    def next_undo(self, *collections: StoredCollection) -> Undoable | None:
        """Describe the change that `undo` would revert; None if there is none."""
        newest = {c.id: change for c in collections if (change := self.undoable(c)) is not None}
        if not newest:
            return None
        sql = """
            SELECT e.source, count(DISTINCT e.trajectory_id), sum(e.new IS NULL), min(e.new), max(e.new)
            FROM edits e JOIN trajectories t ON t.id = e.trajectory_id JOIN groups g ON g.id = t.group_id
            WHERE e.change = ? AND g.collection_id IN (SELECT value FROM json_each(?))
        """
        change = max(newest.values())
        ids = [number for number, its_newest in newest.items() if its_newest == change]
        return Undoable(*self._database.read(sql, change, json.dumps(ids))[0])

    def undo(self, *collections: StoredCollection) -> list[Edit]:
        """Undo the newest change of these collections that is not undone yet, as a new change.

        Returns:
            An edit for each trajectory; its reward is None if the trajectory had none before the change. Empty if there
            is nothing to undo.
        """
        edits = []

        def change(connection: Connection) -> RewardLog:
            newest = {c.id: change for c in collections if (change := self.undoable(c)) is not None}
            undone = max(newest.values(), default=None)
            log = RewardLog(connection, "undo", undone)
            for collection in (c for c in collections if undone is not None and newest.get(c.id) == undone):
                rows = connection.execute(f"{_EDITS} AND change = ? ORDER BY e.id", (collection.id, undone)).fetchall()
                after = {row["trajectory_id"]: row["new"] for row in rows}
                before = {row["trajectory_id"]: row for row in reversed(rows)}  # the first of several edits
                for row in before.values():
                    parts = row["old_components"]
                    log.write(row["trajectory_id"], row["old"], parts, row["old_source"])
                    reward = after[row["trajectory_id"]]
                    values = (log.at, log.who, "undo", reward, row["old"], json.loads(parts), log.change)
                    edits.append(Edit(_name(collection, row), *values, undoes=undone))
                connection.execute(_FORGET, (undone, collection.id))
            return log

        self.notify(self._database.change(change))
        return edits[::-1]

    def newest_edit(self) -> int:
        """Return the number of the newest edit of any reward in the lab; 0 before the first."""
        return int(self._database.read("SELECT coalesce(max(id), 0) FROM edits")[0][0])

    def edited_since(self, edit: int) -> set[int]:
        """Find the trajectories whose reward was edited after an edit; return their ids. edit: its number."""
        return {row[0] for row in self._database.read("SELECT trajectory_id FROM edits WHERE id > ?", edit)}

    def before_hand(self, ids: Iterable[int]) -> dict[int, float]:
        """Find the last reward before the edits by hand, of those trajectories whose reward was given by hand."""
        rows = self._database.read(
            "SELECT trajectory_id, change, undoes, old, old_source FROM edits"
            " WHERE trajectory_id IN (SELECT value FROM json_each(?)) ORDER BY trajectory_id, id DESC",
            json.dumps(list(ids)),
        )
        edits: dict[int, list[Row]] = {}
        for row in rows:
            edits.setdefault(row["trajectory_id"], []).append(row)
        former = {row_id: _find_before_hand(newest_first) for row_id, newest_first in edits.items()}
        return {row_id: reward for row_id, reward in former.items() if reward is not None}

    def history(self, trajectory: TrajectoryKey) -> list[Edit]:
        """List every change of a trajectory's reward, oldest first."""
        rows = self._database.read("SELECT * FROM edits WHERE trajectory_id = ? ORDER BY id", trajectory.id)
        return [_edit(trajectory.name, row) for row in rows]

    def history_of(self, collection: StoredCollection) -> list[Edit]:
        """List every change of every reward of a collection, newest change first."""
        rows = self._database.read(f"{_EDITS} ORDER BY change DESC, place, seat, e.id", collection.id)
        return [_edit(_name(collection, row), row) for row in rows]

    def newest(self, collection: StoredCollection) -> tuple[str | None, set[int]]:
        """Find the source and the group positions of the change that `undo` would revert."""
        sql = """
            SELECT DISTINCT e.source, g.position FROM edits e
            JOIN trajectories t ON t.id = e.trajectory_id JOIN groups g ON g.id = t.group_id
            WHERE g.collection_id = ? AND e.change = ?
        """
        rows = self._database.read(sql, collection.id, self.undoable(collection))
        return (rows[0]["source"] if rows else None), {row["position"] for row in rows}

    def by_hand(self, collection: StoredCollection) -> int:
        """Count the rewards of a collection that were last given by hand."""
        sql = "SELECT count(*) FROM trajectories t JOIN groups g ON g.id = t.group_id WHERE g.collection_id = ?"
        return int(self._database.read(f"{sql} AND t.source = 'hand'", collection.id)[0][0])

    def notify(self, log: "RewardLog") -> None:
        """Notify the listeners. There is no lock, because an interrupt between two instructions could leave it held."""
        if log.edited:
            for listener in list(self._listeners.values()):
                if call := listener():
                    call(log.edited)


def finite(value: Any, name: str) -> float:
    """Convert a reward to a float; raise RewardError if it is no finite number. name: the trajectory, for the error."""
    try:
        plain = value.item() if hasattr(value, "item") else value  # a bool of NumPy is not a `Real`
        if isinstance(plain, Real | Decimal) and math.isfinite(reward := float(plain)):
            return reward
    except Exception:  # noqa: BLE001 - a method of the value raised: it is too large for a float, or a larger array
        pass
    raise RewardError(f"the reward of {name} is {_show(value)}, which is no finite number", hint="return a number")


def total(components: Iterable[float], name: str) -> float:
    """Add up components; raise RewardError if the sum is no finite number. name: the trajectory, for the error."""
    try:
        return finite(math.fsum(components), name)
    except OverflowError:
        message = f"the components of the reward of {name} add up to more than a float can hold"
        raise RewardError(message, hint="return smaller numbers") from None


def _show(value: Any) -> str:
    """Return the repr of a value, or its type if that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - its `__repr__` raises, or it is an integer with too many digits
        return f"a value of type {type(value).__name__}"


class RewardLog:
    """Writes one change into an open transaction: each reward, and what it was before.

    Rewards that were given after the change `since` are kept, and not overwritten.
    """

    def __init__(
        self,
        connection: Connection,
        source: str,
        undoes: int | None = None,
        who: str | None = None,
        change: int | None = None,
        since: int | None = None,
    ) -> None:
        """Begin a change, or go on with one.

        Args:
            connection: The open transaction.
            source: What gives the rewards.
            undoes: The change that this one reverts, if any.
            who: The user; None is the current one.
            change: The number of a change that has begun; None begins a new one.
            since: A change; None is `change`.
        """
        self.change = new_change(connection) if change is None else change
        self._since = self.change if since is None else since
        self.at, self.who = datetime.now(UTC).isoformat(), who or user()
        self._connection = connection
        self._source = source
        self._undoes = undoes
        self.edited: set[int] = set()

    def give(self, score: Score, *, keep_hand: bool, also_same: bool = False) -> Row | None:
        """Set a reward; return its state before, or None if the old reward was kept.

        The old reward is kept in three cases:

        - it was given after the change `since`;
        - it was given by hand, and `keep_hand` is True;
        - it is the same, and `also_same` is False. With `also_same` an edit is written nevertheless, so that the reward
          belongs to this change.
        """
        had: Row = self._connection.execute(_STATE, (score.trajectory.id,)).fetchone()
        parts = dict(score.components)
        same = had["reward"] == score.reward and json.loads(had["components"]) == parts
        same = same and (had["source"], had["note"]) == (self._source, score.note)
        if self._is_kept(had, keep_hand) or (same and not also_same):
            return None
        self.write(score.trajectory.id, score.reward, json.dumps(parts), self._source, note=score.note)
        return had

    def clear(self, row_id: int, note: str, *, keep_hand: bool) -> bool:
        """Remove a reward, with a note on the reason; return False if it is kept, in the first two cases of `give`."""
        kept = self._is_kept(self._connection.execute(_STATE, (row_id,)).fetchone(), keep_hand)
        if not kept:
            self.write(row_id, None, "{}", None, note=note)
        return not kept

    def _is_kept(self, had: Row, keep_hand: bool) -> bool:
        later = had["reward"] is not None and (had["change"] or 0) > self._since
        return later or (keep_hand and had["source"] == "hand")

    def write(
        self, row_id: int, reward: float | None, components: str, source: str | None, note: str | None = None
    ) -> None:
        """Set the reward of a trajectory, and log the edit.

        Args:
            row_id: The id of the trajectory.
            reward: The reward; None removes it.
            components: The components as JSON.
            source: What the trajectory then has as the source of its reward.
            note: The reason, if any.
        """
        shared = (self.change, self.at, self.who, self._source, note, self._undoes, reward, components, row_id)
        self._connection.execute(
            "INSERT INTO edits (trajectory_id, old, old_components, old_source,"
            " change, at, who, source, note, undoes, new, components)"
            " SELECT id, reward, components, source, ?, ?, ?, ?, ?, ?, ?, ? FROM trajectories WHERE id = ?",
            shared,
        )
        sql = "UPDATE trajectories SET reward = ?, components = ?, source = ? WHERE id = ?"
        self._connection.execute(sql, (reward, components, source, row_id))
        self.edited.add(row_id)


def ids_there(connection: Connection, ids: Iterable[int]) -> set[int]:
    """Return the ids under which a trajectory is still stored: one that has gone on is stored under a new id."""
    sql = "SELECT id FROM trajectories WHERE id IN (SELECT value FROM json_each(?))"
    return {row[0] for row in connection.execute(sql, (json.dumps(list(ids)),))}


def new_change(connection: Connection) -> int:
    """Return the number of a new change: after those of all edits and all scorings, which may have no edit yet."""
    sql = "SELECT max(coalesce((SELECT max(change) FROM edits), 0), coalesce((SELECT max(change) FROM scorings), 0))"
    return int(connection.execute(sql).fetchone()[0]) + 1


def _find_before_hand(newest_first: Sequence[Row]) -> float | None:
    """Find the reward of a function, judge, tool or environment before the edits by hand, ignoring undone edits."""
    undone = {row["undoes"] for row in newest_first}
    for row in newest_first:
        if row["undoes"] is None and row["change"] not in undone and row["old_source"] != "hand":
            return row["old"] if row["old_source"] in {"function", "judge", "tool", "environment"} else None
    return None


def _edit(name: str, row: Row) -> Edit:
    values = (row["at"], row["who"], row["source"], row["old"], row["new"], json.loads(row["components"]))
    return Edit(name, *values, row["change"], row["note"], row["undoes"])


def _name(collection: StoredCollection, row: Row) -> str:
    return f"{collection.label}/{row['place']}/{row['seat']}"


def user() -> str:
    """Return the user of this process, for the log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no user database
        return "unknown"
