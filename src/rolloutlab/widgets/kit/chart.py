"""Charts as HTML: the lines are an image that fills any width, titles and axes are text. No script is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote

from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.plot import LARGEST, round_ticks

COLOURS = ("#4a74dc", "#c8580d", "#0b8573", "#a0558a")
"""Colours of the series, with a contrast of 3:1 on white and on black: an image does not know its page's colours."""
_WIDTH, _HEIGHT = 600, 110
_MOST_POINTS = 400
Point = tuple[float, float]
_P = TypeVar("_P")


@dataclass(frozen=True)
class ChartLine:
    """A series: its name and its points in order of x.

    band: for some x the least and the largest value, drawn as an area behind the line. look: the place of its colour,
    and whether it is dashed. By default all series but the first are dashed, each in the next colour. thin:
    whether it is drawn thinner than others. A series without a name is not in the legend.
    """

    name: str
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    look: tuple[int, bool] | None = None
    thin: bool = False


def chart(
    title: str,
    lines: Sequence[ChartLine],
    *,
    value: str = "",
    says: str = "",
    x: str = "",
    odd: bool = False,
    until: float | None = None,
) -> Html:
    """Draw lines over common axes. Values beyond 1e100 are left out.

    Args:
        title: The title.
        lines: The series; those without a point are left out.
        value: The newest value, shown beside the title.
        says: A caption.
        x: The name of the horizontal axis.
        odd: Whether the caption is about something unexpected.
        until: The horizontal axis goes at least to here, even if no line does.
    """
    shown = [_drawable(line, i) for i, line in enumerate(lines)]
    shown = [line for line in shown if line.points]
    if not shown:
        return Html("")
    ends = [] if until is None else [until]
    ticks_x = round_ticks([*ends, *(x for line in shown for x, _ in line.points)], 6, whole=True)
    heights = [y for line in shown for _, y in line.points]
    ticks_y = round_ticks([*heights, *(y for line in shown for _, *ends in line.band for y in ends)], 2)
    drawn = "".join(_area(line, ticks_x, ticks_y) + _path(line, ticks_x, ticks_y) for line in shown)
    grid = "".join(_rule(_HEIGHT * i / (len(ticks_y) - 1)) for i in range(len(ticks_y)))
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f"{grid}{drawn}</svg>"
    )
    alt = "; ".join(f"{line.name or title}: {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}" for line in shown)
    image = f'<img alt="{escape(alt)}" src="data:image/svg+xml,{quote(picture, safe=_SAFE)}">'
    y_axis = "".join(f"<span>{tick:g}</span>" for tick in reversed(ticks_y))
    x_axis = "".join(f"<span>{tick:g}</span>" for tick in ticks_x)
    names = "".join(_name(line) for line in shown if line.name) if len(shown) > 1 else ""
    legend = f'<div class="rl-legend">{names}</div>' if names else ""
    caption = f'<p class="rl-says{" rl-odd" if odd else ""}">{escape(says)}</p>' if says else ""
    axis = f'<span class="rl-axis">{x_axis}</span>' + (
        f'<span></span><span class="rl-axis">{escape(x)}</span>' if x else ""
    )
    return Html(
        f'<figure class="rl-chart"><figcaption><span>{escape(title)}</span><span>{escape(value)}</span></figcaption>'
        f'{legend}<div class="rl-plot"><span class="rl-y">{y_axis}</span>{image}<span></span>{axis}</div>'
        f"{caption}</figure>"
    )


def charts(*drawn: str) -> Html:
    """Put charts side by side."""
    return Html(f'<div class="rl-charts">{"".join(drawn)}</div>') if any(drawn) else Html("")


def spark(values: Sequence[float]) -> Html:
    """Draw the course of some numbers in the size of a table's cell."""
    values = [value for value in values if abs(value) < LARGEST]
    if len(values) < 2:
        return Html("")
    low, high = min(values), max(values)
    points = [(i / (len(values) - 1), (y - low) / (high - low) if high > low else 0.5) for i, y in enumerate(values)]
    path = "L".join(f"{2 + 86 * x:.1f} {18 - 16 * y:.1f}" for x, y in _thin(points))
    x, y = points[-1]
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="90" height="20">'
        f'<path d="M{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.5"/>'
        f'<circle cx="{2 + 86 * x:.1f}" cy="{18 - 16 * y:.1f}" r="2" fill="{COLOURS[0]}"/></svg>'
    )
    alt = f"{values[0]:.3g} to {values[-1]:.3g}"
    return Html(f'<img alt="{alt}" width="90" height="20" src="data:image/svg+xml,{quote(picture, safe=_SAFE)}">')


_SAFE = " =/:,;()'-.+<>"


def _drawable(line: ChartLine, i: int) -> ChartLine:
    """Return a series without values that have no place on an axis, and with a look."""
    points = [(x, y) for x, y in line.points if abs(y) < LARGEST]
    band = [(x, low, high) for x, low, high in line.band if abs(low) < LARGEST and abs(high) < LARGEST]
    return replace(line, points=points, band=band, look=(i, i > 0) if line.look is None else line.look)


def _name(line: ChartLine) -> str:
    place, dashed = line.look or (0, False)
    colour = f"rl-run-{1 + place % len(COLOURS)}{' rl-dashed' if dashed else ''}"
    return f'<span><i class="{colour}"></i>{escape(line.name)}</span>'


def _pixels(points: Sequence[Point], ticks_x: Sequence[float], ticks_y: Sequence[float]) -> str:
    across, up = ticks_x[-1] - ticks_x[0], ticks_y[-1] - ticks_y[0]
    pixels = ((_WIDTH * (x - ticks_x[0]) / across, _HEIGHT * (1 - (y - ticks_y[0]) / up)) for x, y in points)
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)


def _area(line: ChartLine, ticks_x: Sequence[float], ticks_y: Sequence[float]) -> str:
    band = _thin(line.band)
    if len(band) < 2:
        return ""
    edge = [*((x, high) for x, _, high in band), *((x, low) for x, low, _ in reversed(band))]
    colour = COLOURS[(line.look or (0, False))[0] % len(COLOURS)]
    return f"<path d='M{_pixels(edge, ticks_x, ticks_y)}Z' fill='{colour}' fill-opacity='.16'/>"


def _path(line: ChartLine, ticks_x: Sequence[float], ticks_y: Sequence[float]) -> str:
    place, dashed = line.look or (0, False)
    d = "M" + _pixels(_thin(line.points), ticks_x, ticks_y)
    d += "h.01" if len(line.points) == 1 else ""  # a point of its own is a dot
    dash = " stroke-dasharray='5 3'" if dashed else ""
    width = 1 if line.thin else 2
    return (
        f"<path d='{d}' fill='none' stroke='{COLOURS[place % len(COLOURS)]}' stroke-width='{width}' "
        f"stroke-linecap='round' stroke-linejoin='round' vector-effect='non-scaling-stroke'{dash}/>"
    )


def _rule(y: float) -> str:
    return f"<path d='M0 {y:g}H{_WIDTH}' stroke='#888' stroke-opacity='.3' vector-effect='non-scaling-stroke'/>"


def _thin(points: Sequence[_P]) -> Sequence[_P]:
    """Leave out some of many points, but not the last."""
    every = -(-len(points) // _MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
