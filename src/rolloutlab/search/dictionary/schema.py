"""JSON Schema (draft 2020-12) of the search dictionary, for editors and for models that write searches.

Only `dictionary.parse` checks what a schema cannot: equal lengths of a sparse vector's lists, valid regular
expressions, and the nesting depth.
"""

from typing import Any

from rolloutlab.search.dictionary.parse import HIGHEST_INDEX, SPARSE, TAG
from rolloutlab.search.json_cursor import LARGEST, LONGEST, SINGLE
from rolloutlab.search.query import SCORE, SHOWN
from rolloutlab.search.rank import APPLIED, COMBINED, EMBEDDING, NEAREST
from rolloutlab.search.where import DOCUMENT, ID, REASONING, REASONING_TEXT

Schema = dict[str, Any]
FIELD = {"type": "string", "pattern": "^[^$#]", "description": "the name of a metadata field"}
TEXT = {"type": "string", "minLength": 1}
REASONED = REASONING, REASONING_TEXT
NUMBER = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
SCORED = {"type": "number", "minimum": -SINGLE, "maximum": SINGLE}


def json_schema() -> Schema:
    """Make the schema of a whole search."""
    where, rank = _ref("where"), _ref("rank")
    by_score = {"required": ["keys"], "properties": {"keys": {"type": "array", "contains": {"const": SCORE}}}}
    best = [{"required": [name], "properties": {name: by_score}} for name in ("$min_k", "$max_k")]
    grouped = {"required": ["aggregate"], "properties": {"aggregate": {"anyOf": best}}, "type": "object"}
    grouping = {"properties": {"group_by": grouped}, "required": ["group_by"]}
    scoring = {"properties": {"rank": {"not": {"type": "null"}}}, "required": ["rank"]}
    present = {"not": {"type": "null"}}
    twice = {"required": ["where", "filter"], "properties": {"where": present, "filter": present}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A search",
        "description": "Which records, in what order (the lowest score first), how many of a kind, and which page",
        **_object({}, where=_or_null(where), filter=_or_null(where), rank=_or_null(rank), group_by=_group_by(),
                  limit=_limit(), select=_select()),
        "if": grouping,
        "then": scoring,
        "not": twice,
        "$defs": {"where": _where(), "rank": _rank(), "field": _field(), "query": _query()},
    }  # fmt: skip


def _where() -> Schema:
    parts = {"type": "array", "items": _ref("where"), "minItems": 1}
    text, regex = {"type": "string"}, {**TEXT, "format": "regex"}
    id_ = {"anyOf": [text, _single({"$eq": text, "$ne": text, "$in": _list(text), "$nin": _list(text)})]}
    matches = {"$regex": regex, "$not_regex": regex}
    document = _single({"$contains": TEXT, "$not_contains": TEXT, **matches})
    reasoning = {"anyOf": [_ref("field"), _single(matches)]}
    return {
        "description": "conditions; several in one object must all hold",
        "type": "object",
        "minProperties": 1,
        "properties": {"$and": parts, "$or": parts, ID: id_, DOCUMENT: document, **dict.fromkeys(REASONED, reasoning)},
        "patternProperties": {f"^(?!({'|'.join(REASONED)})$)[^$#]": _ref("field")},
        "additionalProperties": False,
    }


def _field() -> Schema:
    kinds: list[Schema] = [{"type": "string"}, NUMBER, {"type": "boolean"}]
    value, several = {"anyOf": kinds}, {"anyOf": [_list(kind) for kind in kinds]}
    order = dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), NUMBER)
    equality = dict.fromkeys(("$eq", "$ne", "$contains", "$not_contains"), value)
    return {"anyOf": [value, _single({**equality, **order, "$in": several, "$nin": several})]}


def _rank() -> Schema:
    pair = _object({"left": _ref("rank"), "right": _ref("rank")})
    operators = {
        "$val": SCORED,
        "$knn": _knn(),
        "$field": _object({"key": FIELD}, default=_or_null(SCORED)),
        "$sub": pair,
        "$div": pair,
        **{operator: {"type": "array", "items": _ref("rank"), "minItems": 2} for operator in COMBINED},
        **dict.fromkeys(APPLIED, _ref("rank")),
    }
    return {"description": "a score, lower is better; a number is one", "anyOf": [SCORED, _single(operators)]}


def _knn() -> Schema:
    return _object(
        {"query": _ref("query")},
        key=_or_null({"anyOf": [{"const": EMBEDDING}, FIELD], "default": EMBEDDING}),
        limit=_or_null({"type": "integer", "minimum": 1, "maximum": LONGEST, "default": NEAREST}),
        default=_or_null(SCORED),
        return_rank=_or_null({"type": "boolean", "default": False}),
    )


def _query() -> Schema:
    index = {"type": "integer", "minimum": 0, "maximum": HIGHEST_INDEX}
    indices = {**_list(index), "uniqueItems": True}
    sparse = _object({"indices": indices, "values": _list(SCORED)}, **{TAG: _or_null({"const": SPARSE})})
    return {"anyOf": [{"type": "string", "pattern": r"\S"}, _list(SCORED), sparse]}


def _group_by() -> Schema:
    count = {"type": "integer", "minimum": 1, "maximum": LONGEST}
    best = _object({"keys": _list({"anyOf": [{"const": SCORE}, FIELD]}), "k": count})
    grouped = _object({"keys": _list(FIELD), "aggregate": _single({"$min_k": best, "$max_k": best})})
    return {"anyOf": [{"type": "null"}, {"type": "object", "maxProperties": 0}, grouped]}


def _limit() -> Schema:
    count = {"type": "integer", "minimum": 0, "maximum": LONGEST, "default": 0}
    return {"anyOf": [{"type": "null"}, count, _object({}, limit=_or_null(count), offset=_or_null(count))]}


def _select() -> Schema:
    keys = {"type": "array", "items": {"anyOf": [{"enum": list(SHOWN)}, FIELD]}}
    return {"anyOf": [{"type": "null"}, keys, _object({"keys": keys})]}


def _object(required: Schema, **optional: Schema) -> Schema:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _single(operators: Schema) -> Schema:
    """Make the schema of an object with exactly one of some operators."""
    return {**_object({}, **operators), "minProperties": 1, "maxProperties": 1}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, schema]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}
