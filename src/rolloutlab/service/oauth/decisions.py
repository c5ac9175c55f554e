"""What was decided: the little about a request that its form cannot carry, as it has to happen once."""

from collections.abc import Callable

_MOST_TRIES = 5
_MOST = 200
"""Requests that were denied, or had a wrong passcode, which are remembered."""


class Decisions:
    """Requests by name. Only the owner can add to what was allowed, so none of that is forgotten before its time.

    Anybody can have requests denied and passcodes found wrong. Of those the oldest are forgotten, which lets nobody in:
    such a request has its tries again, and still needs the passcode.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._allowed: dict[str, float] = {}
        self._tries: dict[str, int] = {}

    def is_open(self, name: str) -> bool:
        """Whether a request can still be decided."""
        return name not in self._allowed and self._tries.get(name, _MOST_TRIES) > 0

    def allow(self, name: str, until: float) -> None:
        """It was allowed. until: when its form is over by itself, in seconds since 1970."""
        now = self._clock()
        self._allowed = {each: end for each, end in self._allowed.items() if end > now} | {name: until}

    def deny(self, name: str) -> None:
        """It was denied."""
        self._keep(name, 0)

    def miss(self, name: str) -> None:
        """A passcode for it was wrong; the last try denies it."""
        self._keep(name, self._tries.get(name, _MOST_TRIES) - 1)

    def _keep(self, name: str, tries: int) -> None:
        self._tries.pop(name, None)
        while len(self._tries) >= _MOST:
            self._tries.pop(next(iter(self._tries)))
        self._tries[name] = tries
