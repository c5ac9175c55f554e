"""Split of rows into `train` and `held_out` by a hash of their content, so that added rows move no other row."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.conversation import are_messages, read_json_messages
from rolloutlab.sampling.dataset import describe_left_out, rows_of
from rolloutlab.sampling.near import find_near_duplicates
from rolloutlab.sampling.prompt import Row
from rolloutlab.store.texts import plain_text

_ANSWERS = frozenset({"assistant", "gpt", "chatgpt", "model"})
TRAIN, HELD_OUT = "train", "held_out"

_BITS = 64
_LEAST_DISTINCT = 0.5
"""Share of distinct values from which on a column is taken for prompts: questions differ, topics repeat."""
_LEAST_WORDS = 4
"""Words per text, on average, from which on a column is taken for prompts, even if its values repeat in many rows."""
_MANY_ROWS = 250_000
"""Rows after which a line says how many have been read, again and again."""
_MANY = 5_000
"""Texts from which on a line announces their comparison, which then takes seconds."""
_PROMPTS = re.compile("prompts?|questions?|problems?|query|instruction|input|text|messages|conversations?")
"""Names of columns that are taken for prompts, whatever is in them."""


class RowPart(list[Row]):
    """One part of a split: a list of its rows, for `over=`. Rows of a slice or selection still know their part."""

    def __init__(self, rows: Sequence[Row], name: str) -> None:
        super().__init__(rows)
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}: {count(len(self), 'row')}"


class DataSplit(NamedTuple):
    """The two parts of a split."""

    train: RowPart
    held_out: RowPart


def split_rows(
    data: Any,
    held_out: float = 0.1,
    *,
    seed: int = 0,
    by: str | Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> DataSplit:
    """Split rows into `train` and `held_out`, lists for `over`; a collection records which part its rows are of.

    Args:
        data: as `over` in `lab.chat`.
        held_out: the fraction of rows to hold out. A hash of its content and `seed` decides the part of each row, so no
            row changes its part if the order changes or rows are added. A part that is split again is hashed anew, so
            the fraction applies within it even with the same seed.
        seed: the seed of the hash.
        by: one or more columns. Rows with equal values there stay together, because only these values are hashed. Case,
            white space and Unicode forms of texts make no difference.
        say: called with lines on the sizes of the parts, and on prompts of one part that are equal or nearly equal to
            prompts of the other (`near.find_near_duplicates`).

    Raises:
        InputError: `held_out` is not between 0 and 1, a row lacks a column of `by`, or a part would be empty; and as
            `lab.chat`.
    """
    if not isinstance(held_out, float | int) or not 0 < held_out < 1:
        raise InputError(f"held_out must be between 0 and 1, not {held_out!r}", hint="held_out=0.1")
    columns = [by] if isinstance(by, str) else by
    parts: dict[str, list[Row]] = {TRAIN: [], HELD_OUT: []}
    rows = rows_of(data, on_read=partial(_say_read, say))
    within = _find_common_parts(rows)
    for row in rows:
        row.part = HELD_OUT if _draw(_key(row, columns), seed, within) < held_out else TRAIN
        row.within = within
        parts[row.part].append(row)
    for name, of_part in parts.items():
        if not of_part:
            what = f"no row is in {name}: a hash decides where each row goes, so few rows may all go to one part"
            raise InputError(what, hint="another seed or share, or more different values of by")
    split = DataSplit(RowPart(parts[TRAIN], TRAIN), RowPart(parts[HELD_OUT], HELD_OUT))
    for line in (*describe_left_out(rows), *describe(split)):
        say(line)
    return split


def _say_read(say: Callable[[str], None], read: int) -> None:
    if read % _MANY_ROWS == 0:
        say(f"reading {count(read, 'row')} ...")


def describe(split: DataSplit) -> Iterator[str]:
    """Describe a split, line by line: the sizes of its parts, then what they share.

    That is, for each column of prompts, how many held-out rows share a text with `train`, with an example.
    Nearly equal texts count too. Comparing many texts takes seconds, so a line announces it.
    """
    yield ", ".join(map(repr, split))
    for column, train, held_out in _find_prompt_columns(split):
        if len(train) + len(held_out) >= _MANY:
            yield f"comparing {count(len(train) + len(held_out), 'text')} of {column} ..."
        known = set(train)
        shared = {text: None for text in held_out if text in known}
        if shared:
            same = count(sum(text in shared for text in held_out), "row")
            what = f"{same} of held_out with a {column} that train has too: {next(iter(shared))[:60]!r}"
            yield f"{what} -> lab.split(..., by={column!r})"
        alone = list(dict.fromkeys(text for text in held_out if text and text not in known))
        near = find_near_duplicates(alone, train)
        if near:
            i, j = next(iter(sorted(near.items())))
            alike = {alone[i] for i in near}
            similar = count(sum(text in alike for text in held_out), "row")
            what = f"{similar} of held_out with a {column} nearly as in train: {_quote_difference(alone[i], train[j])}"
            yield f"{what} -> lab.split(..., by=COLUMN), one that such rows share"


def _quote_difference(one: str, other: str) -> str:
    """Quote two texts from shortly before they differ."""
    same = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, same - 30)
    return f"{one[begin : begin + 60]!r} and {other[begin : begin + 60]!r}"


def _find_prompt_columns(split: DataSplit) -> Iterator[tuple[str, list[str], list[str]]]:
    """Find the columns that hold prompts, with the normalized texts of both parts."""
    for column in {column: None for row in split.held_out for column in row}:
        train, held_out = ([_prompt_text(row.get(column)) for row in part] for part in split)
        every = [text for text in (*train, *held_out) if text]
        distinct = set(every)
        if len(distinct) < 2:  # the same text in all rows, such as an instruction
            continue
        words = sum(len(text.split()) for text in distinct) / len(distinct)
        is_named = _PROMPTS.fullmatch(column.casefold())
        if is_named or words >= _LEAST_WORDS or len(distinct) >= _LEAST_DISTINCT * len(every):
            yield column, train, held_out


def normalize(text: str) -> str:
    """Remove differences in case, white space and Unicode forms (NFKC) from a text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def ranges_of(rows: Sequence[Row]) -> dict[str, list[tuple[int, int]]]:
    """Return the positions of the rows of each part of a split, as ranges `(first, last)`."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for i, row in enumerate(rows):
        if row.part:
            own = ranges.setdefault(row.part, [])
            if own and own[-1][1] == i - 1:
                own[-1] = own[-1][0], i
            else:
                own.append((i, i))
    return ranges


def first_ranges(ranges: Mapping[str, Sequence[tuple[int, int]]], rows: int) -> dict[str, list[tuple[int, int]]]:
    """Cut the ranges of all rows down to those of the first `rows` rows."""
    return {
        part: kept
        for part, own in ranges.items()
        if (kept := [(first, min(last, rows - 1)) for first, last in own if first < rows])
    }


def positions_in(plan: Mapping[str, Any], part: str) -> set[int]:
    """Find the groups of a stored collection whose rows belong to a part of a split."""
    return {i for first, last in plan.get("parts", {}).get(part, ()) for i in range(first, last + 1)}


def _key(row: Row, columns: Sequence[str]) -> Any:
    """Return what is hashed of a row: its values in some columns, or the whole row."""
    for column in columns:
        if column in row.unusable:
            raise row.unusable[column]
        if column not in row:
            raise InputError(f"{row.place} has no column {column!r}", hint=f"columns: {', '.join(row)}")
    return [normalize(value) if isinstance(value := row[column], str) else value for column in columns] or row


def _find_common_parts(rows: Sequence[Row]) -> tuple[str, ...]:
    """Find the parts of earlier splits that all rows come from, each a part of the one before; empty without any."""
    paths = [(*row.within, row.part) if row.part else () for row in rows]
    first, last = min(paths), max(paths)
    differ = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[:differ]


def _draw(key: Any, seed: int, within: Sequence[str]) -> float:
    """Hash a key to a number from 0 to 1, evenly distributed. `within` hashes each part of an earlier split anew."""
    text = json.dumps([seed, key, *within], sort_keys=True, ensure_ascii=True)
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[: _BITS // 8])
    return drawn / float(2**_BITS)


def _prompt_text(value: Any) -> str:
    """Return the text of a prompt, normalized: of a conversation what the user asked, of other lists their JSON."""
    messages = read_json_messages(value) or value
    if are_messages(messages):
        asked = [m for m in messages if m.get("role", m.get("from")) not in {"system", "developer", *_ANSWERS}]
        value = "\n".join(_content_text(m.get("content", m.get("value"))) for m in asked)
    elif isinstance(value, list | dict) and value:
        value = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return normalize(value) if isinstance(value, str) else ""


def _content_text(content: Any) -> str:
    """Return the text of a content and, as JSON, its other parts: a question about another image is another one."""
    parts = content if isinstance(content, list) else []
    others = [part for part in parts if not isinstance(part, dict) or "text" not in part]
    return plain_text(content) + (json.dumps(others, sort_keys=True) if others else "")
