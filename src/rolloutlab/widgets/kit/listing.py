"""Lists of what a lab has, one row each, as a table in HTML and as aligned lines of text that fit a terminal."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from rolloutlab.api.wire.base import moment
from rolloutlab.hints import Hint
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.parts import cell, foot, head, hints, next_cells, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table
from rolloutlab.widgets.text import decimals

SHOWN_ROWS = 20
TIMES = "\N{MULTIPLICATION SIGN}"
MAX_WIDTH = 100
"""The most characters of a line of text."""
_GAP = "  "
_UNITS = {"d": 86_400, "h": 3600, "min": 60, "s": 1}


@dataclass(frozen=True)
class Drawn:
    """A cell whose HTML is more than its text."""

    text: str
    html: Html


Cell = str | Drawn


@dataclass(frozen=True)
class ListingRow:
    """A row: a cell for each column. opens: see `TableRow`. below: lines that follow it in text."""

    cells: Sequence[Cell]
    opens: Html = field(default_factory=lambda: Html(""))
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Listing:
    """A table with its name and what it is about. parts: HTML above it. notes: lines below. cells: what to type next.

    If its text would be wider than a terminal, columns that a narrow page drops are left out, the last one first.
    """

    name: str
    about: str
    columns: Sequence[Heading]
    rows: Sequence[ListingRow]
    notes: Sequence[str] = ()
    cells: Sequence[str] = ()
    parts: Sequence[Html] = ()
    hints: Sequence[Hint] = ()

    def text(self, width: int = MAX_WIDTH) -> str:
        """Write the table as lines, not longer than `width` if names allow it."""
        notes = [*self.notes, *(f"-> {cell}" for cell in self.cells)]
        first = [hint.line() for hint in self.hints]
        lines = [f"{self.name}{_GAP}{self.about}".rstrip(), *first, *self._lines(width), *notes]
        return "\n".join(map(escape_control_chars, lines))

    def html(self) -> Html:
        """Draw the table. Its rows open without scripts."""
        rows = [TableRow([_html(each) for each in row.cells], opens=row.opens) for row in self.rows]
        made = table(self.columns, rows, self.name) if rows else ""
        above = [head(self.name, self.about), hints(self.hints), *self.parts]
        return panel(*above, made, *map(foot, self.notes), next_cells(*self.cells))

    def _lines(self, most: int) -> list[str]:
        texts = [[escape_to_one_line(_text(each)) for each in row.cells] for row in self.rows]
        used = [i for i in range(len(self.columns)) if any(row[i] for row in texts)]
        width = {i: max(len(self.columns[i].name), *(len(row[i]) for row in texts)) for i in used}
        for i in [i for i in used[::-1] if self.columns[i].middle]:
            if sum(width[i] + len(_GAP) for i in used) <= most:
                break
            used.remove(i)
        if not used:
            return []
        heading = [column.name for column in self.columns]
        lines = [self._line(heading, used, width)]
        for row, cells in zip(self.rows, texts, strict=True):
            lines += [self._line(cells, used, width), *(_indent(line, most) for line in row.below)]
        return lines

    def _line(self, cells: Sequence[str], used: Sequence[int], width: dict[int, int]) -> str:
        aligned = (f"{cells[i]:{'>' if self.columns[i].number else '<'}{width[i]}}" for i in used)
        return f"{_GAP}{_GAP.join(aligned)}".rstrip()


def terminal_width() -> int:
    """Return how many characters a line of the terminal has: at most `MAX_WIDTH`, also without a terminal."""
    return min(MAX_WIDTH, shutil.get_terminal_size((MAX_WIDTH, 24)).columns)


def ago(time: str, now: datetime) -> Drawn:
    """Draw a time as `now`, `2 min ago`, `14:02` or `21 Nov`, with the exact time as its title."""
    local = moment(time).astimezone(now.tzinfo)
    seconds = (now - local).total_seconds()
    if seconds < 3600:
        text = f"{seconds // 60:.0f} min ago" if seconds >= 60 else "now"
    elif local.date() == now.date():
        text = f"{local:%H:%M}"
    else:
        text = f"{local.day} {local:%b}" + (f" {local.year}" if local.year != now.year else "")
    exact = f'<time datetime="{escape(local.isoformat())}" title="{local:%Y-%m-%d %H:%M:%S %Z}">{text}</time>'
    return Drawn(text, Html(exact))


def duration(seconds: float) -> str:
    """Write a duration in two units at most: `4 s`, `3 min 40 s`, `1 h 52 min`."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    large, small = next(((one, two) for one, two in pairwise(_UNITS) if whole >= _UNITS[one]), ("min", "s"))
    first, rest = divmod(whole, _UNITS[large])
    both = (first, large), (rest // _UNITS[small], small)
    return " ".join(f"{n} {unit}" for n, unit in both if n)


def percent(share: float) -> str:
    """Write a share in whole percent, but not a small one as 0%, nor a large one as 100%."""
    shown = f"{share:.0%}"
    return "<1%" if share > 0 and shown == "0%" else ">99%" if share < 1 and shown == "100%" else shown


def draw_mean(mean: float) -> Drawn:
    """Draw a mean reward, without the interval that the view of its collection has."""
    text = decimals(mean, ".2f")
    return Drawn(text, Html(f"<b>{text}</b>"))


def whole(name: str) -> Drawn:
    """Draw a name that is not broken into lines."""
    return Drawn(name, Html(f'<span class="rl-whole">{escape(name)}</span>' if name else ""))


def draw_details(facts: Sequence[tuple[str, str]], *codes: str) -> Html:
    """Draw what a row opens to: facts with their names, and cells to run."""
    named = (f'<span><span class="rl-dim">{escape(name)}</span> {escape(value)}</span>' for name, value in facts)
    return Html(f'<div class="rl-opened">{"".join([*named, *map(cell, codes)])}</div>')


def _indent(line: str, most: int) -> str:
    return f"    {escape_to_one_line(line, most - 4)}"


def _html(shown: Cell) -> str:
    return shown.html if isinstance(shown, Drawn) else shown


def _text(shown: Cell) -> str:
    return shown.text if isinstance(shown, Drawn) else shown
