"""Import and export of collections, one module per file format."""

from os import PathLike
from pathlib import Path

from rolloutlab.errors import InputError

FORMATS = ("jsonl", "parquet", "openai", "art")
EXPORTS = (*FORMATS, "csv")
"""A CSV is to read and label: it has no logprobs, and only its rewards come back."""


def file_path(path: str | PathLike[str]) -> Path:
    """The path with `~` replaced; InputError when it is not a path."""
    from rolloutlab.fsutil import path_of  # with filelock, which `%load_ext` does not wait for

    if not isinstance(path, str | PathLike):
        raise InputError(f"a {type(path).__name__} is not a file path", hint="'capitals.jsonl'")
    return path_of(path, "'capitals.jsonl'")
