"""The report of a run as one page that needs no network and no script: for a colleague, a telephone, a printer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.listing import duration
from rolloutlab.widgets.kit.parts import head, hints, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.run import Overlay, StepText, curves, looks_of, runs_table, step_texts, written

_PAGE = """
body { margin: 0 auto; max-width: 1100px; padding: 12px; background: Canvas; }
.rl-report pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.rl-report h2 { font-size: 15px; margin: 18px 14px 6px; }
@media print {
  .rl-report .rl-chart, .rl-report .rl-card, .rl-report tr { break-inside: avoid; }
  .rl-report details > :not(summary) { display: block; }
}
"""


@dataclass(frozen=True)
class MadeWith:
    """Something that a run was made with, as text: a prompt, the code of a reward. name: what it is."""

    name: str
    text: str


@dataclass(frozen=True)
class RunReport:
    """What a report has.

    Attributes:
        shown: The runs.
        texts: Of some steps, each as of one choice.
        sources: The prompts and the rewards.
        facts: Names and values: versions, service, times.
        seconds: How long each run took, by name.
    """

    shown: Overlay
    texts: Sequence[tuple[str, Sequence[StepText]]]
    sources: Sequence[MadeWith]
    facts: Sequence[tuple[str, str]]
    seconds: Sequence[tuple[str, float]]


def page(report: RunReport) -> str:
    """The whole file."""
    shown = report.shown
    title = escape(f"{shown.name}: {shown.about}")
    body = panel(
        head(shown.name, shown.about),
        hints(shown.hints),
        runs_table(shown),
        curves(shown, shown.numbers),
        *(step_texts(texts, name, looks_of(shown.courses)) for name, texts in report.texts),
        _heading("Every number by step"),
        *(_numbers(shown, i) for i in range(len(shown.courses))),
        _heading("What it was made with") if report.sources else "",
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
    """The numbers of a run, a row for each step."""
    course = shown.courses[i]
    numbers = [number for number in shown.numbers if number.name in course.numbers]
    columns = [Heading("step", number=True), *(Heading(number.title, number=True) for number in numbers)]
    rows = []
    for place, step in enumerate(course.steps):
        values = [(number, course.numbers[number.name][place]) for number in numbers]
        rows.append(TableRow([str(step), *("" if v is None else written(number, v) for number, v in values)]))
    made = table(columns, rows, f"numbers of {course.name}")
    return Html(f'<details open><summary class="rl-foot">{escape(course.name)}</summary>{made}</details>')


def _source(source: MadeWith) -> Html:
    text = f"<pre>{escape(source.text)}</pre>"
    return Html(f'<details><summary class="rl-foot">{escape(source.name)}</summary>{text}</details>')


def _facts(facts: Sequence[tuple[str, str]]) -> Html:
    return table([Heading("what"), Heading("value")], [TableRow([name, value]) for name, value in facts], "facts")
