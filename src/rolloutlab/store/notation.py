"""How labels, times and messages are written in the lab."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from rolloutlab.errors import InputError
from rolloutlab.wire.base import Wire, moment

_LABEL = re.compile(r"([\w.-]+)(?::(\d{1,18}))?")
"""SQLite counts no further than 2^63."""


def parts_of(label: str) -> tuple[str, int | None] | None:
    """Name and generation of `name` or `name:N`; None when it is written otherwise.

    Raises:
        InputError: it is no text.
    """
    if not isinstance(label, str):
        raise InputError(f"a {type(label).__name__} is no name of a collection", hint="%collections lists them")
    found = _LABEL.fullmatch(label)
    return (found[1], int(found[2]) if found[2] else None) if found else None


def dumped(items: Sequence[Wire]) -> str:
    """Messages and choices as a JSON array."""
    return "[" + ",".join(item.to_json() for item in items) + "]"


def now() -> str:
    """The time now, UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat()


def minute(time: str) -> str:
    """A time as a table shows it, in UTC and to the minute: `2026-01-31 12:00`."""
    return f"{moment(time).astimezone(UTC):%Y-%m-%d %H:%M}"
