"""The search index of a lab: a cache of its trajectories as records, which can be rebuilt from the lab."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import Timeout

from rolloutlab.api.wire.base import moment
from rolloutlab.errors import InputError, LabError
from rolloutlab.fsutil import Lock
from rolloutlab.objective.preflight import count
from rolloutlab.search.background import Background
from rolloutlab.search.documents import (
    FIELDS,
    OF_DOCUMENT,
    OF_REWARD,
    PART,
    record_of,
    rewards_of,
    search_reasoning_text,
)
from rolloutlab.search.embedding import Embedder, VectorUpdater
from rolloutlab.search.engine.execute import execute
from rolloutlab.search.engine.explain import Breakdown, breakdown
from rolloutlab.search.engine.in_memory import REBUILD
from rolloutlab.search.engine.lab_sync import MirroredRecords
from rolloutlab.search.engine.records import discard
from rolloutlab.search.query import METADATA, SCORE, Search, resolved, texts_of
from rolloutlab.search.rank import EMBEDDING, Knn, terms_of
from rolloutlab.search.result import Answer, find_odd_conditions
from rolloutlab.search.where import Among, Where, conditions_of
from rolloutlab.store.changes import Changes, Cursor
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import is_hidden

Progress = Callable[[str, int, int], None]
"""Called with the action, the number done and the total."""
_BATCH = 64
_LOCK_TIMEOUT = 2.0
"""Seconds that a search waits while another process updates the index."""
_LISTED = 10
"""How many of the unreadable trajectories the status lists."""
_SAME_TIME = 1e-3
"""Times that differ by less, in seconds, are equal: JSON of SQLite rounds them."""
_OF_NAME = ("collection", "group")
_UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)
"""Exceptions that malformed data raises: a wrong key or type, invalid JSON."""


@dataclass(frozen=True)
class IndexStatus:
    """State of the index.

    Attributes:
        trajectories: How many trajectories the lab has.
        indexed: How many of them are in the index.
        embedded: How many have a vector.
        model: The embedding model of the vectors.
        megabytes: The size of the files.
        problem: Why the index cannot be updated.
        left_out: Why a trajectory could not be read, by its name.
    """

    trajectories: int
    indexed: int
    embedded: int
    model: str | None
    megabytes: float
    problem: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        vectors = f"{self.embedded:,} with vectors of {self.model}" if self.model else "no vectors: no embedding model"
        late = self.trajectories - self.indexed - len(self.left_out)
        state = f"{late:,} are still to come" if late > 0 else "up to date"
        lines = [
            f"{self.indexed:,} of {self.trajectories:,} trajectories are indexed, {vectors}; {self.megabytes:.1f} MB",
            f"it cannot go on: {self.problem}" if self.problem else state,
        ]
        if self.left_out:
            lines.append(f"{_unread_note(len(self.left_out))}; {REBUILD} tries again:")
            lines += [f"  {name}: {reason}" for name, reason in islice(self.left_out.items(), _LISTED)]
        if len(self.left_out) > _LISTED:
            lines.append(f"  and {len(self.left_out) - _LISTED:,} more")
        return "\n".join(lines)


class Index:
    """The index of a lab in one file. Any number of processes search it; one at a time updates it.

    regex_timeout: seconds for the regular expressions of one search; None: no limit.
    """

    def __init__(
        self, lab: Lab, path: Path, embedder: Embedder | None = None, regex_timeout: float | None = None
    ) -> None:
        self._lab = lab
        self._path = path
        self._embedder = embedder
        self._regex_timeout = regex_timeout
        self._lock = Lock(path.with_suffix(".lock"))
        self._background = Background("rolloutlab-index", self._follow)
        self._kept_up: tuple[int, int] | None = None

    @cached_property
    def records(self) -> MirroredRecords:
        """The indexed records. LabError if the file is damaged."""
        return MirroredRecords(self._path, regex_timeout=self._regex_timeout)

    @cached_property
    def _vectors(self) -> VectorUpdater:
        return VectorUpdater(self.records, self._path.with_suffix(".vectors.lock"), self._embedder)

    @property
    def embedder(self) -> Embedder | None:
        """The embedding model for text queries; None for keyword search."""
        return self._embedder

    def use(self, embedder: Embedder | None) -> None:
        """Use another embedding model from now on. Vectors are computed in the background.

        Raises:
            InputError: the model gives no vectors. Errors of the model itself are raised, too.
        """
        if embedder is not None:
            _ = embedder.model  # embeds a probe text
        with self._background.stopped():
            self._embedder = self._vectors.embedder = embedder
            self._kept_up = self._background.problem = None
        self.keep_up()

    def refresh(self, progress: Progress = lambda *_: None) -> list[str]:
        """Update the index from the lab, and return notes for the user.

        Raises:
            LabError: the index is damaged. `rebuild` makes it anew.
        """
        with self._background.stopped():
            try:
                self.update(progress, timeout=_LOCK_TIMEOUT)
            except Timeout:
                return [f"the index is being brought up to date: {self.records.count:,} trajectories are in so far"]
        return []

    def search(self, search: Search, progress: Progress = lambda *_: None, *, everything: bool = False) -> Answer:
        """Execute a search on the index.

        Samples of comparisons are left out, and a note says so. They are included if `everything` is True, or if a
        condition names such a collection.

        Raises:
            InputError: the index cannot execute the query, or the embedding model is not that of the stored vectors.
            LabError: the index is damaged. `rebuild` makes it anew.
        """
        if search.where is not None:
            search = replace(search, where=search_reasoning_text(search.where))
        with self._background.stopped():
            notes = self._query_notes(search, progress)
        shown = executed = resolved(search, self._embedder)
        hidden = {} if everything or _names_hidden(search.where) else self._lab.hidden()
        if hidden:
            others = Among("collection", tuple(hidden), negated=True)
            executed = replace(shown, where=others if shown.where is None else shown.where & others)
            what = f"{count(sum(hidden.values()), 'trajectory')} of comparisons left out"
            notes.append(f"{what} -> --all, or --where \"collection == '{next(iter(hidden))}'\"")
        results = execute(replace(executed, select=search.select.beside(SCORE, METADATA)), self.records)
        if not results.hits:
            notes += find_odd_conditions(search, self.records.fields())
        if left_out := len(self.records.left_out()):
            notes.append(f"{_unread_note(left_out)} -> %search --status")
        return Answer(results, executed, search if self._embedder else shown, tuple(notes))

    def documents(self, names: Sequence[str]) -> dict[str, str]:
        """Return the conversations of some records as text. Missing ones are absent."""
        return self.records.documents(names)

    def breakdown(self, executed: Search, name: str) -> Breakdown:
        """Return the parts of a record's score. InputError if there is no such record."""
        return breakdown(executed, self.records, name)

    def update(self, progress: Progress = lambda *_: None, *, timeout: float = -1) -> None:
        """Update the records from the lab, without vectors. An interrupted update continues where it stopped.

        timeout: seconds to wait for another process that updates the index, before filelock's Timeout is raised.
        """
        with self._lock.acquire(timeout=timeout):
            mark = self._read_mark()
            news = self._lab.feed.since(mark)
            if self.records.was_interrupted:  # interrupted: collections indexed meanwhile may be deleted by now
                visible = {*mark.collections.values(), *news.mark.collections.values()}
                news = replace(news, gone=[*news.gone, *(self.records.prefixes() - visible)])
            if news:
                self.records.begin()
                self._apply(news, progress)
            if news.mark != mark or news:
                self.records.keep_mark(news.mark.to_json())
            self._renew(progress)

    def keep_up(self) -> None:
        """Update the index in the background if the lab has changed. Errors appear in the status."""
        if self._lab.changes() != self._kept_up:
            self._background.begin()

    def rebuild(self, progress: Progress = lambda *_: None) -> IndexStatus:
        """Delete the index and rebuild it from the lab, if the embedding model responds.

        If another process is computing vectors, or hangs in its model, the vectors follow in the background.
        """
        if self._embedder is not None:
            _ = self._embedder.model
        with self._background.stopped():
            self._background.join(_LOCK_TIMEOUT)
            with self._lock:
                self._discard()
                self.update(progress)
            with suppress(Timeout):
                self._vectors.update(progress, timeout=_LOCK_TIMEOUT)
            self._kept_up = self._background.problem = None
        self.keep_up()
        return self.status()

    def _discard(self) -> None:
        try:
            discard(self._path)
        except OSError as error:
            raise LabError(f"{self._path} cannot be made anew: {error.strerror}", hint="remove it") from error
        if "records" in self.__dict__:
            self.records.close()
        for name in ("records", "_vectors"):
            self.__dict__.pop(name, None)

    def status(self) -> IndexStatus:
        """Return the state of the index, without updating it."""
        known, size = self.records.model, 0
        for path in self._path.parent.glob(f"{self._path.name}*"):
            with suppress(FileNotFoundError):  # a process that closes the database removes its -wal and -shm
                size += path.stat().st_size
        return IndexStatus(
            trajectories=self._lab.feed.count(),
            indexed=self.records.count,
            embedded=self.records.count_embedded(),
            model=f"{known.name} ({known.dimension})" if known else None,
            megabytes=size / 1e6,
            problem=self._background.problem or self._find_mixed() or self._missing_records(),
            left_out=self.records.left_out(),
        )

    def fields(self) -> list[str]:
        """List the names of metadata fields."""
        return list(dict.fromkeys([*FIELDS, *self.records.fields()]))

    def values(self, field: str) -> list[str]:
        """List some string values of a field."""
        return self.records.values(field)

    def close(self) -> None:
        """Close the file. Unfinished background work continues the next time."""
        self._background.close()
        if "records" in self.__dict__:
            self.records.close()

    def _read_mark(self) -> Cursor:
        text = self.records.mark
        try:
            return Cursor.from_json(text) if text else Cursor()
        except ValueError as error:
            raise LabError(f"{self._path}: the search index is damaged: {error}", hint=REBUILD) from error

    def _follow(self, give_way: Callable[[], None]) -> None:
        with suppress(Timeout):  # another process does it
            while (now := self._lab.changes()) != self._kept_up:
                with suppress(_IndexMovedError):
                    self.update(self._make_pause(self._lock, give_way), timeout=0)
                    self._vectors.update(self._make_pause(self._vectors.lock, give_way), timeout=0)
                    self._kept_up = now

    def _make_pause(self, lock: Lock, give_way: Callable[[], None]) -> Progress:
        """Make a progress callback that releases the lock while the process is busy.

        If the index or the lab changes in that time, the callback raises `_IndexMovedError`.
        """

        def pause(*_: object) -> None:
            before = self.records.revision, self._lab.changes()
            lock.release()
            give_way()
            lock.acquire(timeout=0)
            if (self.records.revision, self._lab.changes()) != before:
                raise _IndexMovedError

        return pause

    def _apply(self, news: Changes, progress: Progress) -> None:
        """Apply the changes of the lab: deletions and renames first, as new trajectories may have the old names."""
        for label in news.gone:
            self.records.forget(f"{label}/")
        for old, new in news.renamed.items():
            self.records.rename(f"{old}/", f"{new}/")
            name = new.partition(":")[0]
            moved = self.records.ids(f"{new}/")
            self._amend({i: {"collection": name, "group": i.rpartition("/")[0]} for i in moved}, *_OF_NAME)
        jobs = {label: job for job, labels in news.mark.jobs.items() for label in labels}
        groups = dict.fromkeys(news.rescored)
        arrived = self._lab.feed.names(news.arrived)
        groups.update(dict.fromkeys(group for _, group in arrived.values()))
        known = self.records.times(name for name, _ in arrived.values())
        times = self._lab.feed.times(id_ for id_, (name, _) in arrived.items() if name in known)
        # a session that went on is stored anew under its name
        outdated = {id_ for id_, time in times.items() if _differ(time, known[arrived[id_][0]])}
        unindexed = [id_ for id_, (name, _) in arrived.items() if name not in known or id_ in outdated]

        def put(ids: Sequence[int]) -> None:
            self._lab.outlines.complete(ids)
            entries = self._lab.feed.entries(ids)
            self.records.upsert(record_of(e, jobs.get(f"{e.collection}:{e.generation}")) for e in entries)

        for ids in self._batches(unindexed, "indexing", progress):
            self._index_readable(ids, put, lambda id_: [arrived[id_][0]])
        for some in self._batches(list(groups), "indexing rewards of", progress):
            self._index_readable(some, self._index_rewards, self._lab.feed.members)
        for label in news.trained:
            self._amend({name: {"job": jobs[label]} for name in self.records.ids(f"{label}/")}, "job")

    def _renew(self, progress: Progress) -> None:
        """Write documents of an earlier version again, in batches. An interrupted run continues where it stopped."""
        if not (outdated := self.records.outdated()):
            return
        names = {id_: name for id_, (name, _) in self._lab.feed.names(self._lab.feed.since(Cursor()).arrived).items()}
        ids = {name: id_ for id_, name in names.items()}

        def put(some: Sequence[int]) -> None:
            self.records.renew([record_of(entry) for entry in self._lab.feed.entries(some)], OF_DOCUMENT)

        for some in self._batches([ids[name] for name in outdated if name in ids], "renewing the index of", progress):
            self._index_readable(some, put, lambda id_: [names[id_]])
        self.records.keep_rest()

    def _index_rewards(self, groups: Sequence[int]) -> None:
        members = self._lab.feed.scored(groups).values()
        rewards: dict[str, dict[str, Any]] = {member.name: {} for each in members for member in each}
        for each in members:
            rewards |= rewards_of(each)
        self.records.amend(rewards, lambda field: field in OF_REWARD or field.startswith(PART))

    def _index_readable(
        self, ids: Sequence[int], take: Callable[[Sequence[int]], None], names: Callable[[int], Sequence[str]]
    ) -> None:
        """Index a batch, or its members one by one if that fails. Unreadable ones are left out, with the reason.

        An error of `take` is raised if it is not one of `_UNREADABLE`. It is also raised if every member of a batch
        fails, because that is a bug and not bad data.

        names: returns the names of the trajectories that an id stands for.
        """
        with suppress(*_UNREADABLE):
            take(ids)
            return
        unread: dict[int, Exception] = {}
        for each in ids:
            try:
                take([each])
            except _UNREADABLE as error:
                unread[each] = error
        if len(unread) == len(ids) > 1:
            first = unread[ids[0]]
            first.add_note(f"each of {len(ids):,} records fails: that is a bug of rolloutlab, not unreadable data")
            raise first
        for each, why in unread.items():
            left_out = names(each)
            self.records.delete(left_out)
            reason = f"{type(why).__name__}: {why}".splitlines()[0]
            self.records.leave_out(dict.fromkeys(left_out, reason))

    def _amend(self, changes: dict[str, dict[str, Any]], *fields: str) -> None:
        self.records.amend(changes, lambda field: field in fields)

    def _query_notes(self, search: Search, progress: Progress) -> list[str]:
        """Return notes on how text queries are compared. InputError for a vector query if there are no vectors."""
        knns = [term for term in terms_of(search.rank) if isinstance(term, Knn) and term.key == EMBEDDING]
        vectors = any(not isinstance(knn.query, str) for knn in knns)
        if vectors and self._embedder is None and not self.records.count_embedded():
            problem = f"$knn.query on {EMBEDDING} is a vector, no record has one, and there is no embedding model"
            raise InputError(problem, hint="%search --embed-with MODEL, or a text as the query")
        return self._text_notes(progress) if texts_of(search.rank, EMBEDDING) or (knns and self._embedder) else []

    def _text_notes(self, progress: Progress) -> list[str]:
        """Embed what has no vector yet, and return notes on how texts are compared and on missing vectors."""
        if self._embedder is None:
            return ["texts are compared by their words: there is no embedding model -> %search --embed-with MODEL"]
        self._vectors.check()
        notes = [f"texts are compared by meaning: {self._embedder.name}"]
        try:
            self._vectors.update(progress, timeout=_LOCK_TIMEOUT)
        except Timeout:
            embedded = f"{self.records.count_embedded():,} of {self.records.count:,}"
            notes.append(f"{embedded} trajectories have vectors so far, and only those are compared")
        else:
            self._background.problem = None
        return notes

    def _find_mixed(self) -> str | None:
        try:
            return self._vectors.find_mixed()
        except Exception as error:  # noqa: BLE001 - any error of the model is the problem
            return f"{type(error).__name__}: {error}"

    def _missing_records(self) -> str | None:
        """Return the problem if records are missing, or too many, although the lab has no changes."""
        missing = self._lab.feed.count() - self.records.count - len(self.records.left_out())
        if not missing or self._lab.feed.since(self._read_mark()):
            return None
        return f"the index has {count(abs(missing), 'record')} too {'few' if missing > 0 else 'many'} -> {REBUILD}"

    def _batches(self, ids: Sequence[int], action: str, progress: Progress) -> Iterator[list[int]]:
        coming, done = iter(ids), 0
        while batch := list(islice(coming, _BATCH)):
            progress(action, done, len(ids))
            yield batch
            done += len(batch)


def _names_hidden(where: Where | None) -> bool:
    """Whether a condition names a collection of a comparison."""
    values = (
        value
        for each in conditions_of(where)
        for value in (getattr(each, "values", None) or [getattr(each, "value", "")])
    )
    return any(isinstance(value, str) and is_hidden(value) for value in values)


def _unread_note(number: int) -> str:
    return f"{count(number, 'trajectory')} unreadable and left out of every search"


class _IndexMovedError(Exception):
    """Another process or thread changed the lab or its index while this one waited."""


def _differ(stored_at: str, indexed: float | None) -> bool:
    """Whether a trajectory was stored at another time than that in its record."""
    return indexed is not None and abs(moment(stored_at).timestamp() - indexed) > _SAME_TIME
