"""Wire format of a search for Chroma Cloud: one of the `searches` of a request."""

import json
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary import dump, parse
from rolloutlab.search.query import SCORE, Search

Tree = dict[str, Any]


def cloud_payload(search: Search) -> Tree:
    """The payload of a search: always all five keys, and every number a float.

    A limit of 0 (all) is omitted, because the cloud returns nothing for it. A ranked search without select asks for the
    score, which is implicit only here. The shape is that of `Search.to_dict()` of Chroma's client.

    Raises:
        InputError: a text query without a vector, or a rank term that only the lab's own engine supports.
    """
    written = dump(parse(search))
    page = {"offset": search.limit.offset, **({"limit": search.limit.limit} if search.limit.limit else {})}
    keys = list(search.select.keys) or ([] if search.rank is None else [SCORE])
    return {
        "filter": _where(written["where"]) if "where" in written else None,
        "rank": _rank(written["rank"]) if "rank" in written else None,
        "group_by": written.get("group_by", {}),
        "limit": page,
        "select": {"keys": keys},
    }


def _where(tree: Tree) -> Tree:
    ((name, inside),) = tree.items()
    if name in ("$and", "$or"):
        return {name: [_where(part) for part in inside]}
    return {name: {operator: _floats(operand) for operator, operand in inside.items()}}


def _floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _rank(tree: Tree) -> Tree:
    ((operator, inside),) = tree.items()
    if isinstance(inside, list):
        return {operator: [_rank(part) for part in inside]}
    if operator in ("$sub", "$div"):
        return {operator: {side: _rank(part) for side, part in inside.items()}}
    if operator == "$val":
        return {operator: float(inside)}
    if operator == "$field":
        raise _field_term(inside["key"])
    return {operator: _knn(inside) if operator == "$knn" else _rank(inside)}


def _knn(inside: Tree) -> Tree:
    query = inside["query"]
    if isinstance(query, str):
        raise InputError(
            f"the text {query!r} has no vector, and the cloud does not embed texts",
            hint='Knn([0.1, 0.2]), or %search with an embedding model for Knn("text")',
        )
    knn: Tree = {**inside, "query": _sparse(query) if isinstance(query, dict) else query}
    return knn if "default" not in knn else {**knn, "default": float(knn["default"])}


def _sparse(vector: Tree) -> Tree:
    """With its type, and its indices ascending."""
    pairs = sorted(zip(vector["indices"], vector["values"], strict=True))
    return {"#type": "sparse_vector", "indices": [i for i, _ in pairs], "values": [value for _, value in pairs]}


def _field_term(key: str) -> InputError:
    best = {"keys": ["model"], "aggregate": {"$max_k": {"keys": [key], "k": 1}}}
    return InputError(
        f"$field of {key!r}: only the lab's own engine ranks by a field", hint=json.dumps({"group_by": best})
    )
