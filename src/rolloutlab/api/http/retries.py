"""Retry policy: which responses to retry, and exponential backoff with jitter."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RETRIABLE = {408, 409}
_BUSY = {429, 503}
_TRIES_WHILE_BUSY = 16
_SECONDS_WHILE_BUSY = 300.0
_MAX_PAUSE = 30.0
_MAX_RETRY_AFTER = 60.0


class Retries:
    """The retries of one request. Each method returns the seconds to wait before the next try; None for no further try.

    Args:
        tries: How many tries may fail. Answers of a busy service (429, 503) do not count: they are retried for up to
            five minutes, unless this is 1.
        backoff: Seconds of the first pause. Pauses double, with a jitter of ±50 %, so that clients that were refused
            together do not return together.
    """

    def __init__(self, tries: int, backoff: float) -> None:
        self._backoff = backoff
        self._left = tries
        self._left_while_busy = _TRIES_WHILE_BUSY if tries > 1 else 1
        self._waited = 0.0
        self._pauses = 0

    def after_failure(self) -> float | None:
        """Return the seconds to wait after no response."""
        self._left -= 1
        return self._pause() if self._left > 0 else None

    def after_answer(self, status: int, headers: Mapping[str, str]) -> float | None:
        """Return the seconds to wait after a response; None also after success, and where a retry cannot help."""
        if status in _BUSY:
            return self._while_busy(retry_after(headers))
        return self.after_failure() if status in _RETRIABLE or status >= 500 else None

    def while_away(self) -> float | None:
        """Return the seconds to wait for a service that answered before and is unreachable, as for a busy one."""
        return self._while_busy(0.0)

    def _while_busy(self, minimum: float) -> float | None:
        self._left_while_busy -= 1
        pause = minimum + self._pause()
        self._waited += pause
        return pause if self._left_while_busy > 0 and self._waited < _SECONDS_WHILE_BUSY else None

    def _pause(self) -> float:
        self._pauses += 1
        pause = min(self._backoff * 2.0 ** (self._pauses - 1), _MAX_PAUSE)
        return pause * random.uniform(0.5, 1.5)


def retry_after(headers: Mapping[str, str]) -> float:
    """Read the seconds of Retry-After (RFC 9110, 10.2.3), a minute at most. A date counts by its server's clock."""
    text = headers.get("Retry-After", "")
    if text.isdecimal():
        return min(float(text), _MAX_RETRY_AFTER)
    try:
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return min(max((parsedate_to_datetime(text) - now).total_seconds(), 0.0), _MAX_RETRY_AFTER)
    except (TypeError, ValueError):  # no date, or one without a zone
        return 0.0
