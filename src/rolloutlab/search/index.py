"""The lab's trajectories as records to search, kept up to date beside it; all of it can be made anew from the lab."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rolloutlab.errors import InputError, RolloutlabError
from rolloutlab.search.documents import FIELDS, OF_REWARD, PART, record_of, rewards_of
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.execute import Found, execute
from rolloutlab.search.engine.kept import KeptRecords
from rolloutlab.search.engine.records import discard
from rolloutlab.search.engine.scores import Breakdown, breakdown
from rolloutlab.search.query import Search, Select
from rolloutlab.search.rank import EMBEDDING
from rolloutlab.search.texts import resolved, texts_of
from rolloutlab.store.lab import Lab
from rolloutlab.store.news import Mark, News

Told = Callable[[str, int, int], None]
"""Told what is done, how many of how many."""

_BATCH = 256
_TEXTS = 64
_LONGEST = 24_000
"""Characters of a document that an embedding model is given; models cut further themselves."""
_PATIENCE = 2.0
"""Seconds that a search waits for another process that is bringing the index up to date."""


@dataclass(frozen=True)
class IndexStatus:
    """How far the index is. model: the embedding model of its vectors. problem: what keeps it from going on."""

    trajectories: int
    indexed: int
    embedded: int
    model: str | None
    megabytes: float
    problem: str | None = None

    def __repr__(self) -> str:
        vectors = f"{self.embedded:,} with vectors of {self.model}" if self.model else "no vectors: no embedding model"
        late = self.trajectories - self.indexed
        told = [
            f"{self.indexed:,} of {self.trajectories:,} trajectories are indexed, {vectors}; {self.megabytes:.1f} MB",
            f"{late:,} are still to come" if late > 0 else "up to date",
        ]
        return "\n".join([*told, *([f"it cannot go on: {self.problem}"] if self.problem else [])])


class Index:
    """One lab's index, in a file of its own. Any number of processes search it; one at a time brings it up to date."""

    def __init__(self, lab: Lab, path: Path, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        self._lab = lab
        self._path = path
        self._lock = FileLock(path.with_suffix(".lock"))
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._problem: str | None = None
        self._kept_up: tuple[int, int] | None = None

    @cached_property
    def records(self) -> KeptRecords:
        """What is indexed; LabError when the file is damaged."""
        return KeptRecords(self._path)

    def search(self, search: Search, told: Told = lambda *_: None) -> tuple[Found, list[str]]:
        """What a search finds among all that is stored by now, and what the searcher should know.

        Raises:
            InputError: a query is none for this index, or its model is another than that of the vectors.
            LabError: the index is damaged; `rebuild` makes it anew.
        """
        notes = []
        try:
            self.update(told, patience=_PATIENCE)
        except Timeout:
            notes.append(f"another kernel is still indexing: {self.records.count:,} trajectories are in")
        if texts_of(search.rank, EMBEDDING):
            notes.append(self._compared())
        wanted = replace(search, select=Select(("#score", "#metadata", *search.select.keys)))
        return execute(self._resolved(wanted), self.records), notes

    def documents(self, names: Sequence[str]) -> dict[str, str]:
        """The conversations of some records as text, of those that are still there."""
        return self.records.documents(names)

    def breakdown(self, search: Search, name: str) -> Breakdown:
        """How a record got its score, part by part; NotFoundError when it is not there."""
        return breakdown(self._resolved(search), self.records, name)

    def update(self, told: Told = lambda *_: None, *, patience: float = -1) -> None:
        """Bring the index up to date. What was done before an interrupt is not done again.

        patience: seconds to wait for another process that does it; Timeout after them.
        """
        with self._lock.acquire(timeout=patience):
            mark = Mark.from_json(self.records.mark) if self.records.mark else Mark()
            news = self._lab.news.since(mark)
            if news:
                self._take(news, told)
            if news.mark != mark:
                self.records.keep_mark(news.mark.to_json())
            self._embed(told)

    def keep_up(self) -> None:
        """Bring the index up to date in the background, if anything was stored; what goes wrong is in the status."""
        with self._starting:
            now = self._lab.changes()
            if now == self._kept_up or (self._thread and self._thread.is_alive()):
                return
            self._kept_up = now
            self._thread = threading.Thread(target=self._follow, name="rolloutlab-index", daemon=True)
            self._thread.start()

    def rebuild(self, told: Told = lambda *_: None) -> IndexStatus:
        """Throw the index away and make it anew from the lab."""
        with self._lock:
            if "records" in self.__dict__:
                self.records.close()
                del self.records
            discard(self._path)
            self._problem = None
            self.update(told)
        return self.status()

    def status(self) -> IndexStatus:
        """How far the index is, without bringing it up to date."""
        known = self.records.model
        return IndexStatus(
            trajectories=self._lab.news.count(),
            indexed=self.records.count,
            embedded=self.records.embedded(),
            model=f"{known.name} ({known.dimension})" if known else None,
            megabytes=self._path.stat().st_size / 1e6,
            problem=self._problem or self._mixed(),
        )

    def fields(self) -> list[str]:
        """Metadata fields that may be searched by."""
        return list(dict.fromkeys([*FIELDS, *self.records.fields()]))

    def values(self, field: str) -> list[str]:
        """Some of the texts that a field holds."""
        return self.records.values(field)

    def close(self) -> None:
        """Let go of the file; what the background has not done is done next time."""
        self._end.set()
        if self._thread:
            self._thread.join()
        if "records" in self.__dict__:
            self.records.close()

    def _follow(self) -> None:
        try:
            with suppress(Timeout):  # another process does it
                self.update(patience=0)
            self._problem = None
        except RolloutlabError as error:
            self._problem = error.message
        except _Ended:
            pass

    def _take(self, news: News, told: Told) -> None:
        for label in news.gone:
            self.records.delete(self.records.ids(f"{label}/"))
        jobs = {label: job for job, labels in news.mark.jobs.items() for label in labels}
        groups = dict.fromkeys(news.rescored)
        for done, ids in self._paced(news.arrived, _BATCH):
            told("indexing", done, len(news.arrived))
            self._lab.outlines.complete(ids)
            entries = self._lab.news.entries(ids)
            groups.update(dict.fromkeys(entry.group_id for entry in entries))
            known = self.records.known(entry.name for entry in entries)
            fresh = [entry for entry in entries if entry.name not in known]
            self.records.upsert(record_of(e, jobs.get(f"{e.collection}:{e.generation}")) for e in fresh)
        for done, some in self._paced(list(groups), _BATCH):
            told("indexing rewards of", done, len(groups))
            members = self._lab.news.scored(some).values()
            rewards: dict[str, dict[str, Any]] = {member.name: {} for each in members for member in each}
            for each in members:
                rewards |= rewards_of(each)
            self.records.amend(rewards, lambda field: field in OF_REWARD or field.startswith(PART))
        for label in news.trained:
            job = {"job": jobs[label]}
            self.records.amend(dict.fromkeys(self.records.ids(f"{label}/"), job), lambda field: field == "job")

    def _embed(self, told: Told) -> None:
        """Give vectors to what has none, where there is a model, and all vectors are of that."""
        if self.embedder is None or not self.records.count or self._mixed():
            return
        model = self.embedder.model
        self.records.set_model(model.name, model.dimension, model.digest)
        total, done = self.records.count, self.records.embedded()
        while batch := self.records.without_vectors(_TEXTS):
            self._look_for_end()
            told("embedding", done, total)
            vectors = self.embedder([document[:_LONGEST] for document in batch.values()])
            self.records.embed(dict(zip(batch, vectors, strict=True)))
            done += len(batch)

    def _resolved(self, search: Search) -> Search:
        if texts_of(search.rank, EMBEDDING) and (mixed := self._mixed()):
            raise InputError(mixed, hint="%search --reindex makes all vectors anew")
        return resolved(search, self.embedder)

    def _compared(self) -> str:
        if self.embedder is not None:
            return f"texts are compared by meaning: {self.embedder.name}"
        return "texts are compared by their words: there is no embedding model -> %search --embed-with MODEL"

    def _mixed(self) -> str | None:
        """What is wrong where the vectors there are of another embedding model than the one there is."""
        known = self.records.model
        if self.embedder is None or known is None or known == self.embedder.model:
            return None
        name, dimension = self.embedder.model.name, self.embedder.model.dimension
        return (
            f"mixed embedding spaces: the index has vectors of {known.name} ({known.dimension}), "
            f"the model here is {name} ({dimension})"
        )

    def _paced(self, wanted: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
        coming, done = iter(wanted), 0
        while batch := list(islice(coming, size)):
            self._look_for_end()
            yield done, batch
            done += len(batch)

    def _look_for_end(self) -> None:
        if self._end.is_set():
            raise _Ended


class _Ended(Exception):  # noqa: N818 - no error: the notebook ends
    """The notebook ends before the index is up to date."""
