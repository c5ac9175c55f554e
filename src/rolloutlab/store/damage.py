"""Whether the files of a lab are sound, and what to do about those that are not."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rolloutlab.errors import LabError
from rolloutlab.store.readonly import connected

_PATIENCE = 5.0
"""Seconds to wait for another process that has a file to itself."""
_FIRST = 3
"""Complaints that are shown of one file."""


def checked(files: Mapping[Path, str]) -> list[str]:
    """A line for each file: sound, not there, or what is damaged and what to do about it.

    files: what to do about each when it is damaged. It is only read, and what others write meanwhile does no harm.
    """
    return [_line(path, remedy) for path, remedy in files.items()]


def _line(path: Path, remedy: str) -> str:
    if not path.exists():
        return f"{path}: not there"
    complaints = _complaints(path)
    return f"{path}: damaged: {'; '.join(complaints[:_FIRST])} -> {remedy}" if complaints else f"{path}: sound"


def _complaints(path: Path) -> list[str]:
    """What SQLite's own check says of a file: https://www.sqlite.org/pragma.html#pragma_integrity_check."""
    try:
        with closing(connected(path, _PATIENCE)) as connection:
            lines = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_FIRST})")]
    except LabError as error:
        return [error.message]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [" ".join(line.split()) for line in lines if line != "ok"]
