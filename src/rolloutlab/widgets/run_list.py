"""The runs of a lab as a table: rewards before and at best, their course, options that differ, tags and note."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

from rolloutlab.hints import Hint
from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.change import draw_change
from rolloutlab.widgets.kit.chart import spark
from rolloutlab.widgets.kit.listing import (
    SHOWN_ROWS,
    Cell,
    Drawn,
    Listing,
    ListingRow,
    ago,
    draw_details,
    draw_mean,
    duration,
)
from rolloutlab.widgets.kit.parts import chip
from rolloutlab.widgets.kit.table import Heading
from rolloutlab.widgets.text import decimals, signed

_COLUMNS = (
    Heading("run"),
    Heading("before", number=True, middle=True),
    Heading("best", number=True),
    Heading("gain", number=True),
    Heading("at", number=True, middle=True),
    Heading("by step", middle=True),
    Heading("steps", number=True),
    Heading("time", number=True, middle=True, spare=True),
    Heading("cost", number=True, middle=True, spare=True),
    Heading("when", middle=True),
    Heading("options that differ", middle=True),
    Heading("tags, note", middle=True),
)
_LONG = 24
_NOTE = 60


@dataclass(frozen=True)
class ListedRun:
    """A row of the list.

    Attributes:
        name: The name of the run.
        is_held_out: Whether its means are of held-out rows.
        before: The first mean.
        best: The highest mean.
        error: The standard error of the highest mean.
        at: The step of the highest mean.
        means: All means, in order.
        steps: How many checkpoints it has.
        seconds: From its first job to its last step.
        cost: Dollars, if known.
        when: The time of its last step.
        options: The options in which it differs from other listed runs.
        tags: Its tags.
        note: Its note.
        facts: Names and values that the opened row shows.
    """

    name: str
    is_held_out: bool
    before: float | None
    best: float | None
    error: float | None
    at: int | None
    means: Sequence[float]
    steps: int
    seconds: float
    cost: float | None
    when: str
    options: Mapping[str, Any]
    tags: Sequence[str]
    note: str
    facts: Sequence[tuple[str, str]]


def run_listing(runs: Sequence[ListedRun], now: datetime, *, all_of_them: bool = False) -> Listing:
    """List runs, the one that was trained last first. all_of_them: show more than the first rows."""
    rows = [_row(run, now) for run in (runs if all_of_them else runs[:SHOWN_ROWS])]
    left = len(runs) - len(rows)
    held_out = {run.is_held_out for run in runs}
    what = (
        ""
        if not runs
        else " · means of held-out rows where there are any"
        if len(held_out) > 1
        else (" · means of held-out rows" if held_out == {True} else " · means of what they trained on")
    )
    about = f"{len(rows)} of {len(runs):,}, newest first" if left else f"{len(runs):,}" if rows else "none yet"
    more = [Hint(f"{left} older runs are not shown.", "lab.runs() has them all.", "", "info")] if left else []
    cells = [f"%runs {quote(runs[0].name)}"] if runs else ["%jobs"]
    return Listing("Runs", f"{about}{what}", _COLUMNS, rows, hints=more, cells=cells)


def _row(run: ListedRun, now: datetime) -> ListingRow:
    options = [f"{name} {option_text(value)}" for name, value in run.options.items()]
    cells = [
        Drawn(run.name, Html(f"<b>{escape(run.name)}</b>")),
        "" if run.before is None else draw_mean(run.before),
        _best(run),
        _gain(run),
        "" if run.at is None else f"@{run.at}",
        Drawn("", spark(run.means) if len(run.means) > 1 else Html("")),
        f"{run.steps:,}",
        duration(run.seconds),
        "" if run.cost is None else f"${decimals(run.cost, '.2f')}",
        ago(run.when, now),
        Drawn("", Html("".join(map(chip, options)))),
        _note(run),
    ]
    below = [line for line in (", ".join(options), _noted(run)) if line]
    return ListingRow(cells, opens=draw_details(run.facts, f"%runs {quote(run.name)}"), below=below)


def _best(run: ListedRun) -> Cell:
    if run.best is None:
        return ""
    mean = draw_mean(run.best)
    if run.error is None:
        return mean
    # twice the standard error is nearly the 95% interval of many groups
    around = f"± {decimals(2 * run.error, '.2f')}"
    return Drawn(f"{mean.text} {around}", Html(f'{mean.html} <span class="rl-dim">{around}</span>'))


def _gain(run: ListedRun) -> Cell:
    if run.best is None or run.before is None:
        return ""
    gain = run.best - run.before
    return Drawn(signed(gain), draw_change(gain)) if gain and not math.isnan(gain) else ""


def _note(run: ListedRun) -> Cell:
    note = escape_to_one_line(run.note, _NOTE)
    return Drawn("", Html("".join(map(chip, run.tags)) + f' <span class="rl-dim">{escape(note)}</span>' * bool(note)))


def _noted(run: ListedRun) -> str:
    tags = ", ".join(run.tags)
    return ": ".join(filter(None, [f"[{tags}]" if tags else "", run.note]))


def option_text(value: Any) -> str:
    """Write the value of an option for a chip or a column, shortened."""
    if isinstance(value, float):
        value = f"{value:g}"
    return escape_to_one_line(_plain(value), _LONG)


def option_whole(value: Any) -> str:
    """Write the value of an option with all its digits and characters, in quotes if its blanks would be lost."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    text = _plain(value)
    return text if text and text == " ".join(text.split()) else repr(value)


def _plain(value: Any) -> str:
    return "default" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
