"""The training form as text and HTML: options with their problems and notes, and what would train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutlab.hints import Hint, as_hint
from rolloutlab.objective.option_docs import MANY_TIMES, OPTIONS, Option, read, written
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.dry_run import LastJob, Plan, about, plan_figures, plan_hints
from rolloutlab.widgets.html import Html, arrows, code, escape
from rolloutlab.widgets.kit.parts import band, foot, head, hints, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.kit.tree import tree

FIRST = ("learning_rate", "epsilon", "groups_per_step", "epochs")
"""Options that a form begins with; the others are folded."""
_DEFAULT = "default"
_COLUMNS = (
    Heading("option"),
    Heading("value"),
    Heading("last job"),
    Heading("default", middle=True),
    Heading("does", middle=True),
)


@dataclass(frozen=True)
class Outlook:
    """What would happen with the options as they are.

    Attributes:
        cell: The cell that would do the same.
        names: The collections to train on.
        plan: The job; None if the options make none.
        error: Why there is no job, and after ` -> ` what to type.
        problems: What is wrong with a value, by option.
        notes: What a user may not expect of a value, by option.
        blocked: Why nothing can be submitted.
        last: The last job of the model.
        changes: The value in the last job and the value now, by option, if they differ.
    """

    cell: str
    names: Sequence[str]
    plan: Plan | None = None
    error: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    blocked: str = ""
    last: LastJob | None = None
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the outlook as the browser takes it."""
        first = self.plan.report.facts[0] if self.plan else self.error
        return {
            "cell": self.cell,
            "head": tree(self.head()),
            "headline": escape_control_chars(first.partition(" -> ")[0] if self.plan else arrows(first)),
            "changed": tree(hints(self.changed_hints())),
            "hints": tree(hints(self.hints())),
            "figures": tree(self.figures()),
            "train": self.button(),
            "problems": dict(self.problems),
            "notes": {name: list(notes) for name, notes in self.notes.items()},
            "blocked": escape_control_chars(self.blocked),
            "was": {name: escape_control_chars(before) for name, (before, _) in self.changes.items()},
            "last": field_texts(self.last.options) if self.last and not self.last.is_fine_tuning else None,
        }

    def head(self) -> Html:
        """Draw the title: the collections, and the checkpoint to train from."""
        title = f"Train on {', '.join(self.names)}"
        return head(title, *about(self.plan)) if self.plan else head(title)

    def changed_hints(self) -> list[Hint]:
        """Return a hint with the options that differ from those of the last job, if any."""
        if not (self.last and self.changes):
            return []
        first = f"{count(len(self.changes), 'option')} changed since job {self.last.id}:"
        arrow = "\N{RIGHTWARDS ARROW}"
        pairs = [f"{name} {before} {arrow} {after}" for name, (before, after) in self.changes.items()]
        return [Hint(first, ", ".join(pairs), kind="info")]

    def hints(self) -> list[Hint]:
        """Return what a person should know first."""
        if not self.plan:
            return [as_hint(self.error, "bad")]
        return [*self._rate_hints(), *plan_hints(self.plan)]

    def figures(self) -> Html:
        """Draw the figures of the job, except its learning rate, which is a field of the form."""
        return band(*plan_figures(replace(self.plan, rate=None))) if self.plan else Html("")

    def button(self) -> str:
        """Write the text of the button, such as `Train: 16 steps, $1.10`."""
        words = [self.plan.step_words(), self.plan.cost] if self.plan else []
        about_it = ", ".join(filter(None, words))
        return f"Train: {about_it}" if about_it else "Train"

    def _rate_hints(self) -> list[Hint]:
        """Return a hint if the learning rate is far above that of the last job."""
        before, after = (read(text) for text in self.changes.get("learning_rate", ("", "")))
        given = [each for each in (before, after) if isinstance(each, int | float) and each > 0]
        if not self.last or len(given) < 2 or after < MANY_TIMES * before:
            return []
        return [Hint(f"learning_rate is {after / before:.3g} times that of job {self.last.id}.", f"It had {before:g}.")]


def controls() -> list[dict[str, Any]]:
    """Return what the browser needs to make a field of each option, in the order of the form."""
    names = ("name", "does", "range", "default", "example", "values")
    ordered = [OPTIONS[name] for name in FIRST] + [option for option in OPTIONS.values() if option.name not in FIRST]
    return [{name: getattr(option, name) for name in names} | {"first": option.name in FIRST} for option in ordered]


def field_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of fields for the options of a job that differ from their defaults."""
    given = {name: options.get(name) for name in OPTIONS}
    return {name: written(value).strip() for name, value in given.items() if not OPTIONS[name].is_default(value)}


def find_changes(texts: Mapping[str, str], last: LastJob | None) -> dict[str, tuple[str, str]]:
    """Find the options that differ from those of the last job; return the value then and now, by option."""
    if last is None or last.is_fine_tuning:
        return {}
    before = field_texts(last.options)
    pairs = {name: (before.get(name, ""), texts.get(name, "")) for name in OPTIONS}
    changed = {name: pair for name, pair in pairs.items() if not _same(OPTIONS[name], *pair)}
    return {name: (old or _DEFAULT, new or _DEFAULT) for name, (old, new) in changed.items()}


def _same(option: Option, one: str, other: str) -> bool:
    values = [read(text) if text else None for text in (one, other)]
    return values[0] == values[1] or all(map(option.is_default, values))


def text(outlook: Outlook) -> str:
    """Write the form as plain text: the cell that would do the same, and what would come of it."""
    wrong = [f"{name}: {problem}" for name, problem in outlook.problems.items()]
    notes = [f"{name}: {note}" for name, notes in outlook.notes.items() for note in notes]
    blocked = [outlook.blocked] if outlook.blocked and not wrong else []
    last = f", {outlook.last}" if outlook.last else ""
    report = [f"for {outlook.plan.checkpoint}{last}", *outlook.plan.lines()] if outlook.plan else [outlook.error]
    changed = [hint.line() for hint in outlook.changed_hints()]
    return escape_control_chars("\n".join([outlook.cell, "", *report, *wrong, *blocked, *changed, *notes]))


def html(outlook: Outlook, texts: Mapping[str, str]) -> Html:
    """Draw the form without scripts: what would happen, the options now and in the last job, and the cell."""
    shown = {*FIRST, *texts, *outlook.changes}
    names = [option["name"] for option in controls()]
    rows = {name: _row(OPTIONS[name], texts.get(name, ""), outlook) for name in names}
    rest = [rows[name] for name in names if name not in shown]
    folded = f'<details><summary class="rl-foot">{len(rest)} more, all at their default</summary>'
    return panel(
        outlook.head(),
        hints(outlook.changed_hints()),
        hints(outlook.hints()),
        outlook.figures(),
        table(_COLUMNS, [rows[name] for name in names if name in shown], "options"),
        f"{folded}{table(_COLUMNS, rest, 'further options')}</details>" if rest else "",
        foot(outlook.blocked) if outlook.blocked else "",
        f'<div class="rl-next">The same as a cell <pre class="rl-cell">{escape(outlook.cell)}</pre></div>',
    )


def _row(option: Option, value: str, outlook: Outlook) -> TableRow:
    wrong = outlook.problems.get(option.name, "")
    lines = [escape(option.does), *map(escape, outlook.notes.get(option.name, ()))]
    shown = Html(f"<b>{escape(value)}</b>" if value else "")
    if wrong:
        shown = Html(f'{shown} <span class="rl-lost">{escape(wrong)}</span>')
    before, _ = outlook.changes.get(option.name, ("", ""))
    return TableRow([code(option.name), shown, before, option.default, Html("<br>".join(lines))])
