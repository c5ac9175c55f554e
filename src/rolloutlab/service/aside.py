"""Folders `.lost`: what lies on disk and the database does not list is moved there, with the reason beside it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from rolloutlab.api.wire.base import Wire
from rolloutlab.fsutil import flush, refused

UNLISTED = "the service's database does not list it"


class Note(Wire):
    """The file beside what is set aside."""

    reason: str
    set_aside_at: str


def set_aside(place: Path, folder: Path, reason: str) -> Path:
    """Move a file or a folder into another folder, under its name or the next one that is free; where it is now.

    Raises:
        LabError: it cannot be moved; it is where it was then.
    """
    note = Note(reason=reason, set_aside_at=datetime.now(UTC).isoformat())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = next(path for path in _names(folder, place) if not path.exists() and not path.is_symlink())
        note_of(target).write_text(note.to_json())
        place.rename(target)
        for changed in (folder, place.parent):
            flush(changed)
    except OSError as error:
        what = f"{place}, which is not listed, cannot be moved to {folder}"
        raise refused(what, error, "free some disk space") from error
    return target


def note_of(place: Path) -> Path:
    """The file beside what is set aside that says why: `3.json` for the folder `3`, `ID.reason.json` for `ID.json`."""
    return place.with_name(f"{place.stem}.reason.json" if place.suffix else f"{place.name}.json")


def reason_of(place: Path) -> str:
    """Why something was set aside; where its note is missing or damaged, what holds of all that is."""
    try:
        return Note.model_validate_json(note_of(place).read_bytes()).reason
    except (OSError, ValidationError):
        return UNLISTED


def _names(folder: Path, place: Path) -> Iterator[Path]:
    yield folder / place.name
    for number in range(2, 1_000_000):
        yield folder / f"{place.stem}-{number}{place.suffix}"
