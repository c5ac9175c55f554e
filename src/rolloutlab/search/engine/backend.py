"""What a search is executed on: anything that can filter, find the nearest, and read records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rolloutlab.search.rank import Knn
from rolloutlab.search.where import Where

T = TypeVar("T")

Places = npt.NDArray[np.int64]
"""Records of one snapshot, as numbers in storage order."""


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The value of a field that a record does not have."""


@dataclass(frozen=True)
class Hits:
    """The nearest records, nearest first, records at the same distance in storage order."""

    places_K: Places
    distances_K: npt.NDArray[np.float32]


class Snapshot(Protocol):
    """Records as they are at one moment."""

    @property
    def total(self) -> int:
        """How many there are."""

    def filter(self, where: Where | None) -> Places:
        """The records that qualify, in storage order."""

    def knn(self, knn: Knn, within: Places) -> Hits:
        """The `knn.limit` nearest of some records that have such a vector; `return_rank` and `default` play no part.

        Raises:
            InputError: there is no such key, or the query is not one for it.
        """

    def get(self, places: Places, keys: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """A column per key, a value per record, `MISSING` where it has none.

        keys: `#id`, `#document`, `#embedding`, `#metadata`, or names of metadata fields.
        """


class Backend(Protocol):
    """Where records are."""

    def within(self, work: Callable[[Snapshot], T]) -> T:
        """What `work` returns of the records as they are now, for one search."""
