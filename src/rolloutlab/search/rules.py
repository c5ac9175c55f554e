"""Validation of conditions, shared by text, Python and JSON, with a suggested fix for each violation."""

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.json_cursor import DEEPEST, LARGEST, LONGEST, encodable, name_problem, plain, too_deep
from rolloutlab.search.where import (
    DOCUMENT,
    ID,
    REASONING,
    TEXTS,
    All,
    Among,
    AnyOf,
    Compare,
    Contains,
    Matches,
    Where,
)

Violation = tuple[str, Where]
"""The reason, and a valid condition to suggest."""


MATCHED = (*TEXTS, REASONING)
"""Fields that regular expressions may search. For `reasoning` the lab's index then searches its text."""


def check_where(where: Where, depth: int = 0) -> Where:
    """Normalize a condition, or raise InputError unless it is valid in a search dictionary."""
    if depth >= DEEPEST:
        raise too_deep()
    if isinstance(where, All | AnyOf):
        return type(where)(tuple(check_where(part, depth + 1) for part in where.parts))
    leaf = normalize(where)
    if problem := name_problem(leaf.field, (ID, DOCUMENT), None):
        raise InputError(f"{leaf!r}: {problem[0]}", hint=problem[1])
    if wrong := violation(leaf):
        raise InputError(f"{leaf!r}: {wrong[0]}", hint=repr(wrong[1]))
    return leaf


def normalize(where: Where) -> Compare | Among | Contains | Matches:
    """Convert the values of a condition to plain ones. Integers beyond 64 bits become floats: none is stored."""
    match where:
        case Compare(_, _, value) | Contains(_, value):
            return replace(where, value=normalize_value(value))
        case Among(_, values):
            return replace(where, values=tuple(map(normalize_value, values)))
        case Matches(pattern):
            return replace(where, pattern=plain(pattern))
    raise InputError(f"{where!r} is not a condition", hint='F.reward > 0.5, or {"reward": {"$gt": 0.5}}')


def violation(where: Where) -> Violation | None:
    """Find the first rule that a condition on one field violates."""
    return next(filter(None, (rule(where) for rule in _RULES)), None)


def value_problem(value: Any) -> str | None:
    """Say why a value cannot be compared with a field; None if it can."""
    if value is None:
        return "null is not a value; no condition matches records without a field"
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if encodable(value) else "contains half of a surrogate pair"
    if not isinstance(value, int | float):
        return "a value must be a string, a number, true or false"
    return None if not isinstance(value, float) or math.isfinite(value) else "nan and infinity match no record"


def normalize_value(value: Any) -> Any:
    """Convert a value to a plain Python object. Integers beyond 64 bits become floats."""
    value = plain(value)
    if isinstance(value, int) and abs(value) > LONGEST and not isinstance(value, bool):
        return float(value) if abs(value) <= LARGEST else math.inf
    return value


def _values(where: Where) -> Violation | None:
    match where:
        case Compare(field, operator, list() | tuple() as values):
            return "it compares with one value", Among(field, tuple(values) or ("a", "b"), operator == "$ne")
        case Compare(_, _, value) | Contains(_, value):
            why = value_problem(value)
            example: Any = "text" if where.field in (ID, DOCUMENT) else 0.5
            return (why, replace(where, value=example)) if why else None
        case Among(_, values):
            why = next(filter(None, map(value_problem, values)), None)
            return (why, replace(where, values=("a", "b"))) if why else None
        case Matches(pattern) if not isinstance(pattern, str) or not pattern:
            return "a regular expression must be a non-empty string", replace(where, pattern="Par.s", field=DOCUMENT)
    return None


def _record(where: Where) -> Violation | None:
    """Check a condition on the id or a text of a record."""
    match where:
        case Matches(field=field) if field not in MATCHED:
            return "regular expressions are for #document and reasoning_text only", replace(where, field=DOCUMENT)
        case Compare("#document", operator, value):
            contains = Contains(DOCUMENT, str(value) or "text", operator == "$ne")
            return "a document is compared by what it contains", contains
        case Among("#document", values, negated):
            parts = tuple(Contains(DOCUMENT, str(value) or "text", negated) for value in values)
            fix = parts[0] if len(parts) == 1 else (All if negated else AnyOf)(parts or (Contains(DOCUMENT, "a"),) * 2)
            return "a document is compared by what it contains", fix
        case Contains("#document", value) if not isinstance(value, str) or not value:
            return "a document contains non-empty strings", replace(where, value=str(value) or "text")
        case Compare("#id", "$eq" | "$ne", value) if not isinstance(value, str):
            return "an id is a text", replace(where, value=str(value))
        case Compare("#id", operator) if operator not in ("$eq", "$ne"):
            return "ids have no order", Compare(ID, "$eq", str(where.value))
        case Contains("#id", value, negated):
            return "an id is compared as a whole", Compare(ID, "$ne" if negated else "$eq", str(value))
        case Among("#id", values) if not all(isinstance(value, str) for value in values):
            return "an id is a text", replace(where, values=tuple(map(str, values)))
    return None


def _order(where: Where) -> Violation | None:
    match where:
        case Compare(_, "$gt" | "$gte" | "$lt" | "$lte", bool() | str() as value):
            kind = "true and false have" if isinstance(value, bool) else "texts have"
            return f"only numbers have an order; {kind} none", replace(where, value=_as_number(value))
    return None


def _one_type(where: Where) -> Violation | None:
    match where:
        case Among(field, (), negated):
            return "it needs at least one value", Among(field, ("a", "b"), negated)
        case Among(field, values, negated) if len({_kind(value) for value in values}) > 1:
            kinds: dict[str, list[Any]] = {}
            for value in values:
                kinds.setdefault(_kind(value), []).append(value)
            parts = tuple(Among(field, tuple(same), negated) for same in kinds.values())
            return f"its values are of several types, {' and '.join(kinds)}", (All if negated else AnyOf)(parts)
    return None


def _expression(where: Where) -> Violation | None:
    if isinstance(where, Matches):
        try:
            with warnings.catch_warnings(action="ignore"):  # FutureWarning: possible nested set
                re.compile(where.pattern)
        except (re.error, RecursionError, OverflowError, ValueError) as error:  # too many digits
            return f"it is not a regular expression: {error}", replace(where, pattern=re.escape(where.pattern))
    return None


_RULES: tuple[Callable[[Where], Violation | None], ...] = (_values, _record, _order, _one_type, _expression)


def _kind(value: Any) -> str:
    return "truth values" if isinstance(value, bool) else "texts" if isinstance(value, str) else "numbers"


def _as_number(value: str | bool) -> float:
    """Return the number that a text looks like, for a hint."""
    try:
        number = float(value)
    except ValueError:
        return 0.5
    return number if math.isfinite(number) else 0.5
