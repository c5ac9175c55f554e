"""Scorings: runs of reward functions over a collection, with the outcome of each trajectory and remembered results."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolloutlab.errors import ConflictError
from rolloutlab.store.models import Ref, Score, StoredCollection, now
from rolloutlab.store.rewards import RewardLog, Rewards, new_change, user
from rolloutlab.store.sqlite import Database, Row

_OF = "trajectories t JOIN groups g ON g.id = t.group_id WHERE g.collection_id = ? AND t.pending = 0"
_UNDONE = "EXISTS (SELECT 1 FROM edits u WHERE u.undoes = s.change)"
_REMEMBERED_FUNCTIONS = 32
"""Functions whose results are stored: each takes some 20 bytes per trajectory."""


@dataclass(frozen=True)
class NewScoring:
    """What scores a collection. source: `function` or `judge`. names: of the functions. code: their source text.

    style: the library whose signature they have, or empty.
    """

    source: str
    names: Sequence[str]
    code: str
    options: Mapping[str, Any]
    style: str = ""


@dataclass(frozen=True)
class StoredScoring(NewScoring):
    """A stored scoring. change: the number that its edits share, also with the scorings that resumed it."""

    change: int = 0
    at: str = ""
    who: str = ""
    undone: bool = False


@dataclass(frozen=True)
class Failure:
    """A trajectory that a reward function failed on: the type of the error, its message, and the line that raised."""

    trajectory: Ref
    function: str
    error: str
    message: str
    line: str = ""
    at: str = ""

    @property
    def summary(self) -> str:
        """Type and message in a line."""
        return f"{self.error}: {self.message}" if self.message else self.error


class RewardResult(NamedTuple):
    """What a function returned for a trajectory, as JSON values. fingerprint: of the function."""

    fingerprint: str
    trajectory: int
    result: Any


class Scorings:
    """The scorings of a lab. All edits of a scoring are one change, however many transactions store them."""

    def __init__(self, database: Database, rewards: Rewards) -> None:
        self._database = database
        self._rewards = rewards

    def begin(self, collection: StoredCollection, new: NewScoring, resumes: int | None = None) -> int:
        """Store a new scoring and return the number of its change. resumes: the change that it continues."""

        def change(connection: sqlite3.Connection) -> int:
            number = new_change(connection) if resumes is None else resumes
            texts = new.source, json.dumps(list(new.names)), new.code, json.dumps(new.options), new.style
            connection.execute(
                "INSERT INTO scorings (change, collection_id, at, who, source, names, code, options, style)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, collection.id, now(), user(), *texts),
            )
            return number

        return self._database.change(change)

    def store(
        self,
        change: int,
        source: str,
        scores: Sequence[Score],
        failures: Sequence[Failure] = (),
        results: Sequence[RewardResult] = (),
        *,
        keep_hand: bool,
    ) -> None:
        """Store outcomes of a scoring in one transaction; a trajectory that failed has no reward then.

        keep_hand: skip rewards by hand. A reward that was given after the scoring had begun is kept in any case.

        Raises:
            ConflictError: the change was undone meanwhile.
        """

        def write(connection: sqlite3.Connection) -> RewardLog:
            if connection.execute("SELECT 1 FROM edits WHERE undoes = ?", (change,)).fetchone():
                raise ConflictError(f"change {change} was undone while it was made", hint="run the cell again")
            log = RewardLog(connection, source, change=change)
            for score in scores:
                log.give(score, keep_hand=keep_hand)
            failed = [f for f in failures if log.clear(f.trajectory.id, f"failed: {f.summary}", keep_hand=keep_hand)]
            rows: list[tuple[Any, ...]] = [(s.trajectory.id, change, None, None, None, None, log.at) for s in scores]
            rows += [(f.trajectory.id, change, f.function, f.error, f.message, f.line, log.at) for f in failed]
            connection.executemany("INSERT OR REPLACE INTO reward_outcomes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if results:
                _remember(connection, results)
            return log

        self._rewards.notify(self._database.change(write))

    def scored(self, change: int) -> set[int]:
        """Ids of the trajectories that a change has scored, and that still have a reward."""
        sql = (
            "SELECT t.id FROM reward_outcomes o JOIN trajectories t ON t.id = o.trajectory_id"
            " WHERE o.change = ? AND o.error IS NULL AND t.reward IS NOT NULL"
        )
        return {row[0] for row in self._database.read(sql, change)}

    def last(self, collection: StoredCollection) -> StoredScoring | None:
        """The newest scoring of a collection that is not undone."""
        return next((scoring for scoring in self.history(collection) if not scoring.undone), None)

    def history(self, collection: StoredCollection) -> list[StoredScoring]:
        """Every scoring of a collection, newest first."""
        sql = f"SELECT s.*, {_UNDONE} AS undone FROM scorings s WHERE collection_id = ? ORDER BY id DESC"
        return [_scoring(row) for row in self._database.read(sql, collection.id)]

    def failures(self, collection: StoredCollection, position: int | None = None) -> list[Failure]:
        """The trajectories that have no reward because a function failed, in order; of one group with `position`."""
        sql = (
            "SELECT o.*, g.position AS place, t.position AS seat FROM groups g CROSS JOIN trajectories t"
            " ON t.group_id = g.id CROSS JOIN reward_outcomes o ON o.trajectory_id = t.id WHERE g.collection_id = ?1"
            " AND o.error IS NOT NULL AND (?2 IS NULL OR g.position = ?2) ORDER BY g.position, t.position"
        )
        rows = self._database.read(sql, collection.id, position)
        return [_failure(collection, row) for row in rows]

    def failed(self, collection: StoredCollection, position: int | None = None) -> dict[str, int]:
        """How many trajectories failed, by type of error, the most frequent first; of one group with `position`."""
        sql = (
            "SELECT o.error, count(*) FROM groups g CROSS JOIN trajectories t ON t.group_id = g.id"
            " CROSS JOIN reward_outcomes o ON o.trajectory_id = t.id WHERE g.collection_id = ?1"
            " AND o.error IS NOT NULL AND (?2 IS NULL OR g.position = ?2) GROUP BY 1 ORDER BY 2 DESC, 1"
        )
        return {row[0]: row[1] for row in self._database.read(sql, collection.id, position)}

    def errors(self, ids: Iterable[int]) -> dict[int, str]:
        """Type and message of the errors of those trajectories that failed."""
        sql = "SELECT trajectory_id, error, message FROM reward_outcomes WHERE error IS NOT NULL AND trajectory_id IN"
        rows = self._database.read(f"{sql} (SELECT value FROM json_each(?))", json.dumps(list(ids)))
        return {row[0]: f"{row[1]}: {row[2]}" if row[2] else row[1] for row in rows}

    def unreached(self, collection: StoredCollection) -> int:
        """Trajectories whose reward is older than the newest scoring, which ended before it came to them."""
        last = self.last(collection)
        if last is None or last.source != "function":
            return 0
        sql = (
            f"SELECT count(*) FROM {_OF} AND t.source = 'function' AND t.id NOT IN"
            " (SELECT trajectory_id FROM reward_outcomes WHERE change = ?) AND (SELECT max(change) FROM edits"
            " WHERE trajectory_id = t.id) < ?"
        )
        return int(self._database.read(sql, collection.id, last.change, last.change)[0][0])

    def columns(self, collection: StoredCollection) -> list[str]:
        """The columns of the rows of a collection."""
        sql = "SELECT DISTINCT j.key FROM groups g, json_each(g.row) j WHERE g.collection_id = ?"
        return [row[0] for row in self._database.read(sql, collection.id)]

    def is_remembered(self, fingerprint: str) -> bool:
        """Whether results of a function are stored; cheap."""
        return bool(self._database.read("SELECT 1 FROM reward_functions WHERE fingerprint = ?", fingerprint))

    def remembered(self, fingerprint: str, ids: Iterable[int]) -> dict[int, Any]:
        """The stored results of a function, by trajectory."""
        sql = (
            "SELECT r.trajectory_id, r.result FROM reward_functions f JOIN reward_results r ON r.function_id = f.id"
            " WHERE f.fingerprint = ? AND r.trajectory_id IN (SELECT value FROM json_each(?))"
        )
        return {row[0]: json.loads(row[1]) for row in self._database.read(sql, fingerprint, json.dumps(list(ids)))}

    def forget_results(self, fingerprint: str) -> None:
        """Delete the results of a function."""
        if self.is_remembered(fingerprint):
            self._database.execute("DELETE FROM reward_functions WHERE fingerprint = ?", fingerprint)


def _remember(connection: sqlite3.Connection, results: Sequence[RewardResult]) -> None:
    numbers: dict[str, int] = {}
    for fingerprint in {each.fingerprint for each in results}:
        (numbers[fingerprint],) = connection.execute(
            "INSERT INTO reward_functions (fingerprint, used_at) VALUES (?, ?)"
            " ON CONFLICT (fingerprint) DO UPDATE SET used_at = excluded.used_at RETURNING id",
            (fingerprint, now()),
        ).fetchone()
    connection.executemany(
        "INSERT OR REPLACE INTO reward_results (trajectory_id, function_id, result) VALUES (?, ?, ?)",
        [(each.trajectory, numbers[each.fingerprint], json.dumps(each.result)) for each in results],
    )
    connection.execute(
        "DELETE FROM reward_functions WHERE id NOT IN (SELECT id FROM reward_functions ORDER BY used_at DESC LIMIT ?)",
        (_REMEMBERED_FUNCTIONS,),
    )


def _scoring(row: Row) -> StoredScoring:
    names, options = json.loads(row["names"]), json.loads(row["options"])
    values = row["source"], names, row["code"], options, row["style"], row["change"], row["at"], row["who"]
    return StoredScoring(*values, bool(row["undone"]))


def _failure(collection: StoredCollection, row: Row) -> Failure:
    ref = Ref(row["trajectory_id"], f"{collection.label}/{row['place']}/{row['seat']}")
    return Failure(ref, row["function"] or "", row["error"], row["message"] or "", row["line"] or "", row["at"] or "")
