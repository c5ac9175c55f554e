"""How a loop looks: a chart of its rounds, and what each came to."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rolloutlab.widgets.plot import Plot, Series, sparklines


@dataclass(frozen=True)
class Round:
    """What one round came to; None is what is not known of it.

    step: the checkpoint that was sampled. reward, spread: mean and standard deviation. trained: share of its groups.
    held_out: mean reward of the held-out rows under that checkpoint. tokens: sampled to train on.
    """

    number: int
    step: int | None
    reward: float | None = None
    spread: float | None = None
    trained: float | None = None
    held_out: float | None = None
    seconds: float | None = None
    tokens: int | None = None


def plot(name: str, rounds: Sequence[Round]) -> Plot:
    """Mean reward by round."""
    return Plot(_series(rounds), title=f"{name}: mean reward", x_label="round")


def line(one: Round) -> str:
    """One round in a line."""
    parts = [f"round {one.number}"]
    parts += [f"step {one.step}"] if one.step is not None else []
    parts += [f"mean reward {one.reward:.3f}"] if one.reward is not None else []
    parts += [f"{one.trained:.0%} of groups trained"] if one.trained is not None else []
    parts += [f"held-out {one.held_out:.3f}"] if one.held_out is not None else []
    return "  ".join(parts)


def text(heading: str, rounds: Sequence[Round], ended: str) -> str:
    """The loop as plain text."""
    return "\n".join([heading, *sparklines(_series(rounds)), *([ended] if ended else [])])


def html(heading: str, chart: Plot, rounds: Sequence[Round], ended: str) -> str:
    """The loop as HTML."""
    head = "".join(f"<th>{title}</th>" for title in ("round", "step", "mean reward", "trained", "held-out"))
    rows = "".join(
        f"<tr><td>{one.number}</td><td>{_shown(one.step)}</td><td>{_shown(one.reward, '.3f')}</td>"
        f"<td>{_shown(one.trained, '.0%')}</td><td>{_shown(one.held_out, '.3f')}</td></tr>"
        for one in rounds
    )
    table = f"<details><summary>rounds</summary><table><tr>{head}</tr>{rows}</table></details>" if rounds else ""
    said = f"<p>{escape(ended)}</p>" if ended else ""
    return f"<p><b>{escape(heading)}</b></p>{said}{chart.svg() if rounds else ''}{table}"


def _series(rounds: Sequence[Round]) -> list[Series]:
    numbers = [float(one.number) for one in rounds]
    trained = Series("what it trains on", numbers, [one.reward for one in rounds])
    held_out = Series("held out", numbers, [one.held_out for one in rounds])
    return [trained, held_out] if held_out.points() else [trained]


def _shown(value: float | None, form: str = "") -> str:
    return "" if value is None else format(value, form)
