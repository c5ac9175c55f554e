"""A file to collections, all of them or none."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Recorded
from rolloutlab.trajectories.files import art, jsonl, openai, parquet
from rolloutlab.trajectories.files.json_files import Found, documents

_READERS = {"jsonl": jsonl.read, "parquet": jsonl.read, "openai": openai.read, "art": art.read}


def import_file(
    lab: Lab,
    path: Path,
    name: str | None,
    kind: str | None,
    taken: Callable[[int], None],
) -> list[str]:
    """Read a file into new collections; their labels with generations. `taken` gets how many trajectories, again and
    again.

    name: what the collection is called; by default what the file says. kind: the format; by default what the first line
    looks like.

    Raises:
        NotFoundError: there is no such file. InputError: the file is empty, or wrong; the message says where, and
        nothing is kept.
    """
    if name:
        lab.check_name(name)
    found = parquet.documents(path) if path.suffix == ".parquet" else documents(path)
    with lab.draft() as draft:
        draft.add(_counted(_recorded(found, name, kind), taken))
        return draft.publish()


def format_of(document: Any) -> str:
    """The format that a line of a file, or a row, is of."""
    if isinstance(document, dict) and "messages_and_choices" not in document:
        return "art" if "trajectories" in document else "openai" if "messages" in document else "jsonl"
    return "jsonl"


def _recorded(found: Iterator[Found], name: str | None, wanted: str | None) -> Iterator[Recorded]:
    for first in found:
        kind = wanted or format_of(first[1])
        if kind not in _READERS:
            raise InputError(f"unknown format {kind!r}", hint=f"--format {'|'.join(_READERS)}")
        yield from _READERS[kind](chain([first], found), name)


def _counted(trajectories: Iterable[Recorded], taken: Callable[[int], None]) -> Iterator[Recorded]:
    for number, recorded in enumerate(trajectories, start=1):
        yield recorded
        taken(number)
