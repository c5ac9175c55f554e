"""Metadata columns in memory: a type tag and 64 bits per value."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rolloutlab.search.engine.backend import MISSING, Places

Mask = npt.NDArray[np.bool_]
ABSENT, BOOL, INT, FLOAT, TEXT, LIST = range(6)
KINDS = ("missing", "bool", "int", "float", "str", "list")
_KIND = {bool: BOOL, int: INT, float: FLOAT, str: TEXT, list: LIST}
HELD = frozenset([*_KIND, type(None)])
"""Types of a stored value. None counts as absent."""


class Column:
    """One field of all records. kinds_N: indices into `KINDS`. bits_N: the numbers, or the codes of texts."""

    def __init__(self) -> None:
        self.kinds_N = np.zeros(0, np.int8)
        self.bits_N = np.zeros(0, np.int64)
        self.lists: dict[int, list[Any]] = {}
        self.present = {ABSENT}
        """Kinds that occur, so that filters skip the others."""
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []

    def floats(self) -> npt.NDArray[np.float64]:
        """Return the bits as floats."""
        return self.bits_N.view(np.float64)

    def code(self, text: str) -> int:
        """Return the code of a text; -1 if no record has it."""
        return self._codes.get(text, -1)

    def grow(self, room: int) -> None:
        self.kinds_N = pad(self.kinds_N, room)
        self.bits_N = pad(self.bits_N, room)

    def clear(self, places_K: Places) -> None:
        self.kinds_N[places_K] = ABSENT
        if self.lists:
            for place in places_K.tolist():
                self.lists.pop(place, None)

    def put(self, places: Sequence[int], values: Sequence[Any]) -> None:
        kinds = [_KIND[type(value)] for value in values]
        self.kinds_N[places] = kinds
        self.present.update(kinds)
        if len(set(kinds)) > 1:
            for kind in set(kinds):
                chosen = [i for i, other in enumerate(kinds) if other == kind]
                self._put(kind, [places[i] for i in chosen], [values[i] for i in chosen])
        else:
            self._put(kinds[0], places, values)

    def _put(self, kind: int, places: Sequence[int], values: Sequence[Any]) -> None:
        if kind == FLOAT:
            self.floats()[places] = values
        elif kind == TEXT:
            self.bits_N[places] = [self._encode(text) for text in values]
        elif kind == LIST:
            self.lists.update(zip(places, values, strict=True))
        else:
            self.bits_N[places] = values

    def _encode(self, text: str) -> int:
        code = self._codes.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
        return code

    def values(self, places_K: Places) -> list[Any]:
        """Return a value or `MISSING` per place."""
        kinds_K, bits_K = self.kinds_N[places_K], self.bits_N[places_K]
        values: list[Any] = bits_K.tolist()
        for kind in set(kinds_K.tolist()) - {INT, FLOAT}:
            for i in np.flatnonzero(kinds_K == kind).tolist():
                values[i] = self._value(kind, values[i], int(places_K[i]))
        if FLOAT in self.present:
            which = np.flatnonzero(kinds_K == FLOAT)
            for i, number in zip(which.tolist(), bits_K.view(np.float64)[which].tolist(), strict=True):
                values[i] = number
        return values

    def _value(self, kind: int, bits: int, place: int) -> Any:
        if kind == TEXT:
            return self._texts[bits]
        if kind == LIST:
            return self.lists[place]
        return bool(bits) if kind == BOOL else MISSING


class Columns:
    """The columns of all fields, each with room for every record."""

    def __init__(self) -> None:
        self.by_name: dict[str, Column] = {}
        self._room = 0

    def grow(self, room: int) -> None:
        """Grow to at least `room` places, by half more each time."""
        if room > self._room:
            self._room = max(room, self._room * 3 // 2)
            for column in self.by_name.values():
                column.grow(self._room)

    def put(self, places_K: Places, metadatas: Sequence[Mapping[str, Any]]) -> None:
        """Replace the metadata of some records."""
        for column in self.by_name.values():
            column.clear(places_K)
        gathered: dict[str, tuple[list[int], list[Any]]] = {}
        for place, metadata in zip(places_K.tolist(), metadatas, strict=True):
            for name, value in metadata.items():
                places, values = gathered.setdefault(name, ([], []))
                places.append(place)
                values.append(value)
        for name, (places, values) in gathered.items():
            if name not in self.by_name:
                self.by_name[name] = Column()
                self.by_name[name].grow(self._room)
            self.by_name[name].put(places, values)

    def clear(self, places_K: Places) -> None:
        for column in self.by_name.values():
            column.clear(places_K)

    def fields(self) -> dict[str, tuple[str, ...]]:
        """Return the types of the values in each field."""
        kinds = {name: np.unique(column.kinds_N).tolist() for name, column in self.by_name.items()}
        named = {name: tuple(KINDS[kind] for kind in present if kind != ABSENT) for name, present in kinds.items()}
        return {name: present for name, present in named.items() if present}

    def values(self, name: str, places_K: Places) -> list[Any]:
        column = self.by_name.get(name)
        return [MISSING] * len(places_K) if column is None else column.values(places_K)


def pad(array_N: npt.NDArray[Any], room: int) -> npt.NDArray[Any]:
    """Copy an array, padded with zeros to a length."""
    longer_N = np.zeros(room, array_N.dtype)
    longer_N[: len(array_N)] = array_N
    return longer_N


def mask_of(places: Iterable[int] | Places, total: int) -> Mask:
    mask_N = np.zeros(total, np.bool_)
    mask_N[np.asarray(places, np.int64)] = True
    return mask_N
