"""Searching everything that was ever sampled, and going on from what is found."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

from rolloutlab.branching import Branch, branched, gathered
from rolloutlab.search.chroma import connect_search
from rolloutlab.search.elsewhere import Elsewhere
from rolloutlab.search.embedding import Embed, Embedder, embedder
from rolloutlab.search.index import Index, IndexStatus
from rolloutlab.search.query import Search
from rolloutlab.search.writing import written
from rolloutlab.session.collections import CollectionCalls
from rolloutlab.settings import Served, Settings
from rolloutlab.views.search import SearchResult
from rolloutlab.widgets.progress import Progress


class SearchCalls(CollectionCalls):
    """Trajectories by meaning, text, reward and rank."""

    @cached_property
    def index(self) -> Index:
        """Everything that is stored, as records to search; `embed_with` gives it another embedding model."""
        path = self.settings.search_database
        if self.store.read_only:  # its index cannot be kept beside it, and is made for this session
            folder = tempfile.mkdtemp(prefix="rolloutlab-")
            finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder) / path.name
        return Index(self.store, path, self._configured_embedder())

    def search(
        self,
        query: str | Mapping[str, Any] | Search | None = None,
        *,
        where: Any = None,
        rank: Any = None,
        group_by: str | Sequence[str] | None = None,
        best: int | None = None,
        k: int | None = None,
        offset: int | None = None,
        select: str | Sequence[str] | None = None,
        into: str | None = None,
    ) -> SearchResult:
        """Find trajectories among all that were ever sampled, the nearest first.

        query: a text; or a whole search, as a dictionary of docs/search_format.md or a `Search`, which says everything.
        where: which qualify: `"reward < 0.5 and model == 'lab/practice'"`, `F.reward < 0.5`, or a dictionary. rank: in
        what order, lower is better: `"knn('paris') - 0.1 * field('reward')"`, `Knn("paris")`, or a dictionary.
        group_by: fields; of each group the `best` (1) are kept. k: how many (10), 0 for all, after the first `offset`.
        select: which fields are shown. into: a collection that the hits are copied to, to be scored and trained on.

        Texts are compared by the embedding model where there is one, else by their words; the result says by which.

        Raises:
            InputError: something is wrong with the search; the message says where. LabError: the index is damaged.
        """
        place = self._elsewhere or self.index
        with Progress("search") as shown:

            def told(what: str, done: int, total: int) -> None:
                shown.update(done, total, what)

            notes = place.refresh(told)
            search = written(query, place.fields(), where, rank, group_by, best, k, offset, select)
            answer = place.search(search, told)
        notes += answer.notes
        if into is not None:
            label = gathered(self.store, [hit.id for hit in answer.found.hits], into)
            notes.append(f"copied to {label}")
        return SearchResult(
            answer.asked, answer.found, notes, place.documents, lambda name: place.breakdown(answer.executed, name)
        )

    def branch(self, hit: Any, turn: int | None = None) -> Branch:
        """A conversation up to a turn, as messages for `chat`: everything before the answer number `turn`, from 0.

        hit: a hit of a search, or a trajectory's name, as `letters:1/0/3`. turn: how many answers are kept; by default
        all but the last, which is to be sampled again.

        Raises:
            NotFoundError: no such trajectory. InputError: it has no such turn.
        """
        return branched(self.store, getattr(hit, "id", hit), turn)

    def embed_with(
        self,
        model: str | Embed | None,
        name: str | None = None,
        key_env: str | None = None,
        *,
        insecure_http: bool = False,
    ) -> IndexStatus:
        """Compare texts by meaning from now on: with the vectors of this model. None: by their words again.

        model: a function of a list of texts that gives a vector for each; an OpenAI-compatible address, with the
        model's `name` there; or a folder or name that sentence-transformers loads. key_env: the environment variable
        that holds the address's key; api.openai.com gets OPENAI_API_KEY without it. insecure_http: let the key go to an
        http address inside your own network, unencrypted, until this session ends. Vectors are made in the background,
        and where a search needs them.

        Raises:
            InputError: it is no embedding model, gives no vectors, or its key would go unencrypted; and as the model
                itself raises.
        """
        if insecure_http and isinstance(model, str):
            self._http.unencrypted.allow(model)
        found = embedder(self._http, model, name, key_env) if model is not None else None
        self.index.use(found)
        if self._elsewhere:
            self._elsewhere.use(found)
        return self.index.status()

    def index_status(self) -> IndexStatus:
        """How much of the lab is indexed, and with which embedding model."""
        return self.index.status()

    def reindex(self) -> IndexStatus:
        """Throw the index away and make it anew from the lab, vectors too; it holds nothing that the lab does not."""
        with Progress("search") as shown:
            return self.index.rebuild(lambda what, done, total: shown.update(done, total, what))

    def keep_index(self) -> None:
        """Bring the index up to date in the background, where a lab is open; what a notebook does after each cell."""
        if "store" in self.__dict__ and not self.store.read_only:
            self.index.keep_up()

    def close(self) -> None:
        if "index" in self.__dict__:
            self.__dict__.pop("index").close()
        super().close()

    @cached_property
    def _elsewhere(self) -> Elsewhere | None:
        """Where `search` looks instead of in the lab."""
        return self._reached(self.settings.search)

    def _reached(self, served: Served | None) -> Elsewhere | None:
        if served is None:
            return None
        key = os.environ.get(served.key_env) if served.key_env else None
        return Elsewhere(served.url, connect_search(self._http, served.url, key), self.index.embedder)

    def _searching(self, url: str, key_env: str | None) -> Settings:
        """The settings once something answers at the address; `lab` is the lab again."""
        served = None if url == "lab" else Served(url, key_env)
        self._elsewhere = self._reached(served)
        return replace(self.settings, search=served)

    def _configured_embedder(self) -> Embedder | None:
        said = self.settings.embedding
        return embedder(self._http, said.model, said.name, said.key_env) if said else None
