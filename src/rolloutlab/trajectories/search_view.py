"""Search result: hits with their scores, as a table, a DataFrame and an explanation of each score."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import NotFoundError
from rolloutlab.objective.preflight import count
from rolloutlab.search.engine.execute import Hit, SearchOutcome
from rolloutlab.search.engine.explain import Breakdown
from rolloutlab.search.engine.plan_text import ExecutionPlan, ServerPlan
from rolloutlab.search.query import METADATA, SCORE, SHOWN, WORDS, Search, fields_of, search_texts
from rolloutlab.search.rank import Knn
from rolloutlab.search.words import explain
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import search as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.listing import Listing, terminal_width

if TYPE_CHECKING:
    import pandas as pd


class SearchResult:
    """The hits of a search, best first, with the plan of its execution.

    `result[0]` is the first hit. `plan`, `warnings` and `notes` say how it was searched, and what may be missing.

    Args:
        search: The search.
        outcome: The hits, with plan and warnings.
        notes: Further notes for the user.
        read: Returns the documents of some records by id.
        breakdown: Returns the parts of the score of a record.
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
        """The names of the trajectories, such as `letters:1/0/3`."""
        return [hit.id for hit in self.hits]

    def words(self) -> str:
        """Return the search in words."""
        return explain(self.search)

    def explain(self, hit: int | str = 0) -> Breakdown:
        """Return the breakdown of a hit's score: the value of every part of the rank.

        hit: the place of the hit in the result, or the name of the trajectory.

        Raises:
            NotFoundError: there is no such hit, or the search ranked nothing.
        """
        if self.search.rank is None:
            raise NotFoundError("nothing was ranked: no hit has a score", hint='%search "some text"')
        if isinstance(hit, int) and not 0 <= hit < len(self.hits):
            raise NotFoundError(f"there is no hit {hit} among {len(self.hits)}", hint="result.explain(0)")
        return self._breakdown(self.hits[hit].id if isinstance(hit, int) else hit)

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per hit, indexed by the name of the trajectory.

        Its columns are what the search selects, by default the score and the metadata.
        """
        selected = self.search.select.keys or (SCORE, METADATA)
        fields = self._chosen_fields()
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

    def _chosen_fields(self) -> list[str]:
        return [key for key in self.search.select.keys if key not in SHOWN]

    def _listing(self, rows: int) -> Listing:
        fields = self._chosen_fields() or list(dict.fromkeys(["reward", *fields_of(self.search)]))
        documents = self._documents
        hits = [
            render.Shown(
                hit.id,
                hit.score,
                {f: (hit.metadata or {}).get(f) for f in fields},
                documents.get(hit.id, ""),
                hit.metadata or {},
            )
            for hit in self.hits[:rows]
        ]
        terms = [term for text in search_texts(self.search) for term in render.terms_of(text)]
        texts = render.SearchTexts(*heading(self.plan, self.search), self.warnings, self.notes, self._limit)
        return render.search_listing(texts, hits, terms, len(self.hits))

    @property
    def _limit(self) -> int:
        """The limit of the search if it may have left out hits; else 0."""
        limit = self.search.limit.limit
        return limit if limit == len(self.hits) and not self.search.group_by else 0

    @cached_property
    def _documents(self) -> Mapping[str, str]:
        """The documents of the hits that are shown, by id."""
        return self._read(self.names[: render.MAX_HTML_ROWS])

    def __repr__(self) -> str:
        return self._listing(render.MAX_TEXT_ROWS).text(terminal_width())

    def _repr_html_(self) -> str:
        return for_notebook(self._listing(render.MAX_HTML_ROWS).html())


def heading(plan: ExecutionPlan | ServerPlan, search: Search) -> tuple[str, str]:
    """Say in plain words how many answers a search has, and among how many it searched."""
    if isinstance(plan, ServerPlan):
        return count(plan.rows, "answer"), str(plan)
    shown = plan.rows if plan.scored is None else plan.scored
    among = f"of {plan.qualified:,} that fit" if plan.filtered else f"of {plan.total:,}"
    match search.rank:
        case Knn(key=key, limit=limit):
            scored = plan.scored or 0
            by = "these words" if key == WORDS else "meaning"
            if key == WORDS and scored < limit:
                name, about = count(scored, "answer"), f"{among} contain these words"
            else:  # the rank stops at its limit, so it is not known how many answers there are
                shown = plan.rows
                name, about = count(plan.rows, "answer"), f"the best {among} by {by}"
        case None:
            shown = plan.qualified
            name = count(plan.qualified, "answer")
            about = f"of {plan.total:,} fit" if plan.filtered else ""
        case _:
            name, about = count(shown, "answer"), f"{among} ranked"
    groups = [count(plan.groups, "group")] if plan.groups is not None else []
    page = [f"{plan.rows:,} shown"] if plan.rows < shown else []
    return name, ", ".join(filter(None, [about, *groups, *page, f"{1000 * plan.seconds:.0f} ms"]))
