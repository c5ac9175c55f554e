"""Filter conditions on fields in Python's operators: `F.reward > 0.5` is a value that a search evaluates."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any, ClassVar, NoReturn

from rolloutlab.errors import InputError

Scalar = str | int | float | bool
"""Types of a metadata value; a field may also hold a list of them."""
COMPARISONS = {"$eq": "==", "$ne": "!=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
"""Operators that compare a field with one value, and how Python writes them."""
OPPOSITE = {"$eq": "$ne", "$ne": "$eq", "$gt": "$lte", "$lte": "$gt", "$lt": "$gte", "$gte": "$lt"}
ID, DOCUMENT = "#id", "#document"
REASONING, REASONING_TEXT = "reasoning", "reasoning_text"
"""Fields of the lab's index: the length of the reasoning in characters, and its text, a part of the document."""
TEXTS = DOCUMENT, REASONING_TEXT
"""Fields whose texts are read from the file when a condition needs them."""


class Where:
    """A condition. `&`, `|` and `~` combine conditions; `and`, `or` and `not` raise InputError."""

    def __and__(self, other: "Where") -> "Where":
        return All((self, _where(other)))

    def __or__(self, other: "Where") -> "Where":
        return AnyOf((self, _where(other)))

    def __invert__(self) -> "Where":
        return opposite(self)

    def __bool__(self) -> NoReturn:
        raise InputError(
            f"{self!r} has no truth value outside a search",
            hint="(F.reward > 0) & (F.reward < 1): & | ~ with brackets, instead of and, or, not and 0 < F.x < 1",
        )


@dataclass(frozen=True)
class Compare(Where):
    """A field compared with a value. operator: one of `COMPARISONS`. Only numbers have an order."""

    field: str
    operator: str
    value: Scalar
    _logical: bool = dataclasses.field(init=False, repr=False)  # True == 1 in Python, but not in a search

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logical", isinstance(self.value, bool))

    def __repr__(self) -> str:
        return f"{named(self.field)} {COMPARISONS[self.operator]} {self.value!r}"


@dataclass(frozen=True)
class Among(Where):
    """A field that has one of several values of one type. Negated, it also matches records without the field."""

    field: str
    values: tuple[Scalar, ...]
    negated: bool = False
    _logical: bool = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "_logical", any(isinstance(value, bool) for value in self.values))

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_in' if self.negated else 'is_in'}({list(self.values)!r})"


@dataclass(frozen=True)
class Contains(Where):
    """A field of `TEXTS` that contains a text (case-sensitive), or a list field that contains a value."""

    field: str
    value: Scalar
    negated: bool = False
    _logical: bool = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_logical", isinstance(self.value, bool))

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_contains' if self.negated else 'contains'}({self.value!r})"


@dataclass(frozen=True)
class Matches(Where):
    """A field of `TEXTS` that a regular expression matches somewhere."""

    pattern: str
    negated: bool = False
    field: str = DOCUMENT

    def __repr__(self) -> str:
        return f"{named(self.field)}.{'not_regex' if self.negated else 'regex'}({self.pattern!r})"


@dataclass(frozen=True)
class _Joined(Where):
    """Two or more conditions. Nested ones of the same kind are flattened."""

    parts: tuple[Where, ...]
    _symbol: ClassVar[str]

    def __post_init__(self) -> None:
        kind = type(self)
        flat = tuple(inner for part in self.parts for inner in (part.parts if isinstance(part, kind) else (part,)))
        if len(flat) < 2:
            raise InputError(f"{kind.__name__} of {len(flat)} conditions", hint="(F.reward > 0) & (F.reward < 1)")
        object.__setattr__(self, "parts", flat)

    def __repr__(self) -> str:
        return f" {self._symbol} ".join(f"({part!r})" for part in self.parts)


class All(_Joined):
    """Conjunction of two or more conditions. Nested conjunctions are flattened."""

    _symbol = "&"


class AnyOf(_Joined):
    """Disjunction of two or more conditions. Nested disjunctions are flattened."""

    _symbol = "|"


def conditions_of(where: Where | None) -> Iterator[Where]:
    """Yield the leaves of a condition; none for None."""
    if isinstance(where, All | AnyOf):
        for part in where.parts:
            yield from conditions_of(part)
    elif where is not None:  # a condition has no truth value
        yield where


def named(name: str) -> str:
    """Write a field in Python's notation."""
    if name in (ID, DOCUMENT):
        return f"F.{name[1:]}"
    attribute = name.isascii() and name.isidentifier() and not iskeyword(name) and not name.startswith("__")
    return f"F.{name}" if attribute and name not in ("id", "document") else f"F[{name!r}]"


def opposite(where: Where) -> Where:
    """Negate a condition.

    Raises:
        InputError: the condition compares an order. A record without the field is neither above nor below, and no
            condition matches just such records.
    """
    if isinstance(where, All | AnyOf):
        return (AnyOf if isinstance(where, All) else All)(tuple(map(opposite, where.parts)))
    if isinstance(where, Among | Contains | Matches):
        return replace(where, negated=not where.negated)
    if not isinstance(where, Compare):
        raise InputError(f"{where!r} is not a condition", hint="~(F.reward == 1)")
    other = replace(where, operator=OPPOSITE[where.operator])
    if where.operator not in ("$eq", "$ne"):
        message = f"not ({where!r}) is also true of records without {where.field}, for which there is no condition"
        raise InputError(message, hint=f"{other!r}")
    return other


def _where(other: Any) -> Where:
    if not isinstance(other, Where):
        raise InputError(f"{other!r} is not a condition", hint='(F.reward > 0.5) & (F.model == "lab/practice")')
    return other
