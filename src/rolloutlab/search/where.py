"""Which records qualify: conditions on fields, as Python writes them. `F.reward > 0.5` is a value, not a decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rolloutlab.errors import InputError

Scalar = str | int | float | bool
"""What a metadata field holds, besides lists of them."""
COMPARISONS = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
"""Operators that compare a field with one value, and how Python writes them."""
ID, DOCUMENT = "#id", "#document"


class Where:
    """A condition. `&` and `|` combine; the operators `and`, `or` and `not` cannot, and say so."""

    def __and__(self, other: "Where") -> "Where":
        return All((*_parts(self, All), *_parts(_where(other), All)))

    def __or__(self, other: "Where") -> "Where":
        return AnyOf((*_parts(self, AnyOf), *_parts(_where(other), AnyOf)))

    def __bool__(self) -> NoReturn:
        raise InputError(
            f"{self!r} is neither true nor false: only a search decides it",
            hint="(F.reward > 0) & (F.reward < 1): & and | with brackets, instead of and, or, not and 0 < F.x < 1",
        )


@dataclass(frozen=True)
class Compare(Where):
    """A field beside a value. operator: one of `COMPARISONS`; order is asked of numbers only."""

    field: str
    operator: str
    value: Scalar

    def __repr__(self) -> str:
        return f"{named(self.field)} {COMPARISONS[self.operator]} {self.value!r}"


@dataclass(frozen=True)
class Among(Where):
    """A field that has one of some values of one type; negated, also a field that is not there."""

    field: str
    values: tuple[Scalar, ...]
    negated: bool = False

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_in' if self.negated else 'is_in'}({list(self.values)!r})"


@dataclass(frozen=True)
class Contains(Where):
    """A document that has this text in it, in this case; or a field that is a list with this value."""

    field: str
    value: Scalar
    negated: bool = False

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_contains' if self.negated else 'contains'}({self.value!r})"


@dataclass(frozen=True)
class Matches(Where):
    """A document in which a regular expression is found."""

    pattern: str
    negated: bool = False
    field: str = DOCUMENT

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_regex' if self.negated else 'regex'}({self.pattern!r})"


@dataclass(frozen=True)
class All(Where):
    """Every one of some conditions."""

    parts: tuple[Where, ...]

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" for part in self.parts)


@dataclass(frozen=True)
class AnyOf(Where):
    """At least one of some conditions."""

    parts: tuple[Where, ...]

    def __repr__(self) -> str:
        return " | ".join(f"({part!r})" for part in self.parts)


class Field:
    """A field of records, to be compared: `F.reward`, `F["reward.exact match"]`, `F.id`, `F.document`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __eq__(self, value: Any) -> Where:  # type: ignore[override]
        return _checked(Compare(self._name, "$eq", value))

    def __ne__(self, value: Any) -> Where:  # type: ignore[override]
        return _checked(Compare(self._name, "$ne", value))

    def __gt__(self, value: float) -> Where:
        return _checked(Compare(self._name, "$gt", value))

    def __ge__(self, value: float) -> Where:
        return _checked(Compare(self._name, "$gte", value))

    def __lt__(self, value: float) -> Where:
        return _checked(Compare(self._name, "$lt", value))

    def __le__(self, value: float) -> Where:
        return _checked(Compare(self._name, "$lte", value))

    __hash__ = None  # type: ignore[assignment]

    def is_in(self, values: Sequence[Scalar]) -> Where:
        return _checked(Among(self._name, tuple(values)))

    def not_in(self, values: Sequence[Scalar]) -> Where:
        return _checked(Among(self._name, tuple(values), negated=True))

    def contains(self, value: Scalar) -> Where:
        return _checked(Contains(self._name, value))

    def not_contains(self, value: Scalar) -> Where:
        return _checked(Contains(self._name, value, negated=True))

    def regex(self, pattern: str) -> Where:
        return _checked(Matches(pattern, field=self._name))

    def not_regex(self, pattern: str) -> Where:
        return _checked(Matches(pattern, negated=True, field=self._name))

    def __repr__(self) -> str:
        return named(self._name)


class _Fields:
    """`F.reward` and `F["reward"]` are the field `reward`; `F.id` and `F.document` are what records themselves have."""

    def __getattr__(self, name: str) -> Field:
        if name.startswith("__"):
            raise AttributeError(name)
        return Field({"id": ID, "document": DOCUMENT}.get(name, name))

    def __getitem__(self, name: str) -> Field:
        return Field(name)


F = _Fields()


def named(field: str) -> str:
    """How Python writes a field."""
    if field in (ID, DOCUMENT):
        return f"F.{field[1:]}"
    return f"F.{field}" if field.isidentifier() and field not in ("id", "document") else f"F[{field!r}]"


def _parts(where: Where, kind: type[All] | type[AnyOf]) -> tuple[Where, ...]:
    return where.parts if isinstance(where, kind) else (where,)


def _where(other: Any) -> Where:
    if not isinstance(other, Where):
        raise InputError(f"{other!r} is no condition", hint='(F.reward > 0.5) & (F.model == "lab/practice")')
    return other


def _checked(where: Where) -> Where:
    """A condition as it is, when the dictionary allows it."""
    from rolloutlab.search.dictionary import check_where  # which knows the classes of this file

    return check_where(where)
