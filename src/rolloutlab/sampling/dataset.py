"""Rows that a collection is sampled over, from DataFrames and lists, as JSON values."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.sampling.prompt import Row

_PLAIN: Mapping[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int, "f": float, "U": str, "M": str}
"""What a scalar of NumPy is in Python, by the kind of its type; a date is its ISO text."""


def rows_of(over: Any) -> list[Row]:
    """Rows of a DataFrame, a list of mappings, or a list of values (as `item`); None is one empty row.

    Values become JSON: arrays are lists, dates ISO texts, and missing values None at any depth.

    Raises:
        InputError: no rows, `over` is of another type, a column is repeated, or a value cannot be JSON.
    """
    if over is None:
        return [Row()]
    if hasattr(over, "to_dict") and hasattr(over, "columns"):
        _check_names(over.columns, "the frame")
        rows = over.to_dict(orient="records")
    elif isinstance(over, Sequence) and not isinstance(over, str):
        rows = [row if isinstance(row, Mapping) else {"item": row} for row in over]
    else:
        raise InputError(f"cannot sample over a {type(over).__name__}", hint="--over DATAFRAME, or a list of dicts")
    if not rows:
        raise InputError("there are no rows to sample over", hint="--over a DataFrame with at least one row")
    columns = frozenset(str(column) for row in rows for column in row)
    return [Row(_plain_row(i, row), number=i, columns=columns) for i, row in enumerate(rows)]


def _plain_row(number: int, row: Mapping[Any, Any]) -> dict[str, Any]:
    _check_names(row, f"row {number}")
    return {str(column): _plain(value, f"row {number}, column {str(column)!r}") for column, value in row.items()}


def _plain(value: Any, place: str) -> Any:
    """The value as JSON, without types of NumPy and pandas."""
    if type(value).__name__ in {"NaTType", "NAType"}:
        return None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int | float):
        return _finite(value, place)
    if isinstance(value, Mapping):
        _check_names(value, place)
        return {str(key): _plain(each, place) for key, each in value.items()}
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1:
        return [_plain(each, place) for each in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return _plain_array(value, place)


def _plain_array(value: Any, place: str) -> Any:
    """A scalar of NumPy, or an array of several dimensions."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in _PLAIN and not value.ndim:
        return _plain(_PLAIN[kind](value), place) if value == value else None  # NaT is not itself
    if getattr(value, "ndim", 0) and not hasattr(value, "columns"):
        return [_plain(each, place) for each in value]
    raise InputError(f"{place}: a {type(value).__name__} cannot be kept as JSON", hint="str(value), or float(value)")


def _finite(value: float, place: str) -> float | None:
    """A number; None for NaN."""
    if math.isinf(value):
        raise InputError(f"{place}: {value} cannot be kept as JSON", hint="a finite number, or None")
    if math.isnan(value):
        return None
    return int(value) if isinstance(value, int) else float(value)


def _check_names(names: Iterable[Any], place: str) -> None:
    """InputError where two names are one as texts."""
    twice = [name for name, times in Counter(map(str, names)).items() if times > 1]
    if twice:
        raise InputError(f"{place} has {twice[0]!r} twice", hint="a name of its own for each column")
