"""In-memory columns and vectors of the record store, refreshed incrementally by revision."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutlab.errors import LabError
from rolloutlab.search.engine.backend import Places
from rolloutlab.search.engine.columns import HELD, Columns, Mask, mask_of, pad
from rolloutlab.search.engine.vectors import SparseVectors, Vectors
from rolloutlab.store.sqlite import Database, Row

CHUNK = 1 << 10
"""Records that are read from the file at a time."""
_FEW = 10
"""If fewer than one in this many records are needed, rows are looked up by id instead of scanning the table."""
_WASTE = 10_000
"""If more places than this are deleted, and more than the others, everything is reloaded."""


class Table:
    """The records at one revision. rows_N: their rowids, ascending. alive_N: which of them are not deleted."""

    vectors: Vectors | None
    rows_N: npt.NDArray[np.int64]
    alive_N: Mask
    _revision: int

    def __init__(self, database: Database) -> None:
        self._database = database
        self._forget()

    def refresh(self) -> None:
        """Read the changes since the last refresh. It must be called within a read transaction, for consistency."""
        state = dict(tuple(row) for row in self._database.read("SELECT name, value FROM state"))
        if not {"revision", "horizon"} <= state.keys():
            raise damaged(self._database, "it has no revision")
        if state["revision"] == self._revision:
            return
        dead = len(self.alive_N) - self.total
        if self._revision < state["horizon"] or dead > max(_WASTE, self.total):
            self._forget()
        since, self._revision = self._revision, -1  # after an error below, the next refresh reloads everything
        self._sparse.clear()
        self._remove_deleted(since)
        self._append_new()
        if self.vectors is not None and self.vectors.dimension != state.get("dimension"):
            self.vectors = None
        if state.get("dimension") and self.vectors is None:
            self.vectors = Vectors(state["dimension"])
        if self.vectors is not None:
            self.vectors.grow(len(self.rows_N))
        for rows in self._read_changed(since):
            self._put(rows)
        self._revision = state["revision"]

    @property
    def total(self) -> int:
        return int(np.count_nonzero(self.alive_N))

    def sparse(self, key: str) -> SparseVectors | None:
        """Return the sparse vectors of a key; None if there are none."""
        if key not in self._sparse:
            self._sparse[key] = self._read_sparse(key)
        return self._sparse[key]

    def sparse_keys(self) -> list[str]:
        return [key for (key,) in self._database.read("SELECT DISTINCT key FROM sparse ORDER BY key")]

    def with_ids(self, ids: Iterable[str]) -> Places:
        sql = "SELECT row FROM records WHERE id IN (SELECT value FROM json_each(?))"
        return self.places([row for (row,) in self._database.read(sql, json.dumps(list(ids)))])

    def documents(self, within: Places) -> Iterator[tuple[int, str]]:
        for row, document in self.passing("row, document", within):
            if document is not None:
                yield row, document

    def reasonings(self, within: Places) -> Iterator[tuple[int, str]]:
        if len(within) > CHUNK:  # by an index, without the documents of others
            rows = self._database.read("SELECT row FROM records WHERE reasoning IS NOT NULL")
            within = np.intersect1d(within, self.places([row for (row,) in rows]))
        for place, document, spans in self.passing("row, document, reasoning", within):
            if spans is None:
                continue
            try:
                parts = [document[begin:end] for begin, end in json.loads(spans)]
            except (TypeError, ValueError) as error:
                raise damaged(self._database, f"where reasoning is cannot be read: {error}") from error
            yield place, PARAGRAPH.join(parts)

    def passing(self, columns: str, within: Places) -> Iterator[tuple[Any, ...]]:
        """Yield some columns of some records. The first must be `row`, and is replaced by the record's place."""
        wanted_N = mask_of(within, len(self.rows_N))
        pages: Iterable[list[Row]]
        if len(within) * _FEW < len(self.rows_N):
            sql = f"SELECT {columns} FROM records WHERE row IN (SELECT value FROM json_each(?)) ORDER BY row"
            chosen = self.rows_N[within].tolist()
            chunks = (json.dumps(chosen[i : i + CHUNK]) for i in range(0, len(chosen), CHUNK))
            pages = (self._database.read(sql, chunk) for chunk in chunks)
        else:
            pages = self._pages(f"SELECT {columns} FROM records WHERE row > ? ORDER BY row LIMIT {CHUNK}")
        for page in pages:
            for place, row in zip(self.places([row[0] for row in page]).tolist(), page, strict=True):
                if wanted_N[place]:
                    yield (place, *row[1:])

    def places(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Places:
        rows_K = np.asarray(rows, np.int64)
        places = np.searchsorted(self.rows_N, rows_K)
        if len(places) and not np.array_equal(self.rows_N[np.minimum(places, len(self.rows_N) - 1)], rows_K):
            raise damaged(self._database, "records that are not there are mentioned")
        return places

    def _forget(self) -> None:
        self._revision = 0
        self.rows_N = np.zeros(0, np.int64)
        self.alive_N = np.zeros(0, np.bool_)
        self.columns = Columns()
        self.vectors = None
        self._sparse: dict[str, SparseVectors | None] = {}

    def _remove_deleted(self, since: int) -> None:
        sql = "SELECT row FROM gone WHERE revision > ? AND row <= ? ORDER BY row"
        last = int(self.rows_N[-1]) if len(self.rows_N) else 0
        places = self.places([row for (row,) in self._database.read(sql, since, last)] if last else [])
        self.alive_N[places] = False
        self.columns.clear(places)
        if self.vectors is not None:
            self.vectors.clear(places)

    def _append_new(self) -> None:
        last = int(self.rows_N[-1]) if len(self.rows_N) else 0
        pages = self._pages(f"SELECT row FROM records WHERE row > ? ORDER BY row LIMIT {CHUNK}", last)
        new = [np.fromiter((row for (row,) in page), np.int64, len(page)) for page in pages]
        self.rows_N = np.concatenate([self.rows_N, *new])
        known = len(self.alive_N)
        self.alive_N = pad(self.alive_N, len(self.rows_N))
        self.alive_N[known:] = True
        self.columns.grow(len(self.rows_N))

    def _read_changed(self, since: int) -> Iterator[list[Row]]:
        sql = "SELECT row, metadata, vector FROM records LEFT JOIN vectors USING (row) WHERE"
        if since == 0:
            yield from self._pages(f"{sql} row > ? ORDER BY row LIMIT {CHUNK}")
            return
        rows = [row for (row,) in self._database.read("SELECT row FROM records WHERE revision > ?", since)]
        rows.sort()
        for i in range(0, len(rows), CHUNK):
            chosen = json.dumps(rows[i : i + CHUNK])
            yield self._database.read(f"{sql} row IN (SELECT value FROM json_each(?)) ORDER BY row", chosen)

    def _pages(self, sql: str, last: int = 0) -> Iterator[list[Row]]:
        while page := self._database.read(sql, last):
            yield page
            last = page[-1][0]

    def _put(self, rows: Sequence[Row]) -> None:
        places = self.places([row["row"] for row in rows])
        try:
            self.columns.put(places, [self._metadata(row["metadata"]) for row in rows])
        except OverflowError as error:
            raise damaged(self._database, "an integer has more than 64 bits") from error
        if self.vectors is None:
            return
        has_K = np.array([row["vector"] is not None for row in rows])
        self.vectors.clear(places[~has_K])
        if has_K.any():
            self.vectors.put(places[has_K], self._matrix([row["vector"] for row in rows if row["vector"] is not None]))

    def _metadata(self, text: str) -> dict[str, Any]:
        """Parse metadata. Nulls, which older versions wrote, count as absent."""
        try:
            metadata: dict[str, Any] = _decode(text)
        except (RecursionError, TypeError, ValueError) as error:
            raise damaged(self._database, f"metadata cannot be read: {error}") from error
        kinds = {*map(type, metadata.values())} if type(metadata) is dict else {type(metadata), dict}
        if not kinds <= HELD:
            raise damaged(self._database, "metadata is not an object of strings, numbers, booleans and lists")
        if type(None) in kinds:
            return {name: value for name, value in metadata.items() if value is not None}
        return metadata

    def _matrix(self, blobs: Sequence[bytes]) -> npt.NDArray[np.float32]:
        dimension = self.vectors.dimension if self.vectors is not None else 0
        if any(len(blob) != 4 * dimension for blob in blobs):
            raise damaged(self._database, f"a vector is not {dimension} numbers")
        vectors_KD = np.frombuffer(b"".join(blobs), "<f4").reshape(-1, dimension)
        if not np.isfinite(vectors_KD).all():
            raise damaged(self._database, "a vector has numbers that are not finite")
        return vectors_KD

    def _read_sparse(self, key: str) -> SparseVectors | None:
        rows = self._database.read("SELECT row, places, numbers FROM sparse WHERE key = ? ORDER BY row", key)
        if any(len(row["places"]) != 2 * len(row["numbers"]) for row in rows):
            raise damaged(self._database, "a sparse vector has another number of indices than of values")
        indices = [np.frombuffer(row["places"], "<i8").astype(np.int64) for row in rows]
        values = [np.frombuffer(row["numbers"], "<f4").astype(np.float32) for row in rows]
        places = self.places([row["row"] for row in rows])
        return SparseVectors(places, indices, values) if rows else None


def damaged(database: Database, what: str) -> LabError:
    return LabError(f"{database.path} is damaged: {what}", hint=REBUILD)


PARAGRAPH = "\n\n"
"""What separates messages of a document, and the reasoning of two turns."""
REBUILD = "%search --reindex"
"""The command that rebuilds a damaged index."""
_decode = json.JSONDecoder().decode
