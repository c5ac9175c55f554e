"""The search places of a session: the lab's index, which is `lab.index`, or a collection elsewhere.

Both modules are imported only when they are needed: they import numpy, which takes a fifth of a session's start-up
time.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack
from weakref import finalize

from rolloutlab.api.http.client import HttpClient
from rolloutlab.plugins import SEARCH, load, names
from rolloutlab.search.build import SearchOptions, build_search
from rolloutlab.search.query import Search
from rolloutlab.settings import Served, Settings
from rolloutlab.store.lab import Lab

if TYPE_CHECKING:
    from rolloutlab.search.embedding import Embed, Embedder
    from rolloutlab.search.index import Index, IndexStatus
    from rolloutlab.search.place import SearchPlace, SearchPlugin
    from rolloutlab.search.result import Answer
    from rolloutlab.widgets.progress import Progress

Step = Callable[[str, int, int], None]
DEFAULT = "chroma"
"""The plug-in of a URL without a name."""


class SearchPlaces:
    """The index of the lab, opened lazily, and the collection elsewhere that replaces it.

    Args:
        lab: Returns the current lab, which changes with the service.
        settings: Returns the current settings.
        http: Returns the current client.
        key_variables: A set to which the names of environment variables are added whose keys are used here.
    """

    def __init__(
        self,
        lab: Callable[[], Lab],
        settings: Callable[[], Settings],
        http: Callable[[], HttpClient],
        key_variables: set[str],
    ) -> None:
        self._lab = lab
        self._settings = settings
        self._http = http
        self._key_variables = key_variables

    @cached_property
    def index(self) -> "Index":
        """The index, with the embedding model of the settings, if they name one."""
        settings = self._settings()
        model = settings.embedding
        embed = self._embedder(model.model, model.name, model.key_env) if model else None
        return open_index(self._lab(), settings.search_database, embed)

    @cached_property
    def elsewhere(self) -> "SearchPlace | None":
        """The collection to search; None to search the lab."""
        served = self._settings().search
        return self._open(served) if served else None

    def switch(self, url: str, key_env: str | None, *, insecure_http: bool) -> Served | None:
        """Search another collection from now on, once it has responded. The result is None for `lab`, the lab itself.

        key_env, insecure_http: as for `Session.connect`. The errors are those of the plug-in's `open_place`.
        """
        if insecure_http:
            self._http().unencrypted.allow(_split_plugin(url)[1])
        served = None if url == "lab" else Served(url, key_env)
        self.elsewhere = self._open(served) if served else None
        return served

    def embed_with(
        self, model: "str | Embed | None", name: str | None, key_env: str | None, *, insecure_http: bool
    ) -> None:
        """Use this embedding model for the index and the collection elsewhere. Raises as `LabIndex.embed_with`."""
        if insecure_http and isinstance(model, str):
            self._http().unencrypted.allow(model)
        made = self._embedder(model, name, key_env) if model is not None else None
        self.index.use(made)
        if self.elsewhere:
            self.elsewhere.use(made)

    def search(
        self,
        progress: Step,
        query: str | Mapping[str, Any] | Search | None,
        *,
        everything: bool = False,
        **pieces: Unpack[SearchOptions],
    ) -> "tuple[SearchPlace, Answer, list[str]]":
        """Search, and return the place that was searched, its answer, and notes on both. Raises as `Session.search`.

        Args:
            progress: Called with the steps of an update before the search.
            query: As for `build_search`.
            everything: As for `Index.search`.
            pieces: As for `build_search`.
        """
        place = self.elsewhere or self.index
        notes = place.refresh(progress)
        search = build_search(query, place.fields(), **pieces)
        if self.elsewhere:
            answer = self.elsewhere.search(search, progress)
        else:
            answer = self.index.search(search, progress, everything=everything)
        return place, answer, [*notes, *answer.notes]

    def close(self) -> None:
        """Close the index. A later search opens it again."""
        if "index" in self.__dict__:
            self.__dict__.pop("index").close()

    def _embedder(self, model: "str | Embed", name: str | None, key_env: str | None) -> "Embedder":
        from rolloutlab.search.embedding import embedder

        made = embedder(self._http(), model, name, key_env)
        if made.key_env:
            self._key_variables.add(made.key_env)
        return made

    def _open(self, served: Served) -> "SearchPlace":
        name, url = _split_plugin(served.url)
        key = os.environ.get(served.key_env) if served.key_env else None
        if served.key_env:
            self._key_variables.add(served.key_env)
        plugin: SearchPlugin = load(SEARCH, name)
        return plugin.open_place(self._http(), url, key, self.index.embedder)


def _split_plugin(url: str) -> tuple[str, str]:
    """Split `NAME:URL` into the plug-in and the URL. A URL without a name is of `DEFAULT`."""
    name, _, rest = url.partition(":")
    return (name, rest) if name in names(SEARCH) else (DEFAULT, url)


class LabIndex:
    """The search index over everything stored in the lab, as `lab.index`; `lab.search(...)` searches it.

    places: has the index. lab: returns the lab if it is open. progress: makes the line that shows what a call does.
    """

    def __init__(
        self, places: SearchPlaces, lab: Callable[[], Lab | None], progress: "Callable[[str], Progress]"
    ) -> None:
        self._places = places
        self._lab = lab
        self._progress = progress

    def embed_with(
        self,
        model: "str | Embed | None",
        name: str | None = None,
        key_env: str | None = None,
        *,
        insecure_http: bool = False,
    ) -> "IndexStatus":
        """Compare texts by the vectors of an embedding model from now on; with None, by their words.

        Vectors are computed in the background, and when a search needs them.

        Args:
            model: a function from a list of texts to a list of vectors; an OpenAI-compatible URL; a folder or name that
                sentence-transformers loads; or None.
            name: the name of the model at the URL.
            key_env: the environment variable that holds the key of the URL. By default OPENAI_API_KEY for
                api.openai.com.
            insecure_http: send the key unencrypted to an http address in your own network, until this session ends.

        Raises:
            InputError: not an embedding model, no vectors, or a key that would be sent unencrypted.
            And the errors of the model itself.
        """
        self._places.embed_with(model, name, key_env, insecure_http=insecure_http)
        return self.status()

    def status(self) -> "IndexStatus":
        """Report how much of the lab is indexed, and the embedding model."""
        return self._places.index.status()

    def rebuild(self) -> "IndexStatus":
        """Delete the search index and rebuild it from the lab, with its vectors. No data is lost."""
        with self._progress("search") as shown:
            return self._places.index.rebuild(shown.step)

    def keep_up(self) -> None:
        """Update the search index in the background if a lab is open; a notebook calls it after each cell."""
        lab = self._lab()
        if lab and not lab.read_only:
            self._places.index.keep_up()

    def fields(self) -> list[str]:
        """List the names of the fields that a search can compare."""
        return self._places.index.fields()

    def values(self, field: str) -> list[str]:
        """List some text values of a field."""
        return self._places.index.values(field)


def open_index(lab: Lab, path: Path, model: "Embedder | None") -> "Index":
    """Open the index in a file beside the lab; for a read-only lab, in a temporary folder that goes with the object."""
    from rolloutlab.search.index import Index

    if not lab.read_only:
        return Index(lab, path, model)
    folder = tempfile.mkdtemp(prefix="rolloutlab-")
    index = Index(lab, Path(folder) / path.name, model)
    finalize(index, shutil.rmtree, folder, ignore_errors=True)
    return index
