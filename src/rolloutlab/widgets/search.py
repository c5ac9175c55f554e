"""What a search found: a table with the passage that matched, and how its scores came to be."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import heading, words

LINES = 20
ROWS = 100
_PASSAGE = 160
_LINE = 60
_DOCUMENT = 4_000
"""Characters of a conversation that a table opens."""
_LOOKED_AT = 500
"""Places of words in one conversation."""
_WORD = 20
_BLANK = re.compile(r"\s")
_ANSWER = re.compile(r"^assistant: ", re.MULTILINE)


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
        lines.append(escape_control_chars(f"{'  '.join(told)}\n       {passage(row.document, wanted, _LINE)}"))
    return "\n".join([*map(escape_control_chars, head), *lines, *_more(min(len(rows), LINES), total)])


def html(head: Sequence[str], rows: Sequence[Shown], wanted: Sequence[str], total: int) -> str:
    """The table as HTML; the whole conversation opens below its passage, without scripts."""
    ranked = any(row.score is not None for row in rows)
    fields = list(dict.fromkeys(field for row in rows for field in row.values))
    names = [*(["score"] if ranked else []), *fields]
    top = "".join(f"<th>{escape(escape_control_chars(name))}</th>" for name in names)
    body = "".join(_row(i, row, fields, wanted, ranked) for i, row in enumerate(rows[:ROWS]))
    table = f"<table><tr><th></th>{heading('trajectory')}{top}{heading('passage')}</tr>{body}</table>" if rows else ""
    first, *others = [escape(escape_control_chars(line)) for line in head]
    more = escape("".join(_more(min(len(rows), ROWS), total)))
    return f"<p>{first}</p>{''.join(f'<p><b>{line}</b></p>' for line in others)}{table}<p>{more}</p>"


def passage(document: str, wanted: Sequence[str], length: int = _PASSAGE) -> str:
    """The part of a text that has the most of some words; without any of them, the beginning of the last answer."""
    places = [found.start() for found in _any_of(wanted).finditer(document)][:_LOOKED_AT] if wanted else []
    if places:
        begin = max(places, key=lambda place: _different(document[place : place + length], wanted)) - length // 4
    else:
        begin = max((found.start() for found in _ANSWER.finditer(document)), default=0)
    begin = max(0, begin)
    if begin and places and (blank := _BLANK.search(document, begin, begin + _WORD)):
        begin = blank.start()  # a whole word first
    said = " ".join(document[begin : begin + length].split())
    return f"{'… ' if begin else ''}{said}{' …' if begin + length < len(document) else ''}"


def terms(query: str) -> list[str]:
    """The words of a text query, the longest first: those say the most."""
    return sorted(re.findall(r"\w+", query), key=len, reverse=True)


def cell(value: Any) -> str:
    """A metadata value in a table."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape_control_chars(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _row(i: int, row: Shown, fields: Sequence[str], wanted: Sequence[str], ranked: bool) -> str:
    cells = [f"<td>{i}</td>", words(f"<code>{escape(escape_control_chars(row.name))}</code>")]
    if ranked:
        cells.append(f"<td>{'' if row.score is None else f'{row.score:.4f}'}</td>")
    cells += [f"<td>{escape(cell(row.values.get(field)))}</td>" for field in fields]
    marked = _marked(passage(row.document, wanted), wanted)
    whole = escape_control_chars(row.document[:_DOCUMENT]) + ("…" if len(row.document) > _DOCUMENT else "")
    opened = f"<details><summary>{marked}</summary><pre>{escape(whole)}</pre></details>" if row.document else ""
    return f"<tr>{''.join(cells)}{words(opened)}</tr>"


def _marked(text: str, wanted: Sequence[str]) -> str:
    """A text as HTML, with some words in it marked."""
    places = [found.span() for found in _any_of(wanted).finditer(text)] if wanted else []
    ends = [0, *(end for place in places for end in place), len(text)]
    pieces = [escape(escape_control_chars(text[begin:end])) for begin, end in pairwise(ends)]
    return "".join(f"<mark>{piece}</mark>" if i % 2 else piece for i, piece in enumerate(pieces))


def _any_of(words: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)), re.IGNORECASE)


def _different(text: str, wanted: Sequence[str]) -> int:
    folded = text.casefold()
    return sum(word.casefold() in folded for word in wanted)


def _more(shown: int, total: int) -> list[str]:
    return [f"... and {total - shown:,} more: result.to_frame()"] if total > shown else []
