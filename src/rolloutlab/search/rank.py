"""Rank expressions: vector distances, fields and arithmetic on them. Lower scores are better."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from rolloutlab.errors import InputError

EMBEDDING = "#embedding"
NEAREST = 16
"""Default number of records a knn returns."""
COMBINED = {"$sum": "+", "$mul": "*", "$max": "max", "$min": "min"}
"""Operators of two or more operands."""
APPLIED = {"$abs": "abs", "$exp": "exp", "$log": "log"}
"""Operators of one operand."""


@dataclass(frozen=True)
class SparseVector:
    """A sparse vector: indices and their values."""

    indices: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(self.indices))
        object.__setattr__(self, "values", tuple(self.values))


class Rank:
    """A score per record. `+ - * /`, `abs`, `.exp()`, `.log()`, `.max(other)` and `.min(other)` give new ranks."""

    def __add__(self, other: "Rank | float") -> "Rank":
        return _combine("$sum", self, other)

    def __radd__(self, other: "Rank | float") -> "Rank":
        return _combine("$sum", other, self)

    def __mul__(self, other: "Rank | float") -> "Rank":
        return _combine("$mul", self, other)

    def __rmul__(self, other: "Rank | float") -> "Rank":
        return _combine("$mul", other, self)

    def __sub__(self, other: "Rank | float") -> "Rank":
        return Difference(self, as_rank(other))

    def __rsub__(self, other: "Rank | float") -> "Rank":
        return Difference(as_rank(other), self)

    def __truediv__(self, other: "Rank | float") -> "Rank":
        return Ratio(self, as_rank(other))

    def __rtruediv__(self, other: "Rank | float") -> "Rank":
        return Ratio(as_rank(other), self)

    def __neg__(self) -> "Rank":
        return _combine("$mul", -1, self)

    def __abs__(self) -> "Rank":
        return Applied("$abs", self)

    abs = __abs__

    def exp(self) -> "Rank":
        return Applied("$exp", self)

    def log(self) -> "Rank":
        return Applied("$log", self)

    def max(self, other: "Rank | float") -> "Rank":
        return _combine("$max", self, other)

    def min(self, other: "Rank | float") -> "Rank":
        return _combine("$min", self, other)

    def __bool__(self) -> NoReturn:
        hint = "a.max(b) and a.min(b) instead of and, or, max(a, b) and min(a, b)"
        raise InputError(f"{self!r} has no truth value outside a search", hint=hint)


@dataclass(frozen=True)
class Val(Rank):
    """A constant. By itself it matches no record."""

    value: float

    def __repr__(self) -> str:
        return f"Val({self.value!r})"


@dataclass(frozen=True)
class Knn(Rank):
    """Distances of the records nearest to a query.

    Attributes:
        query: A text, a dense vector or a sparse one.
        key: `#embedding`, or a field of sparse vectors.
        limit: The number of records that are found.
        default: The score, in arithmetic with other terms, of records that only other terms find.
        return_rank: Whether the score is the rank, from 0, instead of the distance.
    """

    query: str | tuple[float, ...] | SparseVector
    key: str = EMBEDDING
    limit: int = NEAREST
    default: float | None = None
    return_rank: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.query, str | SparseVector):
            object.__setattr__(self, "query", _read_numbers(self.query))

    def __repr__(self) -> str:
        query = list(self.query) if isinstance(self.query, tuple) else self.query
        options = {"key": self.key, "limit": self.limit, "default": self.default, "return_rank": self.return_rank}
        usual = {"key": EMBEDDING, "limit": NEAREST, "default": None, "return_rank": False}
        return f"Knn({', '.join([repr(query), *(f'{k}={v!r}' for k, v in options.items() if v != usual[k])])})"


@dataclass(frozen=True)
class FieldTerm(Rank):
    """The number in a metadata field. default: the score of records without one. Chroma Cloud does not support it."""

    key: str
    default: float | None = None

    def __repr__(self) -> str:
        return f"FieldTerm({self.key!r}{'' if self.default is None else f', default={self.default!r}'})"


@dataclass(frozen=True)
class Combined(Rank):
    """Two or more scores combined from left to right. operator: one of `COMBINED`.

    `(a + b) + c` is flattened to `a + b + c`; `a + (b + c)` is not, because it may round differently.
    """

    operator: str
    parts: tuple[Rank, ...]

    def __post_init__(self) -> None:
        first, *rest = self.parts or (None,)
        if isinstance(first, Combined) and first.operator == self.operator:
            object.__setattr__(self, "parts", (*first.parts, *rest))
        if len(self.parts) < 2:
            raise InputError(f"{self.operator} of {len(self.parts)} ranks", hint='Knn("text") + FieldTerm("reward")')

    def __repr__(self) -> str:
        first, *rest = map(repr, self.parts)
        if self.operator in ("$max", "$min"):
            return first + "".join(f".{COMBINED[self.operator]}({part})" for part in rest)
        return f"({f' {COMBINED[self.operator]} '.join((first, *rest))})"


@dataclass(frozen=True)
class Difference(Rank):
    left: Rank
    right: Rank

    def __repr__(self) -> str:
        return f"({self.left!r} - {self.right!r})"


@dataclass(frozen=True)
class Ratio(Rank):
    left: Rank
    right: Rank

    def __repr__(self) -> str:
        return f"({self.left!r} / {self.right!r})"


@dataclass(frozen=True)
class Applied(Rank):
    """A function of a score. operator: one of `APPLIED`."""

    operator: str
    part: Rank

    def __repr__(self) -> str:
        return f"{self.part!r}.{APPLIED[self.operator]}()"


def Rrf(  # noqa: N802 - it stands beside Knn and Val
    ranks: Sequence[Rank], k: float = 60, weights: Sequence[float] | None = None, normalize: bool = False
) -> Rank:
    """Reciprocal rank fusion: minus the sum of weight / (k + rank). Each of `ranks` needs `return_rank=True`.

    normalize: divide the weights by their sum. Source: Cormack, Clarke and Büttcher 2009.

    Raises:
        InputError: `ranks` is empty or one of them gives distances; weights or k are out of range.
    """
    for rank in ranks:
        if isinstance(rank, Knn) and not rank.return_rank:
            hint = repr(replace(rank, return_rank=True, default=rank.limit))
            raise InputError(f"{rank!r} gives distances, but rank fusion needs return_rank=True", hint=hint)
    shares = [1.0] * len(ranks) if weights is None else [float(weight) for weight in weights]
    if not ranks or len(shares) != len(ranks) or min(shares) < 0 or not sum(shares) or k < 0:
        hint = 'Rrf([Knn("text", return_rank=True), Knn("text", key="bm25", return_rank=True)], weights=[2, 1])'
        raise InputError(f"{len(ranks)} ranks with the weights {shares} and k={k} cannot be fused", hint=hint)
    total = sum(shares) if normalize else 1.0
    terms = tuple(Ratio(Val(s / total), _combine("$sum", k, rank)) for s, rank in zip(shares, ranks, strict=True))
    return Combined("$mul", (Val(-1), Combined("$sum", terms) if len(terms) > 1 else terms[0]))


def parts_of(rank: Rank) -> tuple[Rank, ...]:
    """Return the operands of an expression."""
    match rank:
        case Combined(parts=parts):
            return parts
        case Difference(left, right) | Ratio(left, right):
            return left, right
        case Applied(part=part):
            return (part,)
        case _:
            return ()


def terms_of(rank: Rank | None) -> Iterator[Rank]:
    """Yield an expression and all its subexpressions in pre-order; none for None."""
    if rank is not None:  # a rank has no truth value
        yield rank
        for part in parts_of(rank):
            yield from terms_of(part)


def as_rank(value: Any) -> Rank:
    """Return a rank, or a number as a constant rank; InputError for anything else."""
    if isinstance(value, Rank):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a rank", hint='1 - Knn("text"), or FieldTerm("reward") for a field')
    return Val(value)


def _combine(operator: str, *operands: Rank | float) -> Rank:
    return Combined(operator, tuple(map(as_rank, operands)))


def _read_numbers(values: Any) -> tuple[float, ...]:
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(values, Mapping):
            return tuple(map(float, values))
    hint = 'Knn("text"), Knn([0.1, 0.2]) or Knn(SparseVector([3, 17], [0.5, 1.5]))'
    raise InputError(f"{values!r} is not a query", hint=hint)
