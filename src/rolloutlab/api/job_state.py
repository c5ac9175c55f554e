"""State of a training job from its events: status, progress, checkpoint."""

from collections.abc import Sequence
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


ENDED = frozenset({"succeeded", "failed", "cancelled"})
"""Statuses of a job that has ended."""


def since_restart(events: Sequence[Event]) -> Sequence[Event]:
    """The events from the last restart on, as a restarted job repeats its steps."""
    restarts = [i for i, event in enumerate(events) if event.type == "restarted"]
    return events[restarts[-1] :] if restarts else events


def status(events: Sequence[Event]) -> str:
    """queued, running, succeeded, failed or cancelled."""
    reported = [STATUS[event.type] for event in events if event.type in STATUS]
    return reported[-1] if reported else "queued"


def step_made(events: Sequence[Event]) -> int | None:
    """The step of the checkpoint of a job that has succeeded."""
    made: int | None = last_value(events, "training_ended", "step")
    return made


def job_progress(events: Sequence[Event]) -> tuple[int, int | None, str]:
    """Rows done, rows in all if known, and a note."""
    events = since_restart(events)
    steps = gradient_steps(events)
    started = [event.data.get("num_sequences") for event in events if event.type == "training_started"]
    note = f"loss {steps[-1]['loss']:.4f}" if steps and "loss" in steps[-1] else status(events)
    if events and events[-1].type == "waiting":
        note = f"{note}: {events[-1].data.get('reason')}"
    return len(steps), started[-1] if started else None, note


def within_step(events: Sequence[Event]) -> tuple[int, int] | None:
    """Trained tokens that are done of the gradient step under way, and all of them; None where it is not reported."""
    for event in reversed(events):
        if event.type == "step_progress":
            done, of = event.data.get("tokens"), event.data.get("of")
            return (min(done, of), of) if isinstance(done, int) and isinstance(of, int) and of > 0 else None
        if event.type == "gradient_step" or event.type in STATUS:  # a resumed job begins its step again
            return None
    return None


def fraction_done(events: Sequence[Event]) -> float:
    """Rows done, and the fraction of the one under way."""
    done, of = within_step(events) or (0, 1)
    return job_progress(events)[0] + done / of


def last_value(events: Sequence[Event], kind: str, name: str) -> Any:
    """A field of the newest event of one type; None where there is none."""
    return next((e.data.get(name) for e in reversed(events) if e.type == kind), None)


def gradient_steps(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The numbers of each gradient step, in order."""
    return [event.data for event in events if event.type == "gradient_step"]
