"""Breakdown of a record's score into the parts of its rank expression."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search import rank as ranks
from rolloutlab.search.engine.algebra import Scored, Scoring
from rolloutlab.search.engine.backend import Backend, Snapshot
from rolloutlab.search.query import Search
from rolloutlab.search.rank import Knn, Rank, SparseVector, parts_of
from rolloutlab.search.where import ID, Compare


@dataclass(frozen=True)
class Part:
    """An expression and its value for one record. value: None without a score. by_default: the value is a default."""

    text: str
    value: float | None
    parts: tuple["Part", ...] = ()
    by_default: bool = False

    def __str__(self) -> str:
        return "\n".join(_lines(self, 0))


@dataclass(frozen=True)
class Breakdown:
    """The score of one record. qualifies: whether it matches the filter, without which it has no score."""

    id: str
    qualifies: bool
    score: Part

    def __repr__(self) -> str:
        return f"{self.id}{'' if self.qualifies else ' is filtered out'}\n{self.score}"


def breakdown(search: Search, backend: Backend, id: str) -> Breakdown:  # noqa: A002 - as records name it
    """Break down the score of a record. InputError if there is no such record, or the search ranks nothing."""
    if search.rank is None:
        raise InputError("a search without rank gives no scores", hint='Search(rank=Knn("text"))')
    rank = search.rank

    def break_down(snapshot: Snapshot) -> Breakdown:
        # first, as in `execute`: a Chroma snapshot numbers records in the order of its requests
        within = snapshot.filter(search.where)
        matches = snapshot.filter(Compare(ID, "$eq", id))
        if not len(matches):
            raise InputError(f"there is no record {id!r}", hint="an id of the table that the search gave")
        place, qualifies = int(matches[0]), bool(np.isin(matches[0], within))
        return Breakdown(id, qualifies, _break_down(rank, Scoring(snapshot, within), place, qualifies))

    return backend.within(break_down)


def _break_down(rank: Rank, scoring: Scoring, place: int, qualifies: bool) -> Part:
    value, by_default = _value_of(scoring.score(rank), place) if qualifies else (None, False)
    inner = tuple(_break_down(part, scoring, place, qualifies) for part in parts_of(rank))
    return Part(_text(rank), value, inner, by_default)


def _value_of(scored: Scored, place: int) -> tuple[float | None, bool]:
    """Return a record's value, and whether it is the default."""
    i = int(np.searchsorted(scored.places_K, place))
    if i < len(scored.places_K) and scored.places_K[i] == place:
        return float(scored.scores_K[i]), False
    return (None, False) if scored.default is None else (float(scored.default), True)


def _text(rank: Rank) -> str:
    """Write an expression: an operator without its operands, which have their own lines; a vector as its length."""
    if isinstance(rank, ranks.Combined | ranks.Applied):
        return (ranks.COMBINED | ranks.APPLIED)[rank.operator]
    if isinstance(rank, ranks.Difference | ranks.Ratio):
        return "-" if isinstance(rank, ranks.Difference) else "/"
    if isinstance(rank, Knn) and not isinstance(rank.query, str):
        count = len(rank.query.values if isinstance(rank.query, SparseVector) else rank.query)
        return repr(replace(rank, query="…")).replace("'…'", f"[{count} numbers]", 1)
    return repr(rank)


def _lines(part: Part, depth: int) -> Iterator[str]:
    value = "no score" if part.value is None else f"{part.value:.6g}{' by default' if part.by_default else ''}"
    yield f"{'  ' * depth}{part.text}: {value}"
    for inner in part.parts:
        yield from _lines(inner, depth + 1)
