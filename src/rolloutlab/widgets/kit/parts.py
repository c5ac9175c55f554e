"""Parts of views as HTML: panel, hint, figure, bars. All text is escaped; `theme.css` has their look."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from rolloutlab.hints import Hint
from rolloutlab.widgets.html import Html, arrows, escape

_MARKS = {"bad": "✕", "warn": "!", "info": "i", "ok": "✓"}
MOST_STEPS, _MOST_SQUARES = 24, 16
"""The most steps that are drawn, and the most groups of a step that are drawn as a square each."""
SHOWN_HINTS = 2
"""How many hints are shown; the others are folded."""
_TIGHT, _FIRST = r" *([{};,>]) *", r"\1"


@cache
def style(name: str = "theme.css") -> Html:
    """Read a style sheet into an element, without comments and blanks."""
    sheet = Path(__file__).with_name(name).read_text(encoding="utf-8")
    sheet = " ".join(re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL).split())
    return Html(f"<style>{re.sub(_TIGHT, _FIRST, sheet).replace(';}', '}')}</style>")


def panel(*parts: str, styled: bool = True, kind: str = "") -> Html:
    """Make a view of its parts. styled: with the style sheet, for a page that may not have it. kind: its class."""
    return Html(
        f'{style() if styled else ""}<div class="rl rl-panel{f" {kind}" if kind else ""}">{"".join(parts)}</div>'
    )


def head(name: str, about: str = "", *chips: str, actions: str = "") -> Html:
    """Draw the first line of a view: its name, what it is about, chips, and on the right what can be done."""
    dim = f'<span class="rl-dim">{escape(about)}</span>' if about else ""
    right = f'<span class="rl-acts">{actions}</span>' if actions else ""
    return Html(f'<div class="rl-head"><b>{escape(name)}</b> {dim} {" ".join(chips)}{right}</div>')


def chip(text: str, kind: Literal["", "bad", "warn", "ok", "now", "out"] = "") -> Html:
    """Draw a state or an option."""
    return Html(f'<span class="rl-chip{f" rl-is-{kind}" if kind else ""}">{escape(text)}</span>')


def cell(code: str) -> Html:
    """Draw a cell to run. In a live view a click inserts it."""
    return Html(f'<code class="rl-cell">{escape(code)}</code>')


def hints(given: Sequence[Hint]) -> Html:
    """Draw the first hints, with the rest folded below them."""
    rest = "".join(map(_hint, given[SHOWN_HINTS:]))
    more = f"{len(given) - SHOWN_HINTS} more"
    folded = f'<details class="rl-others"><summary class="rl-foot">{more}</summary>{rest}</details>' if rest else ""
    return Html("".join(map(_hint, given[:SHOWN_HINTS])) + folded)


def _hint(one: Hint) -> str:
    do = cell(one.cell) if one.cell else ""
    evidence = f" {escape(arrows(one.evidence))}" if one.evidence else ""
    mark = f'<i aria-hidden="true">{_MARKS[one.kind]}</i>'
    return f'<div class="rl-hint rl-is-{one.kind}">{mark}<span><b>{escape(one.fact)}</b>{evidence}</span>{do}</div>'


def band(*figures: str) -> Html:
    """Put figures side by side."""
    return Html(f'<div class="rl-band">{"".join(figures)}</div>')


def figure(name: str, value: str = "", unit: str = "", *below: str, odd: bool = False) -> Html:
    """Draw a figure: its name, its value with a unit or an interval, and lines or pictures below it."""
    small = f" <small>{escape(unit)}</small>" if unit else ""
    large = f'<span class="rl-value{" rl-odd" if odd else ""}">{escape(value)}{small}</span>' if value else ""
    return Html(f'<div><span class="rl-name">{escape(name)}</span> {large} {" ".join(below)}</div>')


def line(text: str, *, odd: bool = False) -> Html:
    """Draw a line below a figure."""
    return Html(f'<span class="rl-line{" rl-odd" if odd else ""}">{escape(text)}</span>')


def share(*parts: tuple[float, str], label: str = "") -> Html:
    """Draw a bar of shares, each with its class: `fail`, `pass`, `none`, `warn`, `more`, `less`, or an empty text."""
    spoken = f' role="img" aria-label="{escape(label)}"' if label else ' aria-hidden="true"'
    drawn = "".join(_piece(part, kind) for part, kind in parts if part > 0)
    return Html(f'<span class="rl-share"{spoken}>{drawn}</span>')


def advantage_bar(advantage: float, largest: float) -> Html:
    """Draw a bar from the middle to the right for more likely, to the left for less. largest: of the whole job."""
    width = 50 * min(1.0, abs(advantage) / largest) if largest else 0.0
    left, kind = (50.0, "more") if advantage > 0 else (50 - width, "less")
    drawn = f'<i class="rl-{kind}" style="left:{left:.4g}%;width:{width:.4g}%"></i>'
    return Html(f'<span class="rl-track" aria-hidden="true">{drawn}</span>')


def _piece(part: float, kind: str) -> str:
    return f'<i class="{f"rl-{kind}" if kind else ""}" style="width:{100 * min(1.0, part):.4g}%"></i>'


def key(kind: str, text: str) -> Html:
    """Draw a colour or a hatch, and what it stands for."""
    return Html(f'<i class="rl-key{f" rl-{kind}" if kind else ""}"></i>{escape(text)}')


def parts(rows: Iterable[tuple[str, float, str]], kind: str = "") -> Html:
    """Draw named shares with a bar and a value each."""
    cells = (
        f"<span>{escape(name)}</span>{share((part, kind))}<span>{escape(value)}</span>" for name, part, value in rows
    )
    return Html(f'<div class="rl-parts">{"".join(cells)}</div>')


def bars(counts: Sequence[int], first: str, last: str, label: str, *, of: Sequence[int] | None = None) -> Html:
    """Draw a histogram.

    Args:
        counts: The count of each bin.
        first: The text at the beginning of its axis.
        last: The text at the end of its axis.
        label: A description for screen readers.
        of: Larger counts, which are drawn behind, and of which these are a part.
    """
    whole = of or counts
    most = max([*whole, 1])
    drawn = []
    for n, all_ in zip(counts, whole, strict=True):
        # at least two pixels high, so that a count of one can be seen
        part = f'<u style="height:{100 * n / all_ if all_ else 0:.4g}%"></u>' if of else ""
        drawn.append(f'<i style="height:{max(5.0, 100 * all_ / most) if all_ else 0:.4g}%">{part}</i>')
    ends = f'<span class="rl-axis"><span>{escape(first)}</span><span>{escape(last)}</span></span>'
    some = " rl-some" if of else ""
    return Html(f'<span class="rl-bars{some}" role="img" aria-label="{escape(label)}">{"".join(drawn)}</span>{ends}')


def advantage_bars(counts: Sequence[int], least: str, most: str, label: str) -> Html:
    """Draw a histogram around 0: what becomes less likely on the left, what becomes more likely on the right."""
    highest, half = max([*counts, 1]), len(counts) / 2
    heights = [max(5.0, 100 * n / highest) if n else 0.0 for n in counts]
    sides = ["less" if i < half else "more" for i in range(len(counts))]
    drawn = "".join(
        f'<i class="rl-{side}" style="height:{high:.4g}%"></i>' for side, high in zip(sides, heights, strict=True)
    )
    axis = "".join(f"<span>{escape(text)}</span>" for text in (least, "0", most))
    spoken = f'role="img" aria-label="{escape(label)}"'
    return Html(f'<span class="rl-bars" {spoken}>{drawn}</span><span class="rl-axis">{axis}</span>')


def steps(sizes: Sequence[int], label: str) -> Html:
    """Draw a block for each optimiser step, with a square for each of its groups. Of many steps, draw the first."""
    shown = sizes[:MOST_STEPS]
    squares = shown if max(shown, default=0) <= _MOST_SQUARES else [1] * len(shown)
    drawn = "".join(f"<span>{'<i></i>' * size}</span>" for size in squares)
    more = f"<em>and {len(sizes) - len(shown):,} more</em>" if len(sizes) > len(shown) else ""
    return Html(f'<span class="rl-steps" role="img" aria-label="{escape(label)}">{drawn}{more}</span>')


def next_cells(*cells: str) -> Html:
    """Draw what to type next."""
    listed = "".join(map(cell, filter(None, cells)))
    return Html(f'<div class="rl-next">Next {listed}</div>') if listed else Html("")


def foot(text: str) -> Html:
    """Draw the last line of a view."""
    return Html(f'<div class="rl-foot">{escape(arrows(text))}</div>')
