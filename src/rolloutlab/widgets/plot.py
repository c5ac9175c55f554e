"""Line charts as SVG without scripts, readable on light and dark; as text, a sparkline per series."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolloutlab.widgets.html import escape

_COLOURS = ("#3b82c4", "#e0803a", "#3fa06b", "#b065c4", "#c4564f", "#8a8f36")
_BARS = "▁▂▃▄▅▆▇█"
_MAX_COLUMNS = 60
LARGEST = 1e100
"""Numbers from here on have no place on an axis."""
_GREY = "#808080"
"""A grey that is readable on white and on black. A chart that is shown as an image cannot use the page's colours."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """Points, with a line between them or without; a y that is missing, not finite or beyond 1e100 is left out."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    line: bool = True

    def points(self) -> list[Point]:
        """Return the points that have a place on the axes."""
        pairs = zip(self.x, self.y, strict=False)
        return [(float(x), float(y)) for x, y in pairs if y is not None and abs(y) < LARGEST]


class Plot:
    """Several series over common axes."""

    width, height = 480, 220

    def __init__(self, series: Sequence[Series], *, title: str = "", x_label: str = "") -> None:
        self.series, self.title, self.x_label = list(series), title, x_label
        shown = [point for one in self.series for point in one.points()]
        self._x = round_ticks([x for x, _ in shown] or [0.0, 1.0], 8, whole=all(x.is_integer() for x, _ in shown))
        self._y = round_ticks([y for _, y in shown] or [0.0, 1.0], 5)

    def svg(self, color: str = "inherit", x: int = 0, y: int = 0) -> str:
        """Draw the plot as an `<svg>`. Axes and words have the colour of the page unless one is given."""
        labels = [one.label for one in self.series] if len(self.series) > 1 else []
        drawn = "".join(self._draw(one, _COLOURS[i % len(_COLOURS)]) for i, one in enumerate(self.series))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" x="{x}" y="{y}" width="{self.width}" height="{self.height}"'
            f' viewBox="0 0 {self.width} {self.height}" font-family="sans-serif" font-size="11" color="{color}"'
            f' fill="currentColor" role="img"><title>{escape(self.title)}</title>'
            f"{self._axes()}{drawn}{_legend(labels, self.width)}</svg>"
        )

    def _repr_svg_(self) -> str:
        return self.svg(_GREY)

    def __repr__(self) -> str:
        return "\n".join([*([self.title] if self.title else []), *sparklines(self.series)])

    def _to_pixels(self, x: float, y: float) -> Point:
        left, right, top, bottom = 44, self.width - 12, 26, self.height - 34
        across = (x - self._x[0]) / (self._x[-1] - self._x[0])
        up = (y - self._y[0]) / (self._y[-1] - self._y[0])
        return round(left + across * (right - left), 1), round(bottom - up * (bottom - top), 1)

    def _axes(self) -> str:
        (left, bottom), (right, _) = self._to_pixels(self._x[0], self._y[0]), self._to_pixels(self._x[-1], self._y[0])
        parts = [f'<text x="{left}" y="14" font-weight="bold">{escape(self.title)}</text>']
        for tick in self._y:
            y = self._to_pixels(self._x[0], tick)[1]
            parts.append(f'<path d="M{left} {y}H{right}" stroke="currentColor" stroke-opacity=".2"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
        for tick in self._x:
            x = self._to_pixels(tick, self._y[0])[0]
            parts.append(f'<text x="{x}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
        middle = (left + right) / 2
        parts.append(f'<text x="{middle}" y="{bottom + 29}" text-anchor="middle">{escape(self.x_label)}</text>')
        return "".join(parts)

    def _draw(self, series: Series, colour: str) -> str:
        centers = [self._to_pixels(x, y) for x, y in series.points()]
        path = "M" + "L".join(f"{x} {y}" for x, y in centers) if centers else ""
        parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'] if series.line else []
        radius = 2 if series.line else 4
        parts += [f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colour}"/>' for x, y in centers]
        return "".join(parts)


class Panels:
    """Charts side by side, two in a row. empty: the text if there is no chart."""

    def __init__(self, plots: Sequence[Plot], *, empty: str = "nothing to plot yet") -> None:
        self.plots, self._empty = list(plots), empty

    def svg(self, color: str = "inherit") -> str:
        """Draw the charts as one `<svg>`."""
        wide, high = (max((getattr(plot, side) for plot in self.plots), default=20) for side in ("width", "height"))
        inner = "".join(plot.svg(color, i % 2 * wide, i // 2 * high) for i, plot in enumerate(self.plots))
        width, height = wide * min(2, len(self.plots)), high * math.ceil(len(self.plots) / 2)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}">{inner}</svg>'
        )

    def _repr_svg_(self) -> str | None:
        return self.svg(_GREY) if self.plots else None

    def __repr__(self) -> str:
        return "\n".join(sparklines([one for plot in self.plots for one in plot.series])) or self._empty


def sparklines(series: Sequence[Series]) -> list[str]:
    """Write a line per series: its label, its course, its first and last value."""
    wide = max((len(one.label) for one in series), default=0)
    return [f"{one.label:<{wide}}  {sparkline([y for _, y in one.points()])}" for one in series]


def sparkline(values: Sequence[float]) -> str:
    """Write the course of some numbers as bars, and the first and the last of them, without those beyond 1e100."""
    values = [value for value in values if abs(value) < LARGEST]
    if not values:
        return "-"
    low, high = min(values), max(values)
    columns = min(len(values), _MAX_COLUMNS)
    sampled = [values[i * len(values) // columns] for i in range(columns)]
    levels = [(y - low) / (high - low) if high > low else 0.0 for y in sampled]
    bars = "".join(_BARS[round(level * (len(_BARS) - 1))] for level in levels)
    return f"{bars}  {values[0]:.3g} -> {values[-1]:.3g}" if len(values) > 1 else f"{bars}  {values[0]:.3g}"


def round_ticks(values: Iterable[float], limit: int, *, whole: bool = False) -> list[float]:
    """Find about `limit` round numbers, at least two, from the least value or below to the largest or above."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high), 1e-100)
    if high - low <= 1e-9 * size:  # put a flat line into the middle
        low, high = low - (size / 2 if low else 0.5), high + (size / 2 if low else 0.5)
    rough = (high - low) / limit
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, max(last, first + 1) + 1)]


def _legend(labels: Sequence[str], width: int) -> str:
    parts, x = [], width - 12
    for i, label in reversed(list(enumerate(labels))):
        parts.append(f'<circle cx="{x - 4}" cy="10" r="4" fill="{_COLOURS[i % len(_COLOURS)]}"/>')
        parts.append(f'<text x="{x - 12}" y="14" text-anchor="end">{escape(label)}</text>')
        x -= 7 * len(label) + 26
    return "".join(parts)
