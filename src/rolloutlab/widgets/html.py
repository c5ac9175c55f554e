"""HTML from text: escaping, tables that read well without styles or scripts, and no MathJax.

Everything that the notebook side shows as HTML is escaped here, so that no view can forget a character.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as escape_markup

from rolloutlab.sanitize import escape_control_chars


class Html(str):
    """Markup that needs no escaping any more."""

    __slots__ = ()


@dataclass(frozen=True)
class Words:
    """A table cell with text, aligned to the left. It spans `columns`. `content` is escaped unless it is `Html`."""

    content: str
    columns: int = 1


Cell = str | int | Words
"""A cell of a table. A page aligns `str` and `int` as it does numbers, often to the right."""


def escape(text: object) -> Html:
    """Escape a text, and make control, bidi and invisible characters visible. `Html` stays as it is."""
    return text if isinstance(text, Html) else Html(escape_markup(escape_control_chars(str(text))))


def code(text: str) -> Html:
    """Draw a text as code."""
    return Html(f"<code>{escape(text)}</code>")


def title(text: str) -> Html:
    """Draw a bold line above a view."""
    return Html(f"<p><b>{escape(text)}</b></p>")


def arrows(line: str) -> str:
    """Replace ` -> ` in a line of a report by an arrow, as pages show it."""
    return re.sub(r"(^| )-> ", r"\1→ ", line)


def paragraphs(lines: Iterable[str]) -> Html:
    """Draw a paragraph for each line of a report that is not empty."""
    return Html("".join(f"<p>{escape(arrows(line))}</p>" for line in lines if line))


def html_table(head: Sequence[Cell], rows: Iterable[Sequence[Cell]], *, labelled: bool = False) -> Html:
    """Draw a table. labelled: the first cell of each row is a heading."""
    first = f"<tr>{''.join(_cell('th', cell) for cell in head)}</tr>" if head else ""
    body = ("".join(_cell("th" if labelled and i == 0 else "td", cell) for i, cell in enumerate(row)) for row in rows)
    return Html(f"<table>{first}{''.join(f'<tr>{cells}</tr>' for cells in body)}</table>")


def for_notebook(html: str) -> str:
    """Wrap HTML as an output of a notebook, in which `$5 or $10` is not set as a formula.

    JupyterLab, nbconvert and nbviewer pass every output to MathJax, which sets what stands between dollars as a formula
    and hides what `\\phantom` holds. Two classes forbid it: MathJax 2 knows the first, MathJax 3 the second.
    """
    return f'<div class="tex2jax_ignore mathjax_ignore">{escape_control_chars(html)}</div>'


def _cell(tag: str, cell: Cell) -> str:
    if not isinstance(cell, Words):
        return f"<{tag}>{escape(cell)}</{tag}>"
    span = f' colspan="{cell.columns}"' if cell.columns > 1 else ""
    style = "text-align:left;white-space:pre-wrap" if tag == "td" else "text-align:left"
    # GitHub strips styles, and notebooks align every cell to the right: both need their own way to the left
    return f'<{tag}{span} style="{style}"><div align="left">{escape(cell.content)}</div></{tag}>'
