"""Files of collections, as `lab.files`: export, import into new collections, logprobs and results for what is there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutlab import plugins
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.plugins import READERS
from rolloutlab.sampling.dataset import describe_left_out
from rolloutlab.sampling.programs.results import join_results, read_results
from rolloutlab.sampling.prompt import Row
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import CollectionSummary, Group, Recorded, StoredCollection, StoredTrajectory
from rolloutlab.trajectories.files import (
    columns,
    file_path,
    openai,
    parquet,
    readable_formats,
    spreadsheet,
    writable_formats,
)
from rolloutlab.trajectories.files.jsonl import Document, read_documents, replace_file
from rolloutlab.trajectories.files.reader import FileWriter, Reader
from rolloutlab.trajectories.logprobs import add_logprobs, ask_service

if TYPE_CHECKING:
    from rolloutlab.trajectories.collection import Collection
    from rolloutlab.widgets.progress import Progress

Source = Iterable[tuple[StoredCollection, Group]]


@dataclass(frozen=True)
class Export:
    """The result of an export: the file, its format, and how much it holds."""

    path: Path
    format: str
    trajectories: int
    groups: int

    def __repr__(self) -> str:
        what = f"{count(self.trajectories, 'trajectory')} in {count(self.groups, 'group')}"
        return f"{what} -> {self.path} ({self.format})"


@dataclass(frozen=True)
class ExportFilter:
    """Selects the trajectories of a group that are written.

    best: only the one with the highest reward, or the first of several. min_reward: only those with at least this
    reward. scored: only those with a reward.
    """

    best: bool = False
    min_reward: float | None = None
    scored: bool = False

    def select(self, group: Group) -> list[StoredTrajectory]:
        """Select trajectories of a group."""
        least = self.min_reward
        chosen = [t for t in group.trajectories if t.reward is not None and (least is None or t.reward >= least)]
        if self.best:
            return [max(chosen, key=lambda t: t.reward or 0.0)] if chosen else []
        return chosen if self.scored or least is not None else list(group.trajectories)


class LabFiles:
    """Collections to files and back, as `lab.files`."""

    def __init__(
        self,
        lab: Callable[[], Lab],
        connector: Connector,
        collection: "Callable[[str], Collection]",
        own_model: Callable[[], str],
        progress: "Callable[[str], Progress]",
    ) -> None:
        """Hold the parts of a session that files need.

        Args:
            lab: returns the store.
            connector: of the session.
            collection: finds a collection by its name.
            own_model: registers the selected model if it is not yet, and returns its name.
            progress: makes the line that shows what a call does.
        """
        self._lab = lab
        self._connector = connector
        self._collection = collection
        self._own_model = own_model
        self._progress = progress

    def export(
        self,
        names: str | Sequence[str],
        path: str | PathLike[str],
        format: str | None = None,
        *,
        best: bool = False,
        min_reward: float | None = None,
        overwrite: bool = False,
    ) -> Export:
        """Write collections to a file, whole or not at all.

        Args:
            names: a collection, or several.
            path: the file; `.gz` at the end compresses it.
            format: `jsonl` or `parquet` for complete trajectories with rewards, but without reward history, sampling
                plan and cost; `openai` for fine-tuning messages; `art` for groups of openpipe-art; `csv` for a
                spreadsheet in which you edit rewards. By default the suffix of the file decides.
            best: only the trajectory with the highest reward of each group.
            min_reward: only trajectories with at least this reward.
            overwrite: replace the file if there is one.

        Raises:
            NotFoundError: no such collection. InputError: the file exists, cannot be written or would be empty.
        """
        lab = self._lab()
        sources, target, which = find_all(lab, names), file_path(path), ExportFilter(best, min_reward)
        with self._progress(f"writing {target.name}") as shown:
            written = partial(shown.update, total=sum(each.trajectories for each in sources))
            return export(lab, sources, target, format, which, overwrite=overwrite, written=written)

    def import_(
        self, path: str | PathLike[str], name: str | None = None, format: str | None = None, *, logprobs: bool = False
    ) -> "Collection | list[Collection]":
        """Read a file of one or more collections into a new generation of each; an error imports nothing.

        name: the name of the collection; by default that in the file. format: as of `export`; by default detected from
        the first line. logprobs: call `lab.files.logprobs` on each collection.

        Raises:
            NotFoundError: no such file. InputError: an invalid value in it; the message gives the place.
        """
        source = file_path(path)
        with self._progress(f"reading {source.name}") as shown:
            labels = import_file(self._lab(), source, name, format, partial(shown.update, total=None), shown.keep)
        imported = [self.logprobs(label) if logprobs else self._collection(label) for label in labels]
        return imported[0] if len(imported) == 1 else imported

    def logprobs(self, name: str, model: str | None = None, *, say: Callable[[str], None] = print) -> "Collection":
        """Add token ids and logprobs to the assistant messages of imported conversations, as a new generation.

        Training needs token ids and logprobs. Rewards are kept. model: the model that computes them; by default the
        newest checkpoint of the selected one.

        Raises:
            NotFoundError: no such collection or model. NothingTrainsError: the policy can tokenize none of it.
            ServiceError: the service has no such endpoint.
        """
        lab = self._lab()
        collection = lab.collection(name)
        with self._progress(f"logprobs of {name}") as shown:
            address = self._connector.address(shown.waiting)
            ask = partial(ask_service, self._connector, model or self._own_model(), address=address)
            outcome = add_logprobs(lab, collection, ask, partial(shown.update, total=collection.trajectories))
        for line in outcome.words():
            say(line)
        return self._collection(outcome.label or name)

    def join_results(self, name: str, results: str, *, say: Callable[[str], None] = print) -> "Collection":
        """Give captured sessions the rewards of the program that ran them.

        results: files of JSON Lines, such as `outputs/**/traces.jsonl`. A line has the `id`, `trace_id` or `session_id`
        of a session, its `reward`, and perhaps `rewards`: the components by name. say: called with lines on results of
        no session, and on sessions without a result.

        Raises:
            NotFoundError: no such collection. InputError: there is no such file, or no line has the id of a session.
        """
        collection = self._collection(name)
        joined = join_results(self._lab(), collection.stored, read_results(results))
        if not joined.sessions:
            message = f"no line of {results} has the id of a session of {name}"
            raise InputError(message, hint="metadata.session of a trajectory is its id")
        for line in joined.lines(collection.label):
            say(line)
        return collection


def find_all(lab: Lab, names: str | Sequence[str]) -> list[CollectionSummary]:
    """Find the collections of these names; NotFoundError for an unknown name, InputError without any name."""
    collections = [lab.collection(name) for name in ([names] if isinstance(names, str) else names)]
    if not collections:
        raise InputError("no collection is given", hint="%export NAME FILE")
    return collections


def export(
    lab: Lab,
    collections: Sequence[StoredCollection],
    path: Path,
    kind: str | None,
    selection: ExportFilter,
    *,
    overwrite: bool,
    written: Callable[[int], None],
) -> Export:
    """Write the selected trajectories of collections into a file, whole or not at all.

    Args:
        lab: the store.
        collections: what to write.
        path: the file.
        kind: the format; None takes it from the name of the file.
        selection: which trajectories to write.
        overwrite: replace the file if there is one.
        written: called with the number of trajectories written so far.

    Raises:
        InputError: the format is unknown, the file is there already or cannot be written, or nothing is selected.
    """
    kind = kind or _format_of(path)
    writer = _writer(kind)
    if writer and not writer.writes_unscored:
        selection = replace(selection, scored=True)
    counted = _CountedGroups(lab, collections, selection, written)
    with replace_file(path, overwrite=overwrite) as draft:
        _check_name(kind, path)
        if kind == "csv":
            spreadsheet.write(draft, counted, spreadsheet.columns_of(lab, collections))
        else:
            _write(kind, writer, path, draft, counted)
        if not counted.trajectories:
            names = ", ".join(each.label for each in collections)
            raise InputError(f"nothing of {names} would be written", hint=f"%group {collections[0].label}/0 shows it")
    return Export(path, kind, counted.trajectories, counted.groups)


def _format_of(path: Path) -> str:
    """Find the format of a file by its name; InputError for an unknown ending."""
    name = path.name.removesuffix(".gz")
    if path.suffix == ".parquet":
        return "parquet"
    if name.endswith(".jsonl"):
        return "jsonl"
    if path.suffix == ".csv":
        return "csv"
    hint = f"NAME.jsonl, NAME.parquet, NAME.csv, or --format {'|'.join(writable_formats())}"
    raise InputError(f"{path.name} has no known format", hint=hint)


def _check_name(kind: str, path: Path) -> None:
    """Raise InputError if the format is unknown, or the file is not named as one of it."""
    if kind not in writable_formats():
        raise InputError(f"unknown format {kind!r}", hint=f"--format {'|'.join(writable_formats())}")
    if any((kind == own) != (path.suffix == f".{own}") for own in ("parquet", "csv")):
        hint = f"{path.stem}.{kind if kind in {'parquet', 'csv'} else 'jsonl'}"
        raise InputError(f"{path.name} is not a file name for the format {kind}", hint=hint)


def _writer(kind: str) -> FileWriter | None:
    """Load the plug-in that writes a format; None if this package writes it, or if it is unknown."""
    plugin = plugins.load(READERS, kind) if kind in plugins.names(READERS) else None
    return plugin if isinstance(plugin, FileWriter) else None


def _write(kind: str, writer: FileWriter | None, path: Path, draft: Path, groups: Source) -> None:
    gzipped = path.suffix == ".gz"
    if kind == "parquet":
        parquet.write(draft, groups)
    elif writer:
        writer.write(draft, groups, gzipped=gzipped, array=path.name.removesuffix(".gz").endswith(".json"))
    else:
        (openai.write if kind == "openai" else columns.write_jsonl)(draft, groups, gzipped=gzipped)


@dataclass
class _CountedGroups:
    """Iterates over the groups of collections with their selected trajectories, and counts them."""

    lab: Lab
    collections: Sequence[StoredCollection]
    selection: ExportFilter
    written: Callable[[int], None]
    trajectories: int = 0
    groups: int = 0

    def __iter__(self) -> Iterator[tuple[StoredCollection, Group]]:
        for collection in self.collections:
            for group in self.lab.each_group(collection):
                chosen = self.selection.select(group)
                if chosen:
                    self.trajectories += len(chosen)
                    self.groups += 1
                    yield collection, replace(group, trajectories=tuple(chosen))
                    self.written(self.trajectories)


_OWN_READERS = {"jsonl": columns.read_rows, "parquet": columns.read_rows, "openai": openai.read}


def import_file(
    lab: Lab,
    path: Path,
    name: str | None,
    kind: str | None,
    on_progress: Callable[[int], None],
    say: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Read a file into new collections; return their labels with generations.

    Args:
        lab: The lab.
        path: The file.
        name: The name of the collection; None takes the one in the file.
        kind: The format; None recognises it by the first line.
        on_progress: Called with the number of trajectories read so far.
        say: Called with a line for each column with values that are left out.

    Raises:
        NotFoundError: there is no such file.
        InputError: the file is empty, or wrong. The message has the place, and nothing is stored.
    """
    if kind == "csv" or path.suffix == ".csv":
        raise InputError("a CSV has no conversations: only its rewards can be read", hint="%rewards NAME --from FILE")
    if name:
        lab.check_name(name)
    dropped: list[Row] = []
    values = parquet.read_documents(path, dropped) if path.suffix == ".parquet" else read_documents(path)
    with lab.draft() as draft:
        draft.add(_count_read(_read_recorded(values, name, kind), on_progress))
        labels = draft.publish()
    for line in describe_left_out(dropped):
        say(line)
    return labels


def _kind_of(document: Any) -> str:
    """Recognise the format of a line of a file, or of a row."""
    readers: Iterable[tuple[str, Reader]] = plugins.load_all(READERS)
    foreign = next((name for name, reader in readers if reader.matches(document)), None)
    of_openai = isinstance(document, dict) and "messages_and_choices" not in document and "messages" in document
    return foreign or ("openai" if of_openai else "jsonl")


def _read_recorded(values: Iterator[Document], name: str | None, kind: str | None) -> Iterator[Recorded]:
    """Read trajectories with the reader of their format; None recognises it by the first line."""
    for first in values:  # once: the reader takes all that follow
        kind = kind or _kind_of(first[1])
        if kind not in readable_formats():
            raise InputError(f"unknown format {kind!r}", hint=f"--format {'|'.join(readable_formats())}")
        read = _OWN_READERS[kind] if kind in _OWN_READERS else plugins.load(READERS, kind).read
        yield from read(chain([first], values), name)


def _count_read(trajectories: Iterable[Recorded], on_progress: Callable[[int], None]) -> Iterator[Recorded]:
    """Pass trajectories on, and report how many were read."""
    for number, recorded in enumerate(trajectories, start=1):
        yield recorded
        on_progress(number)
