"""State of a training job from its events: status, progress, checkpoint."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rolloutlab.api.wire.training import Event

STATUS = {
    "restarted": "queued",
    "waiting": "queued",
    "resumed": "running",
    "training_started": "running",
    "training_ended": "succeeded",
    "training_failed": "failed",
    "training_cancelled": "cancelled",
}


NO_REASON = "the service gave no reason"
"""The reason that is shown for a job that failed without a message."""
ENDED = frozenset({"succeeded", "failed", "cancelled"})
"""Statuses of a job that has ended."""


def number(value: Any) -> float | None:
    """Return a finite number unchanged; None for anything else that a service may send: null, NaN, infinity, a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer that is no float
        return None


def whole(value: Any) -> int | None:
    """Return an integer, such as a count or a step, unchanged; None for any other value."""
    return value if isinstance(value, int) and number(value) is not None else None


def numbers(steps: Sequence[Mapping[str, Any]], name: str) -> list[float | None]:
    """Return one number of each gradient step; None where a step does not have it."""
    return [number(step.get(name)) for step in steps]


def since_restart(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events from the last restart on: a restarted job repeats its steps."""
    restarts = [i for i, event in enumerate(events) if event.type == "restarted"]
    return events[restarts[-1] :] if restarts else events


def status(events: Sequence[Event]) -> str:
    """Return the status of a job: queued, running, succeeded, failed or cancelled."""
    reported = [STATUS[event.type] for event in events if event.type in STATUS]
    return reported[-1] if reported else "queued"


def step_made(events: Sequence[Event]) -> int | None:
    """Return the step of the checkpoint that a job has made; None before it has succeeded."""
    return last_whole(events, "training_ended", "step")


def job_progress(events: Sequence[Event]) -> tuple[int, int | None, str]:
    """Count the rows that are done and all rows of a job, and return both with a note.

    The number of all rows is None if the service does not report it, or reports fewer than are done.
    """
    events = since_restart(events)
    steps = gradient_steps(events)
    loss = number(steps[-1].get("loss")) if steps else None
    note = status(events) if loss is None else f"loss {loss:.4f}"
    if events and events[-1].type == "waiting":
        note = f"{note}: {events[-1].data.get('reason')}"
    rows = last_whole(events, "training_started", "num_sequences")
    return len(steps), rows if rows is None or rows >= len(steps) else None, note


def within_step(events: Sequence[Event]) -> tuple[int, int] | None:
    """Return how many tokens of the running gradient step are done, and how many there are; None if that is unknown."""
    for event in reversed(events):
        if event.type == "step_progress":
            done, of = whole(event.data.get("tokens")), whole(event.data.get("of"))
            return None if done is None or of is None or of <= 0 else (min(done, of), of)
        if event.type == "gradient_step" or event.type in STATUS:  # a resumed job begins its step again
            return None
    return None


def fraction_done(events: Sequence[Event]) -> float:
    """Return the number of rows done, plus the fraction that is done of the row under way."""
    done, of = within_step(events) or (0, 1)
    return job_progress(events)[0] + done / of


def last_value(events: Sequence[Event], kind: str, name: str) -> Any:
    """Return a field of the newest event of one type; None if there is none."""
    return next((e.data.get(name) for e in reversed(events) if e.type == kind), None)


def last_whole(events: Sequence[Event], kind: str, name: str) -> int | None:
    """Return an integer of the newest event of one type; None if there is none."""
    return whole(last_value(events, kind, name))


DISTANCES = {"kl", "kl_base"}
"""Estimates from the few sequences of a step. Single tokens can dominate them, so the job's figure is the median."""


def step_figures(steps: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Combine each number over its steps: a maximum by the largest, a distance by the median, else by the mean."""
    figures: dict[str, float] = {}
    for name in names:
        if values := [value for value in numbers(steps, name) if value is not None]:
            of = max if name.endswith("_max") else median if name in DISTANCES else _mean
            figures[name] = of(values)
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)


def gradient_steps(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the numbers of each gradient step, in order."""
    return [event.data for event in events if event.type == "gradient_step"]
