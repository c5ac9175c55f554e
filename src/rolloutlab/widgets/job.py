"""How a training job looks: a fold over its events, live or replayed."""

from collections.abc import Sequence
from html import escape
from typing import Any

from rolloutlab.objective.preflight import count
from rolloutlab.widgets.plot import Panels, Plot, Series
from rolloutlab.wire.events import Event

_STATUS = {
    "restarted": "queued",
    "training_started": "running",
    "training_ended": "succeeded",
    "training_failed": "failed",
    "training_cancelled": "cancelled",
}
_SHOWN = ("reward", "loss", "grad_norm", "entropy", "ratio_mean", "ratio_max", "clipped", "old_new_correlation")


PLOTTED = ("reward", "loss", "entropy", "grad_norm")


def since_restart(events: Sequence[Event]) -> Sequence[Event]:
    """The events from the last restart on: a job that starts over makes its steps again."""
    restarts = [i for i, event in enumerate(events) if event.type == "restarted"]
    return events[restarts[-1] :] if restarts else events


def status(events: Sequence[Event]) -> str:
    """queued, running, succeeded, failed or cancelled."""
    said = [_STATUS[event.type] for event in events if event.type in _STATUS]
    return said[-1] if said else "queued"


def progress(events: Sequence[Event]) -> tuple[int, int | None, str]:
    """Rows done, rows in all if known, and a note."""
    events = since_restart(events)
    steps = _steps(events)
    started = [event.data.get("num_sequences") for event in events if event.type == "training_started"]
    note = f"loss {steps[-1]['loss']:.4f}" if steps and "loss" in steps[-1] else status(events)
    return len(steps), started[-1] if started else None, note


def text(model: str, events: Sequence[Event]) -> str:
    """The job as plain text."""
    events = since_restart(events)
    lines = [_heading(model, events), *_reasons(events)]
    steps = _steps(events)
    if steps:
        lines.append("  " + "  ".join(f"{name} {_number(value)}" for name, value in _means(steps).items()))
    return "\n".join(lines)


def html(model: str, events: Sequence[Event]) -> str:
    """The job as HTML."""
    events = since_restart(events)
    parts = [f"<p><b>{escape(_heading(model, events))}</b></p>"]
    parts += [f"<p>{escape(line.strip())}</p>" for line in _reasons(events)]
    means = _means(_steps(events))
    if means:
        head = "".join(f"<th>{escape(name)}</th>" for name in means)
        body = "".join(f"<td>{_number(value)}</td>" for value in means.values())
        parts.append(f"<table><tr>{head}</tr><tr>{body}</tr></table>")
    return "".join(parts)


def plot(model: str, steps: Sequence[dict[str, Any]], names: Sequence[str]) -> Panels:
    """A chart per number, over the gradient steps that have it."""
    shown = [name for name in names if any(name in step for step in steps)]
    numbers = [float(i) for i in range(1, len(steps) + 1)]
    return Panels(
        [
            Plot([Series(name, numbers, [step.get(name) for step in steps])], title=name, x_label="gradient step")
            for name in shown
        ],
        empty=f"job on {model}: no gradient steps to plot yet",
    )


def _heading(model: str, events: Sequence[Event]) -> str:
    done, rows, _ = progress(events)
    made = [event.data["step"] for event in events if event.type == "checkpoint_saved"]
    became = f" -> {model}@{made[-1]}" if made else ""
    steps = "" if rows is None else f", {done} of {count(rows, 'gradient step')}"
    return f"job on {model}: {status(events)}{steps}{became}"


def _reasons(events: Sequence[Event]) -> list[str]:
    """Why it failed, and how many trajectories did not train."""
    lines = [f"  {event.data.get('error_message')}" for event in events if event.type == "training_failed"]
    for event in events:
        if event.type == "preflight":
            left_out = ", ".join(f"{n} {reason}" for reason, n in event.data.get("reasons", {}).items())
            lines += [f"  did not train: {left_out}"] if left_out else []
            lines += [f"  {warning}" for warning in event.data.get("warnings", [])]
    return lines


def _steps(events: Sequence[Event]) -> list[dict[str, Any]]:
    return [event.data for event in events if event.type == "gradient_step"]


def _means(steps: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of each number over the steps that have it; the largest for a maximum."""
    found: dict[str, float] = {}
    for name in _SHOWN:
        values = [step[name] for step in steps if name in step]
        if values:
            found[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return found


def _number(value: float) -> str:
    return f"{value:.4g}"
