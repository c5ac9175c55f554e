"""A training loop as text, HTML and a chart of its rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rolloutlab.hints import Hint, as_hint
from rolloutlab.objective.preflight import count
from rolloutlab.objective.steps import short
from rolloutlab.widgets.html import Html
from rolloutlab.widgets.kit import parts
from rolloutlab.widgets.kit.chart import ChartLine, chart, charts
from rolloutlab.widgets.kit.listing import percent
from rolloutlab.widgets.kit.parts import band, figure, head, hints, next_cells, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.plot import Plot, Series, sparklines

_FEW = 3
"""The fewest rounds whose course is drawn. For fewer there are only figures."""
_MOST_ROWS = 12
"""The most rounds that are listed without a click."""


@dataclass(frozen=True)
class Round:
    """The results of one round; None is unknown.

    number: the number of the round.
    step: the checkpoint that was sampled.
    reward, spread: mean and standard deviation of the rewards, without topped-up completions.
    trained: the share of its groups that trained.
    held_out: the mean reward of the held-out rows under that checkpoint.
    seconds: how long it took.
    tokens: how many tokens were sampled to train on.
    unscored: completions on which the reward function failed. They are left out of their groups.
    held_out_unscored: such completions of held-out rows. They are left out of the mean.
    earlier_reward, earlier_held_out: means that cannot be compared with the newest ones, because they were measured in
        another way.
    topped_up: completions that were added to groups with nothing to learn.
    options: the options of its job, as they were sent.
    """

    number: int
    step: int | None
    reward: float | None = None
    spread: float | None = None
    trained: float | None = None
    held_out: float | None = None
    seconds: float | None = None
    tokens: int | None = None
    unscored: int = 0
    held_out_unscored: int = 0
    earlier_reward: float | None = None
    earlier_held_out: float | None = None
    topped_up: int | None = None
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Best:
    """The best checkpoint of a loop, if there is one. mean: its mean reward on the held-out rows with other seeds."""

    name: str | None = None
    mean: float | None = None


def plot(name: str, rounds: Sequence[Round]) -> Plot:
    """Plot the mean reward by round."""
    return Plot(_series(rounds), title=f"{name}: mean reward", x_label="round")


def find_varied(rounds: Sequence[Round]) -> list[str]:
    """Find the options in which jobs of the rounds differ."""
    sent = [one.options for one in rounds if one.options is not None]
    names = dict.fromkeys(name for each in sent for name in each)
    return [name for name in names if any(each.get(name) != sent[0].get(name) for each in sent)]


def line(one: Round, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Write one round in a line. options: those of its job, if they are a function of the round."""
    parts = [f"round {one.number}"]
    parts += [f"step {one.step}"] if one.step is not None else []
    parts += [f"mean reward {one.reward:.3f}"] if one.reward is not None else []
    parts += [f"{percent(one.trained)} of groups trained"] if one.trained is not None else []
    parts += [f"topped up by {one.topped_up:,}"] if one.topped_up else []
    parts += [f"held-out {one.held_out:.3f}"] if one.held_out is not None else []
    parts += [f"{name} {_value(value)}" for name, value in options.items()]
    return "  ".join([*parts, *_unscored([one])])


def text(heading: str, rounds: Sequence[Round], changes: Sequence[str], ended: str) -> str:
    """Write the loop as plain text. changes: lines on what was measured in another way. ended: why it has stopped."""
    return "\n".join(
        [heading, *sparklines(_series(rounds)), *_options(rounds), *changes, *_unscored(rounds), *filter(None, [ended])]
    )


def html(
    name: str,
    model: str,
    rounds: Sequence[Round],
    best: Best,
    changes: Sequence[str],
    ended: str,
    notes: Sequence[str] = (),
) -> Html:
    """Draw the loop as a view.

    Args:
        name: The collection.
        model: The model.
        rounds: The rounds so far.
        best: The best checkpoint.
        changes: Warnings, and lines on what was measured in another way.
        ended: Why the loop has stopped; empty while it runs.
        notes: Lines on what was resumed.
    """
    about = [*map(as_hint, [*_unscored(rounds), *changes]), *(as_hint(note, "info") for note in notes)]
    trained = sum(one.trained is not None for one in rounds)
    shown = _figures(rounds, best)
    return panel(
        head(f"loop {name}", f"on {model} · {count(trained, 'round')}"),
        hints([*_end(ended), *about]),
        band(*shown) if shown else "",
        charts(_reward_chart(rounds), _groups_chart(rounds)),
        _table(name, rounds),
        next_cells(f"%rewards {name}:{rounds[-1].number}") if trained == len(rounds) and rounds else "",
    )


def _end(ended: str) -> list[Hint]:
    """Return a hint why the loop has stopped, marked as bad for an error."""
    text, _, goes_on = ended.partition("; ")
    if not ended:
        return []
    return [Hint(text, goes_on, kind="bad")] if text.startswith("stopped by") else [as_hint(ended)]


def _figures(rounds: Sequence[Round], best: Best) -> list[Html]:
    """Draw the figures of the last round, beside those of the first."""
    drawn = []
    for name, of in (("Mean reward", "reward"), ("Held out", "held_out"), ("Groups that trained", "trained")):
        values = [(one.number, getattr(one, of)) for one in rounds if getattr(one, of) is not None]
        if values:
            form = ".0%" if of == "trained" else ".3f"
            (first, begun), (last, now) = values[0], values[-1]
            unit = f"in round {last}" if len(values) > 1 else ""
            before = [parts.line(f"{begun:{form}} in round {first}")] if len(values) > 1 else []
            drawn.append(figure(name, f"{now:{form}}", unit, *before, odd=of == "trained" and not now))
    if best.name:
        measured = "" if best.mean is None else f"held-out {best.mean:.3f} with other seeds than it was chosen by"
        drawn.append(figure("Best", best.name, "", *([parts.line(measured)] if measured else [])))
    tokens = [one.tokens for one in rounds if one.tokens]
    if tokens:
        drawn.append(
            figure("Sampled", short(sum(tokens)), "tokens", parts.line(f"{short(tokens[-1])} in the last round"))
        )
    return drawn


def _reward_chart(rounds: Sequence[Round]) -> Html:
    lines = [ChartLine(one.label, one.points()) for one in _series(rounds)]
    if len(lines[0].points) < _FEW:
        return Html("")
    value, says = f"{lines[0].points[-1][1]:.3f}", "The number to watch. A point is the model before that round's job."
    return chart("Mean reward, by round", lines, value=value, says=says)


def _groups_chart(rounds: Sequence[Round]) -> Html:
    points = [(float(one.number), 100 * one.trained) for one in rounds if one.trained is not None]
    if len(points) < _FEW or len({share for _, share in points}) == 1:
        return Html("")
    return chart("Groups that trained, %", [ChartLine("", points)], value=f"{points[-1][1]:.0f}%")


def _table(name: str, rounds: Sequence[Round]) -> Html:
    """Draw a row for each round. If there are many, a click opens them."""
    columns = [
        ("round", "number", ""), ("step", "step", ""), ("mean reward", "reward", ".3f"), ("trained", "trained", ".0%"),
        ("held-out", "held_out", ".3f"), ("tokens", "tokens", ","),
    ]  # fmt: skip
    columns += [
        ("topped up by", "topped_up", ","),
        ("mean reward, other measure", "earlier_reward", ".3f"),
        ("held-out, other measure", "earlier_held_out", ".3f"),
    ]
    varied = find_varied(rounds)
    rows = [
        TableRow(
            [*(_cell(getattr(one, of), form) for _, of, form in columns)]
            + [_value(one.options[name]) if one.options and name in one.options else "" for name in varied]
        )
        for one in rounds
    ]
    middle = {"tokens", "topped up by"}
    headings = [Heading(heading, number=True, middle=heading in middle) for heading, _, _ in columns]
    headings += [Heading(name, number=True, middle=True) for name in varied]
    made = table(headings, rows, f"rounds of {name}") if rows else Html("")
    if len(rows) <= _MOST_ROWS:
        return made
    return Html(f'<details><summary class="rl-foot">{count(len(rows), "round")} as a table</summary>{made}</details>')


def _options(rounds: Sequence[Round]) -> list[str]:
    """Write lines with the first and the last value of each option that differs."""
    lines = []
    for name in find_varied(rounds):
        values = [(one.number, one.options[name]) for one in rounds if one.options and name in one.options]
        (first, begun), (last, now) = values[0], values[-1]
        lines.append(f"{name}: {_value(begun)} in round {first}, {_value(now)} in round {last}")
    return lines


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _unscored(rounds: Sequence[Round]) -> list[str]:
    """Say on how many completions the reward function failed, of those trained on and of those held out."""
    counts = [(sum(one.unscored for one in rounds), ""), (sum(one.held_out_unscored for one in rounds), " held-out")]
    return [f"{n:,}{of} without a reward, left out: the function failed on them" for n, of in counts if n]


def _series(rounds: Sequence[Round]) -> list[Series]:
    numbers = [float(one.number) for one in rounds]
    trained = Series("what it trains on", numbers, [one.reward for one in rounds])
    held_out = Series("held out", numbers, [one.held_out for one in rounds])
    return [trained, held_out] if held_out.points() else [trained]


def _cell(value: float | None, form: str = "") -> str:
    return "" if value is None else format(value, form)
