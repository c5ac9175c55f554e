"""Tally of a scoring run: what was scored, failed and called, and how long the rest takes."""

import math
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """What a run has done. failed: by type of error. called, seconds: calls that were made and their time, by function.

    reused: results that were stored.
    """

    scored: int = 0
    called: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    reused: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def failures(self) -> int:
        return self.failed.total()

    @property
    def done(self) -> int:
        """Trajectories with an outcome."""
        return self.scored + self.failures

    def add(self, function: str, seconds: float, calls: int = 1) -> None:
        """Count calls, which took so many seconds in all."""
        self.called[function] += calls
        self.seconds[function] = self.seconds.get(function, 0.0) + seconds

    def line(self) -> str:
        """How many were scored, and how many failed by type of error."""
        if not self.failures:
            return f"{self.scored:,} scored"
        kinds = ", ".join(f"{error} \N{MULTIPLICATION SIGN}{times:,}" for error, times in self.failed.most_common())
        return f"{self.scored:,} scored, {self.failures:,} failed: {kinds}"


def pace(done: int, total: int, seconds: float) -> str:
    """Rate and time left: `3.2/s, 2 min left`."""
    if not done or seconds <= 0:
        return ""
    left = max(0, total - done) * seconds / done
    return f"{done / seconds:,.1f}/s, {duration(left)} left"


def duration(seconds: float) -> str:
    """`40 s`, `2 min` or `3.5 h`."""
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
