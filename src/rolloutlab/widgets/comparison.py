"""A comparison of two checkpoints as text, HTML and a chart, with the prompts that changed most."""

from collections.abc import Sequence

from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.widgets.html import Words, escape, html_table, paragraphs, title
from rolloutlab.widgets.plot import Plot, Series
from rolloutlab.widgets.text import more, text_table

_MAX_WIDTH = 80
_MAX_ROWS = 8
_REST = "comparison.to_frame()"

Row = tuple[str, str, float, float]
"""A prompt: its group's name, its text, and its mean reward before and after."""


def text(lines: Sequence[str], rows: Sequence[Row]) -> str:
    """The comparison as plain text, the largest loss first."""
    cells = [
        (name, f"{before:.3f} -> {after:.3f}", escape_to_one_line(prompt, _MAX_WIDTH))
        for name, prompt, before, after in rows[:_MAX_ROWS]
    ]
    return "\n".join([*lines, "", *text_table((), cells, "<4 <0"), *more(len(rows) - _MAX_ROWS, _REST)])


def html(lines: Sequence[str], rows: Sequence[Row]) -> str:
    """The comparison as HTML."""
    first, *others = lines
    cells = [
        (name, Words(escape_to_one_line(prompt, _MAX_WIDTH)), f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}")
        for name, prompt, before, after in rows[:_MAX_ROWS]
    ]
    table = html_table(("group", Words("prompt"), "before", "after", "change"), cells)
    details = "<br>".join(map(escape, others))
    rest = paragraphs(more(len(rows) - _MAX_ROWS, _REST))
    return f"{title(first)}<p>{details}</p>{plot(rows).svg()}{table}{rest}"


def plot(rows: Sequence[Row]) -> Plot:
    """Mean reward of each prompt before and after, the largest loss at the left."""
    places = [float(i) for i in range(1, len(rows) + 1)]
    before = Series("before", places, [row[2] for row in rows], line=False)
    after = Series("after", places, [row[3] for row in rows], line=False)
    return Plot([before, after], title="mean reward by prompt", x_label="prompts, by change")
