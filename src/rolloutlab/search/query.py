"""The Search value: filter, rank, grouping, page and selected columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rolloutlab.search.rank import EMBEDDING, Applied, Combined, Difference, FieldTerm, Knn, Rank, Ratio, terms_of
from rolloutlab.search.where import REASONING_TEXT, TEXTS, Among, Compare, Contains, Where, conditions_of

SCORE, METADATA = "#score", "#metadata"
SHOWN = ("#id", "#document", "#embedding", METADATA, SCORE)
"""Columns that can be selected besides metadata fields."""


@dataclass(frozen=True)
class MinK:
    """Keep the k records of a group with the smallest values of the keys. The first key matters most.

    keys: fields, or `#score`.
    """

    keys: tuple[str, ...]
    k: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _names(self.keys))


@dataclass(frozen=True)
class MaxK(MinK):
    """Keep the k records of a group with the largest values of the keys; otherwise as `MinK`."""


@dataclass(frozen=True)
class GroupBy:
    """Group records by fields. The aggregate keeps the best of each group."""

    keys: tuple[str, ...]
    aggregate: MinK | MaxK

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", _names(self.keys))


@dataclass(frozen=True)
class Limit:
    """A page of the results. limit: 0 for all."""

    limit: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Select:
    """Columns of the result: some of `SHOWN` and metadata fields. Empty: ids, and scores if there is a rank."""

    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(dict.fromkeys(_names(self.keys))))

    def beside(self, *keys: str) -> "Select":
        """Return this selection with more keys in front."""
        return Select((*keys, *self.keys))


@dataclass(frozen=True)
class Search:
    """A search. Each part is optional."""

    where: Where | None = None
    rank: Rank | None = None
    group_by: GroupBy | None = None
    limit: Limit = field(default_factory=Limit)
    select: Select = field(default_factory=Select)


def _names(keys: str | Iterable[str]) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys)


def fields_of(search: Search) -> list[str]:
    """List the metadata fields that the conditions, the rank and the groups use, each once, without texts."""
    filtered = [each.field for each in conditions_of(search.where) if isinstance(each, Compare | Among | Contains)]
    ranked = [term.key for term in terms_of(search.rank) if isinstance(term, FieldTerm)]
    groups = search.group_by
    grouped = groups.keys + groups.aggregate.keys if groups else ()
    names = dict.fromkeys([*filtered, *ranked, *grouped])
    return [name for name in names if name != REASONING_TEXT and not name.startswith("#")]


WORDS = "bm25"
"""The knn key of keyword search."""
Vectors = Callable[[Sequence[str]], Sequence[Sequence[float]]]


def texts_of(rank: Rank | None, key: str | None = None) -> list[str]:
    """List the text queries of a rank, each once, of one key or of all."""
    knns = [term for term in terms_of(rank) if isinstance(term, Knn)]
    return list(dict.fromkeys(knn.query for knn in knns if isinstance(knn.query, str) and key in (None, knn.key)))


def search_texts(search: Search) -> list[str]:
    """List the texts to highlight in results: queries of the rank, and `$contains` of documents and reasoning."""
    contains = [each for each in conditions_of(search.where) if isinstance(each, Contains) and not each.negated]
    contained = [each.value for each in contains if each.field in TEXTS and isinstance(each.value, str)]
    return list(dict.fromkeys([*texts_of(search.rank), *contained]))


def resolved(search: Search, vectors: Vectors | None) -> Search:
    """Replace text queries on `#embedding` by vectors, or by keyword search without a model.

    vectors: makes a vector of each text; None if there is no model.
    """
    if not (texts := texts_of(search.rank, EMBEDDING)):
        return search
    known = dict(zip(texts, vectors(texts), strict=True)) if vectors else {}

    def put(knn: Knn) -> Knn:
        if not isinstance(knn.query, str) or knn.key != EMBEDDING:
            return knn
        return replace(knn, query=tuple(known[knn.query])) if known else replace(knn, key=WORDS)

    assert search.rank is not None, "it has texts"
    return replace(search, rank=_replace_knns(search.rank, put))


def _replace_knns(rank: Rank, put: Callable[[Knn], Knn]) -> Rank:
    match rank:
        case Knn():
            return put(rank)
        case Combined(operator, parts):
            return Combined(operator, tuple(_replace_knns(part, put) for part in parts))
        case Difference(left, right) | Ratio(left, right):
            return type(rank)(_replace_knns(left, put), _replace_knns(right, put))
        case Applied(operator, part):
            return Applied(operator, _replace_knns(part, put))
        case _:
            return rank
