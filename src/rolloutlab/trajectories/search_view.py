"""Search result: hits with their scores, as a table, a DataFrame and an explanation of each score."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import NotFoundError
from rolloutlab.search.engine.execute import Hit, SearchOutcome
from rolloutlab.search.engine.explain import Breakdown
from rolloutlab.search.query import METADATA, SCORE, SHOWN, Search, fields_of, search_texts
from rolloutlab.search.words import explain
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import search as render
from rolloutlab.widgets.html import for_notebook

if TYPE_CHECKING:
    import pandas as pd


class SearchResult:
    """The hits of a search in its order, with the plan by which they were found.

    `result[0]` is the first hit; `plan`, `warnings` and `notes` say how it was found, and what may be missing.
    read: documents by the ids of records. breakdown: of the score of a record.
    """

    def __init__(
        self,
        search: Search,
        outcome: SearchOutcome,
        notes: Sequence[str],
        read: Callable[[Sequence[str]], Mapping[str, str]],
        breakdown: Callable[[str], Breakdown],
    ) -> None:
        self.search = search
        self.hits = outcome.hits
        self.plan = outcome.plan
        self.warnings = outcome.warnings
        self.notes = tuple(notes)
        self._read = read
        self._breakdown = breakdown

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __getitem__(self, i: int) -> Hit:
        return self.hits[i]

    @property
    def names(self) -> list[str]:
        """The trajectories, as `letters:1/0/3`."""
        return [hit.id for hit in self.hits]

    def words(self) -> str:
        """The search in words."""
        return explain(self.search)

    def explain(self, hit: int | str = 0) -> Breakdown:
        """The breakdown of a hit's score: the value of every part of the rank.

        hit: its place in the result, or the trajectory's name.

        Raises:
            NotFoundError: there is no such hit, or the search ranked nothing.
        """
        if self.search.rank is None:
            raise NotFoundError("nothing was ranked: no hit has a score", hint='%search "some text"')
        if isinstance(hit, int) and not 0 <= hit < len(self.hits):
            raise NotFoundError(f"there is no hit {hit} among {len(self.hits)}", hint="result.explain(0)")
        return self._breakdown(self.hits[hit].id if isinstance(hit, int) else hit)

    def to_frame(self) -> "pd.DataFrame":
        """One row per hit, indexed by the trajectory's name: what was selected, by default score and metadata."""
        selected = self.search.select.keys or (SCORE, METADATA)
        fields = self._chosen()
        if METADATA in selected:
            fields += [field for hit in self.hits for field in hit.metadata or {}]
        columns: dict[str, list[Any]] = {}
        if SCORE in selected and self.search.rank is not None:
            columns["score"] = [hit.score for hit in self.hits]
        columns |= {field: [(hit.metadata or {}).get(field) for hit in self.hits] for field in dict.fromkeys(fields)}
        if "#document" in selected:
            columns["document"] = [hit.document for hit in self.hits]
        if "#embedding" in selected:
            columns["embedding"] = [hit.embedding for hit in self.hits]
        return data_frame(columns, self.names)

    def _chosen(self) -> list[str]:
        return [key for key in self.search.select.keys if key not in SHOWN]

    def _shown(self) -> tuple[list[str], list[render.Shown], list[str], int]:
        fields = self._chosen() or list(dict.fromkeys(["reward", *fields_of(self.search)]))
        documents = self._documents
        rows = [
            render.Shown(hit.id, hit.score, {f: (hit.metadata or {}).get(f) for f in fields}, documents.get(hit.id, ""))
            for hit in self.hits[: render.MAX_HTML_ROWS]
        ]
        terms = [term for text in search_texts(self.search) for term in render.terms_of(text)]
        return [str(self.plan), *self.notes, *self.warnings], rows, terms, len(self.hits)

    @cached_property
    def _documents(self) -> Mapping[str, str]:
        """Of the hits that are shown."""
        return self._read(self.names[: render.MAX_HTML_ROWS])

    def __repr__(self) -> str:
        return render.text(*self._shown())

    def _repr_html_(self) -> str:
        return for_notebook(render.html(*self._shown()))
