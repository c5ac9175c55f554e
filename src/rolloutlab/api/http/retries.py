"""When a request is tried again, and how long to wait before that."""

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_HELPED_BY_ANOTHER_TRY = {408, 409}
_BUSY = {429, 503}
_TRIES_WHILE_BUSY = 16
_PATIENCE_WHILE_BUSY = 300.0
_LONGEST_PAUSE = 30.0
_LONGEST_WAIT = 60.0


class Retries:
    """How long to wait before each further try of one request; None when there is to be none.

    tries: how often it may fail. That a service is too busy is no failure: it is asked again for some minutes. Pauses
    double, give or take a half, so that those who were turned away together do not come back together.
    backoff: seconds, the first pause.
    """

    def __init__(self, tries: int, backoff: float) -> None:
        self._backoff = backoff
        self._left = tries
        self._left_while_busy = _TRIES_WHILE_BUSY if tries > 1 else 1
        self._waited = 0.0
        self._pauses = 0

    def after_failure(self) -> float | None:
        """Seconds to wait when no answer came."""
        self._left -= 1
        return self._pause() if self._left > 0 else None

    def after_answer(self, status: int, headers: Mapping[str, str]) -> float | None:
        """Seconds to wait after an answer; None also when it was a good one, or another try cannot help."""
        if status in _BUSY:
            return self._while_busy(retry_after(headers))
        return self.after_failure() if status in _HELPED_BY_ANOTHER_TRY or status >= 500 else None

    def while_away(self) -> float | None:
        """Seconds to wait when a service that has answered is not reached; it is given the minutes of a busy one."""
        return self._while_busy(0.0)

    def _while_busy(self, asked: float) -> float | None:
        self._left_while_busy -= 1
        pause = asked + self._pause()
        self._waited += pause
        return pause if self._left_while_busy > 0 and self._waited < _PATIENCE_WHILE_BUSY else None

    def _pause(self) -> float:
        self._pauses += 1
        longest = min(self._backoff * 2.0 ** (self._pauses - 1), _LONGEST_PAUSE)
        return longest * random.uniform(0.5, 1.5)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that an answer asks to wait, a minute at most. RFC 9110, 10.2.3: seconds, or a date by its own clock."""
    text = headers.get("Retry-After", "")
    if text.isdecimal():
        return min(float(text), _LONGEST_WAIT)
    try:
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return min(max((parsedate_to_datetime(text) - now).total_seconds(), 0.0), _LONGEST_WAIT)
    except (TypeError, ValueError):  # no date, or one without a zone
        return 0.0
