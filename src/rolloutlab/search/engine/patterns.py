"""Regular-expression search with a time limit, by the `regex` library.

Python's `re` holds the GIL while it matches and cannot be timed: a pattern that backtracks for years would stop every
thread of the service. `regex` is used everywhere, so that notebooks and the service find the same.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rolloutlab.errors import InputError

Documents = Iterable[tuple[int, str]]
"""Texts by the places of their records."""
_WITH_GIL = 0.01
"""A match keeps the GIL for this many seconds. Most documents take microseconds, and to get the GIL back would cost up
to 5 ms per document while another thread computes."""
_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.)|\{(?!(?:\d+|\d*,\d*)\})", re.DOTALL)
"""A brace that begins no repetition, as in `\\frac{d}`. `re` reads it as a character, `regex` as a fuzzy match."""
_MAX_SIZE = 100_000
"""The most parts of a pattern after its counted repeats are written out. `regex` does that, at 400 bytes per part."""
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<repeat>\{(?P<least>\d*),?(?P<most>\d*)\})|.", re.DOTALL)

_SIMPLER = '{"where": {"#document": {"$contains": "Paris"}}}'


class TimedSearch:
    """Matches the regular expressions of one search. timeout: seconds for all of them together; None: no limit.

    `regex` measures a match in processor time of the whole process. So a match may take longer on a busy machine, and
    is ended sooner if other threads compute.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._left = timeout or 0.0

    def __call__(self, pattern: str, documents: Documents) -> Iterator[int]:
        """Yield the places of the documents in which the pattern matches.

        Raises:
            InputError: the pattern is not a regular expression, or the time is over.
        """
        search = _compile(pattern).search
        try:
            if self._timeout is None:  # without a clock: a timeout costs 2 µs per document
                yield from (place for place, text in documents if search(text, concurrent=False))
            else:
                yield from self._search_timed(pattern, search, documents)
        except MemoryError:  # backtracking into groups keeps their history
            raise InputError(f"the regular expression {pattern[:100]!r} needs too much memory", hint=_SIMPLER) from None

    def _search_timed(self, pattern: str, search: Callable[..., Any], documents: Documents) -> Iterator[int]:
        for place, text in documents:
            started = time.monotonic()
            try:
                matched = self._matches(search, text)
            except TimeoutError:
                self._left = 0.0
                spent = f"took more than {self._timeout:g} s of processor time"
                raise InputError(f"the regular expression {pattern[:100]!r} {spent}", hint=_SIMPLER) from None
            self._left -= time.monotonic() - started
            if matched:
                yield place

    def _matches(self, search: Callable[..., Any], text: str) -> bool:
        if self._left <= 0:
            raise TimeoutError
        try:
            return search(text, timeout=_WITH_GIL, concurrent=False) is not None
        except TimeoutError:
            return search(text, timeout=self._left, concurrent=True) is not None


def _compile(pattern: str) -> Any:
    import regex  # 150 ms, which most searches need not spend

    plain = _BRACE.sub(lambda brace: brace[1] or r"\{", pattern)
    try:
        if (size := _count_parts(plain)) > _MAX_SIZE:  # compiling holds the GIL and cannot be timed
            problem = f"repeats its parts {size:,} times" if size < 10**15 else "repeats its parts without end"
            message = f"the regular expression {pattern[:100]!r} {problem}"
            raise InputError(message, hint=r"at most 100,000, as \w{1,100}")
        with warnings.catch_warnings(action="ignore"):  # about syntax that a later version may change
            return regex.compile(plain, cache_pattern=False)
    except (regex.error, OverflowError, RecursionError, ValueError) as error:  # ValueError: a repeat of too many digits
        message = f"{pattern!r} is not a regular expression: {error}"
        raise InputError(message, hint=r'F.document.regex(r"\d+")') from error


def _count_parts(pattern: str) -> int:
    """Count the parts of a pattern once `{m,n}` is written out n times (m times if n is open), at any depth."""
    sizes, last = [0], 0
    for part in _PART.finditer(pattern):
        if part["repeat"]:
            times = max(int(part["least"] or 0), int(part["most"] or 0), 1)
            sizes[-1] += last * (times - 1)
            last *= times
        elif part[0] == "(":
            sizes.append(0)
        elif part[0] == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
        elif part[0] not in "*+?|":
            last = 1
            sizes[-1] += 1
    return sum(sizes)
