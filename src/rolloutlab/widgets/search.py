"""Search results as text and HTML: a table of hits with the passage that matched."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import Cell, Html, Words, code, escape, html_table, paragraphs
from rolloutlab.widgets.text import more

MAX_TEXT_ROWS = 20
MAX_HTML_ROWS = 100
_PASSAGE_CHARS = 160
_TEXT_PASSAGE_CHARS = 60
_DOCUMENT_CHARS = 4_000  # of a conversation that a table opens
_MAX_PLACES = 500  # places of query words in one conversation
_REST = "result.to_frame()"
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


def text(head: Sequence[str], rows: Sequence[Shown], terms: Sequence[str], total: int) -> str:
    """The table as plain text. terms: the words of the query."""
    lines = []
    for i, row in enumerate(rows[:MAX_TEXT_ROWS]):
        cells = [f"{i:>3}", *([f"{row.score:>9.4f}"] if row.score is not None else []), row.name]
        values = {field: cell(value) for field, value in row.values.items() if value is not None}
        cells += [
            f"{field} {passage(value, terms, _TEXT_PASSAGE_CHARS) if _is_long(value) else value}"
            for field, value in values.items()
        ]
        lines.append(f"{'  '.join(cells)}\n       {passage(row.document, terms, _TEXT_PASSAGE_CHARS)}")
    return "\n".join([*map(escape_control_chars, [*head, *lines]), *more(total - len(lines), _REST)])


def html(head: Sequence[str], rows: Sequence[Shown], terms: Sequence[str], total: int) -> str:
    """The table as HTML; the whole conversation opens below its passage, without scripts."""
    ranked = any(row.score is not None for row in rows)
    fields = list(dict.fromkeys(field for row in rows for field in row.values))
    names: list[Cell] = ["", Words("trajectory"), *(["score"] if ranked else []), *fields, Words("passage")]
    body = [_row(i, row, fields, terms, ranked) for i, row in enumerate(rows[:MAX_HTML_ROWS])]
    table = html_table(names, body) if rows else ""
    first, *others = map(escape, head)
    notes = "".join(f"<p><b>{line}</b></p>" for line in others)
    return f"<p>{first}</p>{notes}{table}{paragraphs(more(total - len(body), _REST))}"


def passage(document: str, terms: Sequence[str], length: int = _PASSAGE_CHARS) -> str:
    """The part of a text with the most query terms; without any of them, the beginning of the last answer."""
    places = [match.start() for match in _any_of(terms).finditer(document)][:_MAX_PLACES] if terms else []
    if places:
        begin = max(places, key=lambda place: _different(document[place : place + length], terms)) - length // 4
    else:
        begin = max((match.start() for match in _ANSWER.finditer(document)), default=0)
    begin = max(0, begin)
    if begin and places and (blank := _BLANK.search(document, begin, begin + _WORD)):
        begin = blank.start()  # a whole word first
    words = " ".join(document[begin : begin + length].split())
    return f"{'… ' if begin else ''}{words}{' …' if begin + length < len(document) else ''}"


def terms_of(query: str) -> list[str]:
    """The words of a text query, the longest first: those say the most."""
    return sorted(re.findall(r"\w+", query), key=len, reverse=True)


def cell(value: Any) -> str:
    """A metadata value in a table."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape_control_chars(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _row(i: int, row: Shown, fields: Sequence[str], terms: Sequence[str], ranked: bool) -> list[Cell]:
    score = ["" if row.score is None else f"{row.score:.4f}"] if ranked else []
    texts = {field: cell(row.values.get(field)) for field in fields}
    values = [Words(_opened(text, terms)) if _is_long(text) else text for text in texts.values()]
    return [i, Words(code(row.name)), *score, *values, Words(_opened(row.document, terms))]


def _is_long(text: str) -> bool:
    return len(text) > _PASSAGE_CHARS or "\n" in text


def _opened(text: str, terms: Sequence[str]) -> Html:
    """A text that opens below its passage."""
    whole = text[:_DOCUMENT_CHARS] + ("…" if len(text) > _DOCUMENT_CHARS else "")
    marked = _marked(passage(text, terms), terms)
    return Html(f"<details><summary>{marked}</summary><pre>{escape(whole)}</pre></details>" if text else "")


def _marked(text: str, terms: Sequence[str]) -> Html:
    """A text as HTML, with the query terms in it marked."""
    places = [match.span() for match in _any_of(terms).finditer(text)] if terms else []
    ends = [0, *(end for place in places for end in place), len(text)]
    pieces = [escape(text[begin:end]) for begin, end in pairwise(ends)]
    return Html("".join(f"<mark>{piece}</mark>" if i % 2 else piece for i, piece in enumerate(pieces)))


def _any_of(terms: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, terms)), re.IGNORECASE)


def _different(text: str, terms: Sequence[str]) -> int:
    folded = text.casefold()
    return sum(term.casefold() in folded for term in terms)
