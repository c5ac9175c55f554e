"""How a training job looks: a fold over its events, live or replayed."""

from collections.abc import Sequence
from html import escape
from typing import Any

from rolloutlab.api.events import gradient_steps, job_progress, last_value, since_restart, status
from rolloutlab.api.wire.training import ENDINGS, Event
from rolloutlab.objective.preflight import count, explained
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets import job_curves as curves
from rolloutlab.widgets.dry_run import with_fix
from rolloutlab.widgets.html import heading, words
from rolloutlab.widgets.plot import Panels, Plot, Series, sparkline

_MOST_POINTS = 120
_MOST_PLACES = 3
_PARTS = (
    ("trajectories that train", "trainable_trajectories", "trajectories"),
    ("groups that train", "trainable_groups", "groups"),
)
_SHOWN = ("reward", "loss", "grad_norm", "entropy", "kl", "old_new_correlation", "ratio_mean", "ratio_max", "clipped")

PLOTTED = ("reward", "loss", "entropy", "grad_norm")


def text(model: str, events: Sequence[Event]) -> str:
    """The job as plain text."""
    events = since_restart(events)
    lines = [_heading(model, events), *_reasons(events)]
    steps = gradient_steps(events)
    if steps:
        lines.append("  " + "  ".join(f"{name} {_number(value)}" for name, value in _means(steps).items()))
    return "\n".join(lines)


def html(model: str, events: Sequence[Event]) -> str:
    """The job as HTML; its course as a picture that needs no script."""
    events = since_restart(events)
    parts = [f"<p><b>{escape(_heading(model, events))}</b></p>"]
    parts += [f"<p>{escape(line.strip())}</p>" for line in _reasons(events)]
    steps = gradient_steps(events)
    means = _means(steps)
    if means:
        head = "".join(f"<th>{escape(name)}</th>" for name in means)
        body = "".join(f"<td>{_number(value)}</td>" for value in means.values())
        parts.append(f"<table><tr>{head}</tr><tr>{body}</tr></table>")
    if len(steps) > 1:
        parts += [_courses(events), plot(model, steps, PLOTTED).svg()]
    return "".join(parts)


def head(model: str, events: Sequence[Event], collections: Sequence[str] = (), compare: str = "") -> dict[str, Any]:
    """What a browser shows above the curves, as JSON: where the job is, what did not train and why, what to type next.

    collections: names of what it trains on, for what there is to type. compare: the command that compares checkpoints
    on one of them, where any was sampled from prompts that can be sampled again.
    """
    events = since_restart(events)
    done, rows, _ = job_progress(events)
    made = last_value(events, "checkpoint_saved", "step")
    return {
        "status": status(events),
        "ended": bool(events) and events[-1].type in ENDINGS,
        "model": escape_control_chars(model),
        "done": done,
        "rows": rows,
        "made": None if made is None else escape_control_chars(f"{model}@{made}"),
        "facts": _facts(events),
        "notes": _notes(events, collections[0] if collections else "NAME"),
        "odd": curves.oddities(curves.numbers(events)),
        "next": [escape_control_chars(line) for line in _next(events, collections, made, compare)],
    }


def plot(model: str, steps: Sequence[dict[str, Any]], names: Sequence[str]) -> Panels:
    """A chart per number, over the gradient steps that have it."""
    shown = [name for name in names if any(name in step for step in steps)]
    every = -(-len(steps) // _MOST_POINTS) or 1
    numbers, kept = [float(i) for i in range(1, len(steps) + 1)][::every], steps[::every]
    return Panels(
        [
            Plot([Series(name, numbers, [step.get(name) for step in kept])], title=name, x_label="gradient step")
            for name in shown
        ],
        empty=f"job on {model}: no gradient steps to plot yet",
    )


def _heading(model: str, events: Sequence[Event]) -> str:
    done, rows, _ = job_progress(events)
    made = [event.data["step"] for event in events if event.type == "checkpoint_saved"]
    became = f" -> {model}@{made[-1]}" if made else ""
    steps = "" if rows is None else f", {done} of {count(rows, 'gradient step')}"
    return f"job on {model}: {status(events)}{steps}{became}"


def _reasons(events: Sequence[Event]) -> list[str]:
    """Why it failed, and how many trajectories did not train."""
    notes = _notes(events, "NAME")
    return [f"  {note['text']}" for kind in ("failed", "left out", "warning") for note in notes if note["kind"] == kind]


def _notes(events: Sequence[Event], collection: str) -> list[dict[str, str]]:
    """What a person should know: kind (`failed`, `left out` or `warning`), text, and fix: what to type about it."""
    found = [
        {"kind": "failed", "text": escape_control_chars(str(event.data.get("error_message"))), "fix": "%service log"}
        for event in events
        if event.type == "training_failed"
    ]
    for event in events:
        if event.type == "preflight":
            for reason, n in event.data.get("reasons", {}).items():
                why, fix = explained(reason, collection)
                what = list(event.data.get(reason) or ()) if reason == "unreadable" else []
                why += f", {', '.join(what[:_MOST_PLACES])}" * bool(what)
                found.append(_note("left out", f"{n} did not train: {why}" + f" -> {fix}" * bool(fix)))
            found += [_note("warning", str(warning)) for warning in event.data.get("warnings", [])]
    return found


def _note(kind: str, line: str) -> dict[str, str]:
    return {"kind": kind, **with_fix(line)}


def _facts(events: Sequence[Event]) -> list[tuple[str, str]]:
    """What is the same for the whole job, as name and value."""
    steps = gradient_steps(events)
    last = steps[-1] if steps else {}
    facts = []
    if isinstance(mean := last.get("reward"), int | float):
        spread = last.get("reward_std_dev")
        facts.append(("mean reward", f"{mean:.3f}" + (f" ± {spread:.3f}" if isinstance(spread, int | float) else "")))
    for event in events:
        if event.type == "preflight":
            facts += [
                (noun, f"{event.data[part]:,} of {event.data[whole]:,}")
                for noun, part, whole in _PARTS
                if all(isinstance(event.data.get(name), int) for name in (part, whole))
            ]
    rate = last_value(events, "training_started", "learning_rate")
    return [*facts, *([("learning rate", f"{rate:g}")] if isinstance(rate, int | float) else [])]


def _next(events: Sequence[Event], collections: Sequence[str], made: Any, compare: str) -> list[str]:
    """What to type once the job has ended."""
    name = collections[0] if collections else "NAME"
    if made is None:
        return [f"%%train {' '.join(collections) or name}"] if status(events) in {"failed", "cancelled"} else []
    begun = last_value(events, "training_started", "step")
    before = f" --before {begun}" if begun is not None else ""
    return [*([f"{compare}{before} --after {made}"] if compare else []), f"%%chat {name}"]


def _means(steps: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of each number over the steps that have it; the largest for a maximum."""
    found: dict[str, float] = {}
    for name in _SHOWN:
        values = [step[name] for step in steps if name in step]
        if values:
            found[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return found


def _courses(events: Sequence[Event]) -> str:
    """How each curve goes, and what is healthy about it or odd, for a page that shows neither scripts nor pictures."""
    numbers = curves.numbers(events)
    odd = curves.oddities(numbers)
    body = ""
    for curve in curves.drawn(numbers):
        course = sparkline([y for y in numbers.get(curve.names[0], ()) if y is not None])
        cells = (curve.title, course, odd.get(curve.title, curve.healthy))
        body += f"<tr>{''.join(words(escape(cell)) for cell in cells)}</tr>"
    return f"<table><tr>{''.join(map(heading, ('curve', 'course', 'healthy')))}</tr>{body}</table>"


def _number(value: float) -> str:
    return f"{value:.4g}"
