"""Restores numbers that a DataFrame changed: integers beside a missing value, and floats of 16 and 32 bits.

NumPy has no missing integer, so pandas keeps 2019 beside a missing value as 2019.0. A float of 32 bits that stores 0.1
becomes 0.10000000149011612 as a float of Python.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_NARROW = re.compile(r"\b(float|halffloat|Float16|Float32)\b")
"""Matches the types of pyarrow and polars with 16 or 32 bits. Those with 64 are `double` and `Float64`."""
_CODES = {2: "e", 4: "f"}
"""Formats of `struct`, by the bytes of a float."""

Path = tuple[Any, ...]
"""The place of a value in a row: its column, then for each level a key of an object, or None for any item of a list."""


def shorten(value: float, size: int) -> float:
    """Return the decimal with the fewest digits that is this value as a float of `size` bytes."""
    if size in _CODES and math.isfinite(value):
        for digits in range(1, 10):
            short = float(f"{value:.{digits}g}")
            try:
                if struct.unpack(_CODES[size], struct.pack(_CODES[size], short)) == (value,):
                    return short
            except OverflowError:  # rounding has made it larger than the largest float of this size
                continue
    return value


def shorten_floats(rows: Iterable[Mapping[str, Any]], types: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Shorten the floats of 16 and 32 bits in rows, at any depth. types: of pyarrow or polars, by column."""
    narrow = {column: kind for column, kind in types.items() if _NARROW.search(str(kind))}
    for row in rows:
        yield (
            {**row, **{column: _shorten_value(row[column], kind) for column, kind in narrow.items()}} if narrow else row
        )


def _shorten_value(value: Any, kind: Any) -> Any:
    if isinstance(value, float):
        size = 2 if str(kind) in {"halffloat", "Float16"} else 4 if str(kind) in {"float", "Float32"} else 8
        return shorten(value, size)
    if isinstance(value, Mapping):
        fields = getattr(kind, "fields", kind)  # a struct of polars has a list of fields, one of pyarrow is iterable
        types = {field.name: getattr(field, "dtype", None) or field.type for field in fields}
        return {name: _shorten_value(each, types.get(name)) for name, each in value.items()}
    if isinstance(value, list):
        of_items = getattr(kind, "inner", None) or getattr(kind, "value_type", None)
        return [_shorten_value(each, of_items) for each in value]
    return value


def read_frame_rows(frame: Any, limit: int | None) -> Iterator[Mapping[str, Any]]:
    """Read the first rows of a frame of pandas, with integers in columns that had integers.

    These are columns of floats in which a value is missing and all others are whole, in the whole frame.
    """
    whole, sizes = set(), {}
    for i, (column, dtype) in enumerate(frame.dtypes.items()):
        if getattr(dtype, "kind", "") == "f":
            kind = getattr(dtype, "subtype", dtype)  # of a sparse column
            sizes[column] = getattr(kind, "itemsize", 8)
            is_numpy = not hasattr(kind, "numpy_dtype") and not hasattr(kind, "pyarrow_dtype")
            present = frame.iloc[:, i].dropna()
            if is_numpy and 0 < len(present) < len(frame) and bool((present % 1 == 0).all()):
                whole.add(column)
    for row in (frame if limit is None else frame.head(limit)).to_dict(orient="records"):
        for column, size in sizes.items():
            value = row[column]
            if isinstance(value, float) and math.isfinite(value):
                row[column] = int(value) if column in whole else shorten(value, size)
        yield row


def restore_integers(rows: Sequence[Any], *, of_frame: bool) -> Iterator[Any]:
    """Make floats in rows integers again, if a frame seems to have made floats of them.

    A frame has done so at a place where a value is missing in some row, and the numbers of all rows are whole. Such
    rows come from `frame.to_dict("records")`, and from lists and objects of Parquet that pandas has read.

    of_frame: whether the rows are of a frame. Then None counts as missing, otherwise only NaN does.
    """
    seen = _Seen(of_frame)
    try:
        for row in rows:
            seen.note(row, ())
    except RecursionError:  # a row is nested too deeply: converting it to JSON will fail, and name its place
        yield from rows
        return
    whole = seen.missing - seen.fractions
    columns = {path[0] for path in whole if path}
    for row in rows:
        if columns and isinstance(row, Mapping):
            yield {**row, **{name: _as_integers(row[name], (name,), whole) for name in columns & row.keys()}}
        else:
            yield _as_integers(row, (), whole) if () in whole else row


class _Seen:
    """Collects the places of missing numbers, and of floats with a fraction, in rows."""

    def __init__(self, of_frame: bool) -> None:
        self._of_frame = of_frame
        self.missing: set[Path] = set()
        self.fractions: set[Path] = set()

    def note(self, value: Any, path: Path) -> None:
        if isinstance(value, float):
            if math.isnan(value):
                self.missing.add(path)
            elif not value.is_integer():
                self.fractions.add(path)
        elif value is None and self._of_frame:
            self.missing.add(path)
        elif isinstance(value, Mapping):
            for name, each in value.items():
                self.note(each, (*path, name))
        elif getattr(getattr(value, "dtype", None), "kind", "O") != "O":
            self._note_array(value, (*path, None))
        elif isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1:
            for each in value:
                self.note(each, (*path, None))

    def _note_array(self, array: Any, path: Path) -> None:
        """Note the items of an array of numbers, such as an embedding, without a loop in Python."""
        if array.dtype.kind == "f" and getattr(array, "ndim", 0) == 1:
            if bool((array != array).any()):
                self.missing.add(path)
            if bool(((array.round() != array) & (array == array)).any()):
                self.fractions.add(path)


def _as_integers(value: Any, path: Path, whole: set[Path]) -> Any:
    if isinstance(value, float):
        return int(value) if path in whole and math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {name: _as_integers(each, (*path, name), whole) for name, each in value.items()}
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1:
        return [_as_integers(each, (*path, None), whole) for each in value]
    return value
