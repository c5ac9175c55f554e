"""Protocols of a search backend: filter, nearest neighbours, and column reads on a snapshot."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rolloutlab.search.rank import Knn
from rolloutlab.search.where import Where

T = TypeVar("T")
Places = npt.NDArray[np.int64]
"""Record numbers within one snapshot, in storage order."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""Marks a field that a record does not have."""


@dataclass(frozen=True)
class Hits:
    """The nearest records, nearest first, ties in storage order."""

    places_K: Places
    distances_K: npt.NDArray[np.float32]


class Snapshot(Protocol):
    """A consistent view of the records."""

    @property
    def total(self) -> int:
        """The number of records."""

    def filter(self, where: Where | None) -> Places:
        """Find the records that match, in storage order."""

    def knn(self, knn: Knn, within: Places) -> Hits:
        """Find the `knn.limit` nearest of some records. `return_rank` and `default` are ignored.

        Raises:
            InputError: the key is unknown, or the query does not fit it.
        """

    def get(self, places: Places, keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """Read a column per key, with a value or `MISSING` per record.

        keys: `#id`, `#document`, `#embedding`, `#metadata`, or names of metadata fields.
        """


class Backend(Protocol):
    """A store of records."""

    def within(self, work: Callable[[Snapshot], T]) -> T:
        """Call `work` with a snapshot for one search and return its result."""
