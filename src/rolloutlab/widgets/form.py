"""The training form as text and HTML: options with their problems and notes, and what would train."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.objective.option_docs import OPTIONS, Option
from rolloutlab.objective.preflight import Preflight
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.dry_run import with_fix
from rolloutlab.widgets.html import Html, Words, code, escape, html_table, paragraphs

_BINS = 24


@dataclass(frozen=True)
class Outlook:
    """What would come of the options as they are.

    model: the one that would train. report: the pre-flight report, line by line, ` -> ` before what to type. spread:
    of the advantages, as `spread` has it. problems: by option, what is wrong with its value. notes: by option, what a
    person may not expect. blocked: why nothing can be submitted.
    """

    cell: str
    model: str = ""
    report: tuple[str, ...] = ()
    spread: Mapping[str, Any] | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    blocked: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a browser takes it."""
        first, *rest = self.report or ("",)
        return {
            "cell": self.cell,
            "model": escape_control_chars(self.model),
            "headline": escape_control_chars(first),
            "rest": [with_fix(line) for line in rest],
            "spread": self.spread,
            "problems": dict(self.problems),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
            "blocked": escape_control_chars(self.blocked),
        }


def controls() -> list[dict[str, Any]]:
    """Every option as a browser needs it to make a field of it."""
    names = ("name", "does", "range", "default", "example", "values")
    return [{name: getattr(option, name) for name in names} for option in OPTIONS.values()]


def spread(check: Preflight) -> dict[str, Any] | None:
    """Histogram of the advantages that train: least, most, and counts in equal bins around 0."""
    turns = (turn for share in check.all_shares() for turn in share.by_turn())
    advantages = [turn.advantage for turn in turns if turn.advantage is not None]
    widest = max(map(abs, advantages), default=0.0)
    if not widest:
        return None
    bins = [0] * _BINS
    for advantage in filter(None, advantages):
        bins[min(_BINS - 1, math.floor((advantage / widest + 1) / 2 * _BINS))] += 1
    above, below = sum(a > 0 for a in advantages), sum(a < 0 for a in advantages)
    at_0 = len(advantages) - above - below
    least, most = min(advantages), max(advantages)
    return {"least": least, "most": most, "above": above, "below": below, "at_0": at_0, "bins": bins}


def text(outlook: Outlook) -> str:
    """The form as plain text: the cell that would do the same, and what would come of it."""
    wrong = [f"{name}: {problem}" for name, problem in outlook.problems.items()]
    notes = [f"{name}: {note}" for name, notes in outlook.notes.items() for note in notes]
    blocked = [outlook.blocked] if outlook.blocked and not wrong else []
    model = [f"for {outlook.model}"] if outlook.model else []
    return escape_control_chars("\n".join([outlook.cell, "", *model, *outlook.report, *wrong, *blocked, *notes]))


def html(outlook: Outlook, texts: Mapping[str, str]) -> str:
    """The form as HTML: a table of its options, the cell, and what would come of it."""
    rows = [_row(option, texts.get(option.name, ""), outlook) for option in OPTIONS.values()]
    table = html_table([Words(name) for name in ("option", "value", "default", "does")], rows)
    return f"<pre>{code(outlook.cell)}</pre>{paragraphs([*outlook.report, outlook.blocked])}{table}"


def _row(option: Option, typed: str, outlook: Outlook) -> list[Words]:
    wrong = outlook.problems.get(option.name, "")
    lines = filter(None, [option.does, wrong, *outlook.notes.get(option.name, ())])
    value = Html(f"<b>{escape(typed)}</b>" if typed else "")
    return [*map(Words, (code(option.name), value, option.default, Html("<br>".join(map(escape, lines)))))]
