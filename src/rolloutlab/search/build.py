"""Build a search from the arguments of `%search`: a text, conditions, a rank, groups, a page and fields."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import parse
from rolloutlab.search.expression import rank_of, where_of
from rolloutlab.search.query import SCORE, Limit, Search
from rolloutlab.search.rank import NEAREST, Knn

_ALL = 1_000_000
_GROUPED, _CANDIDATES = 10_000, 100
"""A grouped search ranks at least `_GROUPED` records, and at least `_CANDIDATES` per row of the result."""


class SearchOptions(TypedDict, total=False):
    """The pieces of a search, beside its text.

    where: a filter: `"reward < 0.5 and model == 'lab/practice'"`, `F.reward < 0.5`, or a dictionary.
    rank: an order, lower is better: `"knn('paris') - 0.1 * field('reward')"`, `Knn("paris")`, or a dictionary.
    group_by: one or more fields: keep only the best hits of each group with equal values there.
    best: how many hits to keep of each group. 1 by default.
    k: the number of hits, 0 for all. 10 by default.
    offset: how many of the first hits to skip.
    select: fields to show.
    """

    where: Any
    rank: Any
    group_by: str | Sequence[str] | None
    best: int | None
    k: int | None
    offset: int | None
    select: str | Sequence[str] | None


def build_search(
    query: str | Mapping[str, Any] | Search | None,
    known: Collection[str] | None,
    where: Any = None,
    rank: Any = None,
    group_by: str | Sequence[str] | None = None,
    best: int | None = None,
    k: int | None = None,
    offset: int | None = None,
    select: str | Sequence[str] | None = None,
) -> Search:
    """Build one search, which always selects the score if it has a rank.

    Args:
        query: The text, or a whole search.
        known: Names of the fields; None allows any name.
        where: As in `SearchOptions`, as are all that follow.
        rank: An order.
        group_by: The fields of groups.
        best: How many hits to keep of each group.
        k: The number of hits.
        offset: How many of the first hits to skip.
        select: Fields to show.

    Raises:
        InputError: an argument is invalid, two conflict, or a field is unknown; with the nearest name.
    """
    if isinstance(query, Mapping | Search):
        if any(piece is not None for piece in (where, rank, group_by, best, k, offset, select)):
            hint = "its where, rank, group_by, limit and select"
            raise InputError("a search dictionary takes no further arguments", hint=hint)
        return parse(query, known)
    if query is not None and rank is not None:
        hint = f"rank=\"knn({query!r}) - 0.1 * field('reward')\""
        raise InputError("a search has either a text or a rank", hint=hint)
    keys, selected = _read_names(group_by), _read_names(select)
    limit = Limit(_check_integer("k", 10 if k is None else k, 0), _check_integer("offset", offset or 0, 0))
    best_k = _check_integer("best", 1 if best is None else best, 1)
    if query is not None:
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"{query!r} is not a text to search for", hint='lab.search("capital of France")')
        rank = Knn(query, limit=_candidates(limit, best_k if keys else 0))
    elif isinstance(rank, str):
        rank = rank_of(rank, known)
    if best is not None and not keys:
        raise InputError("best needs group_by", hint=f"--group-by collection --best {best}")
    if keys and rank is None:
        raise InputError("group_by needs a text or a rank", hint="a text, or rank=...")
    dictionary = {
        "where": where_of(where, known) if isinstance(where, str) else where,
        "rank": rank,
        "group_by": {"keys": keys, "aggregate": {"$min_k": {"keys": [SCORE], "k": best_k}}} if keys else None,
        "limit": {"limit": limit.limit, "offset": limit.offset},
        "select": (SCORE, *selected) if selected and rank is not None else selected,
    }
    return parse(dictionary, known)


def _candidates(limit: Limit, best: int) -> int:
    """Choose how many of the nearest records to rank. best: how many of each group are kept; 0 without groups."""
    if not limit.limit:
        return _ALL
    rows = limit.limit + limit.offset
    return max(_GROUPED, _CANDIDATES * rows * best) if best else max(NEAREST, rows)


def _read_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Read field names, comma-separated or as a list."""
    pieces = names.split(",") if isinstance(names, str) else names or ()
    if not isinstance(pieces, Sequence) or not all(isinstance(piece, str) for piece in pieces):
        raise InputError(f"{names!r} must be names of fields", hint="reward, step")
    return tuple(piece.strip() for piece in pieces if piece.strip())


def _check_integer(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={max(least, 10)}")
    return value
