"""Stored summaries of trajectories for tables: conversations are too large to read for each row."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from sqlite3 import Connection
from typing import Any

from pydantic import TypeAdapter

from rolloutlab.api.wire.chat import MessageOrChoice
from rolloutlab.store.models import StoredCollection, StoredTrajectory, TrajectorySummary
from rolloutlab.store.sqlite import Database, Row
from rolloutlab.store.texts import last_user_text

Items = Sequence[MessageOrChoice]
PREVIEW = 200
"""The most characters of an answer in a preview."""
_ANSWER = "coalesce(answer, preview)"
_PAGE = 256
"""Summaries that are added in one transaction."""
_ALL = 2**62
"""More than any position or number of rows."""
_ITEMS: TypeAdapter[tuple[MessageOrChoice, ...]] = TypeAdapter(tuple[MessageOrChoice, ...])
_FINISHED = "FROM groups g CROSS JOIN trajectories t ON t.group_id = g.id AND t.pending = 0"
_IN = "WHERE g.collection_id = ?"
_NARROW = f"""
    SELECT t.id, g.position, t.position, t.reward, t.source, t.components, o.tokens, o.finish_reason
    {_FINISHED} LEFT JOIN outlines o INDEXED BY outlines_without_text ON o.trajectory_id = t.id
    {_IN} AND g.position BETWEEN ? AND ? ORDER BY g.position, t.position LIMIT ?
"""
_GIVEN = "(SELECT value FROM json_each(?))"
_SAME = f"""
    SELECT json_group_array(t.id) AS ids {_FINISHED} JOIN outlines o ON o.trajectory_id = t.id
    {_IN} AND g.position IN {_GIVEN}
    GROUP BY g.id, o.finish_reason, o.preview, o.answer HAVING count(*) > 1 ORDER BY g.position, min(t.position)
"""
_MAY_HAVE_ENDED = """instr(extra, '"episode_end"')"""
_TEXT_ALONE = " AND ".join(
    [
        "json_array_length(items) = 1",
        *(
            f"coalesce(json_extract(items, '$[0].message.{name}'), json_extract(items, '$[0].{name}'), {none}) = {none}"
            for name, none in (("tool_calls", "'[]'"), ("function_call", "''"), ("refusal", "''"), ("audio", "''"))
        ),
        "json_type(items, '$[0].content') IS NOT 'array'",  # its parts may be no text
        """NOT instr(extra, '"additional_histories"')""",
    ]
)
"""Condition in SQL that a trajectory is a single message with only text, so that its answer is all of it."""
_MAY_REASON = """(instr(t.items, 'think>') OR instr(t.items, '"reasoning'))"""


def keep_outline(connection: Connection, row_id: int, items: Items, extra: Mapping[str, Any]) -> None:
    """Store the summary of a trajectory in the transaction that writes it. items: the items after its prompt."""
    columns = "trajectory_id, tokens, finish_reason, preview, answer"
    sql = f"INSERT OR REPLACE INTO outlines ({columns}) VALUES (?, ?, ?, ?, ?)"
    connection.execute(sql, (row_id, *outline_of(items, extra)))


def outline_of(items: Items, extra: Mapping[str, Any]) -> tuple[str, str | None, str, str | None]:
    """Return the tokens of each history as JSON, the finish reason, a preview of the answer, and its rest.

    The rest is the whole answer if that is longer than the preview, else None.
    """
    whole = _without_prompt(items, extra)
    answer = whole.answer
    rest = answer if len(answer) > PREVIEW else None
    return json.dumps(whole.history_tokens), whole.finish_reason, answer[:PREVIEW], rest


class TrajectorySummaries:
    """Summaries of finished trajectories, in order. A missing one, as of an older version, is added when it is read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(
        self, collection: StoredCollection, position: int | None = None, limit: int | None = None
    ) -> list[TrajectorySummary]:
        """Read the summaries of a collection, or of its group at `position`; at most `limit` of them."""
        rows = self._read_narrow(collection, position, limit)
        if any(row["tokens"] is None for row in rows):
            self._add(row["id"] for row in rows if row["tokens"] is None)
            rows = self._read_narrow(collection, position, limit)
        return _make_summaries(rows)

    def refresh(self, outlines: Mapping[int, TrajectorySummary]) -> dict[int, TrajectorySummary]:
        """Return summaries, by id, with the present rewards."""
        rows = self._read_by_id("SELECT id, reward, source, components FROM trajectories WHERE id IN", outlines)
        parsed = _parse_each(parts for *_, parts in rows)
        return {i: outlines[i]._replace(reward=r, source=source, components=parsed[c]) for i, r, source, c in rows}

    def previews(self, ids: Iterable[int]) -> dict[int, tuple[str, bool]]:
        """Read the previews of answers, and whether they are cut."""
        sql = "SELECT trajectory_id, preview, answer IS NOT NULL AS cut FROM outlines WHERE trajectory_id IN"
        return {row["trajectory_id"]: (row["preview"], bool(row["cut"])) for row in self._read_by_id(sql, ids)}

    def answers(self, ids: Iterable[int]) -> dict[int, str]:
        """Read whole answers."""
        sql = f"SELECT trajectory_id, {_ANSWER} AS answer FROM outlines WHERE trajectory_id IN"
        return {row["trajectory_id"]: row["answer"] for row in self._read_by_id(sql, ids)}

    def reasonings(self, ids: Iterable[int]) -> dict[int, str]:
        """Read the reasoning of last completions, where there is any. This takes long: it reads whole conversations."""
        rows = self._read_by_id(f"SELECT t.id, t.items FROM trajectories t WHERE {_MAY_REASON} AND t.id IN", ids)
        whole = {row["id"]: _without_prompt(_ITEMS.validate_json(row["items"])) for row in rows}
        return {row_id: trajectory.reasoning for row_id, trajectory in whole.items() if trajectory.reasoning}

    def ends(self, ids: Iterable[int]) -> dict[int, str]:
        """Read how episodes ended, for the trajectories that an environment or a program has played."""
        rows = self._read_by_id(f"SELECT id, extra FROM trajectories WHERE {_MAY_HAVE_ENDED} AND id IN", ids)
        ends = {row["id"]: _without_prompt((), json.loads(row["extra"])).episode_end for row in rows}
        return {row_id: end for row_id, end in ends.items() if end}

    def may_reason(self, collection: StoredCollection) -> bool:
        """Return whether any conversation has text that may be reasoning."""
        return bool(self._database.read(f"SELECT 1 {_FINISHED} {_IN} AND {_MAY_REASON} LIMIT 1", collection.id))

    def find_holding(self, collection: StoredCollection, part: str) -> set[int]:
        """Find the trajectories whose answer contains a text, ignoring case; return their ids."""
        sql = f"SELECT t.id {_FINISHED} JOIN outlines o ON o.trajectory_id = t.id {_IN} AND holds({_ANSWER}, ?)"
        return {row["id"] for row in self._database.read(sql, collection.id, part.casefold())}

    def same_answers(self, collection: StoredCollection, positions: Iterable[int]) -> list[list[int]]:
        """Find the trajectories of one group with the same answer and finish reason.

        Returns a list of ids for each answer that several trajectories have.
        """
        rows = self._database.read(_SAME, collection.id, json.dumps(list(positions)))
        return [json.loads(row["ids"]) for row in rows]

    def answers_alone(self, ids: Iterable[int]) -> set[int]:
        """Find the trajectories that are only one answer of text, without reasoning, calls or further histories."""
        sql = f"SELECT id FROM trajectories WHERE {_TEXT_ALONE} AND id IN"
        alone = {row["id"] for row in self._read_by_id(sql, ids)}
        return alone - self.reasonings(alone).keys()

    def prompts(self, collection: StoredCollection, positions: Iterable[int]) -> dict[int, str]:
        """Read the last user message of groups, by their position."""
        sql = f"SELECT position, prompt FROM groups WHERE collection_id = ? AND position IN {_GIVEN}"
        rows = self._database.read(sql, collection.id, json.dumps(list(positions)))
        texts = {row["position"]: last_user_text(json.loads(row["prompt"])) for row in rows}
        return {**texts, **self._first_observations(collection, [place for place, text in texts.items() if not text])}

    def _first_observations(self, collection: StoredCollection, positions: Sequence[int]) -> dict[int, str]:
        """Read the last user message before the first completion, for groups whose prompt has none."""
        sql = (
            "SELECT g.position, (SELECT items FROM trajectories WHERE group_id = g.id AND pending = 0 LIMIT 1) AS items"
            f" FROM groups g WHERE g.collection_id = ? AND g.position IN {_GIVEN}"
        )
        rows = self._database.read(sql, collection.id, json.dumps(positions)) if positions else []
        items = {row["position"]: json.loads(row["items"] or "[]") for row in rows}
        return {place: last_user_text(takewhile(lambda item: "role" in item, these)) for place, these in items.items()}

    def rows(self, collection: StoredCollection, positions: Iterable[int] | None = None) -> dict[int, dict[str, Any]]:
        """Read the rows of groups, by their position. positions: the groups; by default all."""
        sql, some = "SELECT position, row FROM groups WHERE collection_id = ?", f" AND position IN {_GIVEN}"
        given = [] if positions is None else [json.dumps(list(positions))]
        return {
            row["position"]: json.loads(row["row"])
            for row in self._database.read(sql + some * len(given), collection.id, *given)
        }

    def origins(self, collection: StoredCollection) -> dict[int, tuple[str, int | None]]:
        """Read the model and the step of each trajectory."""
        rows = self._database.read(f"SELECT t.id, t.model, t.step {_FINISHED} {_IN}", collection.id)
        return {row["id"]: (row["model"], row["step"]) for row in rows}

    def positions(self, collection: StoredCollection) -> list[int]:
        """List the positions of the groups of a collection, empty ones too."""
        sql = "SELECT position FROM groups WHERE collection_id = ? ORDER BY position"
        return [row["position"] for row in self._database.read(sql, collection.id)]

    def count(self, collection: StoredCollection) -> int:
        """Count the finished trajectories of a collection."""
        return int(self._database.read(f"SELECT count(*) {_FINISHED} {_IN}", collection.id)[0][0])

    def newest(self) -> tuple[int, int]:
        """Return a version that changes when trajectories may have been added. This is fast."""
        sql = "SELECT coalesce(max(id), 0), (SELECT count(*) FROM trajectories WHERE pending > 0) FROM trajectories"
        [(row_id, pending)] = self._database.read(sql)
        return row_id, pending

    def complete(self, ids: Iterable[int]) -> None:
        """Add the missing summaries of trajectories."""
        sql = f"SELECT id FROM trajectories WHERE id IN {_GIVEN} AND id NOT IN (SELECT trajectory_id FROM outlines)"
        self._add(row["id"] for row in self._database.read(sql, json.dumps(list(ids))))

    def _read_narrow(self, collection: StoredCollection, position: int | None, limit: int | None) -> list[Row]:
        first, last = (0, _ALL) if position is None else (position, position)
        return self._database.read(_NARROW, collection.id, first, last, _ALL if limit is None else limit)

    def _read_by_id(self, sql: str, ids: Iterable[int]) -> list[Row]:
        return self._database.read(f"{sql} {_GIVEN}", json.dumps(list(ids)))

    def _add(self, ids: Iterable[int]) -> None:
        """Add summaries in pages, a transaction each, so that other writers do not wait long."""
        coming = iter(ids)
        while page := list(islice(coming, _PAGE)):
            self._database.change(partial(_keep_outlines, page))


def _without_prompt(items: Items, extra: Mapping[str, Any] | None = None) -> StoredTrajectory:
    """Make a trajectory that has only its items after the prompt."""
    return StoredTrajectory(0, "", tuple(items), {}, "", None, {}, "", extra=extra or {}, given=0)


def _keep_outlines(ids: Sequence[int], connection: Connection) -> None:
    sql = f"SELECT id, items, extra FROM trajectories WHERE id IN {_GIVEN}"
    for row in connection.execute(sql, (json.dumps(ids),)).fetchall():
        keep_outline(connection, row["id"], _ITEMS.validate_json(row["items"]), json.loads(row["extra"]))


def _make_summaries(rows: Sequence[Row]) -> list[TrajectorySummary]:
    parts = _parse_each(row[5] for row in rows)
    tokens = {text: tuple(counts) for text, counts in _parse_each(row[6] for row in rows).items()}
    return [TrajectorySummary(r[0], r[1], r[2], r[3], r[4], parts[r[5]], tokens[r[6]], r[7]) for r in rows]


def _parse_each(texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts of JSON in a single call, equal ones once; return the values by text."""
    different = dict.fromkeys(texts)
    return dict(zip(different, json.loads(f"[{','.join(different)}]"), strict=True))
