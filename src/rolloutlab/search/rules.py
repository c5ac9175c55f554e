"""What a condition on one field may be, however it was written, and the nearest one that may."""

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary.cursor import DEEPEST, LARGEST, LONGEST, encodable, name_problem, plain, too_deep
from rolloutlab.search.where import DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches, Where

Violation = tuple[str, Where]
"""Why not, and what instead."""


def check_where(where: Where, depth: int = 0) -> Where:
    """A condition that a dictionary could say, its values as Python has them by itself.

    Raises:
        InputError: a dictionary could not.
    """
    if depth >= DEEPEST:
        raise too_deep()
    if isinstance(where, All | AnyOf):
        return type(where)(tuple(check_where(part, depth + 1) for part in where.parts))
    leaf = normalized(where)
    problem = name_problem(leaf.field, (ID, DOCUMENT), None)
    if problem:
        raise InputError(f"{leaf!r}: {problem[0]}", hint=problem[1])
    wrong = violation(leaf)
    if wrong:
        raise InputError(f"{leaf!r}: {wrong[0]}", hint=repr(wrong[1]))
    return leaf


def normalized(where: Where) -> Compare | Among | Contains | Matches:
    """A condition on a field with plain values; an integer beyond 64 bits is a float, as no stored one equals it."""
    match where:
        case Compare(_, _, value) | Contains(_, value):
            return replace(where, value=normalized_value(value))
        case Among(_, values):
            return replace(where, values=tuple(map(normalized_value, values)))
        case Matches(pattern):
            return replace(where, pattern=plain(pattern))
    raise InputError(f"{where!r} is no condition", hint='F.reward > 0.5, or {"reward": {"$gt": 0.5}}')


def violation(where: Where) -> Violation | None:
    """What is wrong with a condition on one field."""
    for rule in _RULES:
        wrong = rule(where)
        if wrong:
            return wrong
    return None


def value_problem(value: Any) -> str | None:
    """Why something is no value of a field."""
    if value is None:
        return "null is no value, and no condition finds records without a field"
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if encodable(value) else "it has half a character in it"
    if not isinstance(value, int | float):
        return "a value is a text, a number, true or false"
    return None if not isinstance(value, float) or math.isfinite(value) else "no record is found by nan or infinity"


def normalized_value(value: Any) -> Any:
    """A value as Python has it by itself."""
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
            return "a regular expression is a text that is not empty", replace(where, pattern="Par.s", field=DOCUMENT)
    return None


def _record(where: Where) -> Violation | None:
    """What may be asked of the id and the text of a record."""
    match where:
        case Matches(field=field) if field != DOCUMENT:
            return "regular expressions are for #document only", replace(where, field=DOCUMENT)
        case Compare("#document", operator, value):
            return "of a text it can be asked what it contains", Contains(
                DOCUMENT, str(value) or "text", operator == "$ne"
            )
        case Among("#document", values, negated):
            parts = tuple(Contains(DOCUMENT, str(value) or "text", negated) for value in values)
            return "of a text it can be asked what it contains", (
                parts[0] if len(parts) == 1 else (All if negated else AnyOf)(parts or (Contains(DOCUMENT, "a"),) * 2)
            )
        case Contains("#document", value) if not isinstance(value, str) or not value:
            return "a text contains texts that are not empty", replace(where, value=str(value) or "text")
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
            return f"order is of numbers; {kind} none", replace(where, value=_as_number(value))
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
            with warnings.catch_warnings(action="ignore"):  # of what a later Python may read in another way
                re.compile(where.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            return f"it is not a regular expression: {error}", replace(where, pattern=re.escape(where.pattern))
    return None


_RULES: tuple[Callable[[Where], Violation | None], ...] = (_values, _record, _order, _one_type, _expression)


def _kind(value: Any) -> str:
    return "truth values" if isinstance(value, bool) else "texts" if isinstance(value, str) else "numbers"


def _as_number(value: str | bool) -> float:
    """The number that a text looks like, for a hint."""
    try:
        number = float(value)
    except ValueError:
        return 0.5
    return number if math.isfinite(number) else 0.5
