"""Where a regular expression is found: in this process, or in one that is ended when it takes too long.

Python's `re` tries every way to match, of which some patterns have more than can be tried in years, and meanwhile no
other thread of its process goes on.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rolloutlab.errors import InputError

Documents = Iterable[tuple[int, str]]
"""Texts by the places of their records."""
Finder = Callable[[str, Documents], Iterable[int]]
"""In which of some documents a pattern is found."""

_PROGRAM = Path(__file__).with_name("regex_worker.py")
_AT_ONCE = 8 << 20
"""Characters that are looked through by one process."""


def found_here(pattern: str, documents: Documents) -> Iterator[int]:
    """For patterns of whoever can interrupt the search.

    Raises:
        InputError: it is no regular expression.
    """
    try:
        search = re.compile(pattern).search
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{pattern!r} is no regular expression: {error}", hint=r'F.document.regex(r"\d+")') from error
    return (place for place, text in documents if search(text))


class TimedSearch:
    """For patterns of anybody: all of one search have some seconds together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = self._left = seconds

    def __call__(self, pattern: str, documents: Documents) -> Iterator[int]:
        """As `found_here`; InputError too when the time is over."""
        for some in _in_parts(documents):
            found = self._looked(pattern, [text for _, text in some])
            yield from (place for (place, _), there in zip(some, found, strict=True) if there)

    def _looked(self, pattern: str, texts: list[str]) -> list[bool]:
        said = json.dumps({"pattern": pattern, "texts": texts, "seconds": self._seconds}).encode()
        started = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(_PROGRAM)],
                input=said,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=max(0.0, self._left),
                check=True,
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            raise InputError(
                f"looking for {pattern[:100]!r} took more than {self._seconds:g} s and was given up",
                hint='{"where": {"#document": {"$contains": "Paris"}}}',
            ) from error
        finally:
            self._left -= time.monotonic() - started
        return list(map(bool, json.loads(done.stdout)))


def _in_parts(documents: Documents) -> Iterator[list[tuple[int, str]]]:
    part: list[tuple[int, str]] = []
    size = 0
    for place, text in documents:
        part.append((place, text))
        size += len(text)
        if size >= _AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part
