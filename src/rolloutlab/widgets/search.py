"""Search results as a table: equal texts share a row, words of the query are marked, rows open to conversations."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.listing import TIMES, Cell, Drawn, Listing, ListingRow, draw_details, whole
from rolloutlab.widgets.kit.parts import band, bars, chip, figure, parts, share
from rolloutlab.widgets.kit.table import Heading
from rolloutlab.widgets.text import decimals, more

MAX_TEXT_ROWS = 20
MAX_HTML_ROWS = 100
_PASSAGE_CHARS = 160
_TEXT_PASSAGE_CHARS = 90
_PROMPT_CHARS = 60
_DOCUMENT_CHARS = 4_000  # of a conversation that a table opens
_MAX_PLACES = 500  # places of query words in one conversation
_MAX_NAMES = 10  # of answers with one text
_REST = "result.to_frame()"
_WORD = 20
_BARS = 12
_KINDS = 3  # how many collections, and how many kinds of endings, the summary names
_SUMMED = 3
"""The fewest hits that have a summary."""
_BLANK = re.compile(r"\s")
_ANSWER = re.compile(r"^assistant: ", re.MULTILINE)
_USER = re.compile(r"^user: (.*?)(?=\n\n[a-z]+(?: reasons)?: |\Z)", re.MULTILINE | re.DOTALL)
_ENDS = {"length": "cut off"}
_ROW = "row."


@dataclass(frozen=True)
class Shown:
    """A hit. values: the fields that are columns. document: the conversation as text. metadata: all fields."""

    name: str
    score: float | None
    values: Mapping[str, Any]
    document: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchTexts:
    """The texts around a table of hits. name, about: its title. warnings: why hits may be missing. notes: below it.

    limit: the limit of the search, if there may be more hits; else 0.
    """

    name: str
    about: str
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    limit: int = 0


def search_listing(texts: SearchTexts, hits: Sequence[Shown], terms: Sequence[str], total: int) -> Listing:
    """Make the table of hits. hits: those to show. terms: the words of the query. total: how many hits there are."""
    same: dict[tuple[str, ...], list[int]] = {}
    for i, hit in enumerate(hits):
        shown = _key_passage(hit.document, terms, _PASSAGE_CHARS)
        same.setdefault((shown, *map(cell, hit.values.values())), []).append(i)
    fields = [name for name in dict.fromkeys(name for hit in hits for name in hit.values) if name != "reward"]
    columns = [
        Heading("hit", number=True),
        Heading("answer"),
        Heading("match", number=True, middle=True),
        Heading("reward", number=True),
        *(Heading(name, number=_is_number(name, hits), middle=True) for name in fields),
        Heading("prompt", middle=True, spare=True),
        Heading("tokens", number=True, middle=True),
        Heading("from"),
    ]
    scores = [hit.score for hit in hits if hit.score is not None]
    rows = [_row(shown, places, hits, fields, terms, scores) for (shown, *_), places in same.items()]
    folded = ""
    if len(rows) < len(hits):
        folded = f"{count(len(rows), 'row')} for {len(hits)} answers: equal texts are one row"
        # the number of hits that fill `limit` rows, if the next hits have as many equal texts
        folded += f" -> -k {-(-len(hits) * texts.limit // len(rows))} for about {texts.limit}" if texts.limit else ""
    rest = [escape_control_chars(line) for line in more(total - len(hits), _REST)]
    notes = [*filter(None, [folded]), *texts.notes, *rest]
    first = [Hint(warning) for warning in texts.warnings]
    return Listing(texts.name, texts.about, columns, rows, notes, parts=[_summary(hits)], hints=first)


def passage(document: str, terms: Sequence[str], length: int = _PASSAGE_CHARS) -> str:
    """Cut out the part of a text with the most query terms; without any of them, the beginning of the last answer."""
    places = [match.start() for match in _any_of(terms).finditer(document)][:_MAX_PLACES] if terms else []
    if places:
        begin = max(places, key=lambda place: _count_terms(document[place : place + length], terms)) - length // 4
    else:
        begin = max((match.start() for match in _ANSWER.finditer(document)), default=0)
    begin = max(0, begin)
    if begin and places and (blank := _BLANK.search(document, begin, begin + _WORD)):
        begin = blank.start()  # so that the passage begins with a whole word
    words = " ".join(document[begin : begin + length].split())
    return f"{'… ' if begin else ''}{words}{' …' if begin + length < len(document) else ''}"


def terms_of(query: str) -> list[str]:
    """Split a text query into words, the longest first, because they say the most."""
    return sorted(re.findall(r"\w+", query), key=len, reverse=True)


def cell(value: Any) -> str:
    """Write a metadata value for a cell."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    return escape_control_chars(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _key_passage(document: str, terms: Sequence[str], length: int) -> str:
    """Cut out the passage of a conversation that a row shows.

    It is from the last answer, unless only the text before that has words of the query.
    """
    begin = max((match.end() for match in _ANSWER.finditer(document)), default=0)
    before, answer = document[:begin], document[begin:]
    if terms and not _any_of(terms).search(answer) and _any_of(terms).search(before):
        return passage(_ANSWER.sub("", before).rstrip(), terms, length)
    return passage(answer, terms, length)


def _row(
    shown: str,
    places: Sequence[int],
    hits: Sequence[Shown],
    fields: Sequence[str],
    terms: Sequence[str],
    scores: Sequence[float],
) -> ListingRow:
    first = hits[places[0]]
    times = f"{TIMES}{len(places)}" if len(places) > 1 else ""
    texts = {name: cell(first.values.get(name)) for name in fields}
    long = {name: text for name, text in texts.items() if _is_long(text)}
    cells: list[Cell] = [
        Drawn(f"{places[0]}", Html("")),
        Drawn("", Html(f"{chip(times) + ' ' if times else ''}{_mark_terms(shown, terms)}")),
        _match(first.score, scores),
        _reward(first),
        *(
            Drawn("", _mark_terms(passage(text, terms), terms)) if name in long else text
            for name, text in texts.items()
        ),
        Drawn("", escape(escape_to_one_line(_prompt(first.document), _PROMPT_CHARS))),
        "" if "tokens" in texts else cell(first.metadata.get("tokens")),
        _draw_origin(first.name, len(places) - 1),
    ]
    below = [f"{name} {passage(text, terms, _TEXT_PASSAGE_CHARS)}" for name, text in long.items()]
    return ListingRow(cells, _opens(first, [hits[i].name for i in places[1:]]), [*below, _in_text(first, terms)])


def _in_text(hit: Shown, terms: Sequence[str]) -> str:
    return _key_passage(hit.document, terms, _TEXT_PASSAGE_CHARS)


def _match(score: float | None, scores: Sequence[float]) -> Cell:
    """Draw the score as a bar between the worst and the best score that is shown. The lowest score is best."""
    if score is None:
        return ""
    best, worst = min(scores), max(scores)
    part = (worst - score) / (worst - best) if worst > best else 1.0
    text = f"{score:.4f}"
    return Drawn(text, share((0.1 + 0.9 * part, ""), label=text))


def _reward(hit: Shown) -> Cell:
    text = cell(hit.values.get("reward"))
    return Drawn(text, Html(f"<b>{text}</b>" if text else ""))


def _draw_origin(name: str, others: int) -> Cell:
    rest = f" and {others} more" if others else ""
    return Drawn(f"{name}{rest}", Html(f"{whole(name).html}{rest}"))


def _prompt(document: str) -> str:
    """Find the last message of a user."""
    return max(((match.start(), match[1]) for match in _USER.finditer(document)), default=(0, ""))[1]


def _opens(hit: Shown, others: Sequence[str]) -> Html:
    ended = hit.metadata.get("finish_reason")
    facts = [
        *([("ended", _ENDS.get(ended, ended))] if isinstance(ended, str) else []),
        *((name.removeprefix(_ROW), cell(value)) for name, value in hit.metadata.items() if name.startswith(_ROW)),
        *([("also", ", ".join(others[:_MAX_NAMES]) + " …" * (len(others) > _MAX_NAMES))] if others else []),
    ]
    rest = "…" if len(hit.document) > _DOCUMENT_CHARS else ""
    text = f'<div class="rl-text">{escape(hit.document[:_DOCUMENT_CHARS] + rest)}</div>' if hit.document else ""
    return Html(text + draw_details(facts, f"%group {hit.name.rpartition('/')[0]}", f"%branch {hit.name}"))


def _summary(hits: Sequence[Shown]) -> Html:
    """Draw the rewards of the hits, their collections, and how they ended."""
    rewards = [float(hit.values["reward"]) for hit in hits if isinstance(hit.values.get("reward"), int | float)]
    where = Counter(hit.name.partition(":")[0] for hit in hits)
    ends = Counter(_ENDS.get(end, end) for hit in hits if isinstance(end := hit.metadata.get("finish_reason"), str))
    if len(hits) < _SUMMED:
        return Html("")
    figures = [*_histogram(rewards), _mean_reward(rewards, len(hits))] if rewards else []
    figures += [_draw_kinds("Where", where), *([_draw_kinds("Ended", ends)] if ends else [])]
    return band(*figures)


def _mean_reward(rewards: Sequence[float], hits: int) -> Html:
    """Draw the mean reward, and how many hits it is over, if some have no reward."""
    mean = math.fsum(reward / len(rewards) for reward in rewards)  # a sum may be too large for a float
    of = f"of {len(rewards):,}, {hits - len(rewards):,} without a reward" if len(rewards) < hits else ""
    return figure("Mean reward", decimals(mean, ".2f"), of)


def _histogram(rewards: Sequence[float]) -> list[Html]:
    """Draw a histogram of rewards; nothing if the length of its axis would be too large for a float."""
    low, high = min(rewards), max(rewards)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    if not math.isfinite(high - low):
        return []
    counts = [0] * _BARS
    for reward in rewards:
        counts[min(_BARS - 1, int(_BARS * ((reward - low) / (high - low)))) if high > low else 0] += 1
    label = f"rewards of {len(rewards)} answers, {min(rewards):.3g} to {max(rewards):.3g}"
    return [figure(f"Rewards of these {len(rewards)}", "", "", bars(counts, f"{low:g}", f"{high:g}", label))]


def _draw_kinds(name: str, counts: Counter[str]) -> Html:
    """Draw the share of the most frequent kinds, and of all others together."""
    most, total = counts.most_common(_KINDS), counts.total()
    if len(most) < len(counts):
        most = [*most, (f"and {len(counts) - len(most):,} more", total - sum(n for _, n in most))]
    return figure(name, "", "", parts((text, n / total, f"{n:,}") for text, n in most))


def _is_number(name: str, hits: Sequence[Shown]) -> bool:
    return all(isinstance(hit.values.get(name), int | float | None) for hit in hits)


def _is_long(text: str) -> bool:
    return len(text) > _PASSAGE_CHARS or "\n" in text


def _mark_terms(text: str, terms: Sequence[str]) -> Html:
    """Draw a text with the query terms in it marked."""
    places = [match.span() for match in _any_of(terms).finditer(text)] if terms else []
    ends = [0, *(end for place in places for end in place), len(text)]
    pieces = [escape(text[begin:end]) for begin, end in pairwise(ends)]
    return Html("".join(f"<mark>{piece}</mark>" if i % 2 else piece for i, piece in enumerate(pieces)))


def _any_of(terms: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, terms)), re.IGNORECASE)


def _count_terms(text: str, terms: Sequence[str]) -> int:
    """Count the different query terms that are in a text."""
    folded = text.casefold()
    return sum(term.casefold() in folded for term in terms)
