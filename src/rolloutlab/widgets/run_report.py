"""The report of a run as one page that needs no network and no script: for a colleague, a telephone, a printer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.listing import duration
from rolloutlab.widgets.kit.parts import head, hints, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.run import Overlay, StepText, curves, format_exactly, looks_of, runs_table, step_texts
from rolloutlab.widgets.run_list import option_whole

# The style sheet of views comes later in the page, so the rules here need one class or element more to win over it. No
# column is left out on a telephone, and on paper, which does not scroll, a table is no wider than the page.
_PAGE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1100px; padding: 12px; background: Canvas; }
.rl-report pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.rl-report h2 { font-size: 15px; margin: 18px 14px 6px; }
.rl.rl-report h3 + pre { padding: 0 14px 10px; }
.rl.rl-report table.rl-table :is(th, td).rl-mid { display: table-cell; }
.rl.rl-report table.rl-table th { white-space: normal; }
@media print {
  :root, .rl.rl-report.rl-panel { color-scheme: light; }
  .rl-report :is(.rl-chart, .rl-card, tr) { break-inside: avoid; }
  .rl-report :is(h2, h3) { break-after: avoid; }
  .rl.rl-report .rl-wide { overflow: visible; }
  .rl.rl-report table.rl-table :is(th, td):nth-child(n) { padding: 4px 5px; }
  .rl.rl-report table.rl-table :is(th, td):nth-child(n) { white-space: normal; overflow-wrap: anywhere; }
  .rl.rl-report table.rl-table[aria-label^="numbers of"] :is(td, th:first-child):nth-child(n) { white-space: nowrap; }
  .rl.rl-report table.rl-table .rl-chip { white-space: normal; }
}
"""
_COLUMNS = 7
"""The most columns of a table beside its first one that fit on a page of paper."""


@dataclass(frozen=True)
class MadeWith:
    """Something that a run was made with, such as a prompt or the code of a reward. name: what it is."""

    name: str
    text: str


@dataclass(frozen=True)
class RunReport:
    """The content of a report.

    Attributes:
        shown: The runs.
        texts: The names of choices of texts, each with the texts of a step.
        made: Names and values: the base and the environments.
        sources: The prompts and the rewards.
        facts: Names and values: versions, service, times.
        seconds: How long each run took, by name.
    """

    shown: Overlay
    texts: Sequence[tuple[str, Sequence[StepText]]]
    made: Sequence[tuple[str, str]]
    sources: Sequence[MadeWith]
    facts: Sequence[tuple[str, str]]
    seconds: Sequence[tuple[str, float]]


def page(report: RunReport) -> str:
    """Write the whole file."""
    shown = report.shown
    title = escape(f"{shown.name}: {shown.about}")
    body = panel(
        head(shown.name, shown.about),
        *(hints([hint]) for hint in shown.hints),
        runs_table(shown, folds=False),
        curves(shown, shown.numbers),
        *(step_texts(texts, name, looks_of(shown.courses)) for name, texts in report.texts),
        _heading("Every number by step"),
        *(_numbers(shown, i) for i in range(len(shown.courses))),
        _heading("What it was made with"),
        _facts(report.made) if report.made else "",
        *_options(shown),
        _changes(shown),
        *(_source(source) for source in report.sources),
        _heading("Where and when"),
        _facts([*report.facts, *((f"time of {name}", duration(seconds)) for name, seconds in report.seconds)]),
        kind="rl-report",
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src'
        " 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_PAGE}</style></head><body>{body}</body></html>\n"
    )


def _heading(text: str) -> Html:
    return Html(f"<h2>{escape(text)}</h2>")


def _numbers(shown: Overlay, i: int) -> Html:
    """Draw the numbers of a run, with a row for each step."""
    course = shown.courses[i]
    numbers = [number for number in shown.numbers if number.name in course.numbers]
    columns = [Heading("step", number=True), *(Heading(number.title, number=True) for number in numbers)]
    rows = []
    for place, step in enumerate(course.steps):
        values = [(number, course.numbers[number.name][place]) for number in numbers]
        rows.append(TableRow([str(step), *("" if v is None else format_exactly(number, v) for number, v in values)]))
    pieces = _pieces(columns, rows, f"numbers of {course.name}")
    return Html(f"{_title(course.name)}{''.join(pieces)}")


def _options(shown: Overlay) -> list[Html]:
    """Draw the options of the last job of each run, in full."""
    names = list(dict.fromkeys(name for row in shown.rows for name in row.options))
    columns = [Heading("option"), *(Heading(row.name) for row in shown.rows)]
    rows = [
        TableRow([name, *(option_whole(row.options[name]) if name in row.options else "" for row in shown.rows)])
        for name in names
    ]
    return _pieces(columns, rows, "options") if rows else []


def _changes(shown: Overlay) -> Html:
    """Draw the options that changed between the jobs of the runs."""
    columns = [Heading("run"), Heading("from step", number=True), *map(Heading, ("option", "before", "after"))]
    rows = [
        TableRow([row.name, str(step), option, option_whole(before), option_whole(after)])
        for row in shown.rows
        for step, option, before, after in row.changes
    ]
    return Html(f"{_title('Options that changed')}{table(columns, rows, 'options that changed')}" if rows else "")


def _pieces(columns: Sequence[Heading], rows: Sequence[TableRow], label: str) -> list[Html]:
    """Draw a table in pieces that are no wider than a page, each with the first column."""
    pieces = []
    for i in range(1, max(len(columns), 2), _COLUMNS):
        until = i + _COLUMNS
        cut = [TableRow([row.cells[0], *row.cells[i:until]]) for row in rows]
        pieces.append(table([columns[0], *columns[i:until]], cut, label if i == 1 else f"{label}, further columns"))
    return pieces


def _title(text: str) -> Html:
    return Html(f'<h3 class="rl-foot">{escape(text)}</h3>')


def _source(source: MadeWith) -> Html:
    return Html(f"{_title(source.name)}<pre>{escape(source.text)}</pre>")


def _facts(facts: Sequence[tuple[str, str]]) -> Html:
    return table([Heading("what"), Heading("value")], [TableRow([name, value]) for name, value in facts], "facts")
