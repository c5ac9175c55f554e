"""Snapshot of the record store: filter, knn and BM25."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search.engine.backend import MISSING, Hits, Places
from rolloutlab.search.engine.filters import Filter
from rolloutlab.search.engine.in_memory import Table, damaged
from rolloutlab.search.engine.patterns import TimedSearch
from rolloutlab.search.engine.vectors import Space, coordinates, rounded
from rolloutlab.search.query import METADATA
from rolloutlab.search.rank import EMBEDDING, Knn, SparseVector
from rolloutlab.search.where import DOCUMENT, ID, REASONING_TEXT, Where
from rolloutlab.store.sqlite import Database

BM25 = "bm25"
"""The knn key of keyword search, by the FTS5 index of the documents."""
_STORED = {ID: "id", DOCUMENT: "document", METADATA: "metadata"}
_WORD = re.compile(r"[^\x00-/:-@\[-`{-\x7f]+")
"""Words: runs without ASCII whitespace and punctuation."""


class TableSnapshot:
    """A `Snapshot` of a table, valid within one read transaction and until the next refresh."""

    def __init__(self, table: Table, database: Database, space: Space, find: TimedSearch) -> None:
        self._table, self._database, self._space, self._find = table, database, space, find

    @property
    def total(self) -> int:
        return self._table.total

    def filter(self, where: Where | None) -> Places:
        table = self._table
        if where is None:
            return np.flatnonzero(table.alive_N)
        return np.flatnonzero(Filter(table.columns, table.alive_N, table, self._find).mask(where))

    def knn(self, knn: Knn, within: Places) -> Hits:
        if knn.key == BM25:
            return self._matching(knn, within)
        if isinstance(knn.query, str):
            otherwise = ", or %search --embed-with MODEL" if knn.key == EMBEDDING else ""
            problem = f"$knn.query {knn.query!r} on {knn.key} is a text, and only vectors can be compared there"
            raise InputError(problem, hint=f"Knn({knn.query!r}, key={BM25!r}){otherwise}")
        return self._dense(knn.query, knn.limit, within) if knn.key == EMBEDDING else self._sparse(knn, within)

    def get(self, places: Places, keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        stored = self._stored(places, [key for key in keys if key in _STORED])
        return {key: stored[key] if key in stored else self._column(key, places) for key in keys}

    def _column(self, key: str, places: Places) -> list[Any]:
        if key == REASONING_TEXT:
            texts = dict(self._table.reasonings(places))
            return [texts.get(place, MISSING) for place in places.tolist()]
        if key != EMBEDDING:
            return self._table.columns.values(key, places)
        vectors = self._table.vectors
        values = [None if vectors is None else vectors.get(place) for place in places.tolist()]
        return [MISSING if vector is None else vector for vector in values]

    def _stored(self, places: Places, keys: Sequence[str]) -> dict[str, list[Any]]:
        if not keys:
            return {}
        order = np.argsort(places)
        rows = list(self._table.passing(", ".join(["row", *(_STORED[key] for key in keys)]), places[order]))
        if len(rows) != len(places):
            raise damaged(self._database, f"{len(places) - len(rows)} records are not there")
        columns: dict[str, list[Any]] = {key: [MISSING] * len(places) for key in keys}
        for i, row in zip(order.tolist(), rows, strict=True):
            for key, value in zip(keys, row[1:], strict=True):
                if value is not None:
                    columns[key][i] = json.loads(value) if key == METADATA else value
        return columns

    def _dense(self, query: Any, limit: int, within: Places) -> Hits:
        if isinstance(query, SparseVector):
            raise InputError(f"$knn.query on {EMBEDDING} is sparse", hint="Knn([0.1, 0.2]), a number per dimension")
        if (vectors := self._table.vectors) is None:
            return _nothing()
        with np.errstate(over="ignore"):
            query_D = np.asarray(query, np.float32)
        if query_D.shape != (vectors.dimension,) or not np.isfinite(query_D).all():
            problem = f"$knn.query is {len(query)} numbers, where {vectors.dimension} finite ones are expected"
            raise InputError(problem, hint="embed the query with the model of the records")
        return vectors.nearest(query_D, limit, within, self._space)

    def _sparse(self, knn: Knn, within: Places) -> Hits:
        if (vectors := self._table.sparse(knn.key)) is None:
            keys = [EMBEDDING, BM25, *self._table.sparse_keys()]
            near = get_close_matches(knn.key, keys, 1, 0) or keys
            raise InputError(f"$knn.key: no record has the vectors {knn.key!r}", hint=f"Knn(..., key={near[0]!r})")
        if not isinstance(knn.query, SparseVector):
            hint = "Knn(SparseVector((3, 17), (0.5, 1.0)), key=...)"
            raise InputError(f"$knn.query on {knn.key!r} is dense, where sparse vectors are", hint=hint)
        indices_Q, values_Q = coordinates(knn.query)
        if (np.diff(indices_Q) == 0).any() or not np.isfinite(values_Q).all():
            problem = f"{knn.query!r} has an index twice, or a value that is not finite"
            raise InputError(problem, hint="one finite value for each index")
        return vectors.nearest(knn.query, knn.limit, within)

    def _matching(self, knn: Knn, within: Places) -> Hits:
        """Documents with any word of a text, by 1 minus their BM25 score."""
        if not isinstance(knn.query, str):
            raise InputError(f"$knn.query on {BM25!r} must be a text", hint=f'Knn("some words", key={BM25!r})')
        if not (words := {word.casefold(): word for word in _WORD.findall(knn.query)}):
            return _nothing()
        # FTS5 tokenizes the quoted words further, as the documents
        query = " OR ".join(f'"{word}"' for word in words.values())
        sql = "SELECT rowid AS row, bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"
        rows = self._database.read(sql, query)
        places = self._table.places([row[0] for row in rows])
        scores = np.fromiter((row[1] for row in rows), np.float64, len(rows))
        chosen = np.isin(places, within)
        places, distances = places[chosen], rounded(-scores[chosen])
        order = np.argsort(distances, kind="stable")[: knn.limit]
        return Hits(places[order], distances[order])


def _nothing() -> Hits:
    return Hits(np.zeros(0, np.int64), np.zeros(0, np.float32))
