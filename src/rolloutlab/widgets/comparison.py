"""How two checkpoints compare: what came of it in words, a picture, and the prompts that changed most."""

from collections.abc import Sequence
from html import escape

from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.widgets.plot import Plot, Series

_WIDEST = 80
_MOST = 8

Row = tuple[str, str, float, float]
"""A prompt: its group's name, its text, and its mean reward before and after."""


def text(words: Sequence[str], rows: Sequence[Row]) -> str:
    """The comparison as plain text, the largest loss first."""
    lines = [
        f"  {name:<4} {before:.3f} -> {after:.3f}  {_short(prompt)}" for name, prompt, before, after in rows[:_MOST]
    ]
    return "\n".join([*words, "", *lines, *_rest(rows)])


def html(words: Sequence[str], rows: Sequence[Row]) -> str:
    """The comparison as HTML."""
    first, *others = words
    body = "".join(
        f'<tr><td>{escape(name)}</td><td style="text-align:left">{escape(_short(prompt))}</td>'
        f"<td>{before:.3f}</td><td>{after:.3f}</td><td>{after - before:+.3f}</td></tr>"
        for name, prompt, before, after in rows[:_MOST]
    )
    head = '<tr><th>group</th><th style="text-align:left">prompt</th><th>before</th><th>after</th><th>change</th></tr>'
    return (
        f"<p><b>{escape(first)}</b></p><p>{'<br>'.join(map(escape, others))}</p>"
        f"{plot(rows).svg()}<table>{head}{body}</table><p>{escape(''.join(_rest(rows)))}</p>"
    )


def plot(rows: Sequence[Row]) -> Plot:
    """Mean reward of each prompt before and after, the largest loss at the left."""
    places = [float(i) for i in range(1, len(rows) + 1)]
    before = Series("before", places, [row[2] for row in rows], line=False)
    after = Series("after", places, [row[3] for row in rows], line=False)
    return Plot([before, after], title="mean reward by prompt", x_label="prompts, by change")


def _rest(rows: Sequence[Row]) -> list[str]:
    left = len(rows) - _MOST
    return [f"... and {left:,} more: comparison.to_frame()"] if left > 0 else []


def _short(words: str) -> str:
    return escape_to_one_line(words, _WIDEST)
