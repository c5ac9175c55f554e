"""A collection that a Chroma keeps, searched as the lab is."""

from collections.abc import Callable, Sequence

from rolloutlab.errors import InputError
from rolloutlab.search.chroma import ChromaCloud, ChromaServer
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.execute import Found
from rolloutlab.search.engine.scores import Breakdown, breakdown
from rolloutlab.search.query import Search, Select
from rolloutlab.search.rank import EMBEDDING
from rolloutlab.search.texts import resolved, texts_of
from rolloutlab.search.where import Among


class Elsewhere:
    """A served collection beside an embedding model, which must be the one that its vectors are from."""

    def __init__(self, url: str, served: ChromaServer | ChromaCloud, embedder: Embedder | None) -> None:
        self.url = url
        self.embedder = embedder
        self._served = served

    def fields(self) -> None:
        """Nobody says which fields there are: any name will do."""

    def search(self, search: Search, _told: Callable[[str, int, int], None]) -> tuple[Found, list[str]]:
        """What a search finds, and what the searcher should know; as the address answers.

        Raises:
            InputError: the search has a text and there is no embedding model, or what only the lab's engine knows.
        """
        found = self._served.search(self._resolved(search, "#score", "#metadata", *search.select.keys))
        notes = [f"at {self.url}"]
        if self.embedder and texts_of(search.rank, EMBEDDING):
            notes.append(f"texts are compared by meaning: {self.embedder.name}")
        return found, notes

    def documents(self, names: Sequence[str]) -> dict[str, str]:
        """The documents of some records, of those that have one."""
        if not names:
            return {}
        found = self._served.search(Search(where=Among("#id", tuple(names)), select=Select(("#document",))))
        return {hit.id: hit.document for hit in found.hits if hit.document is not None}

    def breakdown(self, search: Search, name: str) -> Breakdown:
        """How a record got its score; InputError where the cloud has scored it, which does not say."""
        if isinstance(self._served, ChromaCloud):
            raise InputError(f"{self.url} scores by itself and does not say how", hint="%connect --search lab")
        return breakdown(self._resolved(search), self._served, name)

    def _resolved(self, search: Search, *select: str) -> Search:
        if self.embedder is None and texts_of(search.rank, EMBEDDING):
            raise InputError(
                f"a text is searched for at {self.url}, and there is no embedding model",
                hint="%search --embed-with MODEL, the model that its vectors are from",
            )
        wanted = Search(search.where, search.rank, search.group_by, search.limit, Select(select))
        return resolved(wanted, self.embedder)
