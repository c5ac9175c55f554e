"""Exact nearest-neighbour search over dense and sparse vectors in memory."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import numpy.typing as npt

from rolloutlab.search.engine.backend import Hits, Places
from rolloutlab.search.engine.columns import pad
from rolloutlab.search.rank import SparseVector

Space = Literal["cosine", "l2", "ip"]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
BLOCK = 1 << 14
"""Vectors per block: the matrix grows by blocks and is never copied."""
_EXACT = 1 << 10
"""Vectors per step of the exact comparison."""
_NONE = -1.0
"""The norm that marks a missing vector."""
_GATHERED = 1 << 8
"""Vectors gathered per step, few enough for the processor's cache."""
_MOST = 0.4
"""If more than this share of a block is needed, the whole block is compared, which needs no copy."""
_ALONE = 1 << 15
"""With at most this many records, one thread is faster than several."""
_HELPERS = min(4, os.cpu_count() or 1) - 1
"""The threads besides the caller's."""
_PLAIN = (1e-15, 1e15)
"""Norms for which float32 products neither overflow nor underflow."""


class Vectors:
    """Dense vectors by record number, the place. dimension: D. Memory grows with the largest place."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._blocks: list[Floats32] = []
        self._norms_N = np.zeros(0)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def grow(self, room: int) -> None:
        """Grow to at least `room` places."""
        while len(self._blocks) * BLOCK < room:
            self._blocks.append(np.zeros((BLOCK, self.dimension), np.float32))
        if len(self._norms_N) < len(self._blocks) * BLOCK:
            known = len(self._norms_N)
            self._norms_N = pad(self._norms_N, len(self._blocks) * BLOCK)
            self._norms_N[known:] = _NONE

    def put(self, places_K: Places, vectors_KD: Floats32) -> None:
        """Set the vectors of some records. Places ascend."""
        for block, chosen_B, where in self._by_block(places_K):
            block[chosen_B] = vectors_KD[where]
        self._norms_N[places_K] = _norms(vectors_KD.astype(np.float64))

    def clear(self, places_K: Places) -> None:
        self._norms_N[places_K] = _NONE

    def get(self, place: int) -> tuple[float, ...] | None:
        if self._norms_N[place] == _NONE:
            return None
        return tuple(self._blocks[place // BLOCK][place % BLOCK].tolist())

    def nearest(self, query_D: Floats32, limit: int, within: Places, space: Space) -> Hits:
        """Find the nearest of some records, nearest first. Distances are computed in float64 and rounded to float32.

        within: the records, in ascending order.

        A product in float32 picks the candidates: every record that can be among the nearest, given the bound of the
        rounding error (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Their distances are then computed
        in float64.
        """
        places = within[self._norms_N[within] != _NONE]
        if limit < len(places):
            places = places[self._candidates(query_D.astype(np.float64), limit, places, space)]
        distances = self._exact(query_D.astype(np.float64), places, space)
        order = np.argsort(distances, kind="stable")[:limit]
        return Hits(places[order], distances[order])

    def _candidates(self, query_D: Floats, limit: int, places_K: Places, space: Space) -> npt.NDArray[np.bool_]:
        """Mask the records that can be among the nearest."""
        norm, norms_K = float(_norms(query_D[None])[0]), self._norms_N[places_K]
        longest, shortest = float(norms_K.max()), float(norms_K.min(where=norms_K > 0, initial=1.0))
        if shortest < _PLAIN[0] or longest > _PLAIN[1] or norm > _PLAIN[1] or 0 < norm < _PLAIN[0]:
            return np.ones(len(places_K), np.bool_)
        dots_K = self._products((query_D / (norm or 1.0)).astype(np.float32), places_K)
        error = (self.dimension + 16) * 2.0**-23  # twice the bound, D * 2**-24, and a margin for rounding the result
        if space == "cosine":
            np.divide(dots_K, norms_K, out=dots_K, where=norms_K > 0)
            rough_K = np.negative(dots_K, out=dots_K)
        elif space == "ip":
            rough_K, error = dots_K * -norm, error * (longest * norm + 1)
        else:
            rough_K, error = norms_K**2 - dots_K * (2 * norm), error * (longest + norm) ** 2
        furthest = np.partition(rough_K, limit - 1)[limit - 1]
        return np.asarray(rough_K <= furthest + 2 * error)

    def _products(self, query_D: Floats32, places_K: Places) -> Floats32:
        dots_K = np.empty(len(places_K), np.float32)
        pieces = iter(list(self._by_block(places_K)))

        def compare() -> None:
            for block, chosen_B, where in pieces:
                _dots(block, chosen_B, query_D, out=dots_K[where])

        helpers = _HELPERS if len(places_K) > _ALONE else 0
        helped = [self._helpers.submit(compare) for _ in range(helpers)]
        compare()
        for each in helped:
            each.result()
        return dots_K

    @property
    def _helpers(self) -> ThreadPoolExecutor:
        """A thread pool, because one thread does not use the whole memory bandwidth. A forked process gets its own."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(_HELPERS, thread_name_prefix="rolloutlab-vectors")
        return self._pool[1]

    def _exact(self, query_D: Floats, places_K: Places, space: Space) -> Floats32:
        """Compute distances in float64, rounded. Equal vectors have equal distances."""
        distances_K = np.empty(len(places_K), np.float32)
        norm = _norms(query_D[None])[0]
        for block, chosen_B, where in self._by_block(places_K):
            for i in range(0, len(chosen_B), _EXACT):
                part = slice(where.start + i, min(where.start + i + _EXACT, where.stop))
                distances_K[part] = _distances(block[chosen_B[i : i + _EXACT]].astype(np.float64), query_D, norm, space)
        return distances_K

    def _by_block(self, places_K: Places) -> Iterator[tuple[Floats32, Places, slice]]:
        """Yield each block with its selected rows and their slice of the ascending places."""
        ends = np.searchsorted(places_K, np.arange(1, len(self._blocks) + 1) * BLOCK).tolist()
        for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if end > start:
                yield self._blocks[i], places_K[start:end] - i * BLOCK, slice(start, end)


def rounded(similarities_K: Floats) -> Floats32:
    """Return 1 minus each similarity, rounded to float32 first: equal directions have distance 0, not 1e-16."""
    with np.errstate(over="ignore"):
        return np.asarray(np.float32(1) - similarities_K.astype(np.float32), np.float32)


def _dots(block: Floats32, chosen_B: Places, query_D: Floats32, out: Floats32) -> None:
    """Compute the dot products of some rows of a block with a query."""
    if len(chosen_B) > _MOST * (chosen_B[-1] + 1):
        np.take(_rows_dot(block[: chosen_B[-1] + 1], query_D), chosen_B, out=out, mode="clip")
        return
    few_GD = np.empty((_GATHERED, len(query_D)), np.float32)
    for i in range(0, len(chosen_B), _GATHERED):
        rows = chosen_B[i : i + _GATHERED]
        gathered = np.take(block, rows, axis=0, out=few_GD[: len(rows)], mode="clip")  # "raise" would copy twice
        out[i : i + len(rows)] = _rows_dot(gathered, query_D)


def _rows_dot(rows_BD: Floats32, query_D: Floats32) -> Floats32:
    """Compute `rows_BD @ query_D`, which is slower as `@`: memory bandwidth limits its matrix-vector product."""
    return np.asarray(np.einsum("ij,j->i", rows_BD, query_D))


def _distances(vectors_KD: Floats, query_D: Floats, norm: float, space: Space) -> Floats32:
    if space == "l2":
        with np.errstate(over="ignore"):
            return np.asarray(((vectors_KD - query_D) ** 2).sum(axis=1), np.float32)
    dots_K = (vectors_KD * query_D).sum(axis=1)
    if space == "ip":
        return rounded(dots_K)
    norms_K = _norms(vectors_KD) * norm
    return rounded(np.divide(dots_K, norms_K, out=np.zeros_like(dots_K), where=norms_K > 0))


def _norms(vectors_KD: Floats) -> Floats:
    return np.asarray(np.sqrt((vectors_KD**2).sum(axis=1)))


class SparseVectors:
    """Sparse vectors in coordinate form. places_V: the record of each vector, ascending."""

    def __init__(self, places_V: Places, indices: Sequence[npt.NDArray[np.int64]], values: Sequence[Floats32]) -> None:
        self._places_V = places_V
        self._owners_E = np.repeat(np.arange(len(places_V)), [len(each) for each in indices])
        self._indices_E = np.concatenate([np.zeros(0, np.int64), *indices])
        self._values_E = np.concatenate([np.zeros(0, np.float32), *values])

    def nearest(self, query: SparseVector, limit: int, within: Places) -> Hits:
        """Find the nearest of some records by 1 minus the dot product."""
        indices_Q, values_Q = coordinates(query)
        met_E = np.isin(self._indices_E, indices_Q)
        weights = values_Q.astype(np.float64)[np.searchsorted(indices_Q, self._indices_E[met_E])]
        products = self._values_E[met_E].astype(np.float64) * weights
        dots_V = np.bincount(self._owners_E[met_E], products, len(self._places_V)).astype(np.float64)
        chosen_V = np.isin(self._places_V, within)
        places, distances = self._places_V[chosen_V], rounded(dots_V[chosen_V])
        order = np.argsort(distances, kind="stable")[:limit]
        return Hits(places[order], distances[order])


def coordinates(vector: SparseVector) -> tuple[npt.NDArray[np.int64], Floats32]:
    """Return the indices in ascending order, and their values."""
    indices_Q = np.asarray(vector.indices, np.int64)
    order = np.argsort(indices_Q)
    return indices_Q[order], np.asarray(vector.values, np.float32)[order]
