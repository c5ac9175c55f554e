"""Chroma's cloud, or whatever else executes a whole search: one request, with everything in it."""

from time import perf_counter
from typing import Any

from pydantic import BaseModel

from rolloutlab.errors import ServiceError
from rolloutlab.search.chroma.api import Chroma, Collection
from rolloutlab.search.engine.execute import Found, Hit
from rolloutlab.search.engine.plan import Elsewhere
from rolloutlab.search.payload import cloud_payload
from rolloutlab.search.query import Search

Column = list[list[Any] | None] | None


class _Searched(BaseModel):
    """An answer, by columns; each is a list for each of the searches that were asked, or None if not selected."""

    ids: list[list[str]]
    scores: Column = None
    documents: Column = None
    embeddings: list[list[tuple[float, ...] | None] | None] | None = None
    metadatas: Column = None


class ChromaCloud:
    """A collection of a Chroma that executes searches."""

    def __init__(self, chroma: Chroma, collection: Collection) -> None:
        self.chroma = chroma
        self.collection = collection

    def search(self, search: Search) -> Found:
        """What it finds.

        Raises:
            InputError: only the lab's own engine knows a part of it. RefusedError: the cloud finds it wrong; and all
            that `Chroma.ask` raises.
        """
        body = {"searches": [cloud_payload(search)]}
        began = perf_counter()
        answer = self.chroma.read(_Searched, self.chroma.post(self.collection, "search", body))
        hits = self._hits(answer)
        return Found(hits, Elsewhere(self.chroma.origin, len(hits), perf_counter() - began), ())

    def _hits(self, answer: _Searched) -> tuple[Hit, ...]:
        if len(answer.ids) != 1:
            raise ServiceError(f"{self.chroma.origin} answered one search {len(answer.ids)} times")
        ids = answer.ids[0]
        asked: tuple[Any, ...] = answer.scores, answer.documents, answer.embeddings, answer.metadatas
        columns = [column[0] if column and column[0] is not None else [None] * len(ids) for column in asked]
        try:
            return tuple(Hit(*values) for values in zip(ids, *columns, strict=True))
        except ValueError as error:
            raise ServiceError(f"{self.chroma.origin} answered with columns of different lengths") from error
