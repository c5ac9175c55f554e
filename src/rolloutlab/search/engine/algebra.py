"""Arithmetic on scores. A result has scores for the records that its terms find, and maybe one for all others."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutlab.errors import InputError
from rolloutlab.search.engine.backend import Hits, Places, Snapshot
from rolloutlab.search.rank import Applied, Combined, Difference, FieldTerm, Knn, Rank, Ratio, Val

Scores = npt.NDArray[np.float32]
_COMBINED: dict[str, Callable[..., Any]] = {"$sum": np.add, "$mul": np.multiply, "$max": np.fmax, "$min": np.fmin}
_APPLIED: dict[str, Callable[..., Any]] = {"$abs": np.abs, "$exp": np.exp, "$log": np.log}


@dataclass(frozen=True)
class Scored:
    """Scores of some records, in storage order. default: the score of all other records; None if they have none."""

    places_K: Places
    scores_K: Scores
    default: np.float32 | None = None

    def at(self, places_K: Places) -> Scores:
        """Return the scores of these records: the default for records without a score of their own."""
        scores_K = np.full(len(places_K), 0 if self.default is None else self.default, np.float32)
        _, mine, theirs = np.intersect1d(self.places_K, places_K, assume_unique=True, return_indices=True)
        scores_K[theirs] = self.scores_K[mine]
        return scores_K


class Scoring:
    """Evaluates rank expressions on the filtered records. Equal knn terms are executed once."""

    def __init__(self, snapshot: Snapshot, within: Places) -> None:
        self._snapshot, self._within = snapshot, within
        self.hits: dict[Knn, Hits] = {}

    def score(self, rank: Rank) -> Scored:
        """Evaluate an expression, rounding to float32 after each operation."""
        if isinstance(rank, Val):
            return Scored(np.zeros(0, np.int64), np.zeros(0, np.float32), _float32(rank.value))
        if isinstance(rank, Knn):
            return self._nearest(rank)
        if isinstance(rank, FieldTerm):
            return self._field(rank)
        if isinstance(rank, Combined):
            operation = functools.partial(combine, _COMBINED[rank.operator])
            return functools.reduce(operation, map(self.score, rank.parts))
        if isinstance(rank, Difference):
            return combine(np.subtract, self.score(rank.left), self.score(rank.right))
        if isinstance(rank, Ratio):
            return combine(np.divide, self.score(rank.left), self.score(rank.right))
        if isinstance(rank, Applied):
            part, function = self.score(rank.part), _APPLIED[rank.operator]
            default = None if part.default is None else _apply(function, np.array([part.default]))[0]
            return Scored(part.places_K, _apply(function, part.scores_K), default)
        raise InputError(f"{rank!r} is not a rank", hint='1 - Knn("text"), or FieldTerm("reward") for a field')

    def _nearest(self, knn: Knn) -> Scored:
        if knn not in self.hits:
            self.hits[knn] = self._snapshot.knn(knn, self._within)
        hits = self.hits[knn]
        scores_K = np.arange(len(hits.places_K), dtype=np.float32) if knn.return_rank else hits.distances_K
        order = np.argsort(hits.places_K)
        return Scored(hits.places_K[order], scores_K[order], None if knn.default is None else _float32(knn.default))

    def _field(self, term: FieldTerm) -> Scored:
        values = self._snapshot.get(self._within, [term.key])[term.key]
        is_number = np.fromiter((type(value) in (int, float) for value in values), np.bool_, len(values))
        numbers = np.array([value for value in values if type(value) in (int, float)], np.float64)
        default = None if term.default is None else _float32(term.default)
        return Scored(self._within[is_number], _apply(np.positive, numbers), default)


def combine(function: Callable[..., Any], left: Scored, right: Scored) -> Scored:
    """Apply an operation to two scored sets.

    Which records get a score depends on the defaults:

    | defaults | scored |
    |---|---|
    | both | records that are in either set |
    | one | records of the set without a default |
    | none | records that are in both sets |
    """
    if left.default is not None and right.default is not None:
        places = np.union1d(left.places_K, right.places_K)
        default = _apply(function, np.array([left.default]), np.array([right.default]))[0]
        return Scored(places, _apply(function, left.at(places), right.at(places)), default)
    if left.default is None and right.default is None:
        places = np.intersect1d(left.places_K, right.places_K, assume_unique=True)
    else:
        places = left.places_K if left.default is None else right.places_K
    return Scored(places, _apply(function, left.at(places), right.at(places)))


def _apply(function: Callable[..., Any], *operands: npt.NDArray[Any]) -> Scores:
    """Compute in float64 and round to float32. Outside the domain of the function the result is inf or NaN."""
    with np.errstate(all="ignore"):
        return np.asarray(function(*(operand.astype(np.float64) for operand in operands)), np.float32)


def _float32(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)
