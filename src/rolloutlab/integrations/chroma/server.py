"""Chroma server as a search backend: `/get` filters and reads, `/query` finds neighbours.

Neighbours are approximate (HNSW): the more are requested, the fewer are missed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from typing import Any, Self, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator

from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.api import Chroma, ServedCollection
from rolloutlab.search import where as conditions
from rolloutlab.search.dictionary import dump_where
from rolloutlab.search.engine.backend import MISSING, Hits, Places, Snapshot
from rolloutlab.search.engine.execute import SearchOutcome, execute
from rolloutlab.search.engine.plan_text import ExecutionPlan
from rolloutlab.search.query import Search
from rolloutlab.search.rank import EMBEDDING, Knn
from rolloutlab.search.where import DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches, Where

Clause = dict[str, Any]
_LONG = 2**63
"""The limit of the server's integers."""


@dataclass(frozen=True)
class Narrowed:
    """A condition that fits one request: a clause and ids, both of which must match; None matches all."""

    clause: Clause | None = None
    ids: frozenset[str] | None = None


def narrow(where: Where) -> Narrowed | None:
    """Write a condition as one request; None if it needs several."""
    parts = where.parts if isinstance(where, All) else (where,)
    named = [ids for part in parts if (ids := _required_ids(part)) is not None]
    rest = [part for part in parts if _required_ids(part) is None]
    if any(uses_ids(part) for part in rest):
        return None
    return Narrowed(_all(rest) if rest else None, frozenset.intersection(*named) if named else None)


def uses_ids(where: Where) -> bool:
    """Whether a condition uses ids."""
    return any(getattr(each, "field", None) == ID for each in conditions.conditions_of(where))


def qualifies(identity: str, where: Where) -> bool:
    """Whether an id matches a condition on ids. Raises InputError if the condition is not one for ids."""
    match where:
        case Compare(operator="$eq" | "$ne" as operator, value=value):
            return (identity == value) == (operator == "$eq")
        case Among(values=values, negated=negated):
            return (identity in values) != negated
    hint = 'F.id == "a", F.id.is_in(["a", "b"]) or their negations'
    raise InputError(f"{where!r} is not supported for ids", hint=hint)


def clause(where: Where) -> Clause:
    """Write a condition without ids as a clause of the server."""
    match where:
        case All(parts=parts):
            return _all(parts)
        case AnyOf(parts=parts):
            return _join("$or", [clause(part) for part in parts])
        case Among(values=values) if {type(value) for value in values} == {int, float}:
            return dump_where(replace(where, values=tuple(map(float, values))))
        case Compare() | Among() | Matches():
            return dump_where(where)
        case Contains(field=field, value=value, negated=negated):
            operator = "$not_contains" if negated else "$contains"
            written = [value] if field == DOCUMENT else _spellings(value)
            return _join("$and" if negated else "$or", [{field: {operator: one}} for one in written])
    raise InputError(f"{where!r} is not known to a Chroma server", hint="F.reward > 0.5")


def _all(parts: Sequence[Where]) -> Clause:
    return _join("$and", [clause(part) for part in parts])


def _join(operator: str, clauses: list[Clause]) -> Clause:
    return clauses[0] if len(clauses) == 1 else {operator: clauses}


def _required_ids(where: Where) -> frozenset[str] | None:
    """Return the ids that a condition requires; None if it is not an equality on ids."""
    match where:
        case Compare(field=field, operator="$eq", value=value) if field == ID:
            return frozenset([str(value)])
        case Among(field=field, values=values, negated=False) if field == ID:
            return frozenset(map(str, values))
    return None


def _spellings(value: conditions.Scalar) -> list[conditions.Scalar]:
    """List the ways in which a list may have a value: 1 may be 1.0 there."""
    if isinstance(value, bool | str):
        return [value]
    if isinstance(value, int):
        return [value, float(value)] if float(value) == value else [value]
    return [int(value), value] if value.is_integer() and abs(value) < _LONG else [value]


T = TypeVar("T")
_PAGE = 100_000
_NAMED = 10_000
"""The most ids in one request: the server's SQLite takes no more than 32,766 values."""
_READ = 1_000
_ASKED = 1_000
"""The least number of neighbours to request. Of 20,000 random vectors (64 dimensions) a request for 11 missed 18 % of
the nearest 10; a request for 1,000 missed none and took as long."""
_INCLUDED = {"#document": "documents", EMBEDDING: "embeddings"}


class _Got(BaseModel):
    ids: list[str]
    documents: list[str | None] | None = None
    embeddings: list[list[float] | None] | None = None
    metadatas: list[dict[str, Any] | None] | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        columns = self.documents, self.embeddings, self.metadatas
        if any(column is not None and len(column) != len(self.ids) for column in columns):
            raise ValueError("its columns have different lengths")
        return self


class _Queried(BaseModel):
    """The response to one query: each column is a list in a list."""

    ids: list[list[str]] = Field(min_length=1, max_length=1)
    distances: list[list[float | None]] = Field(min_length=1, max_length=1)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if len(self.ids[0]) != len(self.distances[0]):
            raise ValueError("its columns have different lengths")
        return self


class ChromaServer:
    """A collection on a Chroma server, searched by the lab's engine."""

    def __init__(self, chroma: Chroma, collection: ServedCollection) -> None:
        self.chroma = chroma
        self.collection = collection

    @contextmanager
    def snapshot(self) -> Iterator["ServerSnapshot"]:
        """Enter a context with the live records of the server. One that is deleted during the search has no values."""
        yield ServerSnapshot(self.chroma, self.collection)

    def within(self, work: Callable[[Snapshot], T]) -> T:
        """Return what `work` returns for a snapshot."""
        with self.snapshot() as snapshot:
            return work(snapshot)

    def search(self, search: Search) -> SearchOutcome:
        """Execute a search, with a warning if the server may have missed neighbours."""
        outcome = execute(search, self)
        plan = outcome.plan
        if not isinstance(plan, ExecutionPlan) or not plan.nearest or plan.qualified <= _ASKED:
            return outcome
        warning = f"the server's index is approximate: of {plan.qualified:,} records it may miss some of the nearest"
        return replace(outcome, warnings=(*outcome.warnings, warning))


class ServerSnapshot:
    """A snapshot of a server's records, numbered in storage order within the result of the first filter."""

    def __init__(self, chroma: Chroma, collection: ServedCollection) -> None:
        self._chroma = chroma
        self._collection = collection
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._filtered: list[tuple[Places, Narrowed]] = []

    @cached_property
    def total(self) -> int:
        return self._chroma.read(int, self._chroma.ask("GET", f"collections/{self._collection.id}/count"))

    def filter(self, where: Where | None) -> Places:
        """See `Snapshot`. Conditions that mix ids with others are evaluated here, over all ids."""
        if where is None:
            return self._filter_by(Narrowed())
        single = narrow(where)
        if single is not None and len(single.ids or ()) <= _NAMED:
            return self._filter_by(single)
        members = self._members(where)
        return self._number([identity for identity in self._everything if identity in members])

    def knn(self, knn: Knn, within: Places) -> Hits:
        """See `Snapshot`. The server cuts ties arbitrarily, so more are requested until the last tie is complete."""
        query = self._query(knn)
        limit = min(knn.limit, len(within))
        requested = min(max(limit + 1, _ASKED), len(within))
        while True:
            hits = self._nearest(query, within, requested)
            if requested == len(within) or len(hits) < requested or hits[-1][0] != hits[limit - 1][0]:
                break
            requested = min(2 * requested, len(within))
        distances, places = [distance for distance, _ in hits[:limit]], [place for _, place in hits[:limit]]
        return Hits(np.array(places, np.int64), np.array(distances, np.float32))

    def get(self, places: Places, keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """See `Snapshot`."""
        ids = [self._ids[place] for place in places]
        if not (columns := [key for key in keys if key != "#id"]):
            return dict.fromkeys(keys, ids)
        include = sorted({_INCLUDED.get(key, "metadatas") for key in columns})
        records: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), _READ):
            records |= self._read(ids[start : start + _READ], include)
        return {key: [_value(identity, records.get(identity), key) for identity in ids] for key in keys}

    def _filter_by(self, request: Narrowed) -> Places:
        places = self._number(self._list_ids(request))
        self._filtered.append((places, request))
        return places

    def _read(self, ids: list[str], include: list[str]) -> dict[str, dict[str, Any]]:
        got = self._get({"ids": ids, "include": include})
        columns = [getattr(got, name) or [None] * len(got.ids) for name in include]
        rows = zip(got.ids, *columns, strict=True)
        return {identity: dict(zip(include, values, strict=True)) for identity, *values in rows}

    def _query(self, knn: Knn) -> tuple[float, ...]:
        if knn.key != EMBEDDING or not isinstance(knn.query, tuple):
            problem = f"a Chroma server finds the nearest by vectors of {EMBEDDING} only, not {knn!r}"
            raise InputError(problem, hint="Knn([0.1, 0.2]), or an embedding model for Knn('text')")
        dimension = self._collection.dimension
        if dimension is not None and dimension != len(knn.query):
            problem = f"vectors of {dimension} numbers, the query has {len(knn.query)}"
            hint = "the embedding model that the collection was made with"
            raise InputError(f"the collection {self._collection.name} has {problem}", hint=hint)
        return knn.query

    def _nearest(self, query: tuple[float, ...], within: Places, limit: int) -> list[tuple[float, int]]:
        """Find distances and places, nearest first, those at one distance in storage order, NaN last."""
        hits: list[tuple[float, int]] = []
        for restriction in self._restrictions(within) if limit else []:
            body = {"query_embeddings": [query], "n_results": limit, "include": ["distances"], **restriction}
            queried = self._chroma.read(_Queried, self._chroma.post(self._collection, "query", body))
            for identity, distance in zip(queried.ids[0], queried.distances[0], strict=True):
                if identity in self._places:  # a record added after the filter is not in the snapshot
                    hits.append((nan if distance is None else distance, self._places[identity]))
        return sorted(hits, key=lambda hit: (hit[0] != hit[0], hit[0], hit[1]))[:limit]

    def _restrictions(self, within: Places) -> list[dict[str, Any]]:
        """Return parameters that restrict requests to some records: the filter that matched them, or their ids."""
        for places, request in self._filtered:
            if np.array_equal(places, within):
                return [_restriction(request)]
        ids = [self._ids[place] for place in within]
        return [{"ids": ids[start : start + _NAMED]} for start in range(0, len(ids), _NAMED)]

    def _members(self, where: Where) -> set[str]:
        """Find the ids of matching records. Conditions on ids are evaluated here, the rest by the server."""
        if not uses_ids(where):
            return set(self._list_ids(Narrowed(clause(where))))
        if not isinstance(where, All | AnyOf):
            return {identity for identity in self._everything if qualifies(identity, where)}
        others = tuple(part for part in where.parts if not uses_ids(part))
        sets = [self._members(part) for part in where.parts if uses_ids(part)]
        sets += [self._members(type(where)(others) if len(others) > 1 else others[0])] if others else []
        return set.intersection(*sets) if isinstance(where, All) else set.union(*sets)

    @cached_property
    def _everything(self) -> list[str]:
        return self._list_ids(Narrowed())

    def _list_ids(self, request: Narrowed) -> list[str]:
        """List ids, in storage order."""
        ids: list[str] = []
        while True:
            page = {"include": [], "limit": _PAGE, "offset": len(ids), **_restriction(request)}
            got = self._get(page).ids
            ids += got
            if len(got) < _PAGE:
                return ids

    def _get(self, body: dict[str, Any]) -> _Got:
        return self._chroma.read(_Got, self._chroma.post(self._collection, "get", body))

    def _number(self, ids: list[str]) -> Places:
        for identity in ids:
            if identity not in self._places:
                self._places[identity] = len(self._ids)
                self._ids.append(identity)
        return np.sort(np.array([self._places[identity] for identity in ids], np.int64))


def _restriction(request: Narrowed) -> dict[str, Any]:
    where = {} if request.clause is None else {"where": request.clause}
    return where if request.ids is None else {**where, "ids": sorted(request.ids)}


def _value(identity: str, record: Mapping[str, Any] | None, key: str) -> Any:
    if key == "#id":
        return identity
    if record is None:
        return MISSING
    if key in _INCLUDED:
        value = record[_INCLUDED[key]]
        return MISSING if value is None else tuple(value) if key == EMBEDDING else value
    metadata = record["metadatas"] or {}
    return metadata if key == "#metadata" else metadata.get(key, MISSING)
