"""Serialization of a search to its dictionary."""

from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.json_cursor import DEEPEST, too_deep
from rolloutlab.search.query import GroupBy, MaxK, Search
from rolloutlab.search.rank import Applied, Combined, Difference, FieldTerm, Knn, Rank, Ratio, SparseVector, Val
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches, Where


def dump(search: Search) -> dict[str, Any]:
    """Write a search as a dictionary in canonical form, of which `parse` makes the same search."""
    limit = {name: value for name, value in (("limit", search.limit.limit), ("offset", search.limit.offset)) if value}
    written = {
        "where": None if search.where is None else dump_where(search.where),
        "rank": None if search.rank is None else dump_rank(search.rank),
        "group_by": None if search.group_by is None else _group_by(search.group_by),
        "limit": limit or None,
        "select": {"keys": list(search.select.keys)} if search.select.keys else None,
    }
    return {key: value for key, value in written.items() if value is not None}


def dump_where(where: Where, depth: int = 0) -> dict[str, Any]:
    """Write conditions as `dump` does."""
    if depth >= DEEPEST:
        raise too_deep()
    match where:
        case All(parts):
            return {"$and": [dump_where(part, depth + 1) for part in parts]}
        case AnyOf(parts):
            return {"$or": [dump_where(part, depth + 1) for part in parts]}
        case Compare(field, operator, value):
            return {field: {operator: value}}
        case Among(field, values, negated):
            return {field: {"$nin" if negated else "$in": list(values)}}
        case Contains(field, value, negated):
            return {field: {"$not_contains" if negated else "$contains": value}}
        case Matches(pattern, negated, field):
            return {field: {"$not_regex" if negated else "$regex": pattern}}
    raise InputError(f"{where!r} is not a condition", hint="F.reward > 0.5")


def dump_rank(rank: Rank, depth: int = 0) -> dict[str, Any]:
    """Write a rank as `dump` does. A knn's limit is always included."""
    if depth >= DEEPEST:
        raise too_deep()
    match rank:
        case Val(value):
            return {"$val": value}
        case Knn():
            return {"$knn": _knn(rank)}
        case FieldTerm(key, default):
            return {"$field": {"key": key} if default is None else {"key": key, "default": default}}
        case Combined(operator, parts):
            return {operator: [dump_rank(part, depth + 1) for part in parts]}
        case Difference(left, right) | Ratio(left, right):
            sides = {"left": dump_rank(left, depth + 1), "right": dump_rank(right, depth + 1)}
            return {"$sub" if isinstance(rank, Difference) else "$div": sides}
        case Applied(operator, part):
            return {operator: dump_rank(part, depth + 1)}
    raise InputError(f"{rank!r} is not a rank", hint='Knn("text") - FieldTerm("reward")')


def dump_query(query: str | tuple[float, ...] | SparseVector) -> Any:
    """Write the query of a knn as `dump` does."""
    if isinstance(query, SparseVector):
        return {"indices": list(query.indices), "values": list(query.values)}
    return query if isinstance(query, str) else list(query)


def _knn(knn: Knn) -> dict[str, Any]:
    written: dict[str, Any] = {"query": dump_query(knn.query), "key": knn.key, "limit": knn.limit}
    if knn.default is not None:
        written["default"] = knn.default
    if knn.return_rank is not False:
        written["return_rank"] = knn.return_rank
    return written


def _group_by(group_by: GroupBy) -> dict[str, Any]:
    best = {"keys": list(group_by.aggregate.keys), "k": group_by.aggregate.k}
    operator = "$max_k" if isinstance(group_by.aggregate, MaxK) else "$min_k"
    return {"keys": list(group_by.keys), "aggregate": {operator: best}}
