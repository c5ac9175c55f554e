"""Chroma's cloud, or whatever else executes a whole search: one request, with everything in it."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from pydantic import BaseModel

from rolloutlab.errors import ServiceError
from rolloutlab.search.chroma.api import Chroma, Collection
from rolloutlab.search.engine.execute import Found, Hit
from rolloutlab.search.payload import cloud_payload
from rolloutlab.search.query import Search

Column = list[list[Any] | None] | None


class _Searched(BaseModel):
    """An answer, by columns; each is a list for each of the searches that were asked, or None if not selected."""

    ids: list[list[str]]
    scores: Column = None
    documents: Column = None
    embeddings: Column = None
    metadatas: Column = None


@dataclass(frozen=True)
class CloudPlan:
    """What is known of a search that was executed elsewhere. seconds: from the question to the answer."""

    origin: str
    rows: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.origin} → {self.rows:,} rows, {self.seconds * 1000:.0f} ms"


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
        return Found(hits, CloudPlan(self.chroma.origin, len(hits), perf_counter() - began), ())

    def _hits(self, answer: _Searched) -> tuple[Hit, ...]:
        if len(answer.ids) != 1:
            raise ServiceError(f"{self.chroma.origin} answered one search {len(answer.ids)} times")
        ids = answer.ids[0]
        columns = [_only(c, len(ids)) for c in (answer.scores, answer.documents, answer.embeddings, answer.metadatas)]
        try:
            return tuple(Hit(*values) for values in zip(ids, *columns, strict=True))
        except ValueError as error:
            raise ServiceError(f"{self.chroma.origin} answered with columns of different lengths") from error


def _only(column: Column, length: int) -> list[Any]:
    """The column for the only search that was asked."""
    found = column[0] if column else None
    return [None] * length if found is None else found
