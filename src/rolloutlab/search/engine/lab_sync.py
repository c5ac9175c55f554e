"""Records as a mirror of the lab: sync cursor, renames, unreadable trajectories, missing vectors."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from sqlite3 import Connection
from typing import Any, NamedTuple

from rolloutlab.search.engine.records import UNEMBED, Record, Records, metadata_json, spans_json, text

_LAST = "\U0010ffff"
"""The largest code point, for prefix ranges."""
_GIVEN = "(SELECT value FROM json_each(?))"
_BARE = """
    SELECT row, id, document FROM records r WHERE row > ? AND document IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM vectors WHERE row = r.row) ORDER BY row LIMIT ?
"""


class Bare(NamedTuple):
    """A record without an embedding."""

    row: int
    id: str
    document: str


class MirroredRecords(Records):
    """`Records` with the state of synchronization with the lab."""

    @property
    def mark(self) -> str | None:
        """The cursor that `keep_mark` stored last; None if there is none."""
        rows = self._read("SELECT value FROM state WHERE name = 'mark'")
        return str(rows[0][0]) if rows else None

    def keep_mark(self, mark: str) -> None:
        """Store the cursor up to which the records are complete."""

        def write(connection: Connection, _: int) -> None:
            connection.execute("INSERT OR REPLACE INTO state VALUES ('mark', ?)", (mark,))
            connection.execute("DELETE FROM state WHERE name = 'begun'")

        self._write(write)

    def begin(self) -> None:
        """Store that an update has begun. `keep_mark` ends it."""
        self._write(lambda connection, _: connection.execute("INSERT OR REPLACE INTO state VALUES ('begun', 1)"))

    @property
    def was_interrupted(self) -> bool:
        """Whether an update began and was interrupted before `keep_mark`."""
        return bool(self._read("SELECT 1 FROM state WHERE name = 'begun'"))

    def prefixes(self) -> set[str]:
        """List the prefixes of ids up to the first slash."""
        sql = "SELECT substr(id, 1, instr(id, '/') - 1) FROM"
        return {row[0] for row in self._read(f"{sql} records UNION {sql} left_out")}

    def rename(self, old: str, new: str) -> None:
        """Replace a prefix of ids. Embeddings stay."""

        def write(connection: Connection, revision: int) -> None:
            values, renamed = (new, len(old) + 1, old, f"{old}{_LAST}"), "SET id = ?1 || substr(id, ?2)"
            where = "WHERE id >= ?3 AND id < ?4"
            connection.execute(f"UPDATE records {renamed}, revision = ?5 {where}", (*values, revision))
            connection.execute(f"UPDATE left_out {renamed} {where}", values)

        self._write(write)

    def forget(self, prefix: str) -> None:
        """Delete the records with a prefix, and the unreadable ones under it."""
        self.delete(self.ids(prefix))
        sql, values = "DELETE FROM left_out WHERE id >= ? AND id < ?", (prefix, f"{prefix}{_LAST}")
        self._write(lambda connection, _: connection.execute(sql, values))

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Store, by id, why a trajectory could not be indexed."""
        sql, rows = "INSERT OR REPLACE INTO left_out VALUES (?, ?)", list(reasons.items())
        if rows:
            self._write(lambda connection, _: connection.executemany(sql, rows))

    def left_out(self) -> dict[str, str]:
        """Return the trajectories that could not be indexed: reasons by id."""
        return {row[0]: row[1] for row in self._read("SELECT id, reason FROM left_out ORDER BY id")}

    def ids(self, prefix: str) -> list[str]:
        """List the ids with a prefix, in storage order."""
        sql = "SELECT id FROM records WHERE id >= ? AND id < ? ORDER BY row"
        return [row[0] for row in self._read(sql, prefix, f"{prefix}{_LAST}")]

    def times(self, ids: Iterable[str]) -> dict[str, float | None]:
        """Return the field `time` of each record that exists."""
        sql = f"SELECT id, json_extract(metadata, '$.time') FROM records WHERE id IN {_GIVEN}"
        return {row[0]: row[1] for row in self._read(sql, json.dumps(list(ids)))}

    def amend(self, changes: Mapping[str, Mapping[str, Any]], replaces: Callable[[str], bool]) -> None:
        """Change the metadata of some records. Unknown ids are ignored.

        changes: new values by id. replaces: tells which fields are removed first. All others stay.
        """

        def write(connection: Connection, revision: int) -> None:
            sql = f"SELECT id, metadata FROM records WHERE id IN {_GIVEN}"
            for id_, metadata in connection.execute(sql, (json.dumps(list(changes)),)).fetchall():
                had = json.loads(metadata)
                now = {name: value for name, value in had.items() if not replaces(name)} | dict(changes[id_])
                if now != had:
                    values = metadata_json(id_, now), revision, id_
                    connection.execute("UPDATE records SET metadata = ?, revision = ? WHERE id = ?", values)

        self._write(write)

    def outdated(self) -> list[str]:
        """List the ids of records that an earlier version wrote, newest first."""
        return [row[0] for row in self._read("SELECT id FROM records WHERE outdated ORDER BY row DESC")]

    def renew(self, records: Iterable[Record], fields: Collection[str]) -> None:
        """Replace documents and these metadata fields if they changed. A changed document loses its embedding."""

        def write(connection: Connection, revision: int) -> None:
            for record in records:
                spans = spans_json(record.reasoning)
                sql = "SELECT document, metadata, reasoning FROM records WHERE id = ?"
                for document, metadata, reasoning in connection.execute(sql, (record.id,)).fetchall():
                    now = None if record.document is None else text(record.document, "document")
                    rest = {name: value for name, value in json.loads(metadata).items() if name not in fields}
                    rest |= {name: value for name, value in record.metadata.items() if name in fields}
                    if now != document:
                        connection.execute(UNEMBED, (record.id,))
                    if (now, rest, spans) != (document, json.loads(metadata), reasoning):
                        values = now, metadata_json(record.id, rest), spans, revision, record.id
                        sql = "UPDATE records SET document = ?, metadata = ?, reasoning = ?, revision = ? WHERE id = ?"
                        connection.execute(sql, values)
                connection.execute("UPDATE records SET outdated = 0 WHERE id = ?", (record.id,))

        self._write(write)

    def keep_rest(self) -> None:
        """Mark the remaining outdated records, which could not be renewed, as up to date."""
        self._write(lambda connection, _: connection.execute("UPDATE records SET outdated = 0 WHERE outdated"))

    def documents(self, ids: Iterable[str]) -> dict[str, str]:
        """Return documents by id."""
        sql = f"SELECT id, document FROM records WHERE document IS NOT NULL AND id IN {_GIVEN}"
        return {row[0]: row[1] for row in self._read(sql, json.dumps(list(ids)))}

    def without_vectors(self, after: int, limit: int) -> list[Bare]:
        """Return the next records after a row that have a document and no embedding."""
        return [Bare(*row) for row in self._read(_BARE, after, limit)]

    def count_embedded(self) -> int:
        """Count the records that have an embedding."""
        return int(self._read("SELECT count(*) FROM vectors")[0][0])

    def values(self, field: str, limit: int = 50) -> list[str]:
        """List some string values of a field, from the newest records."""
        path = json.dumps(field)
        sql = """
            SELECT DISTINCT value FROM (SELECT metadata FROM records ORDER BY row DESC LIMIT 20000),
            json_each(metadata, '$.' || ?) WHERE type = 'text' LIMIT ?
        """
        return sorted(row[0] for row in self._read(sql, path, limit))
