"""One whole search: which records, in what order, how many of a kind, which page, and what of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rolloutlab.search.rank import Rank
from rolloutlab.search.where import Where

SCORE, METADATA = "#score", "#metadata"
SHOWN = ("#id", "#document", "#embedding", METADATA, SCORE)
"""What of a record may be selected, besides its metadata fields."""


@dataclass(frozen=True)
class MinK:
    """The k records of a group with the smallest keys, the first key before the second. keys: fields, or `#score`."""

    keys: tuple[str, ...]
    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _names(self.keys))


@dataclass(frozen=True)
class MaxK(MinK):
    """As `MinK`, with the largest."""


@dataclass(frozen=True)
class GroupBy:
    """Records with the same values in some fields are a group, of which an aggregate keeps the best."""

    keys: tuple[str, ...]
    aggregate: MinK | MaxK

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _names(self.keys))


@dataclass(frozen=True)
class Limit:
    """A page of what was found. limit: 0 is all."""

    limit: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Select:
    """What comes of each record: some of `SHOWN`, and metadata fields by name. Empty: ids, and scores when ranked."""

    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(dict.fromkeys(_names(self.keys))))

    def beside(self, *keys: str) -> "Select":
        """These keys, and those."""
        return Select((*keys, *self.keys))


@dataclass(frozen=True)
class Search:
    """Everything one search says; each part may be left out."""

    where: Where | None = None
    rank: Rank | None = None
    group_by: GroupBy | None = None
    limit: Limit = field(default_factory=Limit)
    select: Select = field(default_factory=Select)


def _names(keys: str | Iterable[str]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys)
