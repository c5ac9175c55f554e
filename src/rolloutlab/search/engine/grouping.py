"""The best of every group: records with the same values in some fields, by the smallest or largest of others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.search.engine.backend import MISSING
from rolloutlab.search.query import GroupBy, MaxK

_KINDS = {bool: 1, int: 2, float: 3, str: 4}
_LIST = 5
_Key = tuple[Any, ...]


@dataclass(frozen=True)
class Grouped:
    """Which records are kept, as indices in their order; how many groups there are, and the size of the smallest."""

    kept: list[int]
    groups: int
    smallest: int


def grouped(group_by: GroupBy, columns: Mapping[str, Sequence[Any]], total: int) -> Grouped:
    """The records to keep, of a number of them that are in the order of their scores, or of storage without a rank.

    columns: the values of every key, `MISSING` where a record has none, which is a value of its own. Values of another
    type are others: 1, 1.0 and "1" are three groups. Records with the same aggregate keys stay in that order.
    """
    groups: dict[_Key, list[int]] = {}
    for i in range(total):
        groups.setdefault(tuple(ordinal(columns[key][i]) for key in group_by.keys), []).append(i)
    aggregate = group_by.aggregate
    largest = isinstance(aggregate, MaxK)
    kept = [
        i
        for members in groups.values()
        for i in sorted(
            members,
            key=lambda i: tuple(ordinal(columns[key][i], nan=-1 if largest else 1) for key in aggregate.keys),
            reverse=largest,
        )[: aggregate.k]
    ]
    return Grouped(sorted(kept), len(groups), min(map(len, groups.values()), default=0))


def ordinal(value: Any, nan: int = 1) -> _Key:
    """A key that sorts: missing < bool < int < float < str < list, then values. nan: -1 before floats, 1 after."""
    if value is MISSING:
        return (0,)
    if isinstance(value, list | tuple):
        return (_LIST, *(ordinal(element, nan) for element in value))
    if isinstance(value, float) and math.isnan(value):
        return (_KINDS[float], nan, 0.0)
    return (_KINDS[type(value)], 0, value)
