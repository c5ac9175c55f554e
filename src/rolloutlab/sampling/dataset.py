"""Rows that a collection is sampled over, from DataFrames, lists, iterators, datasets and files, as JSON values."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from itertools import islice, repeat
from os import PathLike
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.fsutil import path_of
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.data_files import Record, is_parquet, read_records, table_of
from rolloutlab.sampling.numbers import read_frame_rows, restore_integers, shorten, shorten_floats
from rolloutlab.sampling.parquet_rows import Unreadable, read_arrow_values
from rolloutlab.sampling.prompt import PRESENT, Row


def _to_float(value: Any) -> float:
    """Convert a scalar of NumPy to the float with the fewest digits that has the same value in its type."""
    return shorten(float(value), value.dtype.itemsize)


_PLAIN: Mapping[str, Callable[[Any], Any]] = {"b": bool, "i": int, "u": int, "f": _to_float, "U": str, "M": str}
"""Converts a scalar of NumPy to Python, by the kind of its type. A date becomes its ISO text."""

_PRESENT = {
    "pandas": "rows.dropna(subset=[{}]).convert_dtypes()",  # `convert_dtypes` makes whole floats integers again
    "polars": "rows.drop_nulls({})",
    "pyarrow": "rows.filter(pyarrow.compute.is_valid(rows[{}]))",
    "datasets": "rows.filter(lambda row: row[{}] is not None)",
}
"""By the library of a source, what to type for its rows that have a value in a column."""

_KINDS: Mapping[type, str] = {datetime: "datetime", date: "date", time: "time", Decimal: "decimal"}
"""Types that JSON stores as text, subclasses first. `to_frame` converts the texts back."""


MAX_ROWS = 1_000_000
"""The most rows that are read without a limit. A row takes a kilobyte of memory; 42 kB of gzip may hold a million."""
_ROWS_BETWEEN = 1000
"""Rows between two calls of `on_read`."""
_OF_JSON = frozenset({str, int, float, bool, type(None)})
"""Types of scalars that JSON has."""


class Rows(list[Row]):
    """Rows that have been read already. As `over` they are used as they are."""


ReadRows = Callable[[Any, int | None], list[Row]]
"""A function that reads rows as `rows_of` does, and may show how many it has read."""


def rows_of(over: Any, limit: int | None = None, on_read: Callable[[int], object] = lambda _: None) -> list[Row]:
    """Read rows from a DataFrame or Series (pandas, polars), a pyarrow table, a dataset, a file, or an iterable.

    Items of an iterable are mappings or other values. A value gets the column `item`, or the name of the Series. Items
    of a set are sorted. Values become JSON at any depth: arrays lists, dates ISO texts, missing values None. A value
    that JSON cannot hold is left out of its row, and `Row.unusable` has the reason.

    Args:
        over: the source of the rows; None for one empty row.
        limit: the most rows to read. Without it, an iterator is read to its end, and more than a million rows are
            refused.
        on_read: called again and again with the number of rows read so far.

    Raises:
        NotFoundError: there is no such file. InputError: no rows, `over` is of another type, a column is repeated, or
            no value of a row can be JSON; the message has the row, or file and line, and the column.
    """
    check_limit(limit)
    if over is None:
        return [Row()]
    if isinstance(over, Rows) and (limit is None or len(over) <= limit):
        return over
    structs, present = _has_structs(over), _present_hint(over)
    places, values = _read(over, limit, on_read)
    if present == PRESENT and any(map(_has_nan, values)):  # dicts that a frame made: its integers became floats
        present = _PRESENT["pandas"].replace("rows", "pandas.DataFrame(rows)", 1)
    read = values if structs else restore_integers(values, of_frame=_is_frame(over))
    rows = Rows()
    for place, row, known in zip(places, read, values, strict=True):
        rows.append(_convert_row(place, row, known, structs=structs, present=present))
        if len(rows) % _ROWS_BETWEEN == 0:
            on_read(len(values))  # once more: what shows it may wait for a second before it does
    if not rows:
        raise InputError("there are no rows to sample over", hint="--over a DataFrame with at least one row")
    columns = frozenset(column for row in rows for column in row)
    for number, row in enumerate(rows):
        row.number, row.columns = number, columns
    return rows


def check_limit(limit: Any) -> None:
    """Raise InputError unless a limit is None or an integer ≥ 1."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InputError(f"limit must be an integer ≥ 1, not {limit!r}", hint="--limit 1000")


def _read(over: Any, limit: int | None, on_read: Callable[[int], object]) -> tuple[list[str], list[Any]]:
    """Read the rows as they are; return their places and the rows."""
    places, values = list[str](), list[Any]()
    for place, row in islice(_read_records(over, limit), limit):
        if len(values) == MAX_ROWS and limit is None:
            hint = f"--limit {MAX_ROWS}, or itertools.islice(rows, {MAX_ROWS}), takes the first ones"
            raise InputError(f"{place}: there are more than {MAX_ROWS:,} rows", hint=hint)
        places.append(place)
        values.append(row)
        if len(values) % _ROWS_BETWEEN == 0:
            on_read(len(values))
    return places, values


def kinds_of(rows: Sequence[Row]) -> dict[str, str]:
    """Find the columns whose values all had one type that JSON lacks: `datetime`, `date`, `time` or `decimal`."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, set()).add(row.kinds.get(column, ""))
    return {column: kind for column, (kind, *others) in kinds.items() if kind and not others}


def convert_parquet_row(place: str, row: Mapping[str, Any]) -> Row:
    """Convert a row of Parquet to values of JSON. `Row.unusable` has the reasons of values that are left out."""
    return _convert_row(place, row, row, structs=True, present=PRESENT)


def describe_left_out(rows: Sequence[Row]) -> list[str]:
    """Describe in a line each column some of whose values were left out, because JSON cannot hold them."""
    errors = {column: error for row in reversed(rows) for column, error in row.unusable.items()}
    counts = Counter(column for row in rows for column in row.unusable)
    return [
        f"{error.message}: left out of {count(counts[column], 'row')} -> {error.hint}"
        for column, error in sorted(errors.items())
    ]


def check_repeatable(over: Any) -> None:
    """Raise InputError for an iterator, because a dry run would use it up."""
    if isinstance(over, Iterator):
        hint = "rows = list(rows) first, or rows = list(itertools.islice(rows, 1000))"
        raise InputError(f"a dry run would use up the {type(over).__name__}", hint=hint)


def _read_records(over: Any, limit: int | None) -> Iterator[Record]:
    """Read rows with their places, only as far as they are needed."""
    if isinstance(over, str | PathLike):
        return read_records(path_of(over, "over='rows.jsonl'"))
    return ((f"row {number}", row) for number, row in enumerate(_iter_items(over, limit)))


def _iter_items(over: Any, limit: int | None) -> Iterable[Any]:
    if hasattr(over, "collect") and hasattr(over, "collect_schema"):  # polars.LazyFrame
        over = (over if limit is None else over.head(limit)).collect()
    if hasattr(over, "iter_rows"):  # polars.DataFrame
        return shorten_floats(over.iter_rows(named=True), over.schema)
    if _is_frame(over):
        _check_names(over.columns, "the frame")
        return read_frame_rows(*_replace_unreadable(over, limit))
    if hasattr(over, "to_pylist"):
        return _iter_arrow(over if limit is None else over.slice(0, limit))
    if hasattr(over, "to_frame") and isinstance(over, Iterable):  # a Series of pandas or polars, or an Index
        return _iter_series(over, limit)
    return _iter_mapping(over, limit) if isinstance(over, Mapping) else _iter_iterable(over)


def _iter_mapping(over: Mapping[Any, Any], limit: int | None) -> Iterable[Any]:
    """Iterate over the only split of a DatasetDict, or over the only list of objects in a dict."""
    kind = type(over).__name__
    splits = list(over) if kind.endswith("DatasetDict") else []
    if len(splits) == 1:
        return _iter_items(over[splits[0]], limit)
    if splits:
        what = f"a {kind} has several splits: {', '.join(map(str, splits))}"
        raise InputError(what, hint=f"rows = data[{splits[0]!r}]")
    if table := table_of(over, f"the {kind}"):
        return table[1]
    raise InputError(f"cannot sample over a {kind}", hint="a list of dicts, or pandas.DataFrame(rows)")


def _iter_iterable(over: Any) -> Iterable[Any]:
    if not isinstance(over, Iterable) or isinstance(over, bytes | bytearray) or getattr(over, "ndim", 1) == 0:
        what = f"cannot sample over a {type(over).__name__}"
        raise InputError(what, hint="--over DATAFRAME, a list of dicts, or a file")
    if isinstance(over, Set):  # a set of texts has another order in each process
        return sorted(over, key=lambda item: (type(item).__name__, repr(item)))
    if names := getattr(getattr(over, "dtype", None), "names", None):  # an array of records
        return ({name: row[name] for name in names} for row in over)
    schema = getattr(getattr(over, "features", None), "arrow_schema", None)  # of `datasets`
    return iter(over) if schema is None else shorten_floats(over, {field.name: field.type for field in schema})


def _iter_arrow(over: Any) -> Iterable[Any]:
    """Iterate over the rows of a table of pyarrow, or over the items of an array."""
    if hasattr(over, "schema"):
        names = over.schema.names
        _check_names(names, "the table")
        columns = zip(*map(read_arrow_values, over.columns), strict=True) if names else repeat((), len(over))
        rows = (dict(zip(names, row, strict=True)) for row in columns)
        return shorten_floats(rows, {field.name: field.type for field in over.schema})
    items = ({"item": value} for value in read_arrow_values(over))
    return (row["item"] for row in shorten_floats(items, {"item": over.type}))


def _replace_unreadable(frame: Any, limit: int | None) -> tuple[Any, int | None]:
    """Replace each column of Arrow that has values which Python cannot hold by a column of objects.

    Such a value becomes an `Unreadable`. Returns the frame and the limit, which together are the arguments of
    `read_frame_rows`.
    """
    for i, dtype in enumerate(frame.dtypes):
        if hasattr(dtype, "pyarrow_dtype"):
            head = frame.iloc[:limit, i]
            values = read_arrow_values(head.array.__arrow_array__())
            if any(isinstance(value, Unreadable) for value in values):
                column = type(head)(values, index=head.index, dtype=object)
                frame = frame.iloc[:limit].assign(**{frame.columns[i]: column})
    return frame, limit


def _iter_series(series: Any, limit: int | None) -> Iterable[Any]:
    """Iterate over a Series: its dicts are rows, other values get a column with the name of the Series."""
    if any(isinstance(value, Mapping) for value in series):
        return list(series)
    name = series.name if isinstance(series.name, str) and series.name else "item"
    return _iter_items(series.to_frame(name), limit)


def _is_frame(over: Any) -> bool:
    """Whether this is a DataFrame of pandas."""
    return hasattr(over, "to_dict") and hasattr(over, "columns") and hasattr(over, "iloc")


def _has_structs(over: Any) -> bool:
    """Whether the objects in a source are structs of Arrow, as those of Parquet, pyarrow, polars and `datasets` are."""
    if isinstance(over, str | PathLike):
        return is_parquet(Path(over).name)
    library = type(over).__module__.partition(".")[0]
    if library == "datasets" or hasattr(over, "to_pylist") or hasattr(over, "collect_schema"):
        return True
    return _is_frame(over) and any(hasattr(dtype, "pyarrow_dtype") for dtype in over.dtypes)


def _present_hint(over: Any) -> str:
    """Return what to type for the rows of a source that have a value in a column; see `Row.present`."""
    if isinstance(over, str | PathLike):
        name = str(over)
        ends = "" if name.lower().endswith(".json") else ", lines=True"
        read = f"read_parquet({name!r})" if is_parquet(name) else f"read_json({name!r}{ends})"
        return _PRESENT["pandas"].replace("rows", f"rows = pandas.{read}", 1)
    return _PRESENT.get(type(over).__module__.partition(".")[0], PRESENT)


def _has_nan(row: Any) -> bool:
    values = row.values() if isinstance(row, Mapping) else ()
    return any(isinstance(value, float) and math.isnan(value) for value in values)


def _is_struct_array(value: Any) -> bool:
    """Whether a value is an array of dicts, which pandas makes of a list of structs."""
    if type(value) in _OF_JSON:
        return False
    is_array = getattr(value, "ndim", 0) == 1 and getattr(value, "dtype", None) is not None
    return is_array and value.dtype.kind == "O" and any(isinstance(each, Mapping) for each in value)


def _convert_row(place: str, row: Any, source: Any, *, structs: bool, present: str) -> Row:
    """Convert a row to JSON values.

    Args:
        place: Where the row is from, for messages.
        row: The row, with integers restored.
        source: The row as it was read. It may be a `Row` of a split or of an earlier call, whose attributes are kept.
        structs: Whether its objects are structs of Arrow.
        present: As of `Row.present`.
    """
    mapping = row if isinstance(row, Mapping) else {"item": row}
    known = source if isinstance(source, Row) else Row(place=place, present=present)
    _check_names(mapping, known.place)
    values, unusable = {}, dict(known.unusable)
    for column, value in ((str(column), value) for column, value in mapping.items()):
        try:
            values[column] = _convert_column(value, f"{known.place}, column {column!r}")
            unusable.pop(column, None)
        except InputError as error:
            unusable[column] = error
    if unusable and not values:
        raise next(iter(unusable.values()))
    kinds = {str(column): _kind_of(value) or known.kinds.get(str(column), "") for column, value in mapping.items()}
    return Row(
        values,
        place=known.place,
        kinds={column: kind for column, kind in kinds.items() if kind and isinstance(values.get(column), str)},
        part=known.part,
        within=known.within,
        structs=structs or known.structs or any(map(_is_struct_array, mapping.values())),
        present=known.present,
        unusable=unusable,
    )


def _kind_of(value: Any) -> str:
    """Return the type of a value that JSON stores as text, as in `_KINDS`; "" for other values."""
    if type(value) in _OF_JSON:
        return ""
    if getattr(getattr(value, "dtype", None), "kind", "") == "M" and not value.ndim:
        return "datetime"
    return next((kind for type_, kind in _KINDS.items() if isinstance(value, type_)), "")


def _convert_column(value: Any, place: str) -> Any:
    try:
        return _convert(value, place)
    except RecursionError:
        raise InputError(f"{place}: nested too deeply", hint="json.dumps(value), a text") from None


def _convert(value: Any, place: str) -> Any:
    """Convert a value to JSON at any depth. A missing value of pandas or NumPy becomes None."""
    if type(value).__name__ in {"NaTType", "NAType"}:
        return None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _convert(value.value, place)
    if isinstance(value, str):
        return _check_encodable(str.__str__(value), place)  # `str` of a subclass may be its representation
    if isinstance(value, int | float):
        return _convert_number(value, place)
    if isinstance(value, Mapping):
        _check_names(value, place)
        return {str(key): _convert(each, place) for key, each in value.items()}
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1:
        return [_convert(each, place) for each in value]
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, Decimal) and not value.is_infinite():
        return None if value.is_nan() else Decimal.__str__(value)
    return _convert_array(value, place)


def _convert_array(value: Any, place: str) -> Any:
    """Convert a scalar of NumPy or an array of several dimensions; raise InputError for any other value."""
    if isinstance(value, Unreadable):
        raise InputError(f"{place}: {value.why}", hint="a column of texts, or of numbers, in its place")
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in _PLAIN and not value.ndim:
        return _convert(_PLAIN[kind](value), place) if value == value else None  # NaT is not itself
    if getattr(value, "ndim", 0) and not hasattr(value, "columns"):
        return [_convert(each, place) for each in value]
    raise InputError(f"{place}: a {type(value).__name__} cannot be kept as JSON", hint="str(value), or float(value)")


def _check_encodable(text: str, place: str) -> str:
    """Return the text; raise InputError for a lone surrogate, which no file or frame of the collection could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        wrong = f"{place}: the text contains a lone surrogate, which UTF-8 cannot encode"
        raise InputError(wrong, hint="text.encode('utf-8', 'replace').decode()") from None
    return text


def _convert_number(value: float, place: str) -> float | None:
    """Convert a number, NaN to None; raise InputError for an infinite one."""
    if isinstance(value, int):
        return int(value)
    if math.isinf(value):
        raise InputError(f"{place}: {value} cannot be kept as JSON", hint="a finite number, or None")
    return None if math.isnan(value) else float(value)


def _check_names(names: Iterable[Any], place: str) -> None:
    """Raise InputError if two names are equal as texts."""
    names = [*map(str, names)]
    if len({*names}) == len(names):
        return
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"{place} has {twice[0]!r} twice", hint="a name of its own for each column")
