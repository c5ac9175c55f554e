"""Tables of views as HTML: right-aligned numbers, bars and sparklines in cells, rows that open."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rolloutlab.widgets.html import Html, escape

_CLASSES = (("number", "rl-n"), ("middle", "rl-mid"), ("spare", "rl-spare"))


@dataclass(frozen=True)
class Heading:
    """A column. number: it is aligned to the right. middle, spare: it is left out of pages that are narrow.

    middle: on pages as narrow as a telephone. spare: already on pages that are not wide.
    """

    name: str
    number: bool = False
    middle: bool = False
    spare: bool = False

    def of(self, tag: str, content: str) -> str:
        """Draw a cell of the column."""
        classes = " ".join(of_css for name, of_css in _CLASSES if getattr(self, name))
        of_class = f' class="{classes}"' if classes else ""
        # GitHub strips styles, and would centre the cell
        align = ' align="right"' if self.number else ' align="left"'
        tag = tag if content else "td"  # a heading without a name must not count as a header cell
        return f"<{tag}{of_class}{align}>{escape(content)}</{tag}>"


@dataclass(frozen=True)
class TableRow:
    """A row: a text or `Html` for each column. chosen: it is marked. opens: what a click on its first cell shows."""

    cells: Sequence[str]
    chosen: bool = False
    opens: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


def table(columns: Sequence[Heading], rows: Iterable[TableRow], label: str = "") -> Html:
    """Draw a table. Columns in which no row has anything are left out."""
    listed = list(rows)
    used = [i for i in range(len(columns)) if any(str(row.cells[i]) for row in listed)] or list(range(len(columns)))
    first = "".join(columns[i].of("th", columns[i].name) for i in used)
    body = "".join(_row(columns, used, row) for row in listed)
    named = f' aria-label="{escape(label)}"' if label else ""
    return Html(
        f'<div class="rl-wide" tabindex="0"><table class="rl-table"{named}><thead><tr>{first}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(columns: Sequence[Heading], used: Sequence[int], row: TableRow) -> str:
    given = "".join(f' {name}="{escape(value)}"' for name, value in row.attributes.items())
    chosen = ' class="rl-chosen"' if row.chosen else ""
    texts = [escape(row.cells[i]) for i in used]
    if row.opens:
        texts[0] = Html(f"<details><summary>{texts[0]}</summary></details>")  # if open, the style shows the row below
    cells = "".join(columns[i].of("td", text) for i, text in zip(used, texts, strict=True))
    opens = f'<td class="rl-open" colspan="{len(used)}">{row.opens}</td>'
    below = f'<tr class="rl-below">{opens}</tr>' if row.opens else ""
    return f"<tr{chosen}{given}>{cells}</tr>{below}"
