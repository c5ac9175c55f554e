"""A training loop as text, HTML and a chart of its rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rolloutlab.widgets.html import Cell, html_table, paragraphs, title
from rolloutlab.widgets.plot import Plot, Series, sparklines


@dataclass(frozen=True)
class Round:
    """The results of one round; None is what is not known of it.

    step: the checkpoint that was sampled. reward, spread: mean and standard deviation. trained: share of its groups.
    held_out: mean reward of the held-out rows under that checkpoint. tokens: sampled to train on. unscored: completions
    without a reward, on which the function failed; they are left out of their groups. held_out_unscored: such ones of
    the held-out rows, which are left out of that mean. earlier_reward, earlier_held_out: means that were measured in
    another way than the newest ones, and do not compare with them. topped_up: completions that were sampled again for
    groups with nothing to learn; reward and spread are without these. options: of its job, as they were sent.
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


def plot(name: str, rounds: Sequence[Round]) -> Plot:
    """Mean reward by round."""
    return Plot(_series(rounds), title=f"{name}: mean reward", x_label="round")


def find_varied(rounds: Sequence[Round]) -> list[str]:
    """The options in which jobs of the rounds differ."""
    sent = [one.options for one in rounds if one.options is not None]
    names = dict.fromkeys(name for each in sent for name in each)
    return [name for name in names if any(each.get(name) != sent[0].get(name) for each in sent)]


def line(one: Round, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """One round in a line. options: of its job, where these are a function of the round."""
    parts = [f"round {one.number}"]
    parts += [f"step {one.step}"] if one.step is not None else []
    parts += [f"mean reward {one.reward:.3f}"] if one.reward is not None else []
    parts += [f"{one.trained:.0%} of groups trained"] if one.trained is not None else []
    parts += [f"topped up by {one.topped_up:,}"] if one.topped_up else []
    parts += [f"held-out {one.held_out:.3f}"] if one.held_out is not None else []
    parts += [f"{name} {_value(value)}" for name, value in options.items()]
    return "  ".join([*parts, *_unscored([one])])


def text(heading: str, rounds: Sequence[Round], changes: Sequence[str], ended: str) -> str:
    """The loop as plain text. changes: what was measured in another way."""
    return "\n".join(
        [heading, *sparklines(_series(rounds)), *_options(rounds), *changes, *_unscored(rounds), *filter(None, [ended])]
    )


def html(heading: str, chart: Plot, rounds: Sequence[Round], changes: Sequence[str], ended: str) -> str:
    """The loop as HTML. changes: what was measured in another way."""
    columns = [
        ("round", "number", ""), ("step", "step", ""), ("mean reward", "reward", ".3f"), ("trained", "trained", ".0%"),
        ("held-out", "held_out", ".3f"),
    ]  # fmt: skip
    further = [
        ("topped up by", "topped_up", ","),
        ("mean reward, other measure", "earlier_reward", ".3f"),
        ("held-out, other measure", "earlier_held_out", ".3f"),
    ]
    columns += [each for each in further if any(getattr(one, each[1]) is not None for one in rounds)]
    rows: list[list[Cell]] = [[_cell(getattr(one, name), form) for _, name, form in columns] for one in rounds]
    names = find_varied(rounds)
    for row, one in zip(rows, rounds, strict=True):
        row += [_value(one.options[name]) if one.options and name in one.options else "" for name in names]
    table = html_table([*(heading for heading, _, _ in columns), *names], rows)
    shown = f"{chart.svg()}<details><summary>rounds</summary>{table}</details>" if rounds else ""
    return f"{title(heading)}{paragraphs([*changes, *_unscored(rounds), *filter(None, [ended])])}{shown}"


def _options(rounds: Sequence[Round]) -> list[str]:
    """Lines with the first and the last value of each option that differs."""
    lines = []
    for name in find_varied(rounds):
        values = [(one.number, one.options[name]) for one in rounds if one.options and name in one.options]
        (first, begun), (last, now) = values[0], values[-1]
        lines.append(f"{name}: {_value(begun)} in round {first}, {_value(now)} in round {last}")
    return lines


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _unscored(rounds: Sequence[Round]) -> list[str]:
    """How many completions the reward function failed on, of what is trained on and of what is held out."""
    counts = [(sum(one.unscored for one in rounds), ""), (sum(one.held_out_unscored for one in rounds), " held-out")]
    return [f"{n:,}{of} without a reward, left out: the function failed on them" for n, of in counts if n]


def _series(rounds: Sequence[Round]) -> list[Series]:
    numbers = [float(one.number) for one in rounds]
    trained = Series("what it trains on", numbers, [one.reward for one in rounds])
    held_out = Series("held out", numbers, [one.held_out for one in rounds])
    return [trained, held_out] if held_out.points() else [trained]


def _cell(value: float | None, form: str = "") -> str:
    return "" if value is None else format(value, form)
