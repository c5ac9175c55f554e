"""Rewards as a table: one that fits a terminal, and one as HTML without scripts."""

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
from rolloutlab.widgets.collection import reasoning, spoken
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
"""Different errors in full below a table of text."""
_REST = ".to_frame() has them"
_WHY_NOT = {str(reason): words for reason, words in {**WHY_NOT, Reason.UNSCORED: ""}.items()}


def text(
    name: str, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], fitting: int, notes: Sequence[Hint] = ()
) -> str:
    """The first rows as plain text. Only lines of notes may be wider than 80 columns.

    name: the title. summary: the figures. rows: the first rows. fitting: how many rows there are. notes: hints to show
    above the rows.
    """
    ended = _has_ends(rows)
    cells = [
        (
            _shortened(row["name"], _MAX_NAME),
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
    above = [*(_fitted(line, _WIDTH) for line in _heading(name, summary)), *(note.line() for note in notes)]
    lines = [_fitted(line, _WIDTH).rstrip() for line in [*([""] if rows else []), *table, *_failures(rows)]]
    return "\n".join([*above, *lines, *([""] if rest else []), *rest])


def html(
    name: str,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    components: Sequence[str],
    fitting: int,
    above: Html | None = None,
) -> str:
    """The first rows as HTML. above: the figures of all, with their heading, once they are read."""
    figures = ("reward", "advantage", *components)
    ended = ("ended",) if _has_ends(rows) else ()
    head: list[Cell] = [Words("trajectory"), *figures, *map(Words, (*ended, "source", "prompt", "completion"))]
    first, *others = _heading(name, summary)
    rest = paragraphs([*others, *more(fitting - len(rows), _REST)])
    table = html_table(head, [_row(row, components, ended=bool(ended)) for row in rows])
    if above is not None:
        return panel(above, f'<div class="rl-wide">{table}</div>', rest)
    return f"{title(first)}{table}{rest}"


def given(edits: Sequence[Edit]) -> str:
    """A message of a page about a reward that was given."""
    if not edits:
        return "that is its reward already"
    if all(edit.new is None for edit in edits):
        return f"{edits[0].trajectory}: reward cleared" if len(edits) == 1 else f"{len(edits):,} rewards cleared"
    if len(edits) == 1:
        return f"{edits[0].trajectory}: {number(edits[0].old)} → {number(edits[0].new)}"
    return f"{count(len(edits), 'reward')} set to {number(edits[0].new)}"


def undoable(newest: Undoable | None) -> str:
    """What an undo would take back: `12 rewards set to 1`; empty where nothing is left."""
    if newest is None:
        return ""
    rewards = count(newest.rewards, "reward")
    if newest.low is None:
        return f"{rewards} cleared"
    alike = newest.source == "hand" and newest.low == newest.high and not newest.cleared
    return f"{rewards} set to {number(newest.low)}" if alike else f"{rewards} by {newest.source}"


def undone(edits: Sequence[Edit], what: str = "") -> str:
    """A message about an undo. what: as of `undoable` before it."""
    unscored = sum(edit.new is None for edit in edits)
    also = f", {unscored:,} of them unscored again" if unscored else ""
    change = f"change {edits[0].undoes}" + (f" ({what})" if what else "")
    return f"{change} is undone: {count(len(edits), 'reward')} as before{also}"


def line(edit: Edit) -> str:
    """One change of a reward, as a page shows it."""
    by = f"undo of change {edit.undoes}" if edit.undoes else edit.source
    note = f" ({escape_control_chars(edit.note)})" if edit.note else ""
    who = escape_control_chars(edit.who)
    return f"{edit.at[:16].replace('T', ' ')} {who}, {by}: {number(edit.old)} → {number(edit.new)}{note}"


def turns(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """The conversation turn by turn: `role`, `text` with tool calls, and `reasoning` and `reward` where it has them."""
    turns = []
    rewards = iter(trajectory.turn_rewards)
    for item in trajectory.items:
        role, content, calls = spoken(item)
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
    """The advantage, or in a word or two why there is none: the type of the error where a reward function failed."""
    if row.get("error"):
        return f"failed: {row['error'].partition(':')[0]}"[:_MAX_EFFECT]
    if row["reason"] is not None:
        return _WHY_NOT[row["reason"]]
    return "..." if row["advantage"] is None else signed(row["advantage"])


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first different errors of reward functions: message and line of the function, each in a line."""
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.get("error"):
            first.setdefault((_line(row["error"]), row["place"]), row["name"])
    lines = [""] if first else []
    for (error, place), name in islice(first.items(), _MAX_FAILURES):
        lines += [f"{_shortened(name, _MAX_NAME)} failed: {error}", *([f"  {place}"] if place else [])]
    return lines


def _line(error: str) -> str:
    return error.partition("\n")[0]


def _failed(row: Mapping[str, Any]) -> Cell:
    """The first line of an error; the rest, and the line of the function, as a title."""
    whole = "\n".join(filter(None, (row["error"], row["place"])))
    first = escape_to_one_line(_line(row["error"]), _MAX_MESSAGE)
    return Words(Html(f'<span title="{escape(whole)}">failed: {escape(first)}</span>'))


def _has_ends(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any was an episode with an environment or a program."""
    return any("episode_end" in row for row in rows)


def _end(row: Mapping[str, Any]) -> str:
    return escape_to_one_line(row.get("episode_end") or "-", _MAX_EFFECT)


def _row(row: Mapping[str, Any], components: Sequence[str], *, ended: bool) -> list[Cell]:
    effect = _failed(row) if row.get("error") else _effect(row) if row["reason"] else with_minus(_effect(row))
    figures = [number(row["reward"]), effect, *(number(row.get(f"component:{name}")) for name in components)]
    source = row["source"] or "-"
    by = source if row["was"] is None else f"{source}, was {number(row['was'])}"
    words = (*((_end(row),) if ended else ()), by, row["prompt"], row["completion"])
    return [Words(code(row["name"])), *figures, *map(Words, words)]


def _shortened(name: str, longest: int) -> str:
    """A name without its middle, where it is long: its end identifies the trajectory."""
    return name if len(name) <= longest else f"{name[: longest // 2 - 2]}...{name[-(longest - longest // 2 - 1) :]}"


def _fitted(line: str, columns: int) -> str:
    """A line, cut to this many columns of a terminal. Some characters take two columns."""
    cells = [2 if east_asian_width(character) in "WF" else 1 for character in line]
    if sum(cells) <= columns:
        return line
    return line[: sum(end <= columns - 3 for end in accumulate(cells))] + "..."
