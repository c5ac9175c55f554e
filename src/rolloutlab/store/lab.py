"""The lab: collections of trajectory groups in one SQLite file, with their rewards and the jobs they trained in."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.records import Arrival, CollectionSummary, Group, NewGroup, Trajectory
from rolloutlab.store.rewards import Rewards
from rolloutlab.store.schema import MIGRATIONS
from rolloutlab.store.sqlite import Database, Row
from rolloutlab.wire.base import Wire
from rolloutlab.wire.chat import Message, MessageOrChoice

_NAME = re.compile(r"[\w.-]+")
_LABEL = re.compile(r"(?P<name>[\w.-]+)(?::(?P<generation>\d+))?")
_PROMPT: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_SCRIPT: TypeAdapter[tuple[tuple[Message, ...], ...]] = TypeAdapter(tuple[tuple[Message, ...], ...])
_ITEMS: TypeAdapter[tuple[MessageOrChoice, ...]] = TypeAdapter(tuple[MessageOrChoice, ...])

_SUMMARIES = """
    SELECT c.id, c.name, c.generation, c.created_at,
        (SELECT max(generation) FROM collections WHERE name = c.name AND deleted_at IS NULL) AS newest,
        c.plan, c.prompt_tokens, c.completion_tokens, count(DISTINCT g.id) AS groups,
        count(t.group_id) AS trajectories, count(t.reward) AS scored, avg(t.reward) AS mean_reward
    FROM collections c
    LEFT JOIN groups g ON g.collection_id = c.id
    LEFT JOIN trajectories t ON t.group_id = g.id AND t.pending = 0
    WHERE c.deleted_at IS NULL
"""


class Lab:
    """The memory of a lab folder. Any number of processes may use it at once; what a call stored is on disk."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, MIGRATIONS)
        self.rewards = Rewards(self._database)
        self.jobs = SubmittedJobs(self._database)

    def close(self) -> None:
        self._database.close()

    def open_collection(self, name: str, plan: Mapping[str, Any] | None = None) -> CollectionSummary:
        """A new generation of the collection: the first, or one more beside the older ones.

        plan: how it is to be sampled; `total`, where it is there, is how many trajectories it will have.

        Raises:
            InputError: the name has other characters than letters, digits, `_`, `-` and `.`.
        """
        self.check_name(name)
        with self._database.write() as connection:
            (generation,) = connection.execute(
                "INSERT INTO collections (name, generation, created_at, plan)"
                " SELECT ?, coalesce(max(generation), 0) + 1, ?, ? FROM collections WHERE name = ?"
                " RETURNING generation",
                (name, _now(), json.dumps(plan or {}), name),
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
                f"{_SUMMARIES} AND c.name = ? AND (? IS NULL OR c.generation = ?)"
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

    def add_groups(self, collection: CollectionSummary, groups: Sequence[NewGroup]) -> list[Group]:
        """Put groups without trajectories into an empty collection."""
        added = []
        with self._database.write() as connection:
            for position, new in enumerate(groups):
                script = f"[{','.join(map(_dump, new.script))}]"
                values = (collection.id, position, _dump(new.prompt), json.dumps(new.row, default=str), script)
                cursor = connection.execute(
                    "INSERT INTO groups (collection_id, position, prompt, row, script) VALUES (?, ?, ?, ?, ?)", values
                )
                name = f"{collection.label}/{position}"
                row_id = int(cursor.lastrowid or 0)
                added.append(Group(row_id, name, tuple(new.prompt), dict(new.row), (), tuple(map(tuple, new.script))))
        return added

    def at_once(self) -> AbstractContextManager[Any]:
        """What is put inside is on disk at the end, all of it or nothing, at the price of one."""
        return self._database.write()

    def put(
        self,
        group: Group,
        arrivals: Iterable[Arrival],
        *,
        model: str,
        step: int | None,
        sampling: Mapping[str, Any],
        usage: tuple[int, int] = (0, 0),
    ) -> None:
        """Put what was sampled at its places in a group; what is finished there stays as it is.

        usage: prompt and completion tokens that it cost, added up by collection.
        """
        shared = (model, step, json.dumps(sampling), _now())
        with self._database.write() as connection:
            connection.executemany(
                "INSERT INTO trajectories"
                " (group_id, position, items, pending, extra, model, step, sampling, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (group_id, position) DO UPDATE"
                " SET items = excluded.items, pending = excluded.pending, extra = excluded.extra, step = excluded.step"
                " WHERE pending > 0",
                [(group.id, a.position, _dump(a.items), a.pending, json.dumps(a.extra), *shared) for a in arrivals],
            )
            connection.execute(
                "UPDATE collections SET prompt_tokens = prompt_tokens + ?, completion_tokens = completion_tokens + ?"
                " WHERE id = (SELECT collection_id FROM groups WHERE id = ?)",
                (*usage, group.id),
            )

    def groups(
        self, collection: CollectionSummary, position: int | None = None, *, unfinished: bool = False
    ) -> list[Group]:
        """The groups of a collection with their trajectories, or only the one at `position`.

        unfinished: include conversations that were cut short between two turns.
        """
        where = (collection.id, position, position)
        scope = "g.collection_id = ? AND (? IS NULL OR g.position = ?)"
        groups = self._database.read(f"SELECT * FROM groups g WHERE {scope} ORDER BY position", *where)
        rows = self._database.read(
            f"SELECT t.* FROM trajectories t JOIN groups g ON t.group_id = g.id WHERE {scope}"
            " AND (? OR t.pending = 0) ORDER BY g.position, t.position",
            *where,
            unfinished,
        )
        members: dict[int, list[Row]] = {}
        for row in rows:
            members.setdefault(row["group_id"], []).append(row)
        return [_group(row, collection, members.get(row["id"], [])) for row in groups]

    def _closest(self, label: str) -> str:
        names = [row["name"] for row in self._database.read("SELECT DISTINCT name FROM collections")]
        close = get_close_matches(label, names, n=1)
        return close[0] if close else "%collections lists them" if names else f"%%chat {label}"


def _summary(row: Row) -> CollectionSummary:
    newest = row["newest"] == row["generation"]
    return CollectionSummary(**{**dict(row), "newest": newest, "plan": json.loads(row["plan"])})


def _group(row: Row, collection: CollectionSummary, members: list[Row]) -> Group:
    name = f"{collection.label}/{row['position']}"
    prompt = _PROMPT.validate_json(row["prompt"])
    scenario = json.loads(row["row"])
    trajectories = tuple(_trajectory(member, name, prompt, scenario) for member in members)
    script = _SCRIPT.validate_json(row["script"])
    return Group(row["id"], name, prompt, scenario, trajectories, script)


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
        pending=row["pending"],
        extra=json.loads(row["extra"]),
    )


def _dump(items: Sequence[Wire]) -> str:
    return "[" + ",".join(item.to_json() for item in items) + "]"


def _now() -> str:
    return datetime.now(UTC).isoformat()
