"""A Chroma collection with the interface of the lab's index."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rolloutlab.errors import InputError
from rolloutlab.integrations.chroma.cloud import ChromaCloud
from rolloutlab.integrations.chroma.server import ChromaServer
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.explain import Breakdown, breakdown
from rolloutlab.search.query import METADATA, SCORE, Search, Select, resolved, texts_of
from rolloutlab.search.rank import EMBEDDING
from rolloutlab.search.result import Answer
from rolloutlab.search.where import DOCUMENT, REASONING_TEXT, Among, Contains, Matches, conditions_of

OnProgress = Callable[[str, int, int], None]


class ChromaCollection:
    """A Chroma collection and an embedding model, which must be the one of its vectors."""

    def __init__(self, url: str, served: ChromaServer | ChromaCloud, embedder: Embedder | None) -> None:
        self.url = url
        self._embedder = embedder
        self._served = served

    def use(self, embedder: Embedder | None) -> None:
        """Use another embedding model from now on."""
        self._embedder = embedder

    def refresh(self, _progress: OnProgress) -> list[str]:
        """Return a note that names the URL. There is nothing to update."""
        return [f"at {self.url}"]

    def fields(self) -> None:
        """Return None: the fields are not known, so any name is allowed."""

    def search(self, search: Search, _progress: OnProgress) -> Answer:
        """Execute a search.

        Raises:
            InputError: the search has a text, and there is no embedding model; or it has what only the lab's engine
                supports.
            RolloutlabError: the server's errors.
        """
        notes = list(_conditions_of_texts(search, self.url))
        texts = texts_of(search.rank, EMBEDDING)
        if texts and self._embedder is None:
            hint = "%search --embed-with MODEL, the model that its vectors are from"
            raise InputError(f"a text is searched for at {self.url}, and there is no embedding model", hint=hint)
        executed = resolved(search, self._embedder)
        outcome = self._served.search(replace(executed, select=search.select.beside(SCORE, METADATA)))
        named = self._embedder.name if self._embedder else ""
        notes += [f"texts are compared by meaning: {named}"] if texts else []
        return Answer(outcome, executed, search, tuple(notes))

    def documents(self, names: Sequence[str]) -> dict[str, str]:
        """Return the documents of some records that have one, by name."""
        if not names:
            return {}
        outcome = self._served.search(Search(where=Among("#id", tuple(names)), select=Select(("#document",))))
        return {hit.id: hit.document for hit in outcome.hits if hit.document is not None}

    def breakdown(self, executed: Search, name: str) -> Breakdown:
        """Break a record's score down into parts. Raises InputError for Chroma Cloud, which does not report them."""
        if isinstance(self._served, ChromaCloud):
            raise InputError(f"{self.url} does not report the parts of its scores", hint="%connect --search lab")
        return breakdown(executed, self._served, name)


def _conditions_of_texts(search: Search, url: str) -> Iterator[str]:
    """Yield notes on conditions on a field that is a text in the lab's index, and a list in Chroma.

    Raises:
        InputError: a condition is a regular expression for metadata, which Chroma does not support.
    """
    for each in conditions_of(search.where):
        if isinstance(each, Matches) and each.field != DOCUMENT:
            hint = repr(replace(each, field=DOCUMENT))
            raise InputError(f"{each!r}: regular expressions are for #document only at {url}", hint=hint)
        if isinstance(each, Contains) and each.field == REASONING_TEXT:
            document = replace(each, field=DOCUMENT)
            yield f"{each!r}: {REASONING_TEXT} is a text in the lab's index, and a list at {url} -> {document!r}"
