"""Chroma Cloud: a whole search in one request."""

import json
from time import perf_counter
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.api import Chroma, ServedCollection
from rolloutlab.search.dictionary import dump, parse
from rolloutlab.search.engine.execute import Hit, SearchOutcome
from rolloutlab.search.engine.plan_text import ServerPlan
from rolloutlab.search.query import SCORE, Search

Column = list[list[Any] | None] | None


class _Searched(BaseModel):
    """The response to one search, by columns: each is a list in a list, or None if it was not selected."""

    ids: list[list[str]] = Field(min_length=1, max_length=1)
    scores: Column = None
    documents: Column = None
    embeddings: list[list[tuple[float, ...] | None] | None] | None = None
    metadatas: Column = None

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if any(len(column) != len(self.ids[0]) for column in self.columns()):
            raise ValueError("its columns have different lengths")
        return self

    def columns(self) -> list[list[Any]]:
        """Return the columns of a `Hit` after its id."""
        columns: tuple[Any, ...] = self.scores, self.documents, self.embeddings, self.metadatas
        return [column[0] if column and column[0] is not None else [None] * len(self.ids[0]) for column in columns]


class ChromaCloud:
    """A collection whose server executes searches."""

    def __init__(self, chroma: Chroma, collection: ServedCollection) -> None:
        self.chroma = chroma
        self.collection = collection

    def search(self, search: Search) -> SearchOutcome:
        """Execute a search.

        Raises:
            InputError: only the lab's own engine supports a part of it. RefusedError: the cloud refuses it. Others: as
            `Chroma.ask`.
        """
        body = {"searches": [cloud_payload(search)]}
        began = perf_counter()
        answer = self.chroma.read(_Searched, self.chroma.post(self.collection, "search", body))
        hits = tuple(Hit(*values) for values in zip(answer.ids[0], *answer.columns(), strict=True))
        return SearchOutcome(hits, ServerPlan(self.chroma.origin, len(hits), perf_counter() - began), ())


Tree = dict[str, Any]


def cloud_payload(search: Search) -> Tree:
    """Write the payload of a search: always all five keys.

    The numbers of conditions, `$val` and a knn's default become floats; limits stay integers.

    A limit of 0 (all) is omitted, because the cloud returns nothing for it. A ranked search without select asks for the
    score, which the lab's own engine returns without being asked. The shape is that of `Search.to_dict()` of Chroma's
    client.

    Raises:
        InputError: a text query without a vector, or a rank term that only the lab's own engine supports.
    """
    written = dump(parse(search))
    page = {"offset": search.limit.offset, **({"limit": search.limit.limit} if search.limit.limit else {})}
    keys = list(search.select.keys) or ([] if search.rank is None else [SCORE])
    return {
        "filter": _convert_numbers(written.get("where")),
        "rank": _rank(written["rank"]) if "rank" in written else None,
        "group_by": written.get("group_by", {}),
        "limit": page,
        "select": {"keys": keys},
    }


def _convert_numbers(value: Any) -> Any:
    """Convert every number in a condition to a float."""
    if isinstance(value, list):
        return [_convert_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _convert_numbers(item) for name, item in value.items()}
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
        best = {"keys": ["model"], "aggregate": {"$max_k": {"keys": [inside["key"]], "k": 1}}}
        message = f"$field of {inside['key']!r}: only the lab's own engine ranks by a field"
        raise InputError(message, hint=json.dumps({"group_by": best}))
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
    """Write a sparse vector with its type, and with its indices ascending."""
    pairs = sorted(zip(vector["indices"], vector["values"], strict=True))
    return {"#type": "sparse_vector", "indices": [i for i, _ in pairs], "values": [value for _, value in pairs]}
