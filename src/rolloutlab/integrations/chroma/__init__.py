"""Search in Chroma: a server as a backend of the lab's engine; Chroma Cloud executes whole searches."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutlab.api.http.client import HttpClient
    from rolloutlab.integrations.chroma.collection import ChromaCollection
    from rolloutlab.search.embedding import Embedder


def open_place(http: "HttpClient", url: str, key: str | None, embedder: "Embedder | None") -> "ChromaCollection":
    """Open the collection of a URL; see `connect.connect_search`."""
    from rolloutlab.integrations.chroma.collection import ChromaCollection
    from rolloutlab.integrations.chroma.connect import connect_search

    return ChromaCollection(url, connect_search(http, url, key), embedder)
