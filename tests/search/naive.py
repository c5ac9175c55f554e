"""What a search means, once more and slowly: dictionaries, loops and `math`, written from the semantics alone."""

import math
import re
import struct
from collections.abc import Callable
from typing import Any

from rolloutlab.search import FieldTerm, GroupBy, Knn, Rank, Search, SparseVector, Val, Where
from rolloutlab.search.engine.records import Record
from rolloutlab.search.query import MaxK
from rolloutlab.search.rank import Applied, Combined, Difference, Ratio
from rolloutlab.search.where import All, Among, AnyOf, Compare, Contains, Matches

Scores = tuple[dict[str, float], float | None]
_ABSENT = object()


def found(search: Search, records: list[Record], space: str = "cosine") -> list[tuple[str, float | None]]:
    """Ids and scores, in order; records are in storage order."""
    rows = [record for record in records if search.where is None or qualifies(search.where, record)]
    order = {record.id: i for i, record in enumerate(records)}
    if search.rank is None:
        ranked: list[tuple[str, float | None]] = [(record.id, None) for record in rows]
    else:
        scores, _ = _scores(search.rank, rows, records, space)
        ranked = sorted(scores.items(), key=lambda item: (math.isnan(item[1]), *_finite(item[1]), order[item[0]]))
        if search.group_by is not None:
            kept = _kept(search.group_by, ranked, {record.id: record for record in rows})
            ranked = [item for item in ranked if item[0] in kept]
    start, count = search.limit.offset, search.limit.limit
    return ranked[start : start + count] if count else ranked[start:]


def qualifies(where: Where, record: Record) -> bool:
    if isinstance(where, All):
        return all(qualifies(part, record) for part in where.parts)
    if isinstance(where, AnyOf):
        return any(qualifies(part, record) for part in where.parts)
    value = _value(record, where.field)
    if isinstance(where, Among):
        return where.negated != any(_equal(value, other) for other in where.values)
    if isinstance(where, Contains):
        texts = where.field in ("#document", "reasoning_text") and isinstance(where.value, str)
        inside = texts and isinstance(value, str) and where.value in value
        return where.negated != (inside or (isinstance(value, list) and any(_equal(v, where.value) for v in value)))
    if isinstance(where, Matches):
        return where.negated != (isinstance(value, str) and re.search(where.pattern, value) is not None)
    assert isinstance(where, Compare)
    if where.operator in ("$eq", "$ne"):
        return (where.operator == "$ne") != _equal(value, where.value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    orders = {"$gt": value > where.value, "$gte": value >= where.value}
    return (orders | {"$lt": value < where.value, "$lte": value <= where.value})[where.operator]


def _value(record: Record, field: str) -> Any:
    reasoning = [(record.document or "")[begin:end] for begin, end in record.reasoning]
    own = {
        "#id": record.id,
        "#document": record.document,
        "reasoning_text": "\n\n".join(reasoning) if reasoning else None,
    }
    value = own[field] if field in own else record.metadata.get(field)
    return _ABSENT if value is None else value


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, bool) or isinstance(other, bool):
        return isinstance(value, bool) and isinstance(other, bool) and value == other
    return value is not _ABSENT and not isinstance(value, list) and bool(value == other)


def _scores(rank: Rank, rows: list[Record], records: list[Record], space: str) -> Scores:
    """The support with its scores, and the default."""

    def inner(part: Rank) -> Scores:
        return _scores(part, rows, records, space)

    if isinstance(rank, Val):
        return {}, _float32(rank.value)
    if isinstance(rank, Knn):
        default = None if rank.default is None else _float32(rank.default)
        nearest = _nearest(rank, rows, records, space)
        return {id_: float(i) if rank.return_rank else d for i, (d, id_) in enumerate(nearest)}, default
    if isinstance(rank, FieldTerm):
        values = {record.id: record.metadata.get(rank.key) for record in rows}
        numbers = {id_: _float32(v) for id_, v in values.items() if type(v) in (int, float)}
        return numbers, None if rank.default is None else _float32(rank.default)
    if isinstance(rank, Applied):
        support, default = inner(rank.part)
        function = {"$abs": abs, "$exp": _exp, "$log": _log}[rank.operator]
        applied = {id_: _float32(function(score)) for id_, score in support.items()}
        return applied, None if default is None else _float32(function(default))
    if isinstance(rank, Combined):
        functions = {"$sum": lambda a, b: a + b, "$mul": lambda a, b: a * b, "$max": _max, "$min": _min}
        scored = inner(rank.parts[0])
        for part in rank.parts[1:]:
            scored = _together(functions[rank.operator], scored, inner(part))
        return scored
    assert isinstance(rank, Difference | Ratio)
    function = _divided if isinstance(rank, Ratio) else lambda a, b: a - b
    return _together(function, inner(rank.left), inner(rank.right))


def _together(function: Callable[[float, float], float], left: Scores, right: Scores) -> Scores:
    (a, default_a), (b, default_b) = left, right
    if default_a is not None and default_b is not None:
        ids, default = {**a, **b}.keys(), _float32(function(default_a, default_b))
    else:
        default = None
        ids = a.keys() & b.keys() if default_a is default_b is None else (a if default_a is None else b).keys()
    return {id_: _float32(function(a.get(id_, default_a), b.get(id_, default_b))) for id_ in ids}, default  # type: ignore[arg-type]


def _nearest(knn: Knn, rows: list[Record], records: list[Record], space: str) -> list[tuple[float, str]]:
    if knn.key == "bm25":
        distances = _word_distances(str(knn.query), rows, records)
    elif isinstance(knn.query, SparseVector):
        distances = [(_sparse_distance(knn.query, r.sparse[knn.key]), r.id) for r in rows if knn.key in r.sparse]
    else:
        query = [_float32(number) for number in knn.query]
        vectors = [([_float32(n) for n in r.embedding], r.id) for r in rows if r.embedding is not None]
        distances = [(_distance(query, vector, space), id_) for vector, id_ in vectors]
    return sorted(distances, key=lambda pair: pair[0])[: knn.limit]


def _distance(query: list[float], vector: list[float], space: str) -> float:
    dot = sum(q * v for q, v in zip(query, vector, strict=True))
    if space == "l2":
        return _float32(sum((q - v) ** 2 for q, v in zip(query, vector, strict=True)))
    if space == "cosine":
        lengths = math.sqrt(sum(v * v for v in vector)) * math.sqrt(sum(q * q for q in query))
        dot = dot / lengths if lengths else 0.0
    return _float32(1 - _float32(dot))


def _sparse_distance(query: SparseVector, vector: SparseVector) -> float:
    wanted = dict(zip(query.indices, query.values, strict=True))
    pairs = sorted(zip(vector.indices, vector.values, strict=True))
    return _float32(1 - _float32(sum(_float32(v) * _float32(wanted[i]) for i, v in pairs if i in wanted)))


def _word_distances(query: str, rows: list[Record], records: list[Record]) -> list[tuple[float, str]]:
    """1 minus BM25 as FTS5 computes it: k1 = 1.2, b = 0.75, and an inverse document frequency of at least 1e-6."""
    words = {r.id: re.findall(r"[a-z0-9]+", r.document.lower()) for r in records if r.document is not None}
    usual = sum(map(len, words.values())) / max(len(words), 1)
    totals: dict[str, float] = {}
    for word in dict.fromkeys(re.findall(r"[a-z0-9]+", query.lower())):
        having = sum(word in text for text in words.values())
        weight = math.log((len(words) - having + 0.5) / (having + 0.5))
        for id_, text in words.items():
            if count := text.count(word):
                share = count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(text) / usual))
                totals[id_] = totals.get(id_, 0.0) + max(weight, 1e-6) * share
    return [(_float32(1 - _float32(totals[row.id])), row.id) for row in rows if row.id in totals]


def _kept(group_by: GroupBy, ranked: list[tuple[str, float | None]], records: dict[str, Record]) -> set[str]:
    groups: dict[Any, list[tuple[str, float | None]]] = {}
    for id_, score in ranked:
        typed = tuple(_typed(records[id_].metadata.get(key)) for key in group_by.keys)
        groups.setdefault(repr(typed), []).append((id_, score))
    aggregate = group_by.aggregate
    kept: set[str] = set()
    for members in groups.values():
        keys = {
            id_: [_typed(s if k == "#score" else records[id_].metadata.get(k)) for k in aggregate.keys]
            for id_, s in members
        }
        left = list(members)
        while left and len(members) - len(left) < aggregate.k:
            best = left[0]
            for other in left[1:]:
                better = (
                    keys[other[0]] > keys[best[0]] if isinstance(aggregate, MaxK) else keys[other[0]] < keys[best[0]]
                )
                best = other if better else best
            left.remove(best)
            kept.add(best[0])
    return kept


def _typed(value: Any) -> tuple[Any, ...]:
    if isinstance(value, list):
        return (5, *map(_typed, value))
    return (0,) if value is None else ({bool: 1, int: 2, float: 3, str: 4}[type(value)], value)


def _finite(number: float) -> tuple[float]:
    return (0.0 if math.isnan(number) else number,)


def _float32(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _exp(number: float) -> float:
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def _log(number: float) -> float:
    if number == 0:
        return -math.inf
    return math.log(number) if number > 0 else math.nan


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) or math.isnan(b) else math.copysign(math.inf, a) * math.copysign(1, b)


def _max(a: float, b: float) -> float:
    return b if math.isnan(a) or b > a else a


def _min(a: float, b: float) -> float:
    return b if math.isnan(a) or b < a else a
