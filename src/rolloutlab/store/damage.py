"""Integrity check of a lab's SQLite files, with a remedy for each that is damaged."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rolloutlab.errors import LabError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Settings
from rolloutlab.store.agreement import disagreements
from rolloutlab.store.sqlite import connect_read_only

_TIMEOUT = 5.0
"""Seconds to wait for a lock of another process."""
_FIRST = 3
"""Errors shown per file."""


def check_lab(settings: Settings) -> list[str]:
    """A line per database of the lab folder; further ones for bodies of unlisted jobs, and what is not of one time."""
    remedies = {
        settings.database: "%export NAME FILE saves what can be read, if it opens at all; then put a backup in its "
        "place, or move it away, with its -wal and -shm, to begin an empty lab",
        settings.search_database: "%search --reindex makes it anew",
        settings.service_folder / "service.db": "put a backup in its place, or move it away and "
        "%models --recover, which lists the checkpoints anew",
    }
    return [*checked(remedies), *_lost_bodies(settings.service_folder), *map(str, disagreements(settings))]


def checked(files: Mapping[Path, str]) -> list[str]:
    """A line per file: sound, missing, or the damage with its remedy.

    files: the remedy for each. Files are only read; concurrent writes do no harm.
    """
    return [_line(path, remedy) for path, remedy in files.items()]


def _line(path: Path, remedy: str) -> str:
    if not path.exists():
        return f"{path}: not there"
    complaints = _complaints(path)
    return f"{path}: damaged: {'; '.join(complaints[:_FIRST])} -> {remedy}" if complaints else f"{path}: sound"


def _lost_bodies(service_folder: Path) -> list[str]:
    folder = service_folder / "jobs" / ".lost"
    if not (bodies := [path for path in folder.glob("*.json") if not path.name.endswith(".reason.json")]):
        return []
    typed = "POST each to /v1/preview/training-jobs to train on it, with its name as Idempotency-Key"
    return [f"{folder}: {count(len(bodies), 'body')} of jobs that service.db does not list -> {typed}"]


def _complaints(path: Path) -> list[str]:
    """Results of SQLite's integrity check: https://www.sqlite.org/pragma.html#pragma_integrity_check."""
    try:
        with closing(connect_read_only(path, _TIMEOUT)) as connection:
            lines = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_FIRST})")]
    except LabError as error:
        return [error.message]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [" ".join(line.split()) for line in lines if line != "ok"]
