"""Tables of runs for tests."""

from datetime import UTC, datetime, timedelta

from rolloutlab.runs.table import RunTable

BEGIN = datetime(2026, 11, 29, 12, 0, 0, 250_000, tzinfo=UTC)


def table(count=3, **fields) -> RunTable:
    """A run of some steps, a minute each, with overrides."""
    numbers = {"reward": [0.1 * step for step in range(count)], "tokens": [1000 * step for step in range(count)]}
    times = [BEGIN + timedelta(minutes=step) for step in range(count)]
    wanted = {
        "project": "geo", "name": "capitals", "config": {"learning_rate": 1e-5, "base": "practice"}, "tags": ["first"],
        "steps": range(count), "times": times, "numbers": numbers,
    } | fields  # fmt: skip
    return RunTable(**wanted)
