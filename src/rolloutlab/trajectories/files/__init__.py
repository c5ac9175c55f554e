"""Import and export of collections, one module per file format."""

from os import PathLike
from pathlib import Path

from rolloutlab.errors import InputError

FORMATS = ("jsonl", "parquet", "openai", "art")


def file_path(path: str | PathLike[str]) -> Path:
    """The path with `~` replaced; InputError when it is none."""
    if not isinstance(path, str | PathLike):
        raise InputError(f"a {type(path).__name__} is no path of a file", hint="'capitals.jsonl'")
    return Path(path).expanduser()
