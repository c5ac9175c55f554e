"""Text queries: to vectors where there is an embedding model, else to words."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rolloutlab.search.query import Search
from rolloutlab.search.rank import EMBEDDING, Applied, Combined, Difference, Knn, Rank, Ratio, terms_of
from rolloutlab.search.where import DOCUMENT, Contains, conditions_of

WORDS = "bm25"
"""The key under which texts are compared by their words."""
Vectors = Callable[[Sequence[str]], Sequence[Sequence[float]]]


def texts_of(rank: Rank | None, key: str | None = None) -> list[str]:
    """The text queries of a rank, each once; of one key or of all."""
    knns = [term for term in terms_of(rank) if isinstance(term, Knn)]
    return list(dict.fromkeys(knn.query for knn in knns if isinstance(knn.query, str) and key in (None, knn.key)))


def sought(search: Search) -> list[str]:
    """The texts that somebody looks for: those of the rank, and those that documents have to contain."""
    contained = [
        each.value
        for each in conditions_of(search.where)
        if isinstance(each, Contains) and each.field == DOCUMENT and not each.negated and isinstance(each.value, str)
    ]
    return list(dict.fromkeys([*texts_of(search.rank), *contained]))


def resolved(search: Search, vectors: Vectors | None) -> Search:
    """The search with vectors in place of the texts that `#embedding` is asked for; by their words without a model.

    vectors: a vector for each text; None where there is no model.
    """
    texts = texts_of(search.rank, EMBEDDING)
    if not texts:
        return search
    known = dict(zip(texts, vectors(texts), strict=True)) if vectors else {}

    def put(knn: Knn) -> Knn:
        if not isinstance(knn.query, str) or knn.key != EMBEDDING:
            return knn
        return replace(knn, query=tuple(known[knn.query])) if known else replace(knn, key=WORDS)

    assert search.rank is not None, "it has texts"
    return replace(search, rank=_replaced(search.rank, put))


def _replaced(rank: Rank, put: Callable[[Knn], Knn]) -> Rank:
    match rank:
        case Knn():
            return put(rank)
        case Combined(operator, parts):
            return Combined(operator, tuple(_replaced(part, put) for part in parts))
        case Difference(left, right) | Ratio(left, right):
            return type(rank)(_replaced(left, put), _replaced(right, put))
        case Applied(operator, part):
            return Applied(operator, _replaced(part, put))
        case _:
            return rank
