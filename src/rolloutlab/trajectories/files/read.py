"""Import of a file into new collections, all of them or none."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded
from rolloutlab.trajectories.files import art, columns, openai, parquet
from rolloutlab.trajectories.files.jsonl import Document, documents

_READERS = {"jsonl": columns.read_rows, "parquet": columns.read_rows, "openai": openai.read, "art": art.read}


def import_file(
    lab: Lab, path: Path, name: str | None, kind: str | None, on_progress: Callable[[int], None]
) -> list[str]:
    """Read a file into new collections; their labels with generations. `on_progress` gets the number of trajectories
    read so far.

    name: of the collection; by default that in the file. kind: the format; by default that of the first line.

    Raises:
        NotFoundError: there is no such file. InputError: the file is empty, or wrong; the message has the place, and
        nothing is stored.
    """
    if name:
        lab.check_name(name)
    values = parquet.documents(path) if path.suffix == ".parquet" else documents(path)
    with lab.draft() as draft:
        draft.add(_counted(_recorded(values, name, kind), on_progress))
        return draft.publish()


def format_of(document: Any) -> str:
    """The format of a line of a file, or of a row."""
    if isinstance(document, dict) and "messages_and_choices" not in document:
        return "art" if "trajectories" in document else "openai" if "messages" in document else "jsonl"
    return "jsonl"


def _recorded(values: Iterator[Document], name: str | None, kind: str | None) -> Iterator[Recorded]:
    for first in values:  # a reader takes all of them
        kind = kind or format_of(first[1])
        if kind not in _READERS:
            raise InputError(f"unknown format {kind!r}", hint=f"--format {'|'.join(_READERS)}")
        yield from _READERS[kind](chain([first], values), name)


def _counted(trajectories: Iterable[Recorded], on_progress: Callable[[int], None]) -> Iterator[Recorded]:
    for number, recorded in enumerate(trajectories, start=1):
        yield recorded
        on_progress(number)
