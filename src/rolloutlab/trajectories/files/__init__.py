"""Import and export of collections, one module per file format."""

from os import PathLike
from pathlib import Path

from rolloutlab.errors import InputError

FORMATS = ("jsonl", "parquet", "openai")
"""The formats of this package. Plug-ins add others."""


def readable_formats() -> list[str]:
    """List the formats that `%import` reads."""
    from rolloutlab.plugins import READERS, load_all  # imported late, so that `%load_ext` does not wait for it

    return [*FORMATS, *(name for name, _ in load_all(READERS))]


def writable_formats() -> list[str]:
    """List the formats that `%export` writes.

    A CSV is for labelling in a spreadsheet: only its rewards are read back.
    """
    from rolloutlab.plugins import READERS, load_all

    return [*FORMATS, *(name for name, plugin in load_all(READERS) if hasattr(plugin, "write")), "csv"]


def file_path(path: str | PathLike[str]) -> Path:
    """Return a path with `~` replaced; raise InputError if it is not a path."""
    from rolloutlab.fsutil import path_of  # imports filelock, which `%load_ext` does not wait for

    if not isinstance(path, str | PathLike):
        raise InputError(f"a {type(path).__name__} is not a file path", hint="'capitals.jsonl'")
    return path_of(path, "'capitals.jsonl'")
