"""Change feed: what was added, renamed, rescored or deleted since a cursor. Used by the search index."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, Self

from rolloutlab.store.scorings import FAILED
from rolloutlab.store.sqlite import Database, Row

_VISIBLE = "SELECT id, name || ':' || generation AS label FROM collections WHERE deleted_at IS NULL"
_FINISHED = """
    SELECT t.id FROM trajectories t JOIN groups g ON g.id = t.group_id JOIN collections c ON c.id = g.collection_id
    WHERE c.deleted_at IS NULL AND t.pending = 0
"""
_GIVEN = "(SELECT value FROM json_each(?))"
_ENTRIES = f"""
    SELECT t.id, c.name, c.generation, g.position AS group_position, t.position, g.prompt, g.row, t.items, t.extra,
        t.model, t.step, t.created_at, t.group_id, o.tokens, o.finish_reason
    FROM trajectories t JOIN groups g ON g.id = t.group_id JOIN collections c ON c.id = g.collection_id
    LEFT JOIN outlines o ON o.trajectory_id = t.id WHERE t.id IN {_GIVEN} ORDER BY t.id
"""
_NAME = "c.name || ':' || c.generation || '/' || g.position || '/' || t.position AS name"
_NAMES = f"""
    SELECT t.id, t.group_id, {_NAME}
    FROM trajectories t JOIN groups g ON g.id = t.group_id JOIN collections c ON c.id = g.collection_id
    WHERE t.id IN {_GIVEN} ORDER BY t.id
"""
_SCORED = f"""
    SELECT t.group_id, t.reward, t.components, t.source, {_NAME}, o.error, o.message
    FROM trajectories t JOIN groups g ON g.id = t.group_id JOIN collections c ON c.id = g.collection_id
    LEFT JOIN reward_outcomes o ON o.trajectory_id = t.id AND {FAILED}
    WHERE t.group_id IN {_GIVEN} AND t.pending = 0 AND c.deleted_at IS NULL ORDER BY t.group_id, t.position
"""


@dataclass(frozen=True)
class Cursor:
    """A position in the change feed.

    trajectory, edit: the largest ids at that time.
    pending: the ids of trajectories that were unfinished.
    collections: the labels of collections by id.
    jobs: the collections of each job.
    """

    trajectory: int = 0
    edit: int = 0
    pending: tuple[int, ...] = ()
    collections: Mapping[int, str] = field(default_factory=dict)
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the cursor that `to_json` wrote; raise ValueError for any other text."""
        cursor = json.loads(text)
        if not isinstance(cursor, dict) or cursor.keys() != {each.name for each in fields(cls)}:
            raise ValueError("it is not a cursor of a lab")
        collections = {int(number): label for number, label in cursor["collections"].items()}
        return cls(**{**cursor, "pending": tuple(cursor["pending"]), "collections": collections})


@dataclass(frozen=True)
class Changes:
    """Changes since a cursor.

    mark: the next cursor.
    gone: the labels of deleted collections.
    renamed: new labels by old ones.
    arrived: the ids of finished trajectories.
    rescored: the ids of groups with changed rewards.
    trained: the labels of collections with a new job.
    """

    mark: Cursor
    gone: Sequence[str]
    renamed: Mapping[str, str]
    arrived: Sequence[int]
    rescored: Sequence[int]
    trained: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.gone or self.renamed or self.arrived or self.rescored or self.trained)


class Entry(NamedTuple):
    """A finished trajectory as stored. Its conversation is plain JSON that was not validated."""

    name: str
    collection: str
    generation: int
    group_id: int
    group: str
    prompt: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]
    row: Mapping[str, Any]
    extra: Mapping[str, Any]
    model: str
    step: int | None
    created_at: str
    tokens: int | None
    finish_reason: str | None


class RewardChange(NamedTuple):
    """The reward of one member of a group; error: type and message if a reward function failed on it."""

    name: str
    reward: float | None
    components: Mapping[str, float]
    source: str | None
    error: str | None = None


class ChangeFeed:
    """The changes of a lab, and the contents of changed trajectories."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def since(self, mark: Cursor) -> Changes:
        """Find the changes since `mark`, oldest first.

        A concurrent write may be included now, and is included the next time in any case.
        """
        now = self._now()
        labels = {label: now.collections.get(i, label) for i, label in mark.collections.items()}
        moved = {old: new for old, new in labels.items() if new != old}
        if moved.keys() & {*moved.values()}:  # names were swapped: such collections count as deleted and new
            moved = {}
        same = {i for i, label in mark.collections.items() if now.collections.get(i, "") in (label, moved.get(label))}
        fresh = self._ids(f"{_FINISHED} AND t.id > ?", mark.trajectory)
        finished = self._ids(f"{_FINISHED} AND t.id IN {_GIVEN}", json.dumps(mark.pending))
        new = [i for i in now.collections if i not in same]
        shown = self._ids(f"{_FINISHED} AND c.id IN {_GIVEN}", json.dumps(new))
        arrived = sorted({*fresh, *finished, *shown})
        sql = "SELECT DISTINCT t.group_id FROM edits e JOIN trajectories t ON t.id = e.trajectory_id WHERE e.id > ?"
        trained = [label for job, labels in now.jobs.items() if mark.jobs.get(job) != labels for label in labels]
        return Changes(
            mark=now,
            gone=[label for i, label in mark.collections.items() if i not in same],
            renamed=moved,
            arrived=arrived,
            rescored=self._ids(sql, mark.edit),
            trained=list(dict.fromkeys(trained)),
        )

    def names(self, ids: Iterable[int]) -> dict[int, tuple[str, int]]:
        """Read the name and the group id of each trajectory."""
        rows = self._database.read(_NAMES, json.dumps(list(ids)))
        return {row["id"]: (row["name"], row["group_id"]) for row in rows}

    def times(self, ids: Iterable[int]) -> dict[int, str]:
        """Read the time at which each trajectory was stored."""
        rows = self._database.read(f"SELECT id, created_at FROM trajectories WHERE id IN {_GIVEN}", json.dumps([*ids]))
        return {row["id"]: row["created_at"] for row in rows}

    def entries(self, ids: Iterable[int]) -> list[Entry]:
        """Read trajectories by their ids."""
        return [_read_entry(row) for row in self._database.read(_ENTRIES, json.dumps(list(ids)))]

    def scored(self, groups: Iterable[int]) -> dict[int, list[RewardChange]]:
        """Read the rewards of the members of groups, in order, by group id."""
        groups_to_members: dict[int, list[RewardChange]] = {}
        for row in self._database.read(_SCORED, json.dumps(list(groups))):
            error = row["error"] and ": ".join(filter(None, (row["error"], row["message"])))
            scored = RewardChange(row["name"], row["reward"], json.loads(row["components"]), row["source"], error)
            groups_to_members.setdefault(row["group_id"], []).append(scored)
        return groups_to_members

    def members(self, group: int) -> list[str]:
        """List the names of the finished members of a group, in order."""
        return [row["name"] for row in self._database.read(_SCORED, json.dumps([group]))]

    def count(self) -> int:
        """Count the finished trajectories."""
        return int(self._database.read(_FINISHED.replace("t.id", "count(*)", 1))[0][0])

    def _now(self) -> Cursor:
        """Read the cursor at the end of the feed.

        The largest ids are read first, so that a change during these reads is after the cursor, and is not skipped.
        """
        sql = "SELECT coalesce((SELECT max(id) FROM trajectories), 0), coalesce((SELECT max(id) FROM edits), 0)"
        [(trajectory, edit)] = self._database.read(sql)
        pending = self._ids("SELECT id FROM trajectories WHERE pending > 0")
        collections = {row["id"]: row["label"] for row in self._database.read(_VISIBLE)}
        jobs = {row["id"]: json.loads(row["collections"]) for row in self._database.read("SELECT * FROM jobs")}
        return Cursor(trajectory, edit, tuple(pending), collections, jobs)

    def _ids(self, sql: str, *values: Any) -> list[int]:
        return [row[0] for row in self._database.read(sql, *values)]


def _read_entry(row: Row) -> Entry:
    group = f"{row['name']}:{row['generation']}/{row['group_position']}"
    as_stored = ("generation", "group_id", "model", "step", "created_at", "finish_reason")
    return Entry(
        name=f"{group}/{row['position']}",
        collection=row["name"],
        group=group,
        tokens=sum(json.loads(row["tokens"])) if row["tokens"] else None,
        **{name: row[name] for name in as_stored},
        **{name: json.loads(row[name]) for name in ("prompt", "items", "row", "extra")},
    )
