"""JSONL of rolloutlab: a trajectory per line, without loss."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.store.models import Group, Recorded, StoredCollection
from rolloutlab.trajectories.files.columns import from_columns, to_columns
from rolloutlab.trajectories.files.json_files import Document, dumped, write_lines


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool) -> None:
    """Write the trajectories of groups."""
    lines = (to_columns(collection, group, each) for collection, group in groups for each in group.trajectories)
    write_lines(path, (dumped(line) for line in lines), gzipped=gzipped)


def read(documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
    """The trajectories of lines, for the collections they name or, when all are of one, for `name`.

    Raises:
        InputError: a line is wrong, or of another collection while a name is given.
    """
    seen: set[object] = set()
    for place, value in documents:
        yield from_columns(place, value, name)
        seen.add((value.get("collection"), value.get("generation")))
        if name and len(seen) > 1:
            file = place.partition(",")[0]
            raise InputError(f"{place}: another collection begins", hint=f"%import {file} gives each its own name")
