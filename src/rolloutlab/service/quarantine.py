"""Folders `.lost`: quarantine for files and folders that the database does not list, each with its reason."""

import os
from itertools import chain, count
from pathlib import Path

from pydantic import ValidationError

from rolloutlab.api.wire.base import Wire
from rolloutlab.fsutil import flush, refused
from rolloutlab.store.models import now

UNLISTED = "the service's database does not list it"


class Note(Wire):
    """The JSON file beside a quarantined file or folder."""

    reason: str
    set_aside_at: str


def set_aside(path: Path, folder: Path, reason: str) -> Path:
    """Move a file or folder into `folder`, under the first free name, and return its new path.

    Raises:
        LabError: it cannot be moved, and stays where it is.
    """
    note = Note(reason=reason, set_aside_at=now())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = chain([path.name], (f"{path.stem}-{number}{path.suffix}" for number in count(2)))
        target = next(folder / name for name in names if not os.path.lexists(folder / name))
        note_of(target).write_text(note.to_json())
        path.rename(target)
        for changed in (folder, path.parent):
            flush(changed)
    except OSError as error:
        message = f"{path}, which is not listed, cannot be moved to {folder}"
        raise refused(message, error, "free some disk space") from error
    return target


def note_of(path: Path) -> Path:
    """Return the path of a quarantined path's note: `3.json` for a folder `3`, `ID.reason.json` for `ID.json`."""
    return path.with_name(f"{path.stem}.reason.json" if path.suffix else f"{path.name}.json")


def reason_of(path: Path) -> str:
    """Read the reason in a note, or return the common one if the note is missing or damaged."""
    try:
        return Note.model_validate_json(note_of(path).read_bytes()).reason
    except (OSError, ValidationError):
        return UNLISTED
