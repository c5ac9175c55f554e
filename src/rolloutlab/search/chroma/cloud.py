"""Chroma Cloud: a whole search in one request."""

from time import perf_counter
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from rolloutlab.search.chroma.api import Chroma, ServedCollection
from rolloutlab.search.chroma.payload import cloud_payload
from rolloutlab.search.engine.execute import Hit, SearchOutcome
from rolloutlab.search.engine.plan import ServerPlan
from rolloutlab.search.query import Search

Column = list[list[Any] | None] | None


class _Searched(BaseModel):
    """Response to one search, by columns: each a list in a list, or None if not selected."""

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
        """The columns of a `Hit` after its id."""
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
            InputError: only the lab's own engine supports a part of it. RefusedError: it is invalid for the cloud; and
            as `Chroma.ask`.
        """
        body = {"searches": [cloud_payload(search)]}
        began = perf_counter()
        answer = self.chroma.read(_Searched, self.chroma.post(self.collection, "search", body))
        hits = tuple(Hit(*values) for values in zip(answer.ids[0], *answer.columns(), strict=True))
        return SearchOutcome(hits, ServerPlan(self.chroma.origin, len(hits), perf_counter() - began), ())
