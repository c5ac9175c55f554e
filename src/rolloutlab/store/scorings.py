"""Scorings: runs of reward functions over a collection, with the outcome of each trajectory and remembered results."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rolloutlab.errors import ConflictError
from rolloutlab.store.models import Ref, Score, StoredCollection, now
from rolloutlab.store.rewards import STATE_CHANGE, RewardLog, Rewards, ids_there, new_change, user
from rolloutlab.store.sqlite import Database, Row

FAILED = f"o.error IS NOT NULL AND t.reward IS NULL AND o.change = ({STATE_CHANGE})"
"""Condition that outcome `o` is the reason why trajectory `t` has no reward."""
_OF = "groups g CROSS JOIN trajectories t ON t.group_id = g.id"
_OUTCOMES = f"{_OF} CROSS JOIN reward_outcomes o ON o.trajectory_id = t.id"
_OF_SCORING = "o.trajectory_id = t.id AND o.change IN (SELECT change FROM scorings WHERE ?2 IN (change, resumes))"
"""Condition that outcome `o` of trajectory `t` belongs to the scoring ?2, or to one that resumes it."""
_UNDONE = "EXISTS (SELECT 1 FROM edits u WHERE u.undoes = s.change)"
_REMEMBERED_FUNCTIONS = 32
"""The most functions whose results are stored. Each takes some 20 bytes per trajectory."""
PAID = "judge-"
"""The beginning of a judge's fingerprint. Its results were paid for: newer functions never replace them."""


@dataclass(frozen=True)
class NewScoring:
    """What scores a collection.

    source: `function` or `judge`.
    names: the names of the functions.
    code: their source text, or the rubric of the judge.
    options: the options of the scoring.
    style: the library whose signature the functions have, or empty.
    """

    source: str
    names: Sequence[str]
    code: str
    options: Mapping[str, Any]
    style: str = ""


@dataclass(frozen=True)
class StoredScoring(NewScoring):
    """A stored scoring.

    change: the number that its edits share. resumes: the change of the scoring that it resumes; None if it is no
    resume. A resume of a resume has the change of the first scoring.
    """

    change: int = 0
    at: str = ""
    who: str = ""
    undone: bool = False
    resumes: int | None = None

    @property
    def first(self) -> int:
        """The change of the scoring that this one continues, or its own."""
        return self.change if self.resumes is None else self.resumes


@dataclass(frozen=True)
class Failure:
    """A trajectory that a reward function failed on.

    error, message: the type and the message of the error. line: the line that raised it. at: the time.
    """

    trajectory: Ref
    function: str
    error: str
    message: str
    line: str = ""
    at: str = ""

    @property
    def summary(self) -> str:
        """The type and the message of the error."""
        return _summary(self.error, self.message)


class FailureNote(NamedTuple):
    """Why a trajectory has no reward: type and message of the error, and the function and line that raised it."""

    summary: str
    place: str


class RewardResult(NamedTuple):
    """What a function returned for a trajectory, as JSON values. fingerprint: identifies the function."""

    fingerprint: str
    trajectory: int
    result: Any


class Scorings:
    """The scorings of a lab. All edits of a scoring are one change, however many transactions store them."""

    def __init__(self, database: Database, rewards: Rewards) -> None:
        self._database = database
        self._rewards = rewards

    def begin(self, collection: StoredCollection, new: NewScoring, resumes: int | None = None) -> int:
        """Store a new scoring and return the number of its change. resumes: `first` of the scoring that it resumes."""

        def change(connection: sqlite3.Connection) -> int:
            number = new_change(connection)
            texts = new.source, json.dumps(list(new.names)), new.code, json.dumps(new.options), new.style
            connection.execute(
                "INSERT INTO scorings (change, collection_id, at, who, source, names, code, options, style, resumes)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, collection.id, now(), user(), *texts, resumes),
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
        since: int | None = None,
    ) -> None:
        """Store outcomes of a scoring in one transaction. Trajectories that failed lose their reward.

        A score that equals the old one is an edit too. Otherwise undo would not revert the scoring, but an earlier
        change. Outcomes of a trajectory that has gone on since it was read are left out: its new state has no reward.

        Args:
            change: The number of the scoring.
            source: What gives the rewards, `function` or `judge`.
            scores: The new rewards.
            failures: The trajectories that a function failed on.
            results: Results to remember.
            keep_hand: Whether to keep rewards that were given by hand.
            since: A change. Rewards that were given after it are kept in any case. None is `change`.

        Raises:
            ConflictError: the change was undone meanwhile.
        """

        def write(connection: sqlite3.Connection) -> RewardLog:
            if connection.execute("SELECT 1 FROM edits WHERE undoes = ?", (change,)).fetchone():
                raise ConflictError(f"change {change} was undone while it was made", hint="run the cell again")
            log = RewardLog(connection, source, change=change, since=since)
            refs = [*(score.trajectory for score in scores), *(failure.trajectory for failure in failures)]
            there = ids_there(connection, [ref.id for ref in refs])
            scored = [score for score in scores if score.trajectory.id in there]
            for score in scored:
                log.give(score, keep_hand=keep_hand, also_same=True)
            failed = [
                failure
                for failure in failures
                if failure.trajectory.id in there
                and log.clear(failure.trajectory.id, f"failed: {failure.summary}", keep_hand=keep_hand)
            ]
            rows: list[tuple[Any, ...]] = [(s.trajectory.id, change, None, None, None, None, None) for s in scored]
            rows += [(f.trajectory.id, change, f.function, f.error, f.message, f.line, log.at) for f in failed]
            connection.executemany("INSERT OR REPLACE INTO reward_outcomes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if results:
                _remember(connection, results)
            return log

        self._rewards.notify(self._database.change(write))

    def settled(self, collection: StoredCollection, first: int, hand_since: int | None) -> set[int]:
        """Find the trajectories that a resume of the scoring `first` leaves as they are; return their ids.

        They have a reward: from that scoring, from another resume of it, or by hand after the change `hand_since`.
        """
        sql = (
            f"SELECT t.id FROM {_OF} WHERE g.collection_id = ?1 AND t.reward IS NOT NULL AND ("
            f" EXISTS (SELECT 1 FROM reward_outcomes o WHERE {_OF_SCORING} AND o.error IS NULL)"
            f" OR (t.source = 'hand' AND ({STATE_CHANGE}) > ?3))"
        )
        return {row[0] for row in self._database.read(sql, collection.id, first, hand_since)}

    def last(self, collection: StoredCollection) -> StoredScoring | None:
        """Find the newest scoring of a collection that is not undone."""
        return next((scoring for scoring in self.history(collection) if not scoring.undone), None)

    def history(self, collection: StoredCollection) -> list[StoredScoring]:
        """List every scoring of a collection, newest first."""
        sql = f"SELECT s.*, {_UNDONE} AS undone FROM scorings s WHERE collection_id = ? ORDER BY id DESC"
        return [_read_scoring(row) for row in self._database.read(sql, collection.id)]

    def failures(self, collection: StoredCollection, position: int | None = None) -> list[Failure]:
        """List the trajectories that have no reward because a function failed, in order.

        position: the position of the only group to look at.
        """
        sql = (
            f"SELECT o.*, g.position AS place, t.position AS seat FROM {_OUTCOMES} WHERE g.collection_id = ?1"
            f" AND (?2 IS NULL OR g.position = ?2) AND {FAILED} ORDER BY g.position, t.position"
        )
        rows = self._database.read(sql, collection.id, position)
        return [_read_failure(collection, row) for row in rows]

    def failed(self, collection: StoredCollection, position: int | None = None) -> dict[str, int]:
        """Count the trajectories that failed, by type of error, most frequent first.

        position: the position of the only group to look at.
        """
        sql = (
            f"SELECT o.error, count(*) FROM {_OUTCOMES} WHERE g.collection_id = ?1"
            f" AND (?2 IS NULL OR g.position = ?2) AND {FAILED} GROUP BY 1 ORDER BY 2 DESC, 1"
        )
        return {row[0]: row[1] for row in self._database.read(sql, collection.id, position)}

    def errors(self, ids: Iterable[int]) -> dict[int, FailureNote]:
        """Read the errors of those trajectories that failed, by id."""
        sql = (
            "SELECT t.id, o.function, o.error, o.message, o.line FROM trajectories t CROSS JOIN reward_outcomes o"
            f" ON o.trajectory_id = t.id WHERE t.id IN (SELECT value FROM json_each(?)) AND {FAILED}"
        )
        rows = self._database.read(sql, json.dumps(list(ids)))
        places = (", ".join(filter(None, (row["function"], row["line"]))) for row in rows)
        summaries = (_summary(row["error"], row["message"]) for row in rows)
        return {row["id"]: FailureNote(*note) for row, *note in zip(rows, summaries, places, strict=True)}

    def count_unreached(self, collection: StoredCollection) -> int:
        """Count the trajectories that the newest scoring did not reach, and that have an older reward."""
        last = self.last(collection)
        if last is None or last.source != "function":
            return 0
        sql = (
            f"SELECT count(*) FROM {_OF} WHERE g.collection_id = ?1 AND t.pending = 0 AND t.source = 'function'"
            f" AND NOT EXISTS (SELECT 1 FROM reward_outcomes o WHERE {_OF_SCORING}) AND ({STATE_CHANGE}) < ?2"
        )
        return int(self._database.read(sql, collection.id, last.first)[0][0])

    def weights_of(self, component: str, collection: StoredCollection) -> dict[int, float]:
        """Read the weight of a component in each reward that functions gave, by the id of the trajectory."""
        if not any(scoring.source == "function" for scoring in self.history(collection)):
            return {}
        weight = "SELECT value FROM json_each(s.options, '$.weights') WHERE key = ?2"
        sql = (
            f"SELECT t.id, coalesce(({weight}), 1.0) FROM {_OF} CROSS JOIN scorings s ON s.change = ({STATE_CHANGE})"
            " WHERE g.collection_id = ?1 AND s.source = 'function'"
        )
        return {row[0]: row[1] for row in self._database.read(sql, collection.id, component)}

    def columns(self, collection: StoredCollection) -> list[str]:
        """List the columns of the rows of a collection."""
        sql = "SELECT DISTINCT j.key FROM groups g, json_each(g.row) j WHERE g.collection_id = ?"
        return [row[0] for row in self._database.read(sql, collection.id)]

    def is_remembered(self, fingerprint: str) -> bool:
        """Return whether results of a function are stored. This is fast."""
        return bool(self._database.read("SELECT 1 FROM reward_functions WHERE fingerprint = ?", fingerprint))

    def remembered(self, fingerprint: str, ids: Iterable[int]) -> dict[int, Any]:
        """Read the stored results of a function, by the id of the trajectory."""
        sql = (
            "SELECT r.trajectory_id, r.result FROM reward_functions f JOIN reward_results r ON r.function_id = f.id"
            " WHERE f.fingerprint = ? AND r.trajectory_id IN (SELECT value FROM json_each(?))"
        )
        return {row[0]: json.loads(row[1]) for row in self._database.read(sql, fingerprint, json.dumps(list(ids)))}

    def remember(self, results: Sequence[RewardResult]) -> None:
        """Store results without a scoring, such as the answers of a judge that is not finished."""
        if results:
            self._database.change(partial(_remember, results=results))

    def forget_results(self, fingerprint: str, ids: Iterable[int] | None = None) -> None:
        """Delete the results of a function. ids: the trajectories whose results are deleted; by default all."""
        if not self.is_remembered(fingerprint):
            return
        if ids is None:
            self._database.execute("DELETE FROM reward_functions WHERE fingerprint = ?", fingerprint)
            return
        sql = (
            "DELETE FROM reward_results WHERE trajectory_id IN (SELECT value FROM json_each(?))"
            " AND function_id IN (SELECT id FROM reward_functions WHERE fingerprint = ?)"
        )
        self._database.execute(sql, json.dumps(list(ids)), fingerprint)


def _remember(connection: sqlite3.Connection, results: Sequence[RewardResult]) -> None:
    numbers: dict[str, int] = {}
    for fingerprint in {each.fingerprint for each in results}:
        (numbers[fingerprint],) = connection.execute(
            "INSERT INTO reward_functions (fingerprint, used_at) VALUES (?, ?)"
            " ON CONFLICT (fingerprint) DO UPDATE SET used_at = excluded.used_at RETURNING id",
            (fingerprint, now()),
        ).fetchone()
    there = ids_there(connection, (each.trajectory for each in results))
    connection.executemany(
        "INSERT OR REPLACE INTO reward_results (trajectory_id, function_id, result) VALUES (?, ?, ?)",
        [
            (each.trajectory, numbers[each.fingerprint], json.dumps(each.result))
            for each in results
            if each.trajectory in there
        ],
    )
    connection.execute(
        "WITH free AS (SELECT id, used_at FROM reward_functions WHERE fingerprint NOT GLOB ?)"
        " DELETE FROM reward_functions WHERE id IN (SELECT id FROM free ORDER BY used_at DESC LIMIT -1 OFFSET ?)",
        (f"{PAID}*", _REMEMBERED_FUNCTIONS),
    )


def _read_scoring(row: Row) -> StoredScoring:
    names, options = json.loads(row["names"]), json.loads(row["options"])
    values = row["source"], names, row["code"], options, row["style"], row["change"], row["at"], row["who"]
    return StoredScoring(*values, bool(row["undone"]), row["resumes"])


def _summary(error: str, message: str | None) -> str:
    return f"{error}: {message}" if message else error


def _read_failure(collection: StoredCollection, row: Row) -> Failure:
    ref = Ref(row["trajectory_id"], f"{collection.label}/{row['place']}/{row['seat']}")
    return Failure(ref, row["function"] or "", row["error"], row["message"] or "", row["line"] or "", row["at"] or "")
