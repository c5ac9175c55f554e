"""Parser of a whole search dictionary: where, rank, group_by, limit and select."""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search import rank as ranks
from rolloutlab.search.dictionary.dump import dump, dump_rank, dump_where
from rolloutlab.search.json_cursor import JsonCursor, name_problem, nearest, show, too_deep
from rolloutlab.search.query import SCORE, SHOWN, GroupBy, Limit, MaxK, MinK, Search, Select
from rolloutlab.search.rank import APPLIED, COMBINED, EMBEDDING, NEAREST, FieldTerm, Knn, Rank, SparseVector, Val
from rolloutlab.search.rules import normalize, normalize_value, value_problem, violation
from rolloutlab.search.where import COMPARISONS, DOCUMENT, ID, All, Among, AnyOf, Compare, Contains, Matches, Where

CONDITION = {"reward": {"$gt": 0.5}}
LOGICAL = {"$and": All, "$or": AnyOf}
NEGATED = {
    "$in": False, "$nin": True, "$contains": False, "$not_contains": True, "$regex": False, "$not_regex": True,
}  # fmt: skip
WHERE_OPERATORS = (*COMPARISONS, *NEGATED)
"""Operators of a field."""


def read_where(cursor: JsonCursor) -> Where:
    """Read the condition at a cursor. All of its fields must match."""
    if isinstance(cursor.value, Where):
        return read_where(replace(cursor, value=dump_where(cursor.value)))
    cursor = cursor.descend()
    if not (fields := cursor.mapping(CONDITION)):
        raise cursor.error("it has no condition", hint=f"{show(CONDITION)}, or leave it out")
    inside = cursor if len(fields) == 1 else cursor.descend()
    parts = tuple(_condition(name, inside) for name in fields)
    return parts[0] if len(parts) == 1 else All(parts)


def _condition(name: str, cursor: JsonCursor) -> Where:
    operand = cursor.key(name)
    if name in LOGICAL:
        parts = tuple(map(read_where, operand.items([CONDITION, {"model": "lab/practice"}])))
        return parts[0] if len(parts) == 1 else LOGICAL[name](parts)
    if name.startswith("$"):
        raise _operator_without_field(name, cursor)
    if problem := name_problem(name, (ID, DOCUMENT), cursor.known):
        raise operand.error(problem[0], hint=problem[1])
    if not isinstance(operand.value, Mapping):
        return _check_leaf(Compare(name, "$eq", operand.value), operand)
    _check_operators(name, operand)
    operator, operand = operand.only_key(WHERE_OPERATORS, {name: {"$eq": 0.5}})
    return _check_leaf(_leaf(name, operator, operand), operand)


def _leaf(name: str, operator: str, operand: JsonCursor) -> Where:
    if operator in COMPARISONS:
        return Compare(name, operator, operand.value)
    negated = NEGATED[operator]
    if operator in ("$contains", "$not_contains"):
        return Contains(name, operand.value, negated)
    if operator in ("$regex", "$not_regex"):
        return Matches(operand.value, negated, name)
    values = operand.items({name: {operator: ["a", "b"]}})
    for item in values:
        if why := value_problem(normalize_value(item.value)):
            raise item.error(why, "a")
    return Among(name, tuple(item.value for item in values), negated)


def _check_leaf(where: Where, operand: JsonCursor) -> Where:
    where = normalize(where)
    if wrong := violation(where):
        raise operand.error(wrong[0], dump_where(wrong[1]))
    return where


def _check_operators(name: str, condition: JsonCursor) -> None:
    """Raise the errors with a fix of their own: several operators, or a name in place of an operator."""
    operators = condition.mapping({"$eq": 0.5})
    if len(operators) > 1 and all(operator in WHERE_OPERATORS for operator in operators):
        both = {"$and": [{name: {operator: operand}} for operator, operand in operators.items()]}
        raise condition.error(f"it has {len(operators)} operators, and must have exactly one", both)
    for inner, operand in operators.items():
        if not inner.startswith("$") and not nearest(inner, WHERE_OPERATORS):
            raise condition.unknown(inner, WHERE_OPERATORS, "operator", hint=show({f"{name}.{inner}": operand}))


def _operator_without_field(name: str, cursor: JsonCursor) -> InputError:
    if name in WHERE_OPERATORS:
        return cursor.error(f"{name} needs a field", {"reward": {name: cursor.value[name]}})
    negations = "$ne, $nin, $not_contains or $not_regex; $lte for what is not $gt"
    return cursor.unknown(name, LOGICAL, "operator", hint=negations if name == "$not" else None)


KNN = {"$knn": {"query": "text"}}
FIELD = {"$field": {"key": "reward", "default": 0}}
PAIRED = {"$sub": ranks.Difference, "$div": ranks.Ratio}
RANK_OPERATORS = ("$val", "$knn", "$field", *COMBINED, *PAIRED, *APPLIED)
FUSED = {
    "$mul": [-1, {"$sum": [
        {"$div": {"left": 1, "right": {"$sum": [60, {"$knn": {"query": "text", "return_rank": True}}]}}},
        {"$div": {"left": 1, "right": {"$sum": [60, {"$knn": {"query": "text", "key": "bm25", "return_rank": True}}]}}},
    ]}],
}  # fmt: skip
TAG, SPARSE = "#type", "sparse_vector"
HIGHEST_INDEX = 2**32 - 1


def read_rank(cursor: JsonCursor) -> Rank:
    """Read the rank at a cursor. A bare number is a constant."""
    if isinstance(cursor.value, Rank):
        return read_rank(replace(cursor, value=dump_rank(cursor.value)))
    cursor = cursor.descend()
    if isinstance(cursor.value, int | float) and not isinstance(cursor.value, bool):
        return Val(cursor.number(0.5))
    if not isinstance(cursor.value, Mapping):
        raise cursor.error("a rank is an object with one operator, or a number", _suggest_rank(cursor.value))
    if "$rrf" in cursor.value:
        raise cursor.unknown("$rrf", RANK_OPERATORS, "operator: fusion is written out", hint=show(FUSED, 400))
    operator, operand = cursor.only_key(RANK_OPERATORS, {"$sum": [KNN, 1]})
    if operator in COMBINED:
        return ranks.Combined(operator, tuple(map(read_rank, operand.items([KNN, 0.5], least=2))))
    if operator in PAIRED:
        return PAIRED[operator](*_sides(operand))
    if operator in APPLIED:
        return ranks.Applied(operator, read_rank(operand))
    if operator == "$val":
        return Val(operand.number(0.5))
    return _knn(operand) if operator == "$knn" else _field_term(operand)


def _suggest_rank(value: Any) -> Any:
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
    """Read the key of a knn: the embedding, or a name of sparse vectors, which need not be a metadata field."""
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


def _field_term(cursor: JsonCursor) -> FieldTerm:
    if isinstance(cursor.value, str):
        raise cursor.error("must be an object", {"key": cursor.value or "reward"})
    parts = cursor.object(("key",), ("default",), FIELD["$field"])
    return FieldTerm(parts["key"].field("reward"), parts["default"].number(0) if "default" in parts else None)


EXAMPLE = {"where": CONDITION, "rank": KNN, "limit": 10}
KEYS = ("where", "filter", "rank", "group_by", "limit", "select")
BEST = {"$min_k": {"keys": [SCORE], "k": 1}}
AGGREGATES = {"$min_k": MinK, "$max_k": MaxK}


def parse(search: Search | Mapping[str, Any] | str, known: Collection[str] | None = None) -> Search:
    """Parse a search from its dictionary or JSON text. A key that is null counts as absent.

    known: names of the metadata fields; None allows any name.

    Raises:
        InputError: the search is not valid. The message names the path and the value, the hint is something to type.
    """
    if isinstance(search, Search):
        search = dump(search)
    cursor = JsonCursor(_json(search) if isinstance(search, str) else search, known=known)
    _check_levels(cursor)
    parts = cursor.object((), KEYS, EXAMPLE)
    if "where" in parts and "filter" in parts:
        raise cursor.error("where and filter are two names of the same key", {"where": {"$and": ["...", "..."]}})
    filtered = parts.get("where", parts.get("filter"))
    ranked = read_rank(parts["rank"]) if "rank" in parts else None
    return Search(
        read_where(filtered) if filtered is not None else None,
        ranked,
        _group_by(parts["group_by"], ranked) if "group_by" in parts else None,
        _limit(parts["limit"]) if "limit" in parts else Limit(),
        _select(parts["select"]) if "select" in parts else Select(),
    )


def parse_where(value: Where | Mapping[str, Any] | str, known: Collection[str] | None = None) -> Where:
    """Parse the value of `where` as `parse` does."""
    return read_where(JsonCursor(_json(value) if isinstance(value, str) else value, "where", known))


def parse_rank(value: Rank | Mapping[str, Any] | float | str, known: Collection[str] | None = None) -> Rank:
    """Parse the value of `rank` as `parse` does."""
    return read_rank(JsonCursor(_json(value) if isinstance(value, str) else value, "rank", known))


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicates)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"the search is not JSON: {error.msg} at {place}", hint=show(EXAMPLE)) from None
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        raise InputError(f"the search is not JSON: {error}", hint=show(EXAMPLE)) from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, and refuse duplicate keys, of which `json` would keep the last."""
    merged = dict(pairs)
    if len(merged) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for name in names if names.count(name) > 1)
        both = {"$and": [{name: value} for name, value in pairs if name == again]}
        raise InputError(f"the key {again!r} appears twice in one object", hint=show(both, 400))
    return merged


def _check_levels(cursor: JsonCursor) -> None:
    """Raise the errors with a fix of their own: keys that belong one level down."""
    parts = cursor.mapping(EXAMPLE)
    for name, value in parts.items():
        if name in RANK_OPERATORS:
            raise cursor.unknown(name, KEYS, "key of a search", hint=show({"rank": {name: value}}, 400))
        if name == "offset":
            raise cursor.unknown(name, KEYS, "key of a search", hint=show({"limit": {"offset": value}}))
        if name not in KEYS and not nearest(name, KEYS) and (name in LOGICAL or isinstance(value, Mapping)):
            raise cursor.unknown(name, KEYS, "key of a search", hint=show({"where": {name: value}}, 400))


def _group_by(cursor: JsonCursor, ranked: Rank | None) -> GroupBy | None:
    fix = {"keys": ["model"], "aggregate": BEST}
    if not cursor.mapping(fix):
        return None  # other clients send {} for none
    parts = cursor.object(("keys", "aggregate"), (), fix)
    keys = tuple(key.field("model") for key in parts["keys"].items(["model"]))
    operator, operand = parts["aggregate"].only_key(AGGREGATES, BEST)
    inside = operand.object(("keys", "k"), (), BEST["$min_k"])
    by = tuple(key.field(SCORE, (SCORE,)) for key in inside["keys"].items([SCORE]))
    if ranked is None and SCORE in by:
        raise cursor.error("the best by score are kept, and there is no rank", hint=show({"rank": KNN}))
    return GroupBy(keys, AGGREGATES[operator](by, inside["k"].integer(1, least=1)))


def _limit(cursor: JsonCursor) -> Limit:
    fix = {"limit": 10, "offset": 0}
    if not isinstance(cursor.value, Mapping):
        return Limit(cursor.integer(fix))
    parts = cursor.object((), ("limit", "offset"), fix)
    return Limit(**{name: part.integer(fix[name]) for name, part in parts.items()})


def _select(cursor: JsonCursor) -> Select:
    fix = ["#document", SCORE, "reward"]
    if isinstance(cursor.value, Mapping):
        cursor = cursor.object(("keys",), (), {"keys": fix})["keys"]
    return Select(tuple(key.field(SCORE, SHOWN) for key in cursor.items(fix, least=0)))
