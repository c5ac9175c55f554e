"""Rewards as tables: one that fits a terminal, and one as HTML without scripts."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, islice
from typing import Any
from unicodedata import east_asian_width

from rolloutlab.api.wire.chat import Choice
from rolloutlab.hints import Hint
from rolloutlab.objective.advantages import Reason
from rolloutlab.objective.preflight import WHY_NOT, count
from rolloutlab.sanitize import escape_control_chars, escape_to_one_line
from rolloutlab.store.models import Edit, StoredTrajectory, Undoable
from rolloutlab.widgets.collection import read_message, reasoning
from rolloutlab.widgets.html import Cell, Html, Words, code, escape, html_table, paragraphs, title
from rolloutlab.widgets.kit.parts import panel
from rolloutlab.widgets.text import decimals, more, number, signed, text_table, with_minus

MAX_TEXT_ROWS = 12
MAX_HTML_ROWS = 24
_WIDTH = 80
_MAX_NAME = 28
_MAX_EFFECT = 24
_MAX_MESSAGE = 80
_MAX_FAILURES = 3
"""How many different errors are shown in full below the table."""
_REST = ".to_frame() has them"
_WHY_NOT = {str(reason): words for reason, words in {**WHY_NOT, Reason.UNSCORED: ""}.items()}


def text(
    name: str, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], fitting: int, notes: Sequence[Hint] = ()
) -> str:
    """Write the first rows as plain text. Only lines of notes may be wider than 80 columns.

    Args:
        name: The title.
        summary: The figures.
        rows: The first rows.
        fitting: How many rows there are.
        notes: Hints to show above the rows.
    """
    ended = _has_ends(rows)
    cells = [
        (
            _shorten(row["name"], _MAX_NAME),
            number(row["reward"]),
            _effect(row),
            *((_end(row),) if ended else ()),
            row["source"] or "-",
            " ".join(row["completion"].split()),
        )
        for row in rows
    ]
    head = ("trajectory", "reward", "advantage", *(("ended",) if ended else ()), "source", "completion")
    table = text_table(head, cells, f"<0 >7 >13 {'<5 ' if ended else ''}<8")
    rest = more(fitting - len(rows), _REST)
    above = [*(_fit(line, _WIDTH) for line in _heading(name, summary)), *(note.line() for note in notes)]
    lines = [_fit(line, _WIDTH).rstrip() for line in [*([""] if rows else []), *table, *_failures(rows)]]
    return "\n".join([*above, *lines, *([""] if rest else []), *rest])


def html(
    name: str,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    components: Sequence[str],
    fitting: int,
    above: Html | None = None,
) -> str:
    """Draw the first rows.

    Args:
        name: The title.
        summary: The figures.
        rows: The first rows.
        components: The components of rewards that have a column.
        fitting: How many rows there are.
        above: The figures of all rows, with their heading, once they are read.
    """
    figures = ("reward", "advantage", *components)
    ended = ("ended",) if _has_ends(rows) else ()
    head: list[Cell] = [Words("trajectory"), *figures, *map(Words, (*ended, "source", "prompt", "completion"))]
    first, *others = _heading(name, summary)
    rest = paragraphs([*others, *more(fitting - len(rows), _REST)])
    table = html_table(head, [_row(row, components, ended=bool(ended)) for row in rows])
    if above is not None:
        return panel(above, f'<div class="rl-wide">{table}</div>', rest)
    return f"{title(first)}{table}{rest}"


def given_message(edits: Sequence[Edit]) -> str:
    """Write the message of a page about rewards that were given by hand."""
    if not edits:
        return "that is its reward already"
    if all(edit.new is None for edit in edits):
        return f"{edits[0].trajectory}: reward cleared" if len(edits) == 1 else f"{len(edits):,} rewards cleared"
    if len(edits) == 1:
        return f"{edits[0].trajectory}: {number(edits[0].old)} → {number(edits[0].new)}"
    return f"{count(len(edits), 'reward')} set to {number(edits[0].new)}"


def undoable_message(newest: Undoable | None) -> str:
    """Write what an undo would take back: `12 rewards set to 1`; empty if there is nothing to undo."""
    if newest is None:
        return ""
    rewards = count(newest.rewards, "reward")
    if newest.low is None:
        return f"{rewards} cleared"
    alike = newest.source == "hand" and newest.low == newest.high and not newest.cleared
    return f"{rewards} set to {number(newest.low)}" if alike else f"{rewards} by {newest.source}"


def undone_message(edits: Sequence[Edit], what: str = "") -> str:
    """Write the message about an undo. what: what `undoable_message` returned before it."""
    unscored = sum(edit.new is None for edit in edits)
    also = f", {unscored:,} of them unscored again" if unscored else ""
    change = f"change {edits[0].undoes}" + (f" ({what})" if what else "")
    return f"{change} is undone: {count(len(edits), 'reward')} as before{also}"


def line(edit: Edit) -> str:
    """Write one change of a reward, as a page shows it."""
    by = f"undo of change {edit.undoes}" if edit.undoes else edit.source
    note = f" ({escape_control_chars(edit.note)})" if edit.note else ""
    who = escape_control_chars(edit.who)
    return f"{edit.at[:16].replace('T', ' ')} {who}, {by}: {number(edit.old)} → {number(edit.new)}{note}"


def turns(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """Describe a conversation turn by turn: `role`, `text` with tool calls, and `reasoning` and `reward` if any."""
    turns = []
    rewards = iter(trajectory.turn_rewards)
    for item in trajectory.items:
        role, content, calls = read_message(item)
        turn: dict[str, Any] = {"role": role, "text": escape_control_chars("\n".join(filter(None, [content, *calls])))}
        reward = next(rewards, None) if isinstance(item, Choice) else None
        turn |= {} if reward is None else {"reward": reward}
        folded = reasoning(item)
        turns.append({**turn, **({"reasoning": escape_control_chars(folded)} if folded else {})})
    return turns


def _heading(name: str, summary: Mapping[str, Any]) -> list[str]:
    scored, all_, mean = summary["scored"], summary["trajectories"], summary["mean_reward"]
    partly = f" ({scored:,} scored)" if 0 < scored < all_ else ""
    rewards = "not scored yet" if mean is None else f"mean reward {decimals(mean)}{partly}"
    heading = f"{name}: {count(all_, 'trajectory')} in {count(summary['groups'], 'group')}, {rewards}"
    if summary["trainable"] is None:
        return [heading, "what would train is known when all is read"]
    groups = f"{summary['trainable_groups']:,} of {count(summary['groups'], 'group')}"
    together = summary.get("collections", 1)
    job = f", in one job of these {together} collections" if together > 1 else ""
    return [heading, f"{summary['trainable']:,} will train: {count(summary['tokens'], 'token')} in {groups}{job}"]


def _effect(row: Mapping[str, Any]) -> str:
    """Write the advantage, or in a word or two why there is none, such as the type of a reward function's error."""
    if row.get("error"):
        return f"failed: {row['error'].partition(':')[0]}"[:_MAX_EFFECT]
    if row["reason"] is not None:
        return _WHY_NOT[row["reason"]]
    return "..." if row["advantage"] is None else signed(row["advantage"])


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the first different errors of reward functions, each with message and line of the function."""
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.get("error"):
            first.setdefault((_line(row["error"]), row["place"]), row["name"])
    lines = [""] if first else []
    for (error, place), name in islice(first.items(), _MAX_FAILURES):
        lines += [f"{_shorten(name, _MAX_NAME)} failed: {error}", *([f"  {place}"] if place else [])]
    return lines


def _line(error: str) -> str:
    return error.partition("\n")[0]


def _draw_error(row: Mapping[str, Any]) -> Cell:
    """Draw the first line of an error, with all of it, and the line of the function, as its title."""
    whole = "\n".join(filter(None, (row["error"], row["place"])))
    first = escape_to_one_line(_line(row["error"]), _MAX_MESSAGE)
    return Words(Html(f'<span title="{escape(whole)}">failed: {escape(first)}</span>'))


def _has_ends(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any row is an episode with an environment or a program."""
    return any("episode_end" in row for row in rows)


def _end(row: Mapping[str, Any]) -> str:
    return escape_to_one_line(row.get("episode_end") or "-", _MAX_EFFECT)


def _row(row: Mapping[str, Any], components: Sequence[str], *, ended: bool) -> list[Cell]:
    effect = _draw_error(row) if row.get("error") else _effect(row) if row["reason"] else with_minus(_effect(row))
    figures = [number(row["reward"]), effect, *(number(row.get(f"component:{name}")) for name in components)]
    source = row["source"] or "-"
    by = source if row["was"] is None else f"{source}, was {number(row['was'])}"
    words = (*((_end(row),) if ended else ()), by, row["prompt"], row["completion"])
    return [Words(code(row["name"])), *figures, *map(Words, words)]


def _shorten(name: str, longest: int) -> str:
    """Cut the middle out of a long name. Its end stays, because it identifies the trajectory."""
    return name if len(name) <= longest else f"{name[: longest // 2 - 2]}...{name[-(longest - longest // 2 - 1) :]}"


def _fit(line: str, columns: int) -> str:
    """Cut a line to this many columns of a terminal. Some characters take two columns."""
    cells = [2 if east_asian_width(character) in "WF" else 1 for character in line]
    if sum(cells) <= columns:
        return line
    return line[: sum(end <= columns - 3 for end in accumulate(cells))] + "..."
