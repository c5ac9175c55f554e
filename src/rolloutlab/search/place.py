"""Search place: where `%search` looks, the lab's index or the collection of a plug-in of `rolloutlab.search`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rolloutlab.api.http.client import HttpClient
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.explain import Breakdown
from rolloutlab.search.query import Search
from rolloutlab.search.result import Answer

Progress = Callable[[str, int, int], None]


class SearchPlace(Protocol):
    """Records that a search is executed on, of the lab or elsewhere."""

    def use(self, embedder: Embedder | None) -> None:
        """Compare texts by another embedding model from now on; None: not at all."""

    def refresh(self, progress: Progress) -> list[str]:
        """Bring the records up to date before a search; notes for the person who searches."""

    def fields(self) -> list[str] | None:
        """The names of the metadata fields; None where they are unknown, and any name is allowed."""

    def search(self, search: Search, progress: Progress) -> Answer:
        """Execute a search.

        Raises:
            InputError: what the place cannot execute is named. ServiceError: it does not answer.
        """

    def documents(self, names: Sequence[str]) -> Mapping[str, str]:
        """The documents of some records that have one, by their id."""

    def breakdown(self, executed: Search, name: str) -> Breakdown:
        """The parts of a record's score. Raises InputError: the place does not report them."""


class SearchPlugin(Protocol):
    """A plug-in of `rolloutlab.search`: collections elsewhere, as `%connect --search NAME:URL`."""

    def open_place(self, http: HttpClient, url: str, key: str | None, embedder: Embedder | None) -> SearchPlace:
        """Open a collection, once it has responded.

        Args:
            http: sends requests, with retries and errors in words, and the key nowhere else.
            url: what comes after `NAME:`.
            key: of the service, from the environment variable of `--key-env`.
            embedder: makes the vectors of texts; it must be the model of the collection's vectors.

        Raises:
            InputError: it is not a URL of a collection. UnreachableError: no connection. SignInError: it needs a key.
        """
