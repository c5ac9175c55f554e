"""The lab's passcode: who knows it is the owner, and not just anybody on this machine who can open a page of ours."""

import secrets
import time
from collections import deque
from collections.abc import Callable

_MOST_WRONG = 20
_WINDOW = 60.0


class TooMany(Exception):  # noqa: N818 - the page says to wait
    """So many wrong passcodes were given that the next ones are not looked at for a while."""


class Passcode:
    """Compares. read: what it is now. 20 wrong ones a minute are looked at, of the 10^18 that there are."""

    def __init__(self, read: Callable[[], str], clock: Callable[[], float] = time.time) -> None:
        self._read = read
        self._clock = clock
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    def fits(self, given: str) -> bool:
        """Whether it is the passcode, however it is spaced and in whatever case; TooMany after many wrong ones."""
        now = self._clock()
        if len(self._wrong) == _MOST_WRONG and now - self._wrong[0] < _WINDOW:
            raise TooMany
        right = secrets.compare_digest(_bare(given), _bare(self._read()))
        if not right:
            self._wrong.append(now)
        return right


def _bare(text: str) -> bytes:
    return "".join(text.split()).replace("-", "").lower().encode()
