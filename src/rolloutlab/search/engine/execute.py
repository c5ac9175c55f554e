"""Search execution: filter, knn, arithmetic, grouping, sorting, paging and column selection."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search.engine.algebra import Scores, Scoring
from rolloutlab.search.engine.backend import MISSING, Backend, Places, Snapshot
from rolloutlab.search.engine.plan_text import ExecutionPlan, ServerPlan, warnings
from rolloutlab.search.query import METADATA, SCORE, SHOWN, GroupBy, MaxK, Search
from rolloutlab.search.rank import EMBEDDING, Knn, Rank, terms_of
from rolloutlab.search.where import DOCUMENT, ID, REASONING_TEXT

_KINDS = {bool: 1, int: 2, float: 3, str: 4}
_LIST = 5
_Key = tuple[Any, ...]


@dataclass(frozen=True)
class Grouped:
    """The result of grouping.

    Attributes:
        kept: The indices of the records to keep, in order.
        groups: The number of groups.
        smallest: The size of the smallest group.
    """

    kept: list[int]
    groups: int
    smallest: int


def group(group_by: GroupBy, columns: Mapping[str, Sequence[Any]], total: int) -> Grouped:
    """Apply group_by to `total` records in score order, or in storage order without a rank.

    columns: a value or `MISSING` per key and record. Missing values form a group of their own. Values of different
    types differ: 1, 1.0 and "1" are three groups. Ties in the aggregate keys keep their order.
    """
    groups: dict[_Key, list[int]] = {}
    for i in range(total):
        groups.setdefault(tuple(sort_key(columns[key][i]) for key in group_by.keys), []).append(i)
    aggregate = group_by.aggregate
    largest = isinstance(aggregate, MaxK)

    def order(i: int) -> _Key:
        return tuple(sort_key(columns[key][i], nan=-1 if largest else 1) for key in aggregate.keys)

    kept = [i for members in groups.values() for i in sorted(members, key=order, reverse=largest)[: aggregate.k]]
    return Grouped(sorted(kept), len(groups), min(map(len, groups.values()), default=0))


def sort_key(value: Any, nan: int = 1) -> _Key:
    """Make a sort key: missing < bool < int < float < str < list, then by value. nan: -1 before floats, 1 after."""
    if value is MISSING:
        return (0,)
    if isinstance(value, list | tuple):
        return (_LIST, *(sort_key(element, nan) for element in value))
    if isinstance(value, float) and math.isnan(value):
        return (_KINDS[float], nan, 0.0)
    return (_KINDS[type(value)], 0, value)


@dataclass(frozen=True)
class Hit:
    """A matching record. Columns that were not selected, or that it does not have, are None."""

    id: str
    score: float | None = None
    document: str | None = None
    embedding: tuple[float, ...] | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """The result of a search, best first. warnings: why rows may be missing."""

    hits: tuple[Hit, ...]
    plan: ExecutionPlan | ServerPlan
    warnings: tuple[str, ...]


def execute(search: Search, backend: Backend) -> SearchOutcome:
    """Execute a search on one snapshot of a backend.

    Raises:
        InputError: a part of the search cannot be executed, such as a text query on vectors.
    """
    _check(search)
    return backend.within(partial(_execute, search, time.perf_counter()))


def _execute(search: Search, started: float, snapshot: Snapshot) -> SearchOutcome:
    places = snapshot.filter(search.where)
    qualified, scores, scored, groups = len(places), None, None, None
    scoring = Scoring(snapshot, places)
    if search.rank is not None:
        places, scores = _rank(scoring, search.rank)
        scored = len(places)
    nans = 0 if scores is None else int(np.count_nonzero(np.isnan(scores)))
    if search.group_by is not None:
        groups = _group(search.group_by, snapshot, places, scores)
        places, scores = places[groups.kept], None if scores is None else scores[groups.kept]
    available = len(places)
    page = slice(search.limit.offset, search.limit.offset + search.limit.limit if search.limit.limit else None)
    hits = tuple(_hits(search, snapshot, places[page], None if scores is None else scores[page]))
    plan = ExecutionPlan(
        total=snapshot.total,
        qualified=qualified,
        filtered=search.where is not None,
        nearest=tuple((knn.key, len(nearest.places_K)) for knn, nearest in scoring.hits.items()),
        scored=scored,
        groups=None if groups is None else groups.groups,
        rows=len(hits),
        seconds=time.perf_counter() - started,
    )
    smallest = 0 if groups is None else groups.smallest
    texts = warnings(search, plan, scoring.hits, available=available, smallest=smallest, nans=nans)
    return SearchOutcome(hits, plan, tuple(texts))


def _check(search: Search) -> None:
    """Raise InputError for values that a slice would silently accept, such as a negative limit."""
    if search.limit.limit < 0 or search.limit.offset < 0:
        raise InputError(f"limit: {search.limit!r} is below 0", hint="Limit(10, offset=20)")
    if search.group_by is not None:
        if search.rank is None and SCORE in search.group_by.aggregate.keys:
            raise InputError("group_by keeps the best by score, and there is no rank", hint='rank=Knn("text")')
        if search.group_by.aggregate.k < 1:
            k = search.group_by.aggregate.k
            raise InputError(f"group_by.aggregate: k={k} is below 1", hint="MinK((SCORE,), 3)")
    for term in terms_of(search.rank):
        if isinstance(term, Knn) and term.limit < 1:
            raise InputError(f"$knn.limit: {term.limit} is below 1", hint="Knn(..., limit=16)")


def _rank(scoring: Scoring, rank: Rank) -> tuple[Places, Scores]:
    """Score the records and sort them, lowest first: ties in storage order, NaN last."""
    scored = scoring.score(rank)
    order = np.argsort(scored.scores_K, kind="stable")
    return scored.places_K[order], scored.scores_K[order]


def _group(group_by: GroupBy, snapshot: Snapshot, places: Places, scores: Scores | None) -> Grouped:
    keys = dict.fromkeys((*group_by.keys, *group_by.aggregate.keys))
    columns = dict(snapshot.get(places, [key for key in keys if key != SCORE]))
    return group(group_by, columns | ({} if scores is None else {SCORE: scores.tolist()}), len(places))


def _hits(search: Search, snapshot: Snapshot, places: Places, scores: Scores | None) -> Iterator[Hit]:
    select = search.select.keys or (SCORE,)
    apart = (REASONING_TEXT,) if METADATA in select else select
    fields = [key for key in select if key in apart and key not in SHOWN]
    keys = [ID, *fields, *(key for key in (DOCUMENT, EMBEDDING, METADATA) if key in select)]
    columns = snapshot.get(places, keys)
    scores_K = scores.tolist() if scores is not None and SCORE in select else [None] * len(places)
    for i, score in enumerate(scores_K):
        metadata = _value(columns, METADATA, i)
        if fields:
            chosen = {key: columns[key][i] for key in fields if columns[key][i] is not MISSING}
            metadata = {**(metadata or {}), **chosen}
        yield Hit(columns[ID][i], score, _value(columns, DOCUMENT, i), _value(columns, EMBEDDING, i), metadata)


def _value(columns: Mapping[str, Sequence[Any]], key: str, i: int) -> Any:
    value = columns[key][i] if key in columns else MISSING
    return None if value is MISSING else value
