"""Export of collections to a file, whole or not at all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import CollectionSummary, Group, StoredCollection, StoredTrajectory
from rolloutlab.trajectories.files import FORMATS, art, columns, openai, parquet
from rolloutlab.trajectories.files.jsonl import replacing

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
    """Which trajectories of a group are written. best: only the first of those with the highest reward."""

    best: bool = False
    min_reward: float | None = None
    scored: bool = False

    def of(self, group: Group) -> list[StoredTrajectory]:
        least = self.min_reward
        chosen = [t for t in group.trajectories if t.reward is not None and (least is None or t.reward >= least)]
        if self.best:
            return [max(chosen, key=lambda t: t.reward or 0.0)] if chosen else []
        return chosen if self.scored or least is not None else list(group.trajectories)


def find_all(lab: Lab, names: str | Sequence[str]) -> list[CollectionSummary]:
    """The collections of these names; NotFoundError for an unknown name, InputError without any name."""
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
    """Write the selected trajectories of collections; `written` gets their number so far.

    Raises:
        InputError: the format is unknown, the file is there already or cannot be written, or nothing is selected.
    """
    kind = kind or format_of(path)
    if kind == "art":
        selection = replace(selection, scored=True)
    counted = _Counted(lab, collections, selection, written)
    with replacing(path, overwrite=overwrite) as draft:
        _write(kind, path, draft, counted)
        if not counted.trajectories:
            names = ", ".join(each.label for each in collections)
            raise InputError(f"nothing of {names} would be written", hint=f"%group {collections[0].label}/0 shows it")
    return Export(path, kind, counted.trajectories, counted.groups)


def format_of(path: Path) -> str:
    """The format of a file name; InputError for an unknown ending."""
    name = path.name.removesuffix(".gz")
    if path.suffix == ".parquet":
        return "parquet"
    if name.endswith(".jsonl"):
        return "jsonl"
    message = f"{path.name} has no known format"
    raise InputError(message, hint=f"NAME.jsonl, NAME.parquet, or --format {'|'.join(FORMATS)}")


def _write(kind: str, path: Path, draft: Path, groups: Source) -> None:
    if kind not in FORMATS:
        raise InputError(f"unknown format {kind!r}", hint=f"--format {'|'.join(FORMATS)}")
    if (kind == "parquet") != (path.suffix == ".parquet"):
        hint = f"{path.stem}.parquet" if kind == "parquet" else f"{path.stem}.jsonl"
        raise InputError(f"{path.name} is not a file name for the format {kind}", hint=hint)
    gzipped = path.suffix == ".gz"
    if kind == "parquet":
        parquet.write(draft, groups)
    elif kind == "art":
        art.write(draft, groups, gzipped=gzipped, array=path.name.removesuffix(".gz").endswith(".json"))
    else:
        (openai.write if kind == "openai" else columns.write_jsonl)(draft, groups, gzipped=gzipped)


@dataclass
class _Counted:
    """The groups of collections with what is chosen of them, counted as they pass."""

    lab: Lab
    collections: Sequence[StoredCollection]
    selection: ExportFilter
    written: Callable[[int], None]
    trajectories: int = 0
    groups: int = 0

    def __iter__(self) -> Iterator[tuple[StoredCollection, Group]]:
        for collection in self.collections:
            for group in self.lab.each_group(collection):
                chosen = self.selection.of(group)
                if chosen:
                    self.trajectories += len(chosen)
                    self.groups += 1
                    yield collection, replace(group, trajectories=tuple(chosen))
                    self.written(self.trajectories)
