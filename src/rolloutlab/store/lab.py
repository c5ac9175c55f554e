"""The lab: collections of trajectory groups in one SQLite file, with their rewards and the jobs they trained in."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar

from pydantic import TypeAdapter

from rolloutlab.api.wire.chat import Message, MessageOrChoice
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.fsutil import Lock
from rolloutlab.store import models
from rolloutlab.store.arrivals import Placed, dump_arrival
from rolloutlab.store.bare_names import LATEST, BareNames
from rolloutlab.store.changes import ChangeFeed
from rolloutlab.store.deletion import CollectionLifecycle
from rolloutlab.store.growing import GrowingTrajectories
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.locks import lock_for_sampling
from rolloutlab.store.migrations import MIGRATIONS, READABLE_FROM
from rolloutlab.store.models import CollectionSummary, Group, NewGroup, StoredCollection, dump_items, now, parts_of
from rolloutlab.store.origins import Origins
from rolloutlab.store.prompts import fit_prompt, prompt_key
from rolloutlab.store.recent import RecentValues
from rolloutlab.store.results import CollectionResults
from rolloutlab.store.rewards import Rewards
from rolloutlab.store.run_notes import RunNotes
from rolloutlab.store.scorings import Scorings
from rolloutlab.store.spending import Spending
from rolloutlab.store.sqlite import Database, Row
from rolloutlab.store.staging import Draft
from rolloutlab.store.step_numbers import GenerationNumbers
from rolloutlab.store.trajectory_summaries import TrajectorySummaries

T = TypeVar("T")
_NAME = re.compile(r"[\w.-]+")
_PROMPT: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_SCRIPT: TypeAdapter[tuple[tuple[Message, ...], ...]] = TypeAdapter(tuple[tuple[Message, ...], ...])
_ITEMS: TypeAdapter[tuple[MessageOrChoice, ...]] = TypeAdapter(tuple[MessageOrChoice, ...])
_NAMED = """
    c.id, c.name, c.generation, c.created_at, c.plan, c.prompt_tokens, c.completion_tokens, c.generation =
        (SELECT max(generation) FROM collections WHERE name = c.name AND deleted_at IS NULL) AS newest
"""
_COUNTED = f"""
    SELECT {_NAMED}, (SELECT count(*) FROM groups WHERE collection_id = c.id) AS groups,
        count(t.group_id) AS trajectories, count(t.reward) AS scored, avg(t.reward) AS mean_reward
    FROM collections c
    LEFT JOIN groups g ON g.collection_id = c.id
    LEFT JOIN trajectories t ON t.group_id = g.id AND t.pending = 0
"""
_ALL = f"{_COUNTED} WHERE c.deleted_at IS NULL GROUP BY c.id ORDER BY c.id DESC"
_FIND = f"""
    SELECT {_NAMED} FROM collections c
    WHERE c.name = ? AND c.generation BETWEEN ? AND ? AND c.deleted_at IS NULL ORDER BY c.generation DESC LIMIT 1
"""
_GROUPS = "SELECT * FROM groups WHERE collection_id = ? AND position BETWEEN ? AND ? ORDER BY position LIMIT ?"
_MEMBERS = """
    SELECT t.* FROM groups g CROSS JOIN trajectories t ON t.group_id = g.id
    WHERE g.collection_id = ? AND g.position BETWEEN ? AND ? AND (? OR t.pending = 0)
    ORDER BY g.position, t.position
"""
_PUT = """
    INSERT INTO trajectories
        (group_id, position, items, pending, extra, model, step, sampling, created_at, reward, components, source)
    VALUES {} ON CONFLICT (group_id, position) DO UPDATE
    SET items = excluded.items, pending = excluded.pending, extra = excluded.extra,
        step = coalesce(excluded.step, step), reward = excluded.reward, components = excluded.components,
        source = excluded.source
    WHERE pending > 0 AND pending >= excluded.pending
"""
_OUTLINE = """
    INSERT OR REPLACE INTO outlines (trajectory_id, tokens, finish_reason, preview, answer)
    SELECT t.id, column4, column5, column6, column7 FROM (VALUES {}) CROSS JOIN trajectories t
    ON t.group_id = column1 AND t.position = column2 AND t.items = column3
"""
"""Writes outlines of the trajectories just written. One that was finished before, and not written, has other items."""
_COPY_PROMPT = "UPDATE groups SET prompt = (SELECT prompt FROM groups WHERE id = ?2) WHERE id = ?1"
"""Needed for programs, whose groups have as a prompt only what their sampled trajectories have in common."""
_COPY_SAMPLES = """
    INSERT INTO trajectories
        (group_id, position, items, pending, extra, model, step, sampling, created_at, reward, components, source)
    SELECT ?1, position, items, pending, extra, model, step, sampling, created_at,
        iif(source IN ('environment', ?3), reward, NULL), iif(source IN ('environment', ?3), components, '{}'),
        iif(source IN ('environment', ?3), source, NULL)
    FROM trajectories WHERE group_id = ?2
"""
_AT_ONCE = 64
"""The most trajectories in one statement."""
_SPEND = """
    UPDATE collections SET prompt_tokens = prompt_tokens + ?, completion_tokens = completion_tokens + ? WHERE id =
"""
_PAGE = 64
"""Groups per page of `each_group`."""
_LAST = 2**62


class Lab:
    """The database of a lab folder, shared by any number of processes. Each call is durable when it returns.

    names: the generations that bare names mean in a notebook. None: a bare name means the newest generation.
    """

    def __init__(self, path: Path, names: BareNames | None = None) -> None:
        self._database = Database(path, MIGRATIONS, durable=True, readable_from=READABLE_FROM)
        self._names = names
        self.recent = RecentValues()
        self.rewards = Rewards(self._database)
        self.scorings = Scorings(self._database, self.rewards)
        self.outlines = TrajectorySummaries(self._database)
        self.results = CollectionResults(self._database)
        self.step_numbers = GenerationNumbers(self._database)
        self.jobs = SubmittedJobs(self._database)
        self.origins = Origins(self._database)
        self.run_notes = RunNotes(self._database)
        self.lifecycle = CollectionLifecycle(self._database)
        self.feed = ChangeFeed(self._database)
        self.spending = Spending(self._database)

    def close(self) -> None:
        self._database.close()

    @property
    def read_only(self) -> bool:
        """Whether the lab cannot be written."""
        return self._database.read_only

    def check_writable(self) -> None:
        """Raise LabError if the lab is read-only. Called before paid work such as sampling."""
        self._database.check_writable()

    def changes(self) -> tuple[int, int]:
        """Return a version that changes with every write of any process; cheap."""
        return self._database.changes()

    def open_collection(self, name: str, plan: Mapping[str, Any] | None = None) -> CollectionSummary:
        """Create a collection, or a new generation of an existing one.

        plan: how it is sampled; `total`, if present, is the planned number of trajectories.

        Raises:
            InputError: the name has characters other than letters, digits, `_`, `-` and `.`.
        """
        self.check_name(name)
        sql = (
            "INSERT INTO collections (name, generation, created_at, plan)"
            " SELECT ?, coalesce(max(generation), 0) + 1, ?, ? FROM collections WHERE name = ? RETURNING generation"
        )
        values = (name, now(), json.dumps(plan or {}), name)
        (generation,) = self._database.change(lambda connection: connection.execute(sql, values).fetchone())
        return self.collection(f"{name}:{generation}")

    def keep_state(self, collection_id: int, parts: Iterable[str]) -> None:
        """Store, with a collection, which parts of its reward code scoring itself changed."""
        sql = "UPDATE collections SET plan = json_set(plan, '$.state', json(?)) WHERE id = ?"
        self._database.execute(sql, json.dumps(sorted(parts)), collection_id)

    def keep_sizes(self, collection_id: int, sizes: Mapping[int, int], total: int) -> None:
        """Store, with a collection, the planned number of trajectories of some groups and of all together."""
        sql = "UPDATE collections SET plan = json_set(plan, '$.topped_up', json(?), '$.total', ?) WHERE id = ?"
        self._database.execute(sql, json.dumps(sizes), total, collection_id)

    def draft(self) -> Draft:
        """Make a draft of new collections, to be published together. LabError if the lab is read-only."""
        self.check_writable()
        return Draft(self._database, self.check_name, self.keep_name)

    def growing(self, collection: StoredCollection) -> GrowingTrajectories:
        """Make the writer of a collection's unfinished trajectories; one process at a time may use it."""
        return GrowingTrajectories(self._database, collection)

    @staticmethod
    def check_name(name: str) -> None:
        """Raise InputError unless it is a valid collection name."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is not a valid collection name", hint="letters, digits, _ - and .")

    def collections(self) -> list[CollectionSummary]:
        """Read every generation of every collection, newest first."""
        return [CollectionSummary(**self._fields(row)) for row in self._database.read(_ALL)]

    def hidden(self) -> dict[str, int]:
        """Count the trajectories of the collections that lists and searches leave out (`models.is_hidden`), by name."""
        sql = """
            SELECT c.name, count(*) AS trajectories FROM collections c JOIN groups g ON g.collection_id = c.id
            JOIN trajectories t ON t.group_id = g.id AND t.pending = 0
            WHERE c.name GLOB ? AND c.deleted_at IS NULL GROUP BY c.name
        """
        return {row["name"]: row["trajectories"] for row in self._database.read(sql, f"{models.COMPARED}*")}

    def sizes(self) -> dict[str, int]:
        """Count the groups of every generation, by label, newest first; fast on large labs."""
        rows = self._database.read(
            f"SELECT {_NAMED}, (SELECT count(*) FROM groups WHERE collection_id = c.id) AS groups"
            " FROM collections c WHERE deleted_at IS NULL ORDER BY id DESC"
        )
        return {self._to_stored(row, without=("groups",)).label: row["groups"] for row in rows}

    def collection(self, label: str) -> CollectionSummary:
        """Find the collection `name`, `name:N` or `name:latest`, with counts.

        A bare name is this notebook's generation where there are `names`, and the newest where there are none.

        Raises:
            NotFoundError: there is none; the hint names the closest.
        """
        (row,) = self._database.read(f"{_COUNTED} WHERE c.id = ? GROUP BY c.id", self.find(label).id)
        return CollectionSummary(**self._fields(row))

    def generations(self, name: str | None = None) -> list[StoredCollection]:
        """Read every generation of one name, or of all, newest first, without counts."""
        of_name = "c.name = ?1 AND" if name is not None else "?1 IS NULL AND"
        sql = f"SELECT {_NAMED} FROM collections c WHERE {of_name} c.deleted_at IS NULL ORDER BY c.id DESC"
        return [self._to_stored(row) for row in self._database.read(sql, name)]

    def rows(self, collection: StoredCollection) -> list[str]:
        """Read the rows of a collection's groups as JSON, in the order of the groups."""
        read = self._database.read("SELECT row FROM groups WHERE collection_id = ? ORDER BY position", collection.id)
        return [row["row"] for row in read]

    def find(self, label: str) -> StoredCollection:
        """Find a collection as `collection` does, but without counts, and therefore fast."""
        latest = isinstance(label, str) and label.endswith(f":{LATEST}")
        name, generation = parts_of(label.removesuffix(f":{LATEST}") if latest else label) or ("", None)
        if self._names and generation is None and not latest and (own := self._names.own(name)) is not None:
            return self._find_own(name, own, self._names)
        last = _LAST if generation is None else generation
        if not (rows := self._database.read(_FIND, name, generation or 0, last)):
            note = ": this needs one name, not a pattern" if set(label) & set("*?[") else ""
            raise NotFoundError(f"there is no collection {label!r}{note}", hint=self._find_closest(label))
        if generation is None:
            self.keep_name(name, rows[0]["id"])
        return self._to_stored(rows[0])

    def keep_name(self, name: str, number: int) -> None:
        """Let a bare name mean the collection with this id from now on, in this notebook."""
        if self._names:
            self._names.keep(name, number)

    def _find_own(self, name: str, own: int, names: BareNames) -> StoredCollection:
        """Find the generation that a bare name means in this notebook. Tells the user if there is a newer one."""
        collection = self.by_id(own)
        if collection.name != name:
            raise NotFoundError(f"{name} was renamed to {collection.name}", hint=collection.label)
        (newest,) = self._database.read(_FIND, name, 0, _LAST)
        if newest["id"] != own:
            names.tell(name, collection.generation, newest["generation"])
        return collection

    def by_id(self, number: int) -> StoredCollection:
        """Find the collection with an id, under its present name; NotFoundError if it was deleted."""
        (row,) = self._database.read(f"SELECT {_NAMED}, c.deleted_at FROM collections c WHERE c.id = ?", number)
        collection = self._to_stored(row, without=("deleted_at",))
        if row["deleted_at"]:
            label = f"{collection.name}:{collection.generation}"
            raise NotFoundError(f"{label} was deleted", hint=f"%collections --restore {label}")
        return collection

    def forget_deleted(self, name: str) -> str:
        """If this notebook's generation was deleted, let the bare name mean the newest one.

        Returns:
            A line about it for the user, or "".
        """
        own = self._names.own(name) if self._names else None
        if not self._names or own is None:
            return ""
        with suppress(NotFoundError):
            self.by_id(own)
            return ""
        self._names.drop(name)
        with suppress(NotFoundError):
            left = self.find(name)
            return f"{name} is {name}:{left.generation} from now on"
        return ""

    def keep_restored(self, labels: Sequence[str]) -> None:
        """Let a bare name mean the restored generation, if it is newer than the one that the name means now."""
        name, _, number = labels[0].partition(":")
        self.forget_deleted(name)
        restored, own = self.find(f"{name}:{number or LATEST}"), self._names.own(name) if self._names else None
        if own is None or self.by_id(own).generation < restored.generation:
            self.keep_name(name, restored.id)

    def made_elsewhere(self, trajectories: Iterable[str]) -> list[str]:
        """Return lines about trajectories (`letters:2/0/3`) of newer generations than those that bare names mean."""
        counts = Counter(name.partition("/")[0] for name in trajectories)
        lines = []
        for label, hits in counts.items():
            name, generation = parts_of(label) or ("", None)
            own = self._names.own(name) if self._names and generation is not None else None
            mine = self._find_generation(own) if own is not None else None
            if mine is not None and mine < (generation or 0):
                what = f"{hits} of the hits {'is' if hits == 1 else 'are'} of {label}, which was made elsewhere"
                lines.append(f"{what}; {name} is {name}:{mine} in this notebook -> generation == {mine} in --where")
        return lines

    def _find_generation(self, number: int) -> int | None:
        """Find the generation of the collection with an id; None if it was deleted."""
        try:
            return self.by_id(number).generation
        except NotFoundError:
            return None

    def _to_stored(self, row: Row, without: Sequence[str] = ()) -> StoredCollection:
        return StoredCollection(**{key: value for key, value in self._fields(row).items() if key not in without})

    def _fields(self, row: Row) -> dict[str, Any]:
        """Return the values of `_NAMED`. `bare` is set if the bare name means this generation, and it is the newest."""
        own = self._names.own(row["name"]) if self._names else None
        fields = dict(row)
        newest = fields.pop("newest")
        return {**fields, "bare": bool(newest) and own in (None, row["id"]), "plan": json.loads(row["plan"])}

    def add_groups(self, collection: StoredCollection, groups: Sequence[NewGroup]) -> list[Group]:
        """Put groups without trajectories into an empty collection."""

        def add(connection: Connection, position: int, new: NewGroup) -> Group:
            values = (collection.id, position, *texts_of(new))
            sql = "INSERT INTO groups (collection_id, position, prompt, row, script) VALUES (?, ?, ?, ?, ?)"
            cursor = connection.execute(sql, values)
            name = f"{collection.label}/{position}"
            row_id = int(cursor.lastrowid or 0)
            return Group(row_id, name, tuple(new.prompt), dict(new.row), (), tuple(map(tuple, new.script)))

        return self._database.change(lambda connection: [add(connection, *each) for each in enumerate(groups)])

    def group_texts(self, collection: StoredCollection) -> list[tuple[int, tuple[str, str, str]]]:
        """Read the id of each group, with its prompt, row and script as stored; fast, because no trajectory is read."""
        rows = self._database.read(_GROUPS, collection.id, 0, _LAST, _LAST)
        return [(row["id"], (row["prompt"], row["row"], row["script"])) for row in rows]

    def copy_groups(
        self,
        name: str,
        plan: Mapping[str, Any],
        groups: Sequence[NewGroup],
        samples: Mapping[int, int],
        *,
        by_program: bool = False,
    ) -> CollectionSummary:
        """Make a generation of these groups, and copy what was sampled for equal groups before.

        Args:
            name: The collection.
            plan: As of `open_collection`.
            groups: The groups of the new generation.
            samples: By the position of a new group, the id of the stored group to copy from.
            by_program: Whether to copy rewards with the source `function`, which a program gave. Rewards that an
                environment gave are copied in any case, others never.
        """
        source = "function" if by_program else "environment"

        def copy(connection: Connection) -> CollectionSummary:
            opened = self.open_collection(name, plan)
            made = self.add_groups(opened, groups)
            pairs = [(made[place].id, group_id) for place, group_id in samples.items()]
            connection.executemany(_COPY_PROMPT, pairs)
            connection.executemany(_COPY_SAMPLES, [(*pair, source) for pair in pairs])
            return self.collection(f"{name}:{opened.generation}")

        return self._database.change(copy)

    def fit_prompt(self, group: Group, beginning: Sequence[Message]) -> Group:
        """Shorten the group's prompt to what its trajectories and a trajectory with this beginning have in common."""
        return self._database.change(lambda connection: fit_prompt(connection, group, beginning))

    def refs(self, group: Group) -> dict[int, models.Ref]:
        """Find the trajectories of a group by their position."""
        rows = self._database.read("SELECT id, position FROM trajectories WHERE group_id = ?", group.id)
        return {row["position"]: models.Ref(row["id"], f"{group.name}/{row['position']}") for row in rows}

    def at_once(self, work: Callable[[], T]) -> T:
        """Call `work` in one transaction and return its result."""
        return self._database.change(lambda _: work())

    def put(
        self,
        group: Group,
        arrivals: Iterable[models.Arrival],
        *,
        model: str,
        step: int | None,
        sampling: Mapping[str, Any],
        usage: tuple[int, int] = (0, 0),
    ) -> None:
        """Store samples of a group; finished trajectories are not overwritten.

        Args:
            group: The group.
            arrivals: The samples.
            model: The model that sampled them.
            step: The number of its checkpoint, if known.
            sampling: Temperature, top_p and seed.
            usage: Prompt and completion tokens to add to the counts of the collection.
        """
        self.put_all([Placed(group, [*map(dump_arrival, arrivals)], model, step, sampling, usage)])

    def put_all(self, placed: Sequence[Placed]) -> None:
        """Store samples as `put` does, for groups of one collection in one transaction.

        Rows are batched into statements because each statement releases the GIL, and getting it back takes milliseconds
        while other threads are busy.
        """
        if not placed:
            return
        rows = [row for each in placed for row in _make_rows(each)]
        usage = [sum(each.usage[i] for each in placed) for i in (0, 1)]

        def put(connection: Connection) -> None:
            for first in range(0, len(rows), _AT_ONCE):
                some = rows[first : first + _AT_ONCE]
                _execute(connection, _PUT, [row for row, _ in some])
                _execute(connection, _OUTLINE, [(*row[:3], *outline) for row, outline in some])
            sql = f"{_SPEND} (SELECT collection_id FROM groups WHERE id = ?)"
            connection.execute(sql, (*usage, placed[0].group.id))

        self._database.change(put)

    def lock_for_sampling(self, collection: StoredCollection) -> Lock:
        """Lock a collection for sampling, across processes; ConflictError if it is locked."""
        return lock_for_sampling(self._database.path.parent / "sampling", collection.id, collection.label)

    def spend(self, collection: StoredCollection, prompt_tokens: int, completion_tokens: int) -> None:
        """Add to the counts of tokens that a collection has cost."""
        self._database.execute(f"{_SPEND} ?", prompt_tokens, completion_tokens, collection.id)

    def groups(
        self, collection: StoredCollection, position: int | None = None, *, unfinished: bool = False
    ) -> list[Group]:
        """Read the groups of a collection with their trajectories, or only the one at `position`.

        unfinished: include conversations that were cut short between two turns.
        """
        first, last = (0, _LAST) if position is None else (position, position)
        return self._read_page(collection, first, last, _LAST, unfinished)

    def each_group(self, collection: StoredCollection) -> Iterator[Group]:
        """Yield the groups of a collection, read in pages, for collections larger than memory."""
        first = 0
        while page := self._read_page(collection, first, _LAST, _PAGE, unfinished=False):
            yield from page
            first = page[-1].position + 1

    def _read_page(
        self, collection: StoredCollection, first: int, last: int, limit: int, unfinished: bool
    ) -> list[Group]:
        if not (groups := self._database.read(_GROUPS, collection.id, first, last, limit)):
            return []
        between = groups[0]["position"], groups[-1]["position"]
        members: dict[int, list[Row]] = {}
        for row in self._database.read(_MEMBERS, collection.id, *between, unfinished):
            members.setdefault(row["group_id"], []).append(row)
        return [_read_group(row, collection, members.get(row["id"], [])) for row in groups]

    def prompts(self, labels: Iterable[str]) -> set[str]:
        """Read the prompts of these generations (`name:N`, even deleted ones), as `prompt_key` has them."""
        sql = """
            SELECT prompt, row, position, plan FROM groups g JOIN collections c ON c.id = g.collection_id
            WHERE c.name = ? AND c.generation = ?
        """
        pages = (self._database.read(sql, *(parts_of(label) or (label, None))) for label in labels)
        return {_prompt_key(row) for rows in pages for row in rows}

    def _find_closest(self, label: str) -> str:
        rows = self._database.read("SELECT DISTINCT name FROM collections WHERE deleted_at IS NULL")
        names = [row["name"] for row in rows]
        close = get_close_matches(label, names, n=1)
        name, _ = parts_of(label) or ("NAME", None)
        return close[0] if close else "%collections lists them" if names else f"%%chat {name}"


def texts_of(new: NewGroup) -> tuple[str, str, str]:
    """Return prompt, row and script of a group as they are stored."""
    script = f"[{','.join(map(dump_items, new.script))}]"
    return dump_items(new.prompt), json.dumps(new.row, allow_nan=False), script


def _prompt_key(row: Row) -> str:
    plan = json.loads(row["plan"])
    return prompt_key(row["prompt"], json.loads(row["row"]), row["position"], plan)


def _make_rows(placed: Placed) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield the rows of `trajectories` and `outlines` of some arrivals."""
    sampling, created_at = json.dumps(placed.sampling), now()
    for arrival in placed.arrivals:
        texts = (placed.group.id, arrival.position, arrival.items, arrival.pending, arrival.extra)
        row = (*texts, placed.model, placed.step, sampling, created_at)
        parts = arrival.components
        reward = (sum(parts.values()), json.dumps(parts), "environment") if parts else (None, "{}", None)
        yield (*row, *reward), arrival.outline


def _execute(connection: Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Execute a statement that takes several rows."""
    marks = f"({', '.join('?' * len(rows[0]))})"
    connection.execute(sql.format(", ".join([marks] * len(rows))), [value for row in rows for value in row])


def _read_group(row: Row, collection: StoredCollection, members: list[Row]) -> Group:
    name = f"{collection.label}/{row['position']}"
    prompt = _PROMPT.validate_json(row["prompt"])
    # a copy of the row for each trajectory, because a reward function may change the one that it gets
    trajectories = tuple(_read_trajectory(member, name, prompt, json.loads(row["row"])) for member in members)
    script = _SCRIPT.validate_json(row["script"])
    return Group(row["id"], name, prompt, json.loads(row["row"]), trajectories, script)


def _read_trajectory(
    row: Row, group: str, prompt: tuple[Message, ...], scenario: dict[str, Any]
) -> models.StoredTrajectory:
    as_stored = ("id", "model", "step", "created_at", "reward", "source", "pending")
    return models.StoredTrajectory(
        name=f"{group}/{row['position']}",
        items=(*prompt, *_ITEMS.validate_json(row["items"])),
        row=scenario,
        given=len(prompt),
        **{name: row[name] for name in as_stored},
        **{name: json.loads(row[name]) for name in ("sampling", "components", "extra")},
    )
