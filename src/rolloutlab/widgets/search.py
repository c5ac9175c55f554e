"""What a search found: a table with the passage that matched, and how its scores came to be."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rolloutlab.widgets.html import heading, words
from rolloutlab.widgets.visible import visible

LINES = 20
ROWS = 100
_PASSAGE = 160
_LINE = 60
_DOCUMENT = 4_000
"""Characters of a conversation that a table opens."""
_LAST_ANSWER = re.compile(r"^assistant: ", re.MULTILINE)


@dataclass(frozen=True)
class Shown:
    """One row of the table. values: metadata fields that are columns. document: the conversation as text."""

    name: str
    score: float | None
    values: Mapping[str, Any]
    document: str


def text(head: Sequence[str], rows: Sequence[Shown], wanted: Sequence[str], total: int) -> str:
    """The table as plain text."""
    lines = []
    for i, row in enumerate(rows[:LINES]):
        told = [f"{i:>3}", *([f"{row.score:>9.4f}"] if row.score is not None else []), row.name]
        told += [f"{field} {cell(value)}" for field, value in row.values.items() if value is not None]
        before, found, after = passage(row.document, wanted, _LINE)
        lines.append(f"{'  '.join(told)}\n       {visible(f'{before}{found}{after}')}")
    return "\n".join([*map(visible, head), *lines, *_more(min(len(rows), LINES), total)])


def html(head: Sequence[str], rows: Sequence[Shown], wanted: Sequence[str], total: int) -> str:
    """The table as HTML; the whole conversation opens below its passage, without scripts."""
    ranked = any(row.score is not None for row in rows)
    fields = list(dict.fromkeys(field for row in rows for field in row.values))
    names = [*(["score"] if ranked else []), *fields]
    top = "".join(f"<th>{escape(visible(name))}</th>" for name in names)
    body = "".join(_row(i, row, fields, wanted, ranked) for i, row in enumerate(rows[:ROWS]))
    table = f"<table><tr><th></th>{heading('trajectory')}{top}{heading('passage')}</tr>{body}</table>" if rows else ""
    first, *others = [escape(visible(line)) for line in head]
    more = escape("".join(_more(min(len(rows), ROWS), total)))
    return f"<p>{first}</p>{''.join(f'<p><b>{line}</b></p>' for line in others)}{table}<p>{more}</p>"


def passage(document: str, wanted: Iterable[str], length: int = _PASSAGE) -> tuple[str, str, str]:
    """The part of a text that has the most of some words, around the first of them: before, that word, after.

    Without any of them, the beginning of the last answer.
    """
    parts = [re.escape(word) for word in dict.fromkeys(wanted) if word]
    places = [found.span() for found in re.finditer("|".join(parts), document, re.IGNORECASE)] if parts else []
    if not places:
        answers = [found.start() for found in _LAST_ANSWER.finditer(document)]
        begin = answers[-1] if answers else 0
        return _cut(document, begin, begin + length), "", ""
    ends = [(first, _different(document, places[i:], first + length)) for i, (first, _) in enumerate(places[:200])]
    first = max(ends, key=lambda end: end[1])[0]
    last = next(end for start, end in places if start == first)
    begin = max(0, first - length // 4)
    return _cut(document, begin, first, after=False), document[first:last], _cut(document, last, begin + length, before=False)


def terms(query: str) -> list[str]:
    """The words of a text query, the longest first: those say the most."""
    return sorted(re.findall(r"\w+", query), key=len, reverse=True)


def cell(value: Any) -> str:
    """A metadata value in a table."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return visible(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _row(i: int, row: Shown, fields: Sequence[str], wanted: Sequence[str], ranked: bool) -> str:
    cells = [f"<td>{i}</td>", words(f"<code>{escape(visible(row.name))}</code>")]
    if ranked:
        cells.append(f"<td>{'' if row.score is None else f'{row.score:.4f}'}</td>")
    cells += [f"<td>{escape(cell(row.values.get(field)))}</td>" for field in fields]
    before, found, after = (escape(visible(part)) for part in passage(row.document, wanted))
    marked = f"{before}<mark>{found}</mark>{after}" if found else f"{before}{after}"
    whole = visible(row.document[:_DOCUMENT]) + ("…" if len(row.document) > _DOCUMENT else "")
    opened = f"<details><summary>{marked}</summary><pre>{escape(whole)}</pre></details>" if row.document else ""
    return f"<tr>{''.join(cells)}{words(opened)}</tr>"


def _cut(document: str, begin: int, end: int, *, before: bool = True, after: bool = True) -> str:
    said = " ".join(document[begin:end].split())
    left = "… " if before and begin > 0 else ""
    space = document[begin : begin + 1].isspace() and not before, document[max(end - 1, 0) : end].isspace() and not after
    return f"{left}{' ' * space[0]}{said}{' ' * (space[1] and bool(said))}{' …' if after and end < len(document) else ''}"


def _different(document: str, places: Sequence[tuple[int, int]], end: int) -> int:
    return len({document[first:last].casefold() for first, last in places if last <= end})


def _more(shown: int, total: int) -> list[str]:
    return [f"... and {total - shown:,} more: result.to_frame()"] if total > shown else []
