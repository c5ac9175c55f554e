"""Search place: where `%search` looks, either the lab's index or a collection of a plug-in of `rolloutlab.search`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rolloutlab.api.http.client import HttpClient
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.explain import Breakdown
from rolloutlab.search.query import Search
from rolloutlab.search.result import Answer

Progress = Callable[[str, int, int], None]


class SearchPlace(Protocol):
    """A set of records to search, in the lab or elsewhere."""

    def use(self, embedder: Embedder | None) -> None:
        """Embed texts with this model from now on; None is no model."""

    def refresh(self, progress: Progress) -> list[str]:
        """Bring the records up to date before a search, and return notes for the user."""

    def fields(self) -> list[str] | None:
        """List the names of the metadata fields; None if they are unknown, and then any name is allowed."""

    def search(self, search: Search, progress: Progress) -> Answer:
        """Execute a search.

        Raises:
            InputError: the place cannot execute a part of the search, which the message names.
            ServiceError: the place does not answer.
        """

    def documents(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return the documents of these records by id. A record without a document is left out."""

    def breakdown(self, executed: Search, name: str) -> Breakdown:
        """Return the parts of a record's score, or raise InputError if the place does not report them."""


class SearchPlugin(Protocol):
    """A plug-in of `rolloutlab.search`: collections in another database, for `%connect --search NAME:URL`."""

    def open_place(self, http: HttpClient, url: str, key: str | None, embedder: Embedder | None) -> SearchPlace:
        """Open a collection, and check that it answers.

        Args:
            http: Sends requests. It retries them, raises errors that a user can read, and sends the key to no other
                server.
            url: The part of `NAME:URL` after the first colon.
            key: The key of the service, from the environment variable of `--key-env`; None without one.
            embedder: Makes the vectors of texts. It must use the model that made the vectors of the collection.

        Raises:
            InputError: it is not the URL of a collection.
            UnreachableError: there is no connection.
            SignInError: the collection needs a key.
        """
