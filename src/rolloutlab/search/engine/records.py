"""Record store of the search index: one SQLite file, shared by any number of processes."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rolloutlab.errors import InputError, LabError
from rolloutlab.sanitize import replace_surrogates
from rolloutlab.search.engine.backend import Snapshot
from rolloutlab.search.engine.in_memory import PARAGRAPH, REBUILD, Table
from rolloutlab.search.engine.patterns import TimedSearch
from rolloutlab.search.engine.snapshot import BM25, TableSnapshot
from rolloutlab.search.engine.vectors import Space, coordinates
from rolloutlab.search.rank import EMBEDDING, SparseVector
from rolloutlab.store.file_thread import Turns
from rolloutlab.store.sqlite import Database

__all__ = ["PARAGRAPH", "EmbeddingModel", "Record", "Records", "Span", "discard"]
T = TypeVar("T")
_ENDS = 10_000
"""How many deletions are kept for readers that refresh incrementally. Beyond that they reload everything."""
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
"""SQLite errors of a damaged file, besides a missing table. Other errors come from the disk or are bugs."""
_WHOLE = 2**63
Span = tuple[int, int]
"""Begin and end of a part of a document, in characters."""
_HINT = 'Record("7", metadata={"reward": 0.5, "model": "lab/practice"})'


@dataclass(frozen=True)
class Record:
    """A record.

    Attributes:
        metadata: Strings, numbers, booleans and lists of them. None counts as absent.
        embedding: A number per dimension.
        sparse: Sparse vectors by key.
        reasoning: Parts of the document, which together are the field `reasoning_text`.
    """

    id: str
    document: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: Sequence[float] | None = None
    sparse: Mapping[str, SparseVector] = field(default_factory=dict)
    reasoning: Sequence[Span] = ()


@dataclass(frozen=True)
class EmbeddingModel:
    """Identity of the embedding model of an index."""

    name: str
    dimension: int
    digest: str


class Records:
    """Records in a file, as a `Backend`.

    An object executes one search at a time, which does not block writers and other processes. If another process
    deletes the file, a new one is created.

    Args:
        path: The file.
        space: How dense vectors are compared.
        regex_timeout: Seconds for all regular expressions of one search; None is no limit.

    Raises:
        LabError: the file is damaged or cannot be used.
        InputError: a record is invalid, or its embedding has another dimension or model than the stored ones.
    """

    def __init__(self, path: Path, *, space: Space = "cosine", regex_timeout: float | None = None) -> None:
        if space not in ("cosine", "l2", "ip"):
            raise InputError(f"{space!r} is not a vector space", hint='space="cosine", "l2" or "ip"')
        self.path, self._space, self._regex_timeout = path, space, regex_timeout
        self._turns = Turns("rolloutlab-search-turns", self._reopen_if_replaced)
        self._agreed: EmbeddingModel | None = None
        with self._damage_as_lab_error():
            self._open()

    def within(self, work: Callable[[Snapshot], T]) -> T:
        """Call `work` with a snapshot for one search and return its result."""

        def look() -> T:
            self._table.refresh()
            find = TimedSearch(self._regex_timeout)
            return work(TableSnapshot(self._table, self._reader, self._space, find))

        with self._damage_as_lab_error():
            return self._turns.take(lambda: self._reader.at_one_moment(look))

    @property
    def count(self) -> int:
        return int(self._read("SELECT count(*) FROM records")[0][0])

    @property
    def revision(self) -> int:
        """The number of write transactions of the file."""
        return int(self._read("SELECT value FROM state WHERE name = 'revision'")[0][0])

    def fields(self) -> dict[str, tuple[str, ...]]:
        """Return the types in each field: `bool`, `int`, `float`, `str`, `list`, and `sparse` for sparse vectors."""

        def read(_: Snapshot) -> dict[str, tuple[str, ...]]:
            kinds = self._table.columns.fields()
            for key in self._table.sparse_keys():
                kinds[key] = (*kinds.get(key, ()), "sparse")
            return kinds

        return self.within(read)

    def upsert(self, records: Iterable[Record]) -> None:
        """Insert or replace records by id, embeddings included, in one transaction."""
        if not (last := {record.id: record for record in records}):
            return
        rows = [_row(record) for record in last.values()]
        vectors = {r.id: vector_blob(r.embedding, f"record {r.id!r}") for r in last.values() if r.embedding is not None}
        keyed = [(r.id, key, vector) for r in last.values() for key, vector in _sparse(r)]
        sparse = [(key, *sparse_blobs(vector, f"record {id_!r}"), id_) for id_, key, vector in keyed]

        def write(connection: sqlite3.Connection, revision: int) -> None:
            connection.executemany(UNEMBED, [(id_,) for id_, *_ in rows if id_ not in vectors])
            connection.executemany(_UNSPARSE, [(id_,) for id_, *_ in rows])
            connection.executemany(_UPSERT, [(*row, revision) for row in rows])
            connection.executemany("INSERT INTO sparse SELECT row, ?, ?, ? FROM records WHERE id = ?", sparse)
            self._set_vectors(connection, vectors)

        self._write(write)

    def embed(self, vectors: Mapping[str, Sequence[float]]) -> None:
        """Set the embeddings of some records. Unknown ids are ignored."""
        blobs = {id_: vector_blob(values, f"record {id_!r}") for id_, values in vectors.items()}

        def write(connection: sqlite3.Connection, revision: int) -> None:
            connection.executemany("UPDATE records SET revision = ? WHERE id = ?", [(revision, id_) for id_ in blobs])
            self._set_vectors(connection, blobs)

        self._write(write)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete records. Unknown ids are ignored."""
        listed = json.dumps(list(ids))
        chosen = "(SELECT row FROM records WHERE id IN (SELECT value FROM json_each(?)))"

        def write(connection: sqlite3.Connection, revision: int) -> None:
            connection.execute(f"INSERT INTO gone SELECT row, ? FROM records WHERE row IN {chosen}", (revision, listed))
            connection.execute(f"DELETE FROM records WHERE row IN {chosen}", (listed,))
            if connection.execute("SELECT count(*) FROM gone").fetchone()[0] > _ENDS:
                connection.execute("DELETE FROM gone")
                _set(connection, "horizon", revision)

        self._write(write)

    @property
    def model(self) -> EmbeddingModel | None:
        """The embedding model, if one was set."""
        rows = self._read("SELECT value FROM state WHERE name = 'model'")
        return EmbeddingModel(*json.loads(rows[0][0])) if rows else None

    def set_model(self, name: str, dimension: int, digest: str) -> None:
        """Set the embedding model, or raise InputError if there are embeddings of another."""
        model = EmbeddingModel(name, dimension, digest)

        def write(connection: sqlite3.Connection, _: int) -> None:
            stored = _state(connection, "model")
            if stored is not None and EmbeddingModel(*json.loads(stored)) == model:
                return
            if connection.execute("SELECT 1 FROM vectors LIMIT 1").fetchone():
                other = EmbeddingModel(*json.loads(stored)).name if stored is not None else "a model that is not known"
                raise _mixed(f"the stored embeddings are from {other}, not from {name}")
            _set(connection, "model", json.dumps([name, dimension, digest]))
            _set(connection, "dimension", dimension)

        self._write(write)
        self._agreed = model

    def close(self) -> None:
        self._turns.end()
        self._close_files()

    def _close_files(self) -> None:
        self._reader.close()
        self._writer.close()

    def _read(self, sql: str, *values: Any) -> list[Any]:
        with self._damage_as_lab_error():
            return self._turns.take(lambda: self._reader.read(sql, *values))

    def _set_vectors(self, connection: sqlite3.Connection, blobs: Mapping[str, bytes]) -> None:
        if not blobs:
            return
        model = _state(connection, "model")
        if self._agreed is not None and (model is None or EmbeddingModel(*json.loads(model)) != self._agreed):
            raise _mixed(f"another process has replaced {self._agreed.name} by another model")
        dimension = _state(connection, "dimension") or len(next(iter(blobs.values()))) // 4
        for id_, blob in blobs.items():
            if len(blob) != 4 * dimension:
                raise _mixed(f"record {id_!r} has {len(blob) // 4} numbers, where {EMBEDDING} has {dimension}")
        _set(connection, "dimension", dimension)
        pairs = [(blob, id_) for id_, blob in blobs.items()]
        connection.executemany("INSERT OR REPLACE INTO vectors SELECT row, ? FROM records WHERE id = ?", pairs)

    def _write(self, work: Callable[[sqlite3.Connection, int], object]) -> None:
        """Call `work` within a transaction, with the revision that it makes."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE state SET value = value + 1 WHERE name = 'revision'")
            work(connection, int(_state(connection, "revision")))

        with self._damage_as_lab_error():
            self._turns.take(lambda: self._writer).change(write)

    def _open(self) -> None:
        self._writer = Database(self.path, MIGRATIONS)
        self._reader = Database(self.path, MIGRATIONS)
        self._file = self.path.stat().st_ino
        self._table = Table(self._reader)

    def _reopen_if_replaced(self) -> None:
        """Open the files again if the path names another file now."""
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._file:
                return
        self._close_files()
        self._open()

    @contextmanager
    def _damage_as_lab_error(self) -> Iterator[None]:
        """Translate SQLite errors of a damaged file to LabError with the command that rebuilds it."""
        try:
            yield
        except LabError as error:
            code = getattr(error.__cause__, "sqlite_errorcode", None)
            torn = "no such table" in str(error.__cause__) or (code is not None and code & 0xFF in _DAMAGE)
            if not torn or error.hint == REBUILD:
                raise
            raise LabError(f"{error.message}: the search index is damaged", hint=REBUILD) from error.__cause__


def discard(path: Path) -> None:
    """Delete an index. Processes that have it open create a new one."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


UNEMBED = "DELETE FROM vectors WHERE row = (SELECT row FROM records WHERE id = ?)"
_UNSPARSE = "DELETE FROM sparse WHERE row = (SELECT row FROM records WHERE id = ?)"
_UPSERT = """INSERT INTO records (id, document, metadata, reasoning, revision) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET document = excluded.document, metadata = excluded.metadata,
    reasoning = excluded.reasoning, revision = excluded.revision"""


def _row(record: Record) -> tuple[str, str | None, str, str | None]:
    document = None if record.document is None else text(record.document, "document")
    return text(record.id, "id"), document, metadata_json(record.id, record.metadata), spans_json(record.reasoning)


def spans_json(spans: Sequence[Span]) -> str | None:
    """Write parts of a document as they are stored; None if there are none."""
    return json.dumps(spans) if spans else None


def _sparse(record: Record) -> Iterator[tuple[str, Any]]:
    for key, vector in record.sparse.items():
        if key.startswith("#") or key == BM25:
            message = f"record {record.id!r}: {key!r} is not a key of sparse vectors"
            raise InputError(message, hint='sparse={"splade": ...}')
        yield key, vector


def _state(connection: sqlite3.Connection, name: str) -> Any:
    row = connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def _set(connection: sqlite3.Connection, name: str, value: str | int) -> None:
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def _mixed(what: str) -> InputError:
    return InputError(f"mixed embedding spaces: {what}", hint=f"{REBUILD}, which computes all of them anew")


def text(value: str, what: str) -> str:
    """Make a string valid UTF-8. Lone surrogates, which models do write, become question marks."""
    if not isinstance(value, str):
        raise InputError(f"{what} {value!r} must be a string", hint=_HINT)
    return value if value.isascii() else replace_surrogates(value)


def metadata_json(id_: str, metadata: Mapping[str, Any]) -> str:
    """Write the metadata of a record as JSON without None, or raise InputError if it is not valid."""
    for name, value in metadata.items():
        values = value if isinstance(value, list | tuple) else (value,)
        if not isinstance(name, str) or name.startswith("#") or not all(map(_is_plain, values)):
            raise InputError(f"record {id_!r}: {name!r}: {value!r} is not valid metadata", hint=_HINT)
    return json.dumps({name: value for name, value in metadata.items() if value is not None})


def vector_blob(values: Any, what: str) -> bytes:
    """Write a dense vector as float32, or raise InputError unless it is finite numbers."""
    try:
        with np.errstate(over="ignore"):
            vector_D = np.asarray(values, "<f4")
    except (TypeError, ValueError):
        vector_D = np.zeros(0, "<f4")
    if vector_D.ndim != 1 or not vector_D.size or not np.isfinite(vector_D).all():
        raise InputError(f"{what}: an embedding is finite numbers, at least one", hint="[0.1, 0.2]")
    return vector_D.tobytes()


def sparse_blobs(vector: SparseVector, what: str) -> tuple[bytes, bytes]:
    """Write the indices and the values of a sparse vector, or raise InputError unless it is one."""
    fitting = len(vector.indices) == len(vector.values) == len(set(vector.indices))
    if not fitting or not all(0 <= index < _WHOLE for index in vector.indices):
        raise InputError(f"{what}: {vector!r} is not a sparse vector", hint="SparseVector((3, 17), (0.5, 1.0))")
    with np.errstate(over="ignore"):
        indices, values = coordinates(vector)
    if not np.isfinite(values).all():
        raise InputError(f"{what}: {vector!r} has values that are not finite", hint="SparseVector((3, 17), (0.5, 1.0))")
    return indices.astype("<i8").tobytes(), values.astype("<f4").tobytes()


def _is_plain(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -_WHOLE <= value < _WHOLE
    return value is None or isinstance(value, str | bool | float)


MIGRATIONS = (
    """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO state VALUES ('revision', 0), ('horizon', 0);

CREATE TABLE records (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    document TEXT,
    metadata TEXT NOT NULL,
    revision INTEGER NOT NULL
);
CREATE INDEX records_by_revision ON records (revision);

CREATE TABLE vectors (
    row INTEGER PRIMARY KEY REFERENCES records ON DELETE CASCADE,
    vector BLOB NOT NULL
);

CREATE TABLE sparse (
    row INTEGER NOT NULL REFERENCES records ON DELETE CASCADE,
    key TEXT NOT NULL,
    places BLOB NOT NULL,
    numbers BLOB NOT NULL,
    PRIMARY KEY (row, key)
) WITHOUT ROWID;
CREATE INDEX sparse_by_key ON sparse (key);

CREATE TABLE gone (row INTEGER PRIMARY KEY, revision INTEGER NOT NULL);
CREATE INDEX gone_by_revision ON gone (revision);

CREATE VIRTUAL TABLE words USING fts5(document, content='records', content_rowid='row');
CREATE TRIGGER records_in AFTER INSERT ON records WHEN new.document IS NOT NULL BEGIN
    INSERT INTO words (rowid, document) VALUES (new.row, new.document);
END;
CREATE TRIGGER records_out AFTER DELETE ON records WHEN old.document IS NOT NULL BEGIN
    INSERT INTO words (words, rowid, document) VALUES ('delete', old.row, old.document);
END;
CREATE TRIGGER records_on AFTER UPDATE ON records WHEN old.document IS NOT new.document BEGIN
    INSERT INTO words (words, rowid, document) SELECT 'delete', old.row, old.document WHERE old.document IS NOT NULL;
    INSERT INTO words (rowid, document) SELECT new.row, new.document WHERE new.document IS NOT NULL;
END;
""",
    "CREATE TABLE left_out (id TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID;",
    """
ALTER TABLE records ADD COLUMN outdated INTEGER NOT NULL DEFAULT 0;
UPDATE records SET outdated = 1;
CREATE INDEX records_outdated ON records (outdated) WHERE outdated;
""",
    """
ALTER TABLE records ADD COLUMN reasoning TEXT;
CREATE INDEX records_reasoning ON records (row) WHERE reasoning IS NOT NULL;
UPDATE records SET outdated = 1 WHERE instr(metadata, '"reasoning"');
""",
)
"""What the tables mean:

- `revision` counts transactions. A record has the revision of its last change, a row of `gone` that of its deletion.
- `horizon`: deletions up to this revision are forgotten, so readers with an older revision reload everything.
- `row` only grows and is never used twice.
- `left_out`: trajectories that could not be made a record, or not completely.
- `outdated`: records of an earlier version, whose documents have reasoning in the answer, or do not say where it is.
  If the format of documents changes again, a new script repeats the UPDATE of the third one.
- `reasoning`: the parts of the document that are reasoning, as `[[begin, end], ...]` in characters, so that text is
  not stored twice."""
