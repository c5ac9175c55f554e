"""Sparse vectors of one field in memory, and the nearest of them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rolloutlab.search.engine.backend import Hits, Places
from rolloutlab.search.engine.vectors import rounded
from rolloutlab.search.rank import SparseVector


class SparseVectors:
    """The values of all vectors one after another. places_V: the record of each vector, ascending."""

    def __init__(
        self,
        places_V: Places,
        indices: Sequence[npt.NDArray[np.int64]],
        values: Sequence[npt.NDArray[np.float32]],
    ) -> None:
        self._places_V = places_V
        self._owners_E = np.repeat(np.arange(len(places_V)), [len(found) for found in indices])
        self._indices_E = np.concatenate([np.zeros(0, np.int64), *indices])
        self._values_E = np.concatenate([np.zeros(0, np.float32), *values])

    def nearest(self, query: SparseVector, limit: int, within: Places) -> Hits:
        """The nearest of some records by 1 minus the dot product, which is 0 where no index is the same."""
        indices_Q, values_Q = coordinates(query)
        met_E = np.isin(self._indices_E, indices_Q)
        weights = values_Q.astype(np.float64)[np.searchsorted(indices_Q, self._indices_E[met_E])]
        products = self._values_E[met_E].astype(np.float64) * weights
        dots_V = np.bincount(self._owners_E[met_E], products, len(self._places_V)).astype(np.float64)
        chosen_V = np.isin(self._places_V, within)
        places, distances = self._places_V[chosen_V], rounded(dots_V[chosen_V])
        order = np.argsort(distances, kind="stable")[:limit]
        return Hits(places[order], distances[order])


def coordinates(vector: SparseVector) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Ascending indices and their values."""
    indices_Q = np.asarray(vector.indices, np.int64)
    order = np.argsort(indices_Q)
    return indices_Q[order], np.asarray(vector.values, np.float32)[order]
