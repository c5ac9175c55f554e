"""Snapshot of the record store: filter, knn and BM25."""

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search import where as conditions
from rolloutlab.search.engine.backend import MISSING, Hits, Places
from rolloutlab.search.engine.columns import BOOL, FLOAT, INT, TEXT, Column, Columns, Mask, mask_of
from rolloutlab.search.engine.in_memory import Table, damaged
from rolloutlab.search.engine.patterns import TimedSearch
from rolloutlab.search.engine.vectors import Space, coordinates, rounded
from rolloutlab.search.query import METADATA
from rolloutlab.search.rank import EMBEDDING, Knn, SparseVector
from rolloutlab.search.where import (
    DOCUMENT,
    ID,
    REASONING_TEXT,
    TEXTS,
    All,
    Among,
    AnyOf,
    Compare,
    Contains,
    Matches,
    Scalar,
    Where,
)
from rolloutlab.store.sqlite import Database


class Texts(Protocol):
    """Reads ids and texts, which are not kept in memory."""

    def with_ids(self, ids: Iterable[str]) -> Places:
        """Find the records with one of the ids."""

    def documents(self, within: Places) -> Iterator[tuple[int, str]]:
        """Yield the documents of records that have one, with their places."""

    def reasonings(self, within: Places) -> Iterator[tuple[int, str]]:
        """Yield the reasoning in documents of records that have some, with their places."""


class Filter:
    """Evaluates conditions. A negated condition also matches records without the field.

    alive_N: which records are not deleted.
    """

    def __init__(self, columns: Columns, alive_N: Mask, texts: Texts, find: TimedSearch) -> None:
        self._columns, self._alive_N, self._texts, self._find = columns, alive_N, texts, find

    def mask(self, where: Where, within_N: Mask | None = None) -> Mask:
        """Find the matching records among `within_N`. Only their texts are read."""
        within_N = self._alive_N if within_N is None else within_N
        if isinstance(where, All):
            cheap_first = sorted(where.parts, key=_reads_texts)
            return functools.reduce(lambda met_N, part: self.mask(part, met_N), cheap_first, within_N)
        if isinstance(where, AnyOf):
            met_N = np.zeros_like(within_N)
            for part in sorted(where.parts, key=_reads_texts):
                met_N |= self.mask(part, within_N & ~met_N)
            return met_N
        met_N = self._evaluate(where, within_N)
        return within_N & ~met_N if _is_negated(where) else within_N & met_N

    def _evaluate(self, where: Where, within_N: Mask) -> Mask:
        """Find where a condition holds, ignoring its negation."""
        if isinstance(where, Matches):
            return mask_of(list(self._find(where.pattern, self._texts_of(where.field, within_N))), self._total)
        if isinstance(where, Contains):
            if where.field in TEXTS:
                return self._texts_meet(
                    where.field, lambda text: isinstance(where.value, str) and where.value in text, within_N
                )
            return self._contains(where.field, where.value)
        if isinstance(where, Among):
            return self._equals_any(where.field, where.values, within_N)
        if isinstance(where, Compare):
            if where.operator in ("$eq", "$ne"):
                return self._equals_any(where.field, (where.value,), within_N)
            operator, value = where.operator, where.value
            return self._column_meets(where.field, lambda column: compare_numbers(column, operator, value))
        raise InputError(f"{where!r} is not a condition", hint='(F.reward > 0.5) & (F.model == "lab/practice")')

    def _equals_any(self, field: str, values: tuple[Scalar, ...], within_N: Mask) -> Mask:
        if field == ID:
            return mask_of(self._texts.with_ids(value for value in values if isinstance(value, str)), len(within_N))
        if field in TEXTS:
            return self._texts_meet(field, set(values).__contains__, within_N)
        return self._column_meets(field, lambda column: equals_any(column, values))

    def _contains(self, field: str, value: Scalar) -> Mask:
        column = self._columns.by_name.get(field)
        lists = {} if column is None else column.lists
        return mask_of([place for place, values in lists.items() if any(same(v, value) for v in values)], self._total)

    def _texts_meet(self, field: str, meets: Callable[[str], bool], within_N: Mask) -> Mask:
        return mask_of([place for place, text in self._texts_of(field, within_N) if meets(text)], self._total)

    def _texts_of(self, field: str, within_N: Mask) -> Iterator[tuple[int, str]]:
        read = self._texts.documents if field == DOCUMENT else self._texts.reasonings
        return read(np.flatnonzero(within_N))

    def _column_meets(self, field: str, test: Callable[[Column], Mask]) -> Mask:
        """Find where a column passes a test, without the spare capacity of the column."""
        column = self._columns.by_name.get(field)
        return np.zeros(self._total, np.bool_) if column is None else test(column)[: self._total]

    @property
    def _total(self) -> int:
        return len(self._alive_N)


def same(value: Any, other: Any) -> bool:
    """Whether two values are equal in a search: 1 equals 1.0, and True equals neither."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def equals_any(column: Column, values: tuple[Scalar, ...]) -> Mask:
    """Find where a column has one of the values."""
    codes = [column.code(value) for value in values if isinstance(value, str)]
    met_N = np.zeros(len(column.kinds_N), np.bool_)
    if len(codes) == 1:
        met_N |= (column.kinds_N == TEXT) & (column.bits_N == codes[0])
    elif codes:
        met_N |= (column.kinds_N == TEXT) & np.isin(column.bits_N, codes)
    for value in values:
        if isinstance(value, bool):
            met_N |= (column.kinds_N == BOOL) & (column.bits_N == value)
        elif not isinstance(value, str):
            met_N |= compare_numbers(column, "$eq", value)
    return met_N


def compare_numbers(column: Column, operator: str, value: Scalar) -> Mask:
    """Find where the numbers of a column compare with a number, exactly: int64 and float64 are not converted."""
    met_N = np.zeros(len(column.kinds_N), np.bool_)
    if isinstance(value, bool | str):
        return met_N
    for kind, bound in ((INT, _bound_of_integers(operator, value)), (FLOAT, _bound_of_floats(operator, value))):
        if kind in column.present and bound is not None:
            numbers_N = column.bits_N if kind == INT else column.floats()
            with np.errstate(invalid="ignore"):
                met_N |= (column.kinds_N == kind) & _ORDERS[bound[0]](numbers_N, bound[1])
    return met_N


_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": np.equal, "$gt": np.greater, "$gte": np.greater_equal, "$lt": np.less, "$lte": np.less_equal,
}  # fmt: skip
_Bound = tuple[str, int | float] | None
"""An operator and a bound of the column's own type that match the same values; None if no value of it matches."""


def _bound_of_integers(operator: str, value: float) -> _Bound:
    """Turn a comparison into one with an integer, for a column of integers."""
    if isinstance(value, float) and not math.isfinite(value):
        return operator, value
    if operator == "$eq":
        return (operator, int(value)) if value == int(value) else None
    return operator, math.ceil(value) if operator in ("$gte", "$lt") else math.floor(value)


def _bound_of_floats(operator: str, value: float) -> _Bound:
    """Turn a comparison into one with a float, for a column of floats, which cannot represent every integer."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    if near == value or near != near:
        return operator, near
    if operator == "$eq":
        return None
    up = operator in ("$gt", "$gte")
    return ("$gte" if up else "$lt", near) if near > value else ("$gt" if up else "$lte", near)


def _is_negated(where: Where) -> bool:
    return where.operator == "$ne" if isinstance(where, Compare) else bool(getattr(where, "negated", False))


def _reads_texts(where: Where) -> bool:
    """Whether a condition reads texts."""
    return any(getattr(each, "field", None) in TEXTS for each in conditions.conditions_of(where))


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
            return self._keyword(knn, within)
        if isinstance(knn.query, str):
            otherwise = ", or %search --embed-with MODEL" if knn.key == EMBEDDING else ""
            problem = f"$knn.query {knn.query!r} on {knn.key} is a text, and only vectors can be compared there"
            raise InputError(problem, hint=f"Knn({knn.query!r}, key={BM25!r}){otherwise}")
        return self._dense(knn.query, knn.limit, within) if knn.key == EMBEDDING else self._sparse(knn, within)

    def get(self, places: Places, keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        stored = self._read_stored(places, [key for key in keys if key in _STORED])
        return {key: stored[key] if key in stored else self._read_column(key, places) for key in keys}

    def _read_column(self, key: str, places: Places) -> list[Any]:
        if key == REASONING_TEXT:
            texts = dict(self._table.reasonings(places))
            return [texts.get(place, MISSING) for place in places.tolist()]
        if key != EMBEDDING:
            return self._table.columns.values(key, places)
        vectors = self._table.vectors
        values = [None if vectors is None else vectors.get(place) for place in places.tolist()]
        return [MISSING if vector is None else vector for vector in values]

    def _read_stored(self, places: Places, keys: Sequence[str]) -> dict[str, list[Any]]:
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
            return _no_hits()
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

    def _keyword(self, knn: Knn, within: Places) -> Hits:
        """Find documents with any word of a text. Their distance is 1 minus their BM25 score."""
        if not isinstance(knn.query, str):
            raise InputError(f"$knn.query on {BM25!r} must be a text", hint=f'Knn("some words", key={BM25!r})')
        if not (words := {word.casefold(): word for word in _WORD.findall(knn.query)}):
            return _no_hits()
        # FTS5 tokenizes the quoted words further, as it does documents
        query = " OR ".join(f'"{word}"' for word in words.values())
        sql = "SELECT rowid AS row, bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"
        rows = self._database.read(sql, query)
        places = self._table.places([row[0] for row in rows])
        scores = np.fromiter((row[1] for row in rows), np.float64, len(rows))
        chosen = np.isin(places, within)
        places, distances = places[chosen], rounded(-scores[chosen])
        order = np.argsort(distances, kind="stable")[: knn.limit]
        return Hits(places[order], distances[order])


def _no_hits() -> Hits:
    return Hits(np.zeros(0, np.int64), np.zeros(0, np.float32))
