"""A search from what a person gives in pieces: a text, conditions, a rank, fields."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import parse, parse_rank, parse_where
from rolloutlab.search.expression import rank_of, where_of
from rolloutlab.search.query import SCORE, GroupBy, Limit, MinK, Search, Select
from rolloutlab.search.rank import NEAREST, Knn, Rank
from rolloutlab.search.where import Where

_ALL = 1_000_000
_GROUPED, _CANDIDATES = 10_000, 100
"""Where records are grouped, at least so many are looked at, and so many times what is wanted."""


def written(
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
    """One search. known: the fields there are; None where any name will do. A score is always selected.

    Raises:
        InputError: a piece is wrong, two say the same, or a field is not known; with the nearest name.
    """
    if isinstance(query, Mapping | Search):
        if any(piece is not None for piece in (where, rank, group_by, best, k, offset, select)):
            hint = "its where, rank, group_by, limit and select"
            raise InputError("the dictionary says everything already", hint=hint)
        return parse(query, known)
    if query is not None and rank is not None:
        raise InputError("a text and a rank are two orders", hint=f"rank=\"knn({query!r}) - 0.1 * field('reward')\"")
    keys = _names(group_by)
    limit = Limit(_whole("k", 10 if k is None else k, 0), _whole("offset", offset or 0, 0))
    best_k = _whole("best", 1 if best is None else best, 1)
    ranked = _ranked(query, rank, known, _candidates(limit, best_k if keys else 0))
    if best is not None and not keys:
        raise InputError("the best of what? Nothing is grouped", hint=f"--group-by collection --best {best}")
    if keys and ranked is None:
        raise InputError("groups keep their best, and nothing says what is best", hint="a text, or rank=...")
    selected = _names(select)
    search = Search(
        where=_conditions(where, known),
        rank=ranked,
        group_by=GroupBy(keys, MinK((SCORE,), best_k)) if keys else None,
        limit=limit,
        select=Select((SCORE, *selected) if selected and ranked is not None else selected),
    )
    return parse(search, known)


def _candidates(limit: Limit, best: int) -> int:
    """How many of the nearest are looked at. best: how many of each group are kept; 0 where nothing is grouped."""
    if not limit.limit:
        return _ALL
    rows = limit.limit + limit.offset
    return max(_GROUPED, _CANDIDATES * rows * best) if best else max(NEAREST, rows)


def _ranked(query: str | None, rank: Any, known: Collection[str] | None, candidates: int) -> Rank | None:
    if query is not None:
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"{query!r} is no text to search for", hint='lab.search("capital of France")')
        return Knn(query, limit=candidates)
    if rank is None:
        return None
    return rank_of(rank, known) if isinstance(rank, str) else parse_rank(rank, known)


def _conditions(where: Any, known: Collection[str] | None) -> Where | None:
    if where is None:
        return None
    return where_of(where, known) if isinstance(where, str) else parse_where(where, known)


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Fields that commas separate, or a list of them."""
    pieces = names.split(",") if isinstance(names, str) else names or ()
    if not isinstance(pieces, Sequence) or not all(isinstance(piece, str) for piece in pieces):
        raise InputError(f"{names!r} are no names of fields", hint="reward, step")
    return tuple(piece.strip() for piece in pieces if piece.strip())


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(
            f"{name} is {value!r}, which is no whole number from {least} on", hint=f"{name}={max(least, 10)}"
        )
    return value
