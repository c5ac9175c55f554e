"""Which rows of a table are shown, and in which order: what a person types above a column becomes indices of rows."""

import operator
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

from rolloutlab.errors import InputError

Sort = str | Sequence[str | Sequence[str]]
"""A column, `-` before it for descending, or several, the first one first; also `(column, "desc")`."""

Filter = Mapping[str, Any]
"""A condition for each of some columns; all must hold."""

NONE = "none"
"""What is chosen to see the rows that have no value in a column of choices."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARISON = re.compile(rf"(<=|>=|!=|==?|<|>)?\s*({_NUMBER})", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})", re.ASCII)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class TableColumn:
    """One column. values: makes one value for each row, None where there is none.

    kind: `number` takes conditions such as `> 0.5`, `0..1` and `empty`; `text` a part of it; `choice` a value or
    several, one of `choices` where these are all. order: what it is sorted by, where that is not its values. holding:
    finds the rows whose text has a part, where the values are only beginnings.
    """

    kind: Literal["number", "text", "choice"]
    values: Callable[[], Sequence[Any]]
    choices: Sequence[str] = ()
    order: Callable[[], Sequence[Any]] | None = None
    holding: Callable[[str], Container[int]] | None = None


def arranged(
    columns: Mapping[str, TableColumn],
    total: int,
    sort: Sort = (),
    filter: Filter | None = None,  # noqa: A002
) -> Sequence[int]:
    """The indices of the rows to show, in order; ties stay as they were, and what has no value comes last.

    Raises:
        InputError: there is no such column, or a condition is not one that it takes.
    """
    conditions = [(column_of(columns, name), name, told) for name, told in (filter or {}).items()]
    keys = [_key(columns, one) for one in ([sort] if isinstance(sort, str) else sort)]
    shown: Sequence[int] = range(total)
    for column, name, told in conditions:
        if told not in ("", None, []):
            fits = _test(column, name, told)
            shown = [i for i in shown if fits(i)]
    for column, descending in reversed(keys):
        shown = _sorted(shown, column, descending)
    return shown


def column_of(columns: Mapping[str, TableColumn], name: Any) -> TableColumn:
    """The column of that name; InputError with the closest ones where there is none."""
    if not isinstance(name, str) or name not in columns:
        close = get_close_matches(str(name), columns, n=3) or list(columns)
        raise InputError(f"there is no column {name!r}", hint=", ".join(close))
    return columns[name]


def number_of(text: str) -> float | None:
    """The number that a text is, written with a point and in digits; None when it is none."""
    found = re.fullmatch(_NUMBER, text.strip(), re.ASCII)
    return float(found[0]) if found else None


def _key(columns: Mapping[str, TableColumn], told: Any) -> tuple[TableColumn, bool]:
    if isinstance(told, str):
        descending = told not in columns and told.startswith("-")
        return column_of(columns, told[1:] if descending else told), descending
    if not isinstance(told, Sequence) or len(told) != 2 or told[1] not in {"asc", "desc"}:
        raise InputError(f"a table cannot be sorted by {told!r}", hint='sort=["-reward", "name"]')
    return column_of(columns, told[0]), told[1] == "desc"


def _sorted(shown: Sequence[int], column: TableColumn, descending: bool) -> list[int]:
    values = column.order() if column.order else column.values()
    if column.kind == "text" and not column.order:
        values = [None if value is None else value.casefold() for value in values]
    there = [i for i in shown if values[i] is not None]
    return [
        *sorted(there, key=values.__getitem__, reverse=descending),
        *(i for i in shown if values[i] is None),
    ]


def _test(column: TableColumn, name: str, told: Any) -> Callable[[int], bool]:
    """Whether a row fits a condition."""
    if column.kind == "number":
        return _number_test(column, name, told)
    if column.kind == "choice":
        return _choice_test(column, name, told)
    if not isinstance(told, str):
        raise InputError(f"{name}: {told!r} is no text to look for", hint=f'filter={{"{name}": "words"}}')
    if column.holding:
        found = column.holding(told)
        return lambda i: i in found
    values, part = column.values(), told.casefold()
    return lambda i: values[i] is not None and part in values[i].casefold()


def _number_test(column: TableColumn, name: str, told: Any) -> Callable[[int], bool]:
    words = " ".join(told.split()) if isinstance(told, str) else told
    values = column.values()
    if words in ("empty", "not empty"):
        return lambda i: (values[i] is None) == (words == "empty")
    if isinstance(words, int | float) and not isinstance(words, bool):
        return lambda i: bool(values[i] == words)
    if isinstance(words, str) and (range_ := _RANGE.fullmatch(words)):
        low, high = float(range_[1]), float(range_[2])
        return lambda i: values[i] is not None and low <= values[i] <= high
    if isinstance(words, str) and (comparison := _COMPARISON.fullmatch(words)):
        compare, number = _COMPARE[comparison[1] or ""], float(comparison[2])
        return lambda i: values[i] is not None and compare(values[i], number)
    raise InputError(f"{name}: {told!r} is no condition on a number", hint="> 0.5, <= 1, = 0, 0..1, empty, not empty")


def _choice_test(column: TableColumn, name: str, told: Any) -> Callable[[int], bool]:
    wanted = [told] if isinstance(told, str) else told
    values = [NONE if value is None else value for value in column.values()]
    known = column.choices or list(dict.fromkeys([*values, NONE]))
    if not isinstance(wanted, Sequence) or not wanted or any(one not in known for one in wanted):
        wrong = next((one for one in wanted if one not in known), told) if isinstance(wanted, Sequence) else told
        close = get_close_matches(str(wrong), known, n=3) or known[:5]
        raise InputError(f"{name}: {wrong!r} is none of its values", hint=", ".join(close))
    chosen = frozenset(wanted)
    return lambda i: values[i] in chosen
