"""Sort and filter of a table: conditions typed above its columns become indices of rows."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal

from rolloutlab.errors import InputError

Sort = str | Sequence[str | Sequence[str]]
"""A column, or several, the most important first. Descending: `-column` or `(column, "desc")`."""

Filter = Mapping[str, Any]
"""Conditions by column. All must hold."""

NONE = "none"
"""The choice that selects rows without a value."""

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARISON = re.compile(rf"(<=|>=|!=|==?|<|>)?\s*({_NUMBER})", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})", re.ASCII)
_COMPARE = {"": eq, "=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True)
class TableColumn:
    """One column of a table.

    kind: the conditions that it takes. `number`: `> 0.5`, `0..1`, `empty`. `text`: a part of the text. `choice`: a
        value, or several.
    values: returns a value for each row, None if it has none.
    choices: all values that a `choice` can have; by default those that occur.
    order: returns the sort keys, if they are not the values.
    holding: returns the rows whose whole text contains a part, if `values` has only the beginnings of the texts.
    """

    kind: Literal["number", "text", "choice"]
    values: Callable[[], Sequence[Any]]
    choices: Sequence[str] = ()
    order: Callable[[], Sequence[Any]] | None = None
    holding: Callable[[str], Container[int]] | None = None


def arrange(
    columns: Mapping[str, TableColumn],
    total: int,
    sort: Sort = (),
    filter: Filter | None = None,  # noqa: A002
) -> Sequence[int]:
    """Filter and sort the rows of a table; return the indices of the rows to show, in order.

    Rows with equal values keep their order. Rows without a value come last.

    Args:
        columns: The columns by name.
        total: The number of rows.
        sort: The columns to sort by.
        filter: The conditions.

    Raises:
        InputError: there is no such column, or the column does not take the condition.
    """
    conditions = [(column_of(columns, name), name, condition) for name, condition in (filter or {}).items()]
    keys = [_read_key(columns, one) for one in ([sort] if isinstance(sort, str) else sort)]
    shown: Sequence[int] = range(total)
    for column, name, condition in conditions:
        if condition not in ("", None, []):
            fits = _make_test(column, name, condition)
            shown = [i for i in shown if fits(i)]
    for column, descending in reversed(keys):
        shown = _sort(shown, column, descending)
    return shown


def column_of(columns: Mapping[str, TableColumn], name: Any) -> TableColumn:
    """Return the column of a name; raise InputError with the closest names if there is none."""
    if not isinstance(name, str) or name not in columns:
        close = get_close_matches(str(name), columns, n=3) or list(columns)
        raise InputError(f"there is no column {name!r}", hint=", ".join(close))
    return columns[name]


def number_of(text: str) -> float | None:
    """Return the number that a text writes in digits with a decimal point; None if it is not a number."""
    match = re.fullmatch(_NUMBER, text.strip(), re.ASCII)
    return float(match[0]) if match else None


def _read_key(columns: Mapping[str, TableColumn], key: Any) -> tuple[TableColumn, bool]:
    """Read a key to sort by: its column, and whether the order is descending."""
    if isinstance(key, str):
        descending = key not in columns and key.startswith("-")
        return column_of(columns, key[1:] if descending else key), descending
    if not isinstance(key, Sequence) or len(key) != 2 or key[1] not in {"asc", "desc"}:
        raise InputError(f"a table cannot be sorted by {key!r}", hint='sort=["-reward", "name"]')
    return column_of(columns, key[0]), key[1] == "desc"


def _sort(shown: Sequence[int], column: TableColumn, descending: bool) -> list[int]:
    values = column.order() if column.order else column.values()
    if column.kind == "text" and not column.order:
        values = [None if value is None else value.casefold() for value in values]
    there = [i for i in shown if values[i] is not None]
    return [*sorted(there, key=values.__getitem__, reverse=descending), *(i for i in shown if values[i] is None)]


def _make_test(column: TableColumn, name: str, condition: Any) -> Callable[[int], bool]:
    """Make a function that tells whether a row fits a condition. name: the name of the column."""
    if column.kind == "number":
        return _make_number_test(column, name, condition)
    if column.kind == "choice":
        return _make_choice_test(column, name, condition)
    if not isinstance(condition, str):
        raise InputError(f"{name}: {condition!r} is not a text to look for", hint=f'filter={{"{name}": "words"}}')
    if column.holding:
        rows = column.holding(condition)
        return lambda i: i in rows
    values, part = column.values(), condition.casefold()
    return lambda i: values[i] is not None and part in values[i].casefold()


def _make_number_test(column: TableColumn, name: str, condition: Any) -> Callable[[int], bool]:
    words = " ".join(condition.split()) if isinstance(condition, str) else condition
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
        return lambda i: values[i] is not None and bool(compare(values[i], number))
    hint = "> 0.5, <= 1, = 0, 0..1, empty, not empty"
    raise InputError(f"{name}: {condition!r} is not a condition on a number", hint=hint)


def _make_choice_test(column: TableColumn, name: str, condition: Any) -> Callable[[int], bool]:
    choices = [condition] if isinstance(condition, str) else condition
    values = [NONE if value is None else value for value in column.values()]
    known = column.choices or list(dict.fromkeys([*values, NONE]))
    is_list = isinstance(choices, Sequence)
    if not is_list or not choices or any(one not in known for one in choices):
        wrong = next((one for one in choices if one not in known), condition) if is_list else condition
        close = get_close_matches(str(wrong), known, n=3) or known[:5]
        raise InputError(f"{name}: {wrong!r} is not one of its values", hint=", ".join(close))
    chosen = frozenset(choices)
    return lambda i: values[i] in chosen
