"""A search, executed: filter, nearest, arithmetic, groups, order, page, and what is wanted of each record."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search.engine.algebra import Scores, Scoring
from rolloutlab.search.engine.backend import MISSING, Backend, Places, Snapshot
from rolloutlab.search.engine.grouping import Grouped, grouped
from rolloutlab.search.engine.plan import Plan, ServerPlan, warnings
from rolloutlab.search.query import METADATA, SCORE, SHOWN, GroupBy, Search
from rolloutlab.search.rank import EMBEDDING, Knn, Rank, terms_of
from rolloutlab.search.where import DOCUMENT, ID


@dataclass(frozen=True)
class Hit:
    """A record that was found; None for what was not selected, or what it does not have."""

    id: str
    score: float | None = None
    document: str | None = None
    embedding: tuple[float, ...] | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Found:
    """What a search found, best first. warnings: where rows may be missing, in words."""

    hits: tuple[Hit, ...]
    plan: Plan | ServerPlan
    warnings: tuple[str, ...]


def execute(search: Search, backend: Backend) -> Found:
    """Find what a search asks for, in one snapshot of a backend.

    Raises:
        InputError: a part of the search cannot be executed, such as a text where a vector is needed.
    """
    _check(search)
    return backend.within(partial(_executed, search, time.perf_counter()))


def _executed(search: Search, started: float, snapshot: Snapshot) -> Found:
    places = snapshot.filter(search.where)
    qualified, scores, scored, groups = len(places), None, None, None
    scoring = Scoring(snapshot, places)
    if search.rank is not None:
        places, scores = _ranked(scoring, search.rank)
        scored = len(places)
    nans = 0 if scores is None else int(np.count_nonzero(np.isnan(scores)))
    if search.group_by is not None:
        groups = _grouped(search.group_by, snapshot, places, scores)
        places, scores = places[groups.kept], None if scores is None else scores[groups.kept]
    available = len(places)
    page = slice(search.limit.offset, search.limit.offset + search.limit.limit if search.limit.limit else None)
    hits = tuple(_hits(search, snapshot, places[page], None if scores is None else scores[page]))
    plan = Plan(
        total=snapshot.total,
        qualified=qualified,
        filtered=search.where is not None,
        found=tuple((knn.key, len(found.places_K)) for knn, found in scoring.hits.items()),
        scored=scored,
        groups=None if groups is None else groups.groups,
        rows=len(hits),
        seconds=time.perf_counter() - started,
    )
    smallest = 0 if groups is None else groups.smallest
    told = warnings(search, plan, scoring.hits, available=available, smallest=smallest, nans=nans)
    return Found(hits, plan, tuple(told))


def _check(search: Search) -> None:
    """InputError for numbers that would silently mean something else."""
    if search.limit.limit < 0 or search.limit.offset < 0:
        raise InputError(f"limit: {search.limit!r} is below 0", hint="Limit(10, offset=20)")
    if search.group_by is not None:
        if search.rank is None and SCORE in search.group_by.aggregate.keys:
            raise InputError("group_by keeps the best by score, and there is no rank", hint='rank=Knn("text")')
        if search.group_by.aggregate.k < 1:
            raise InputError(
                f"group_by.aggregate: k={search.group_by.aggregate.k} is below 1", hint="MinK((SCORE,), 3)"
            )
    for term in terms_of(search.rank):
        if isinstance(term, Knn) and term.limit < 1:
            raise InputError(f"$knn.limit: {term.limit} is below 1", hint="Knn(..., limit=16)")


def _ranked(scoring: Scoring, rank: Rank) -> tuple[Places, Scores]:
    """The records with a score, lowest first, those with the same in storage order, those whose is NaN last."""
    scored = scoring.score(rank)
    order = np.argsort(scored.scores_K, kind="stable")
    return scored.places_K[order], scored.scores_K[order]


def _grouped(group_by: GroupBy, snapshot: Snapshot, places: Places, scores: Scores | None) -> Grouped:
    keys = dict.fromkeys((*group_by.keys, *group_by.aggregate.keys))
    columns = dict(snapshot.get(places, [key for key in keys if key != SCORE]))
    return grouped(group_by, columns | ({} if scores is None else {SCORE: scores.tolist()}), len(places))


def _hits(search: Search, snapshot: Snapshot, places: Places, scores: Scores | None) -> Iterator[Hit]:
    select = search.select.keys or (SCORE,)
    fields = [] if METADATA in select else [key for key in select if key not in SHOWN]
    wanted = [ID, *fields, *(key for key in (DOCUMENT, EMBEDDING, METADATA) if key in select)]
    columns = snapshot.get(places, wanted)
    told = scores.tolist() if scores is not None and SCORE in select else [None] * len(places)
    for i, score in enumerate(told):
        metadata = _value(columns, METADATA, i)
        if fields:
            metadata = {key: columns[key][i] for key in fields if columns[key][i] is not MISSING}
        yield Hit(columns[ID][i], score, _value(columns, DOCUMENT, i), _value(columns, EMBEDDING, i), metadata)


def _value(columns: Mapping[str, Sequence[Any]], key: str, i: int) -> Any:
    value = columns[key][i] if key in columns else MISSING
    return None if value is MISSING else value
