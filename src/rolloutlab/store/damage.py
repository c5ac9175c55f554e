"""Integrity check of a lab's SQLite files, with a remedy for each that is damaged."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from rolloutlab.errors import LabError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Settings
from rolloutlab.store.agreement import find_disagreements
from rolloutlab.store.sqlite import connect_read_only

_TIMEOUT = 5.0
"""Seconds to wait for a lock of another process."""
_FIRST = 3
"""The most errors that are shown of a file."""


def check_lab(settings: Settings) -> list[str]:
    """Check the databases of the lab folder; return a line for each.

    Further lines are about bodies of jobs that are not listed, and about parts that are from different times.
    """
    remedies = {
        settings.database: "%export NAME FILE saves what can be read, if it opens at all; then put a backup in its "
        "place, or move it away, with its -wal and -shm, to begin an empty lab",
        settings.search_database: "%search --reindex makes it anew",
        settings.service_folder / "service.db": "put a backup in its place, or move it away and "
        "%models --recover, which lists the checkpoints anew",
    }
    return [
        *check_files(remedies),
        *_describe_lost_bodies(settings.service_folder),
        *map(str, find_disagreements(settings)),
    ]


def check_files(files: Mapping[Path, str]) -> list[str]:
    """Check files; return a line for each: sound, missing, or the damage with its remedy.

    files: the remedy for each file. Files are only read, and concurrent writes do no harm.
    """
    return [_check_file(path, remedy) for path, remedy in files.items()]


def _check_file(path: Path, remedy: str) -> str:
    if not path.exists():
        return f"{path}: not there"
    complaints = _find_damage(path)
    return f"{path}: damaged: {'; '.join(complaints[:_FIRST])} -> {remedy}" if complaints else f"{path}: sound"


def _describe_lost_bodies(service_folder: Path) -> list[str]:
    folder = service_folder / "jobs" / ".lost"
    if not (bodies := [path for path in folder.glob("*.json") if not path.name.endswith(".reason.json")]):
        return []
    typed = "POST each to /v1/preview/training-jobs to train on it, with its name as Idempotency-Key"
    return [f"{folder}: {count(len(bodies), 'body')} of jobs that service.db does not list -> {typed}"]


def _find_damage(path: Path) -> list[str]:
    """Run SQLite's integrity check: https://www.sqlite.org/pragma.html#pragma_integrity_check. Empty if all is well."""
    try:
        with closing(connect_read_only(path, _TIMEOUT)) as connection:
            lines = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_FIRST})")]
    except LabError as error:
        return [error.message]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [" ".join(line.split()) for line in lines if line != "ok"]
