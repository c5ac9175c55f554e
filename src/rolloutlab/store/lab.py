"""The lab: collections of trajectory groups, rewards with their history, and submitted jobs, in one SQLite file."""

import getpass
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.records import CollectionSummary, Edit, Group, Score, SubmittedJob, Trajectory
from rolloutlab.store.sqlite import Database, Row
from rolloutlab.wire.base import Wire
from rolloutlab.wire.chat import Message, MessageOrChoice

_MIGRATIONS = [
    """
    CREATE TABLE collections (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, generation INTEGER NOT NULL, created_at TEXT NOT NULL,
        UNIQUE (name, generation)
    );
    CREATE TABLE groups (
        id INTEGER PRIMARY KEY, collection_id INTEGER NOT NULL REFERENCES collections ON DELETE CASCADE,
        position INTEGER NOT NULL, prompt TEXT NOT NULL, row TEXT NOT NULL,
        UNIQUE (collection_id, position)
    );
    CREATE TABLE trajectories (
        id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL REFERENCES groups ON DELETE CASCADE,
        position INTEGER NOT NULL, items TEXT NOT NULL, model TEXT NOT NULL, step INTEGER, sampling TEXT NOT NULL,
        created_at TEXT NOT NULL, reward REAL, components TEXT NOT NULL DEFAULT '{}', source TEXT,
        UNIQUE (group_id, position)
    );
    CREATE TABLE edits (
        id INTEGER PRIMARY KEY, trajectory_id INTEGER NOT NULL REFERENCES trajectories ON DELETE CASCADE,
        at TEXT NOT NULL, who TEXT NOT NULL, source TEXT NOT NULL, old REAL, new REAL NOT NULL,
        components TEXT NOT NULL
    );
    CREATE INDEX edits_of_trajectory ON edits (trajectory_id, id);
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY, service TEXT NOT NULL, model TEXT NOT NULL, collections TEXT NOT NULL,
        options TEXT NOT NULL, created_at TEXT NOT NULL
    )
    """,
]

_NAME = re.compile(r"[\w.-]+")
_LABEL = re.compile(r"(?P<name>[\w.-]+)(?::(?P<generation>\d+))?")
_PROMPT: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_ITEMS: TypeAdapter[tuple[MessageOrChoice, ...]] = TypeAdapter(tuple[MessageOrChoice, ...])

_SUMMARIES = """
    SELECT c.id, c.name, c.generation, c.created_at,
        c.generation = (SELECT max(generation) FROM collections WHERE name = c.name) AS newest,
        (SELECT count(*) FROM groups WHERE collection_id = c.id) AS groups,
        count(t.id) AS trajectories, count(t.reward) AS scored, avg(t.reward) AS mean_reward
    FROM collections c LEFT JOIN groups g ON g.collection_id = c.id LEFT JOIN trajectories t ON t.group_id = g.id
"""


class Lab:
    """The memory of a lab folder. Any number of processes may use it at once; what a call stored is on disk."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _MIGRATIONS)

    def close(self) -> None:
        self._database.close()

    def open_collection(self, name: str) -> CollectionSummary:
        """A new generation of the collection: the first, or one more beside the older ones.

        Raises:
            InputError: the name has other characters than letters, digits, `_`, `-` and `.`.
        """
        self.check_name(name)
        with self._database.write() as connection:
            (generation,) = connection.execute(
                "INSERT INTO collections (name, generation, created_at)"
                " SELECT ?, coalesce(max(generation), 0) + 1, ? FROM collections WHERE name = ? RETURNING generation",
                (name, _now(), name),
            ).fetchone()
        return self.collection(f"{name}:{generation}")

    @staticmethod
    def check_name(name: str) -> None:
        """InputError unless the name is one that a collection can have."""
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name for a collection", hint="letters, digits, _ - and .")

    def collections(self) -> list[CollectionSummary]:
        """Every generation of every collection, newest first."""
        return [_summary(row) for row in self._database.read(f"{_SUMMARIES} GROUP BY c.id ORDER BY c.id DESC")]

    def collection(self, label: str) -> CollectionSummary:
        """The collection that `name` (its newest generation) or `name:N` means.

        Raises:
            NotFoundError: there is none; the message names the closest.
        """
        found = _LABEL.fullmatch(label)
        rows = (
            self._database.read(
                f"{_SUMMARIES} WHERE c.name = ? AND (? IS NULL OR c.generation = ?)"
                " GROUP BY c.id ORDER BY c.generation DESC LIMIT 1",
                found["name"],
                found["generation"],
                found["generation"],
            )
            if found
            else []
        )
        if not rows:
            raise NotFoundError(f"there is no collection {label!r}", hint=self._closest(label))
        return _summary(rows[0])

    def add_groups(
        self, collection: CollectionSummary, groups: Sequence[tuple[Sequence[Message], Mapping[str, Any]]]
    ) -> list[Group]:
        """Put groups without trajectories, given as (prompt, row), into an empty collection."""
        added = []
        with self._database.write() as connection:
            for position, (prompt, row) in enumerate(groups):
                values = (collection.id, position, _dump(prompt), json.dumps(row, default=str))
                cursor = connection.execute(
                    "INSERT INTO groups (collection_id, position, prompt, row) VALUES (?, ?, ?, ?)", values
                )
                name = f"{collection.label}/{position}"
                added.append(Group(int(cursor.lastrowid or 0), name, tuple(prompt), dict(row)))
        return added

    def add_trajectories(
        self,
        group: Group,
        sampled: Iterable[Sequence[MessageOrChoice]],
        *,
        model: str,
        step: int | None,
        sampling: Mapping[str, Any],
    ) -> None:
        """Append trajectories to a group: what followed the group's prompt in each, and how it was sampled."""
        shared = (model, step, json.dumps(sampling), _now())
        with self._database.write() as connection:
            for items in sampled:
                connection.execute(
                    "INSERT INTO trajectories (group_id, position, items, model, step, sampling, created_at)"
                    " SELECT ?, count(*), ?, ?, ?, ?, ? FROM trajectories WHERE group_id = ?",
                    (group.id, _dump(items), *shared, group.id),
                )

    def groups(self, collection: CollectionSummary, position: int | None = None) -> list[Group]:
        """The groups of a collection with their trajectories, or only the one at `position`."""
        where = (collection.id, position, position)
        scope = "g.collection_id = ? AND (? IS NULL OR g.position = ?)"
        groups = self._database.read(f"SELECT * FROM groups g WHERE {scope} ORDER BY position", *where)
        rows = self._database.read(
            f"SELECT t.* FROM trajectories t JOIN groups g ON t.group_id = g.id WHERE {scope}"
            " ORDER BY g.position, t.position",
            *where,
        )
        members: dict[int, list[Row]] = {}
        for row in rows:
            members.setdefault(row["group_id"], []).append(row)
        return [_group(row, collection, members.get(row["id"], [])) for row in groups]

    def set_rewards(self, scores: Sequence[Score], source: str) -> list[Edit]:
        """Give rewards, all or none, and log each change: who, when, old, new. What stays the same is not logged."""
        at, who = _now(), _user()
        edits = []
        with self._database.write() as connection:
            for score in scores:
                row_id, parts = score.trajectory.id, dict(score.components)
                old, had = connection.execute(
                    "SELECT reward, components FROM trajectories WHERE id = ?", (row_id,)
                ).fetchone()
                if (score.reward, parts) == (old, json.loads(had)):
                    continue
                connection.execute(
                    "UPDATE trajectories SET reward = ?, components = ?, source = ? WHERE id = ?",
                    (score.reward, json.dumps(parts), source, row_id),
                )
                connection.execute(
                    "INSERT INTO edits (trajectory_id, at, who, source, old, new, components)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (row_id, at, who, source, old, score.reward, json.dumps(parts)),
                )
                edits.append(Edit(score.trajectory.name, at, who, source, old, score.reward, parts))
        return edits

    def edits(self, trajectory: Trajectory) -> list[Edit]:
        """The reward history of a trajectory, oldest first."""
        rows = self._database.read("SELECT * FROM edits WHERE trajectory_id = ? ORDER BY id", trajectory.id)
        return [
            Edit(
                trajectory.name,
                row["at"],
                row["who"],
                row["source"],
                row["old"],
                row["new"],
                json.loads(row["components"]),
            )
            for row in rows
        ]

    def add_job(self, job: SubmittedJob) -> None:
        """Remember a submitted job."""
        values = (job.id, job.service, job.model, json.dumps(job.collections), json.dumps(job.options), job.created_at)
        with self._database.write() as connection:
            connection.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)", values)

    def rename_job(self, old: str, new: str) -> None:
        """Give a remembered job the id that its service chose."""
        with self._database.write() as connection:
            connection.execute("UPDATE jobs SET id = ? WHERE id = ?", (new, old))

    def forget_job(self, job_id: str) -> None:
        """Forget a job that its service refused."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

    def jobs(self) -> list[SubmittedJob]:
        """Every job this lab submitted, newest first."""
        return [_job(row) for row in self._database.read("SELECT * FROM jobs ORDER BY rowid DESC")]

    def _closest(self, label: str) -> str:
        names = [row["name"] for row in self._database.read("SELECT DISTINCT name FROM collections")]
        close = get_close_matches(label, names, n=1)
        return close[0] if close else "%collections lists them" if names else f"%%chat {label}"


def _summary(row: Row) -> CollectionSummary:
    return CollectionSummary(**{**dict(row), "newest": bool(row["newest"])})


def _group(row: Row, collection: CollectionSummary, members: list[Row]) -> Group:
    name = f"{collection.label}/{row['position']}"
    prompt = _PROMPT.validate_json(row["prompt"])
    scenario = json.loads(row["row"])
    trajectories = tuple(_trajectory(member, name, prompt, scenario) for member in members)
    return Group(row["id"], name, prompt, scenario, trajectories)


def _trajectory(row: Row, group: str, prompt: tuple[Message, ...], scenario: dict[str, Any]) -> Trajectory:
    return Trajectory(
        id=row["id"],
        name=f"{group}/{row['position']}",
        items=(*prompt, *_ITEMS.validate_json(row["items"])),
        row=scenario,
        model=row["model"],
        step=row["step"],
        sampling=json.loads(row["sampling"]),
        created_at=row["created_at"],
        reward=row["reward"],
        components=json.loads(row["components"]),
        source=row["source"],
    )


def _job(row: Row) -> SubmittedJob:
    collections = tuple(json.loads(row["collections"]))
    return SubmittedJob(
        row["id"], row["service"], row["model"], collections, json.loads(row["options"]), row["created_at"]
    )


def _dump(items: Sequence[Wire]) -> str:
    return "[" + ",".join(item.to_json() for item in items) + "]"


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no user database
        return "unknown"
