"""Runs as text and HTML: what differs, the course of each number over steps, and texts of a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.change import draw_change
from rolloutlab.widgets.kit.chart import COLOURS, ChartLine, chart, charts
from rolloutlab.widgets.kit.listing import draw_mean, percent
from rolloutlab.widgets.kit.parts import band, cell, chip, figure, foot, head, hints, line, next_cells, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.kit.tree import tree
from rolloutlab.widgets.plot import sparkline
from rolloutlab.widgets.run_list import option_text, option_whole
from rolloutlab.widgets.run_numbers import OPEN, REWARDS, RunNumber
from rolloutlab.widgets.text import decimals

Values = Sequence[float | None]
_MOST_CHANGES = 6
_MAX_CHARS = 1_500
_ROUNDING = 1e-9
_LARGE = 1e6
"""Numbers from here on are written with three digits and a power of ten, not with hundreds of digits."""
_LARGEST_WHOLE = 1e15
_FEWEST = 3
"""The fewest steps of a chart."""
_LONGEST_VALUE = 80
_MOST_VALUES = 6
Looks = Mapping[str, int]
_NONE: Looks = {}


@dataclass(frozen=True)
class RunCourse:
    """The numbers of a run by step, or the means of several seeds.

    Attributes:
        name: The name of the run, or of the runs of several seeds.
        members: The names of the runs.
        steps: The numbers of the checkpoints, in order.
        hours: Hours since the first job, by step.
        numbers: By name, a value for each step; None if there is none.
        lows, highs: By name, the least and the largest value of several seeds; empty for one run.
        main: The number that it is judged by.
    """

    name: str
    members: Sequence[str]
    steps: Sequence[int]
    hours: Sequence[float]
    numbers: Mapping[str, Values]
    lows: Mapping[str, Values] = field(default_factory=dict)
    highs: Mapping[str, Values] = field(default_factory=dict)
    main: str = "reward"

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return the steps that have a number, with its value."""
        pairs = zip(self.steps, self.numbers.get(name, ()), strict=False)
        return [(float(step), value) for step, value in pairs if value is not None]

    def band(self, name: str) -> list[tuple[float, float, float]]:
        """Return the steps at which several seeds have a number, with its least and its largest value."""
        ends = zip(self.steps, self.lows.get(name, ()), self.highs.get(name, ()), strict=False)
        return [(float(step), low, high) for step, low, high in ends if low is not None and high is not None]


@dataclass(frozen=True)
class RunRow:
    """What the table of runs shows of one run, or of several seeds.

    Attributes:
        name: Its name.
        before, best: The first and the highest mean.
        error: The standard error of the highest mean, of one run.
        at: The steps of the highest means, one for each seed.
        best_name: The name of the best checkpoint, to type.
        again: The mean of the best checkpoint with other seeds than it was chosen by.
        options: The options of its last job.
        changes: Options that changed between its jobs: step, name, before, after.
        tags: Its tags.
        note: Its note.
    """

    name: str
    before: float | None
    best: float | None
    error: float | None
    at: Sequence[int]
    best_name: str
    again: float | None
    options: Mapping[str, Any]
    changes: Sequence[tuple[int, str, Any, Any]]
    tags: Sequence[str]
    note: str


@dataclass(frozen=True)
class StepText:
    """A sampled text of a step. group: the group that has it. change: how its reward changed since the first step."""

    run: str
    step: int
    group: str
    prompt: str
    answer: str
    reward: float | None
    change: float | None
    tokens: int
    cut_off: bool
    row: Mapping[str, str]


@dataclass(frozen=True)
class Overlay:
    """One or several runs over common steps.

    Attributes:
        courses: Their numbers.
        rows: What the table shows of each.
        numbers: The numbers that any of them has, in order.
        hints: What a person should know, each with the run and the step at which it began.
        about: What the runs are about.
        next: Cells to type next.
    """

    courses: Sequence[RunCourse]
    rows: Sequence[RunRow]
    numbers: Sequence[RunNumber]
    hints: Sequence[Hint]
    about: str
    next: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.courses[0].name if len(self.courses) == 1 else count(len(self.courses), "run")


def looks_of(courses: Sequence[RunCourse]) -> Looks:
    """Return the place of the colour of each run."""
    return {name: i for i, course in enumerate(courses) for name in course.members}


def text(shown: Overlay) -> str:
    """Write runs as plain text."""
    lines = [f"{shown.name}  {shown.about}", *(hint.line() for hint in shown.hints)]
    for row, course in zip(shown.rows, shown.courses, strict=True):
        means = [value for _, value in course.points(course.main)]
        lines.append(f"  {row.name}: {_result(row)}")
        lines.append(f"    {_title(shown, course.main)}  {sparkline(means)}")
        lines += [f"    {_change(option_text, *change)}" for change in row.changes[:_MOST_CHANGES]]
    return "\n".join(map(escape_control_chars, lines))


def _result(row: RunRow) -> str:
    if row.best is None:
        return "no mean reward yet"
    at = f" at step {', '.join(map(str, dict.fromkeys(row.at)))}" if row.at else ""
    before = "" if row.before is None else f"{decimals(row.before)} before, "
    again = "" if row.again is None else f"; {decimals(row.again)} with other seeds than it was chosen by"
    return f"{before}best {decimals(row.best)}{at}{again}"


def html(shown: Overlay, texts: Sequence[StepText] = ()) -> Html:
    """Draw runs as a view without scripts. texts: those of the last step."""
    return panel(
        head(shown.name, shown.about),
        hints(shown.hints),
        runs_table(shown),
        curves(shown, shown.numbers[:OPEN]),
        _fold("every other number", curves(shown, shown.numbers[OPEN:])),
        step_texts(texts, looks=looks_of(shown.courses)),
        next_cells(*shown.next),
    )


def top(shown: Overlay) -> dict[str, Any]:
    """Return what a browser shows above and below the curves, as nodes of `tree`."""
    above = f"{head(shown.name, shown.about)}{hints(shown.hints)}{runs_table(shown)}"
    return {"above": tree(above), "next": tree(next_cells(*shown.next))}


def runs_table(shown: Overlay, *, folds: bool = True) -> Html:
    """Draw a row for each run: options that differ, mean before, best mean, notes; below, options that all share.

    folds: rows open to options that changed. If False, options are written in full, and neither those that changed nor
    those that all share are shown.
    """
    differing = [name for name in _names(shown.rows) if len({repr(row.options.get(name)) for row in shown.rows}) > 1]
    columns = [
        Heading("run"),
        *(Heading(name, number=True, middle=True) for name in differing),
        Heading("before", number=True, middle=True),
        Heading("best", number=True),
        Heading("with other seeds", number=True, middle=True),
        Heading("gain", number=True),
        Heading("at step", number=True),
        Heading("tags, note", middle=True),
    ]
    if not folds:
        return table(columns, [TableRow(_cells(row, differing, i, option_whole)) for i, row in enumerate(shown.rows)])
    rows = [
        TableRow(_cells(row, differing, i, option_text), opens=_draw_opened(row)) for i, row in enumerate(shown.rows)
    ]
    same = [name for name in _names(shown.rows) if name not in differing]
    values = " · ".join(f"{name} {option_text(shown.rows[0].options[name])}" for name in same)
    where = "" if len(shown.rows) == 1 else "the same in all: "
    below = foot(f"{where}{values}") if values else Html("")
    return Html(f"{table(columns, rows, 'runs')}{below}")


def _look(place: int) -> str:
    """Return the classes of the mark of a run: a colour, and from the fifth run on another shape."""
    rounds = place // len(COLOURS)
    return f"rl-run-{1 + place % len(COLOURS)}" + (f" rl-dashes-{min(rounds, 2)}" if rounds else "")


def _names(rows: Sequence[RunRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.options))


def _cells(row: RunRow, differing: Sequence[str], i: int, option: Callable[[Any], str]) -> list[str]:
    mark = f'<i class="rl-mark {_look(i)}"></i>'
    gain = None if row.best is None or row.before is None else row.best - row.before
    best = Html("") if row.best is None else draw_mean(row.best).html
    error = "" if row.error is None else decimals(2 * row.error, ".2f")
    around = f' <span class="rl-dim">± {error}</span>' if error and best else ""
    notes = "".join(map(chip, row.tags)) + (f' <span class="rl-dim">{escape(row.note)}</span>' if row.note else "")
    return [
        Html(f"{mark}<b>{escape(row.name)}</b>"),
        *(escape(option(row.options[name]) if name in row.options else "") for name in differing),
        "" if row.before is None else draw_mean(row.before).html,
        Html(f"{best}{around}"),
        "" if row.again is None else draw_mean(row.again).html,
        Html("") if gain is None or math.isnan(gain) else draw_change(gain),
        ", ".join(map(str, dict.fromkeys(row.at))),
        Html(notes),
    ]


def _draw_opened(row: RunRow) -> Html:
    """Draw what a row opens to: options that the table shortens, and options that changed between jobs of the run."""
    wholes = [(name, value, option_whole(value)) for name, value in row.options.items()]
    short = [f"{name} {whole}" for name, value, whole in wholes if whole != option_text(value)]
    if not short and not row.changes:
        return Html("")
    shown = [*short, *(_change(option_whole, *each) for each in row.changes[:_MOST_CHANGES])]
    left = len(row.changes) - _MOST_CHANGES
    shown += [f"and {left:,} more changes"] if left > 0 else []
    return Html(f'<div class="rl-opened">{"".join(f"<span>{escape(each)}</span>" for each in shown)}</div>')


def _change(text: Callable[[Any], str], step: int, option: str, before: Any, after: Any) -> str:
    return f"from step {step}: {escape_to_one_line(option)} {text(after)} instead of {text(before)}"


def curves(shown: Overlay, numbers: Sequence[RunNumber]) -> Html:
    """Draw a chart for each number, a wide one for rewards, all over the same steps; for few steps, figures."""
    steps = [step for course in shown.courses for step in course.steps]
    if max((len(course.steps) for course in shown.courses), default=0) < _FEWEST:
        return Html(f'<div class="rl-least">{band(*(_figure(shown, number) for number in numbers))}</div>')
    last = float(max(steps, default=0))
    rewards = [number for number in numbers if number.name in REWARDS]
    wide = charts(_rewards_chart(shown, rewards, last)) if rewards else ""
    return Html(
        (f'<div class="rl-wide-chart">{wide}</div>' if wide else "")
        + charts(*(_chart(shown, number, last) for number in numbers if number not in rewards))
    )


def _rewards_chart(shown: Overlay, rewards: Sequence[RunNumber], last: float) -> Html:
    """Draw the means of all runs, with their names: of held-out rows, and dashed, of the rows that were trained on."""
    first, dashed = rewards[0], rewards[1:]
    lines = [_line(shown, i, first, named=True) for i in range(len(shown.courses))]
    for number in dashed:
        lines += [
            ChartLine("", course.points(number.name), look=(i, True), thin=True)
            for i, course in enumerate(shown.courses)
        ]
    says = "" if dashed else first.says
    says += "".join(f"Dashed: {number.title[:1].lower()}{number.title[1:]}." for number in dashed)
    seeds = max(len(course.members) for course in shown.courses)
    says += f" Band: least and largest of {seeds} seeds." if seeds > 1 else ""
    return chart(first.title, lines, value=_newest(shown, first), says=says, until=last)


def _chart(shown: Overlay, number: RunNumber, last: float) -> Html:
    lines = [_line(shown, i, number) for i in range(len(shown.courses))]
    title = f"{number.title}, %" if number.unit == "share" else number.title
    return chart(title, lines, value=_newest(shown, number), says=number.says, until=last)


def _line(shown: Overlay, i: int, number: RunNumber, *, named: bool = False) -> ChartLine:
    """Make the line of a number of a run, with the band of its seeds. named: it is in the legend."""
    course, scale = shown.courses[i], 100.0 if number.unit == "share" else 1.0
    points = [(x, scale * y) for x, y in course.points(number.name)]
    band = [(x, scale * low, scale * high) for x, low, high in course.band(number.name)]
    return ChartLine(course.name if named else "", points, band, (i, i >= len(COLOURS)))


def _newest(shown: Overlay, number: RunNumber) -> str:
    values = [course.points(number.name)[-1:] for course in shown.courses]
    return " · ".join(format_value(number, value) for each in values for _, value in each)


def _figure(shown: Overlay, number: RunNumber) -> Html:
    """Draw the values of a number at each step of each run."""
    lines = []
    for course in shown.courses:
        ends = {
            step: f" ({format_value(number, low)} to {format_value(number, high)})"
            for step, low, high in course.band(number.name)
        }
        points = course.points(number.name)
        values = " · ".join(f"{format_value(number, value)}{ends.get(step, '')} at {step:g}" for step, value in points)
        name = f"{course.name}: " if len(shown.courses) > 1 else ""
        lines += [line(f"{name}{values}")] if values else []
    return figure(number.title, _newest(shown, number), "", *lines) if lines else Html("")


def format_value(number: RunNumber, value: float) -> str:
    """Write a value with as many digits as a reader needs."""
    if abs(value) >= _LARGE:
        return _with_unit(number, value, ".3g")
    if number.unit == "share":
        return percent(value)
    if abs(value) < _ROUNDING:
        return "0"
    return f"${value:.3f}" if number.unit == "$" else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def format_exactly(number: RunNumber, value: float) -> str:
    """Write a value with six digits; a whole number with all of its digits."""
    if not number.unit and value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return f"{value:,.0f}"
    return _with_unit(number, value, ".6g")


def _with_unit(number: RunNumber, value: float, form: str) -> str:
    if number.unit == "share":
        return f"{100 * value:{form}}%"
    return f"{'$' if number.unit == '$' else ''}{value:{form}}"


def step_texts(texts: Sequence[StepText], name: str = "", looks: Looks = _NONE) -> Html:
    """Draw a prompt with what each run answered at a step. name: the name of this choice. looks: see `text_cards`."""
    if not texts:
        return Html("")
    title = f'<div class="rl-head"><b>{escape(name or f"Texts at step {texts[0].step}")}</b></div>'
    return Html(f"{title}{text_cards(texts, looks)}")


def text_cards(texts: Sequence[StepText], looks: Looks = _NONE) -> Html:
    """Draw a card for each text, below the prompt if all have the same. looks: places of the colours by run."""
    if not texts:
        return Html("")
    first = texts[0]
    same = all((each.prompt, each.row) == (first.prompt, first.row) for each in texts)
    above = _prompt(first) if same else ""
    cards = "".join(_card(each, looks.get(each.run), "" if same else _prompt(each)) for each in texts)
    return Html(f'<div class="rl-texts">{above}<div class="rl-cards">{cards}</div></div>')


def _prompt(one: StepText) -> str:
    chips = "".join(map(_value, list(one.row.items())[:_MOST_VALUES]))
    row = f'<div class="rl-row">{chips}</div>' if chips else ""
    return f'<div class="rl-prompt"><p class="rl-text">{escape(_shorten(one.prompt))}</p>{row}</div>'


def _value(pair: tuple[str, str]) -> str:
    name, value = pair
    short = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
    return f'<span class="rl-chip"><span class="rl-dim">{escape(name)}</span><b>{escape(short)}</b></span>'


def _card(one: StepText, place: int | None, prompt: str) -> str:
    reward = "not scored" if one.reward is None else decimals(one.reward, ".2f")
    change = f'{draw_change(one.change)} <span class="rl-dim">since its first step</span>' if one.change else ""
    end = '<span class="rl-odd">cut off</span>' if one.cut_off else ""
    colour = "" if place is None else f" {_look(place)}"
    return (
        f'<div class="rl-card{colour}"><div class="rl-top"><b>{escape(one.run)}@{one.step}</b> '
        f'<span class="rl-dim">{count(one.tokens, "token")}</span> {end}<span class="rl-gain"><b>{reward}</b> {change}'
        f'</span></div>{prompt}<pre class="rl-text">{escape(_shorten(one.answer))}</pre>'
        f'<div class="rl-below">{cell(f"%group {one.group}")}</div></div>'
    )


def _shorten(text: str) -> str:
    left = len(text) - _MAX_CHARS
    return text if left <= 0 else f"{text[:_MAX_CHARS]}… {left:,} more characters"


def _fold(name: str, content: str) -> str:
    return f'<details><summary class="rl-foot">{name}</summary>{content}</details>' if content else ""


def _title(shown: Overlay, name: str) -> str:
    return next((each.title for each in shown.numbers if each.name == name), name)
