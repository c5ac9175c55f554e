"""The rows of prompts that a collection is sampled over."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError


def rows_of(over: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame, a list of mappings, or a list of values (as `item`); None is one empty row.

    Raises:
        InputError: there are no rows, or they are of another kind.
    """
    if over is None:
        return [{}]
    if hasattr(over, "to_dict") and hasattr(over, "columns"):
        rows = over.to_dict(orient="records")
    elif isinstance(over, Sequence) and not isinstance(over, str):
        rows = [dict(row) if isinstance(row, Mapping) else {"item": row} for row in over]
    else:
        raise InputError(f"cannot sample over a {type(over).__name__}", hint="--over DATAFRAME, or a list of dicts")
    if not rows:
        raise InputError("there are no rows to sample over", hint="--over a DataFrame with at least one row")
    return [{str(column): _plain(value) for column, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's, and what pandas calls missing as None, so that a row can be kept as JSON."""
    plain = value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value
    missing = (isinstance(plain, float) and not math.isfinite(plain)) or type(plain).__name__ in {"NaTType", "NAType"}
    return None if missing else plain
