"""How the training form looks: its options with what is wrong or special about them, and what would train."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from rolloutlab.objective.option_docs import OPTIONS, Option
from rolloutlab.objective.preflight import Preflight
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.dry_run import with_fix
from rolloutlab.widgets.html import heading, words

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

    def told(self) -> dict[str, Any]:
        """As JSON for a browser."""
        first, *rest = self.report or ("",)
        return {
            "cell": self.cell,
            "model": escape_control_chars(self.model),
            "headline": escape_control_chars(first),
            "rest": [with_fix(line) for line in rest],
            "spread": self.spread,
            "problems": dict(self.problems),
            "notes": {name: list(said) for name, said in self.notes.items()},
            "blocked": escape_control_chars(self.blocked),
        }


def controls() -> list[dict[str, Any]]:
    """Every option as a browser needs it to make a field of it."""
    return [
        {
            "name": option.name,
            "does": option.does,
            "range": option.range,
            "default": option.default,
            "example": option.example,
            "values": option.values,
        }
        for option in OPTIONS.values()
    ]


def spread(check: Preflight) -> dict[str, Any] | None:
    """How the advantages of what trains are spread: least, most, and counts in equal bins around 0."""
    found = [share.advantage for share in check.all_shares() if share.reason is None]
    widest = max(map(abs, found), default=0.0)
    if not widest:
        return None
    bins = [0] * _BINS
    for advantage in filter(None, found):
        bins[min(_BINS - 1, math.floor((advantage / widest + 1) / 2 * _BINS))] += 1
    above, below = sum(a > 0 for a in found), sum(a < 0 for a in found)
    at_0 = len(found) - above - below
    return {"least": min(found), "most": max(found), "above": above, "below": below, "at_0": at_0, "bins": bins}


def text(outlook: Outlook) -> str:
    """The form as plain text: the cell that would do the same, and what would come of it."""
    wrong = [f"{name}: {problem}" for name, problem in outlook.problems.items()]
    notes = [f"{name}: {note}" for name, notes in outlook.notes.items() for note in notes]
    blocked = [outlook.blocked] if outlook.blocked and not wrong else []
    model = [f"for {outlook.model}"] if outlook.model else []
    return escape_control_chars("\n".join([outlook.cell, "", *model, *outlook.report, *wrong, *blocked, *notes]))


def html(outlook: Outlook, texts: Mapping[str, str]) -> str:
    """The form as HTML: a table of its options, the cell, and what would come of it."""
    head = f"<tr>{''.join(map(heading, ('option', 'value', 'default', 'does')))}</tr>"
    rows = "".join(_row(option, texts.get(option.name, ""), outlook) for option in OPTIONS.values())
    said = [*outlook.report, *([outlook.blocked] if outlook.blocked else [])]
    words = "".join(f"<p>{escape(escape_control_chars(line))}</p>" for line in said)
    return f"<pre><code>{escape(escape_control_chars(outlook.cell))}</code></pre>{words}<table>{head}{rows}</table>"


def _row(option: Option, typed: str, outlook: Outlook) -> str:
    wrong = outlook.problems.get(option.name)
    said = [option.does, *([wrong] if wrong else []), *outlook.notes.get(option.name, ())]
    value = f"<b>{escape(escape_control_chars(typed))}</b>" if typed else ""
    does = "<br>".join(escape(escape_control_chars(line)) for line in said)
    cells = (f"<code>{option.name}</code>", value, escape(option.default), does)
    return f"<tr>{''.join(map(words, cells))}</tr>"
