"""How long a job still takes, from what was seen of it."""

from time import monotonic


class Clock:
    """Counts rows as they are seen to be done. What was done before it first looked says nothing about the pace."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def see(self, done: int) -> None:
        """So many rows are done by now."""
        if done and (self._last is None or done > self._last[1]):
            self._last = (monotonic(), done)
            self._first = self._first or self._last

    def left(self, done: int, rows: int | None) -> float | None:
        """Seconds until all rows are done; None where nobody can know."""
        if not rows or self._first is None or self._last is None or self._last[1] == self._first[1]:
            return None
        pace = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return max(0.0, (rows - done) * pace)
