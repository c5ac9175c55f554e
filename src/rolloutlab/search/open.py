"""The search backends of a session: the lab's index or a remote Chroma collection."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

from rolloutlab.api.http.client import HttpClient
from rolloutlab.search.build import build_search
from rolloutlab.search.chroma import connect_search
from rolloutlab.search.chroma.collection import ChromaCollection
from rolloutlab.search.embedding import Embedder, embedder
from rolloutlab.search.index import Index
from rolloutlab.search.query import Search
from rolloutlab.search.result import Answer
from rolloutlab.settings import Served, Settings
from rolloutlab.store.lab import Lab

Progress = Callable[[str, int, int], None]


class SearchPlaces:
    """The index of the lab, opened lazily, and the Chroma collection that replaces it.

    lab, settings, http: return the current ones, which change with the service.
    """

    def __init__(
        self, lab: Callable[[], Lab], settings: Callable[[], Settings], http: Callable[[], HttpClient]
    ) -> None:
        self._lab = lab
        self._settings = settings
        self._http = http

    @cached_property
    def index(self) -> Index:
        """The index, with the embedding model of the settings, if they name one."""
        settings = self._settings()
        model = settings.embedding
        embed = embedder(self._http(), model.model, model.name, model.key_env) if model else None
        return open_index(self._lab(), settings.search_database, embed)

    @cached_property
    def chroma(self) -> ChromaCollection | None:
        """The Chroma collection to search; None to search the lab."""
        served = self._settings().search
        return self._open(served) if served else None

    def switch(self, url: str, key_env: str | None, *, insecure_http: bool) -> Served | None:
        """Search another collection from now on, once it has responded; the result is None for `lab`, the lab itself.

        key_env, insecure_http: as of `Session.connect`. Raises as `connect_search`.
        """
        if insecure_http:
            self._http().unencrypted.allow(url)
        served = None if url == "lab" else Served(url, key_env)
        self.chroma = self._open(served) if served else None
        return served

    def use(self, model: Embedder | None) -> None:
        """Use this embedding model from now on for both. Raises as `Index.use`."""
        self.index.use(model)
        if self.chroma:
            self.chroma.use(model)

    def search(
        self, progress: Progress, query: str | Mapping[str, Any] | Search | None, *pieces: Any
    ) -> tuple[Index | ChromaCollection, Answer, list[str]]:
        """The backend, updated before the search, its result, and notes on both.

        query, pieces: as for `build_search`. Raises as `Session.search`.
        """
        place = self.chroma or self.index
        notes = place.refresh(progress)
        answer = place.search(build_search(query, place.fields(), *pieces), progress)
        return place, answer, [*notes, *answer.notes]

    def close(self) -> None:
        """Close the index; a later search opens it again."""
        if "index" in self.__dict__:
            self.__dict__.pop("index").close()

    def _open(self, served: Served) -> ChromaCollection:
        key = os.environ.get(served.key_env) if served.key_env else None
        return ChromaCollection(served.url, connect_search(self._http(), served.url, key), self.index.embedder)


def open_index(lab: Lab, path: Path, model: Embedder | None) -> Index:
    """The index in a file beside the lab; for a read-only lab, in a temporary folder removed with the object."""
    if not lab.read_only:
        return Index(lab, path, model)
    folder = tempfile.mkdtemp(prefix="rolloutlab-")
    index = Index(lab, Path(folder) / path.name, model)
    finalize(index, shutil.rmtree, folder, ignore_errors=True)
    return index
