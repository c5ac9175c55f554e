"""Reading the rank of a dictionary."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rolloutlab.search.dictionary.cursor import JsonCursor, shown
from rolloutlab.search.dictionary.dump import dump_rank
from rolloutlab.search.rank import (
    APPLIED,
    COMBINED,
    EMBEDDING,
    NEAREST,
    Applied,
    Combined,
    Difference,
    FieldTerm,
    Knn,
    Rank,
    Ratio,
    SparseVector,
    Val,
)

KNN = {"$knn": {"query": "text"}}
FIELD = {"$field": {"key": "reward", "default": 0}}
PAIRED = {"$sub": Difference, "$div": Ratio}
OPERATORS = ("$val", "$knn", "$field", *COMBINED, *PAIRED, *APPLIED)
FUSED = {
    "$mul": [-1, {"$sum": [
        {"$div": {"left": 1, "right": {"$sum": [60, {"$knn": {"query": "text", "return_rank": True}}]}}},
        {"$div": {"left": 1, "right": {"$sum": [60, {"$knn": {"query": "text", "key": "bm25", "return_rank": True}}]}}},
    ]}],
}  # fmt: skip
TAG, SPARSE = "#type", "sparse_vector"
HIGHEST_INDEX = 2**32 - 1


def rank_at(spot: JsonCursor) -> Rank:
    """The rank at a spot; a bare number is one."""
    if isinstance(spot.value, Rank):
        return rank_at(replace(spot, value=dump_rank(spot.value)))
    spot = spot.deeper()
    if isinstance(spot.value, int | float) and not isinstance(spot.value, bool):
        return Val(spot.number(0.5))
    if not isinstance(spot.value, Mapping):
        raise spot.wrong("a rank is an object with one operator, or a number", _meant(spot.value))
    if "$rrf" in spot.value:
        raise spot.unknown("$rrf", OPERATORS, "operator: fusion is written out", hint=shown(FUSED, 400))
    operator, operand = spot.single(OPERATORS, {"$sum": [KNN, 1]})
    if operator in COMBINED:
        return Combined(operator, tuple(map(rank_at, operand.items([KNN, 0.5], least=2))))
    if operator in PAIRED:
        return PAIRED[operator](*_sides(operand))
    if operator in APPLIED:
        return Applied(operator, rank_at(operand))
    if operator == "$val":
        return Val(operand.number(0.5))
    return _knn(operand) if operator == "$knn" else _field(operand)


def _meant(value: Any) -> Any:
    if isinstance(value, str) and value:
        return {"$knn": {"query": value}}
    return {"$sum": [KNN, 0.5]} if isinstance(value, list | tuple) and len(value) > 1 else KNN


def _sides(spot: JsonCursor) -> tuple[Rank, Rank]:
    pair = spot.value if isinstance(spot.value, list | tuple) and len(spot.value) == 2 else (1, KNN)
    found = spot.object(("left", "right"), (), {"left": pair[0], "right": pair[1]})
    return rank_at(found["left"]), rank_at(found["right"])


def _knn(spot: JsonCursor) -> Knn:
    found = spot.object(("query",), ("key", "limit", "default", "return_rank"), KNN["$knn"])
    return Knn(
        query=_query(found["query"]),
        key=_vectors(found["key"]) if "key" in found else EMBEDDING,
        limit=found["limit"].integer(NEAREST, least=1) if "limit" in found else NEAREST,
        default=found["default"].number(1) if "default" in found else None,
        return_rank="return_rank" in found and found["return_rank"].flag(),
    )


def _vectors(spot: JsonCursor) -> str:
    """What has vectors: the embedding, or sparse ones under a name, which need not be a metadata field."""
    return replace(spot, known=None).field(EMBEDDING, (EMBEDDING,))


def _query(spot: JsonCursor) -> str | tuple[float, ...] | SparseVector:
    if isinstance(spot.value, str):
        return spot.text("text")
    if isinstance(spot.value, SparseVector):
        vector = {"indices": list(spot.value.indices), "values": list(spot.value.values)}
        return _sparse(replace(spot, value=vector))
    if isinstance(spot.value, Mapping):
        return _sparse(spot)
    if not isinstance(spot.value, list | tuple):
        raise spot.wrong("a query is a text, a list of numbers or a sparse vector", "text")
    if spot.value and isinstance(spot.value[0], list | tuple):
        raise spot.wrong("it is a list of lists; a query is one vector", list(spot.value[0]) or [0.1, 0.2])
    return tuple(float(item.number(0.5)) for item in spot.items([0.1, 0.2]))


def _sparse(spot: JsonCursor) -> SparseVector:
    fix = {"indices": [3, 17], "values": [0.5, 1.5]}
    found = spot.object(("indices", "values"), (TAG,), fix)
    if TAG in found and found[TAG].value != SPARSE:
        raise found[TAG].wrong("there is one type of sparse vector", SPARSE)
    indices = tuple(item.integer(3, largest=HIGHEST_INDEX) for item in found["indices"].items(fix["indices"]))
    values = tuple(float(item.number(0.5)) for item in found["values"].items(fix["values"]))
    if len(indices) != len(values):
        shorter = min(len(indices), len(values))
        fix = {"indices": list(indices[:shorter]), "values": list(values[:shorter])}
        raise spot.wrong(f"it has {len(indices)} indices and {len(values)} values", fix)
    if len(set(indices)) < len(indices):
        again = next(index for index in indices if indices.count(index) > 1)
        raise spot.wrong(f"the index {again} is there more than once", fix)
    return SparseVector(indices, values)


def _field(spot: JsonCursor) -> FieldTerm:
    if isinstance(spot.value, str):
        raise spot.wrong("it has to be an object", {"key": spot.value or "reward"})
    found = spot.object(("key",), ("default",), FIELD["$field"])
    return FieldTerm(found["key"].field("reward"), found["default"].number(0) if "default" in found else None)
