"""A condition as a server's `where`, which knows everything but `#id`: ids are a list beside it.

The server compares numbers across int and float by itself, except in lists; its lists of values have one type.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.where import (
    DOCUMENT,
    ID,
    All,
    Among,
    AnyOf,
    Compare,
    Contains,
    Matches,
    Scalar,
    Where,
    conditions_of,
)

Clause = dict[str, Any]

_LONG = 2**63
"""Where the server's integers end."""


@dataclass(frozen=True)
class Narrowed:
    """What one request can say of a condition: a record has to be in the clause and among the ids; None is any."""

    clause: Clause | None = None
    ids: frozenset[str] | None = None


def narrowed(where: Where) -> Narrowed | None:
    """A condition for one request; None where it takes more than one."""
    parts = where.parts if isinstance(where, All) else (where,)
    named = [ids for part in parts if (ids := _named(part)) is not None]
    rest = [part for part in parts if _named(part) is None]
    if any(of_ids(part) for part in rest):
        return None
    return Narrowed(_all(rest) if rest else None, frozenset.intersection(*named) if named else None)


def of_ids(where: Where) -> bool:
    """Whether a condition is about ids somewhere."""
    return any(getattr(each, "field", None) == ID for each in conditions_of(where))


def qualifies(identity: str, where: Where) -> bool:
    """Whether an id qualifies under a condition on ids.

    Raises:
        InputError: it asks of an id what only other fields have.
    """
    match where:
        case Compare(operator="$eq" | "$ne" as operator, value=value):
            return (identity == value) == (operator == "$eq")
        case Among(values=values, negated=negated):
            return (identity in values) != negated
    raise InputError(f"{where!r} is not known of ids", hint='F.id == "a", F.id.is_in(["a", "b"]) or their negations')


def clause(where: Where) -> Clause:
    """A condition that is not about ids, as the server takes it."""
    match where:
        case All(parts=parts):
            return _all(parts)
        case AnyOf(parts=parts):
            return _joined("$or", [clause(part) for part in parts])
        case Compare(field=field, operator=operator, value=value):
            return {field: {operator: value}}
        case Among(field=field, values=values, negated=negated):
            return {field: {"$nin" if negated else "$in": _of_one_type(values)}}
        case Matches(field=field, pattern=pattern, negated=negated):
            return {field: {"$not_regex" if negated else "$regex": pattern}}
        case Contains(field=field, value=value, negated=negated):
            operator = "$not_contains" if negated else "$contains"
            written = [value] if field == DOCUMENT else _spellings(value)
            return _joined("$and" if negated else "$or", [{field: {operator: one}} for one in written])
    raise InputError(f"{where!r} is not known to a Chroma server", hint="F.reward > 0.5")


def _all(parts: Sequence[Where]) -> Clause:
    return _joined("$and", [clause(part) for part in parts])


def _joined(operator: str, clauses: list[Clause]) -> Clause:
    return clauses[0] if len(clauses) == 1 else {operator: clauses}


def _named(where: Where) -> frozenset[str] | None:
    """The ids that a condition names; None where it does something else."""
    match where:
        case Compare(field=field, operator="$eq", value=value) if field == ID:
            return frozenset([str(value)])
        case Among(field=field, values=values, negated=False) if field == ID:
            return frozenset(map(str, values))
    return None


def _of_one_type(values: Sequence[Scalar]) -> list[Scalar]:
    mixed = {type(value) for value in values} == {int, float}
    return [float(value) for value in values] if mixed else list(values)


def _spellings(value: Scalar) -> list[Scalar]:
    """How a list may hold a value: 1 also as 1.0."""
    if isinstance(value, bool | str):
        return [value]
    if isinstance(value, int):
        return [value, float(value)] if float(value) == value else [value]
    return [int(value), value] if value.is_integer() and abs(value) < _LONG else [value]
