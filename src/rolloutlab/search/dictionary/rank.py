"""Parser of a dictionary's rank."""

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


def read_rank(cursor: JsonCursor) -> Rank:
    """The rank at a cursor; a bare number is a constant."""
    if isinstance(cursor.value, Rank):
        return read_rank(replace(cursor, value=dump_rank(cursor.value)))
    cursor = cursor.descend()
    if isinstance(cursor.value, int | float) and not isinstance(cursor.value, bool):
        return Val(cursor.number(0.5))
    if not isinstance(cursor.value, Mapping):
        raise cursor.error("a rank is an object with one operator, or a number", _meant(cursor.value))
    if "$rrf" in cursor.value:
        raise cursor.unknown("$rrf", OPERATORS, "operator: fusion is written out", hint=shown(FUSED, 400))
    operator, operand = cursor.only_key(OPERATORS, {"$sum": [KNN, 1]})
    if operator in COMBINED:
        return Combined(operator, tuple(map(read_rank, operand.items([KNN, 0.5], least=2))))
    if operator in PAIRED:
        return PAIRED[operator](*_sides(operand))
    if operator in APPLIED:
        return Applied(operator, read_rank(operand))
    if operator == "$val":
        return Val(operand.number(0.5))
    return _knn(operand) if operator == "$knn" else _field(operand)


def _meant(value: Any) -> Any:
    if isinstance(value, str) and value:
        return {"$knn": {"query": value}}
    return {"$sum": [KNN, 0.5]} if isinstance(value, list | tuple) and len(value) > 1 else KNN


def _sides(cursor: JsonCursor) -> tuple[Rank, Rank]:
    pair = cursor.value if isinstance(cursor.value, list | tuple) and len(cursor.value) == 2 else (1, KNN)
    sides = cursor.object(("left", "right"), (), {"left": pair[0], "right": pair[1]})
    return read_rank(sides["left"]), read_rank(sides["right"])


def _knn(cursor: JsonCursor) -> Knn:
    options = cursor.object(("query",), ("key", "limit", "default", "return_rank"), KNN["$knn"])
    return Knn(
        query=_query(options["query"]),
        key=_vectors(options["key"]) if "key" in options else EMBEDDING,
        limit=options["limit"].integer(NEAREST, least=1) if "limit" in options else NEAREST,
        default=options["default"].number(1) if "default" in options else None,
        return_rank="return_rank" in options and options["return_rank"].flag(),
    )


def _vectors(cursor: JsonCursor) -> str:
    """The key of a knn: the embedding, or a name of sparse vectors, which need not be a metadata field."""
    return replace(cursor, known=None).field(EMBEDDING, (EMBEDDING,))


def _query(cursor: JsonCursor) -> str | tuple[float, ...] | SparseVector:
    if isinstance(cursor.value, str):
        return cursor.text("text")
    if isinstance(cursor.value, SparseVector):
        vector = {"indices": list(cursor.value.indices), "values": list(cursor.value.values)}
        return _sparse(replace(cursor, value=vector))
    if isinstance(cursor.value, Mapping):
        return _sparse(cursor)
    if not isinstance(cursor.value, list | tuple):
        raise cursor.error("a query is a text, a list of numbers or a sparse vector", "text")
    if cursor.value and isinstance(cursor.value[0], list | tuple):
        raise cursor.error("it is a list of lists; a query is one vector", list(cursor.value[0]) or [0.1, 0.2])
    return tuple(float(item.number(0.5)) for item in cursor.items([0.1, 0.2]))


def _sparse(cursor: JsonCursor) -> SparseVector:
    fix = {"indices": [3, 17], "values": [0.5, 1.5]}
    parts = cursor.object(("indices", "values"), (TAG,), fix)
    if TAG in parts and parts[TAG].value != SPARSE:
        raise parts[TAG].error("there is one type of sparse vector", SPARSE)
    indices = tuple(item.integer(3, largest=HIGHEST_INDEX) for item in parts["indices"].items(fix["indices"]))
    values = tuple(float(item.number(0.5)) for item in parts["values"].items(fix["values"]))
    if len(indices) != len(values):
        shorter = min(len(indices), len(values))
        fix = {"indices": list(indices[:shorter]), "values": list(values[:shorter])}
        raise cursor.error(f"it has {len(indices)} indices and {len(values)} values", fix)
    if len(set(indices)) < len(indices):
        again = next(index for index in indices if indices.count(index) > 1)
        raise cursor.error(f"the index {again} is there more than once", fix)
    return SparseVector(indices, values)


def _field(cursor: JsonCursor) -> FieldTerm:
    if isinstance(cursor.value, str):
        raise cursor.error("must be an object", {"key": cursor.value or "reward"})
    parts = cursor.object(("key",), ("default",), FIELD["$field"])
    return FieldTerm(parts["key"].field("reward"), parts["default"].number(0) if "default" in parts else None)
