"""Records that mirror the lab's trajectories: which of them are indexed, which have changed, which have no vector."""

import json
from collections.abc import Callable, Iterable, Mapping
from sqlite3 import Connection
from typing import Any, NamedTuple

from rolloutlab.search.engine.record import metadata_json
from rolloutlab.search.engine.records import Records

_LAST = "\U0010ffff"
"""The last character there is."""
_GIVEN = "(SELECT value FROM json_each(?))"
_BARE = """
    SELECT row, id, document FROM records r WHERE row > ? AND document IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM vectors WHERE row = r.row) ORDER BY row LIMIT ?
"""


class Bare(NamedTuple):
    """A record without an embedding; rows ascend in storage order."""

    row: int
    id: str
    document: str


class MirroredRecords(Records):
    """`Records`, with how far the index has followed the lab."""

    @property
    def mark(self) -> str | None:
        """What `keep_mark` was told last."""
        rows = self._read("SELECT value FROM state WHERE name = 'mark'")
        return str(rows[0][0]) if rows else None

    def keep_mark(self, mark: str) -> None:
        """Remember how far the records are, all of them."""

        def write(connection: Connection, _: int) -> None:
            connection.execute("INSERT OR REPLACE INTO state VALUES ('mark', ?)", (mark,))
            connection.execute("DELETE FROM state WHERE name = 'begun'")

        self._write(write)

    def begin(self) -> None:
        """Remember that records come which `keep_mark` has not told of yet."""

        def write(connection: Connection, _: int) -> None:
            connection.execute("INSERT OR REPLACE INTO state VALUES ('begun', 1)")

        self._write(write)

    @property
    def begun(self) -> bool:
        """Whether somebody began and did not come to `keep_mark`."""
        return bool(self._read("SELECT 1 FROM state WHERE name = 'begun'"))

    def beginnings(self) -> set[str]:
        """What ids begin with, up to a slash."""
        sql = "SELECT substr(id, 1, instr(id, '/') - 1) FROM"
        return {row[0] for row in self._read(f"{sql} records UNION {sql} left_out")}

    def rename(self, old: str, new: str) -> None:
        """Let ids that begin with one text begin with another; their embeddings stay."""

        def write(connection: Connection, revision: int) -> None:
            connection.execute(
                "UPDATE records SET id = ? || substr(id, ?), revision = ? WHERE id >= ? AND id < ?",
                (new, len(old) + 1, revision, old, f"{old}{_LAST}"),
            )
            connection.execute(
                "UPDATE left_out SET id = ? || substr(id, ?) WHERE id >= ? AND id < ?",
                (new, len(old) + 1, old, f"{old}{_LAST}"),
            )

        self._write(write)

    def forget(self, beginning: str) -> None:
        """Delete the records whose ids begin with a text, and what was left out under it."""
        self.delete(self.ids(beginning))

        def write(connection: Connection, _: int) -> None:
            connection.execute("DELETE FROM left_out WHERE id >= ? AND id < ?", (beginning, f"{beginning}{_LAST}"))

        self._write(write)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Remember, by id, why something could not be made a record."""

        def write(connection: Connection, _: int) -> None:
            connection.executemany("INSERT OR REPLACE INTO left_out VALUES (?, ?)", list(reasons.items()))

        if reasons:
            self._write(write)

    def left_out(self) -> dict[str, str]:
        """What could not be made a record: the reason of each by its id."""
        return {row[0]: row[1] for row in self._read("SELECT id, reason FROM left_out ORDER BY id")}

    def ids(self, beginning: str) -> list[str]:
        """The ids that begin with a text, in storage order."""
        sql = "SELECT id FROM records WHERE id >= ? AND id < ? ORDER BY row"
        return [row[0] for row in self._read(sql, beginning, f"{beginning}{_LAST}")]

    def known(self, ids: Iterable[str]) -> set[str]:
        """Those of some ids that are there."""
        return {row[0] for row in self._read(f"SELECT id FROM records WHERE id IN {_GIVEN}", json.dumps(list(ids)))}

    def amend(self, changes: Mapping[str, Mapping[str, Any]], replaces: Callable[[str], bool]) -> None:
        """Change the metadata of some records; ids that are not there are passed over.

        changes: new values by id. replaces: which fields they take the place of; all others stay.
        """

        def write(connection: Connection, revision: int) -> None:
            sql = f"SELECT id, metadata FROM records WHERE id IN {_GIVEN}"
            for id_, metadata in connection.execute(sql, (json.dumps(list(changes)),)).fetchall():
                had = json.loads(metadata)
                now = {name: value for name, value in had.items() if not replaces(name)} | dict(changes[id_])
                if now != had:
                    metadata = metadata_json(id_, now)
                    connection.execute(
                        "UPDATE records SET metadata = ?, revision = ? WHERE id = ?", (metadata, revision, id_)
                    )

        self._write(write)

    def documents(self, ids: Iterable[str]) -> dict[str, str]:
        """Documents by id."""
        sql = f"SELECT id, document FROM records WHERE document IS NOT NULL AND id IN {_GIVEN}"
        return {row[0]: row[1] for row in self._read(sql, json.dumps(list(ids)))}

    def without_vectors(self, after: int, limit: int) -> list[Bare]:
        """Some records beyond a row that have a document and no embedding yet."""
        return [Bare(*row) for row in self._read(_BARE, after, limit)]

    def embedded(self) -> int:
        """How many records have an embedding."""
        return int(self._read("SELECT count(*) FROM vectors")[0][0])

    def values(self, field: str, limit: int = 50) -> list[str]:
        """Some of the texts that a field holds."""
        path = json.dumps(field)
        sql = """
            SELECT DISTINCT value FROM (SELECT metadata FROM records ORDER BY row DESC LIMIT 20000),
            json_each(metadata, '$.' || ?) WHERE type = 'text' LIMIT ?
        """
        return sorted(row[0] for row in self._read(sql, path, limit))
