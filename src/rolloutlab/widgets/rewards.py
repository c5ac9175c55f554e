"""How rewards look where no script runs: a table that fits a terminal, and one that a web page shows as it is."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any
from unicodedata import east_asian_width

from rolloutlab.api.wire.chat import MessageOrChoice
from rolloutlab.objective.advantages import Reason
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.models import Edit, StoredTrajectory
from rolloutlab.widgets.collection import WHY_NOT
from rolloutlab.widgets.group_html import spoken
from rolloutlab.widgets.html import heading, words

LINES = 12
"""Rows of the plain text."""
ROWS = 24
"""Rows of the HTML."""
_WIDE = 80
_LONGEST_NAME = 28
_WHY_NOT = {str(reason): words for reason, words in {**WHY_NOT, Reason.UNSCORED: ""}.items()}


def text(title: str, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], fitting: int) -> str:
    """The first rows as plain text, no line of it wider than 80 columns. fitting: how many rows there are in all."""
    names = [_shortened(row["name"], _LONGEST_NAME) for row in rows]
    wide = max(map(len, [*names, "trajectory"]))
    lines = [_fitted(line, _WIDE) for line in _heading(title, summary)]
    lines += ["", f"  {'trajectory':<{wide}} {'reward':>7} {'advantage':>13} {'source':<8}  completion"] if rows else []
    for name, row in zip(names, rows, strict=True):
        told = f"  {name:<{wide}} {number(row['reward']):>7} {_effect(row):>13} {row['source'] or '-':<8}  "
        lines.append(_fitted(told + " ".join(row["completion"].split()), _WIDE).rstrip())
    return "\n".join([*lines, *_rest(fitting - len(rows))])


def html(
    title: str,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    components: Sequence[str],
    fitting: int,
) -> str:
    """The first rows as HTML; what people and policies wrote appears as text only."""
    figures = "".join(f"<th>{escape(escape_control_chars(name))}</th>" for name in ("reward", "advantage", *components))
    head = f"{heading('trajectory')}{figures}{''.join(map(heading, ('source', 'prompt', 'completion')))}"
    body = "".join(_row(row, components) for row in rows)
    said = "".join(
        f"<p>{escape(line)}</p>" for line in (*_heading(title, summary)[1:], *_rest(fitting - len(rows))) if line
    )
    return f"<p><b>{escape(_heading(title, summary)[0])}</b></p><table><tr>{head}</tr>{body}</table>{said}"


def number(value: float | None) -> str:
    """A reward as it is shown."""
    return "-" if value is None else f"{value:.3g}"


def given(edits: Sequence[Edit]) -> str:
    """What giving a reward did."""
    if not edits:
        return "that is its reward already"
    if len(edits) == 1:
        return f"{edits[0].trajectory}: {number(edits[0].old)} -> {number(edits[0].new)}"
    return f"{count(len(edits), 'reward')} set to {number(edits[0].new)}"


def undone(edits: Sequence[Edit]) -> str:
    """What an undo did."""
    unscored = sum(edit.new is None for edit in edits)
    also = f", {unscored:,} of them unscored again" if unscored else ""
    return f"change {edits[0].undoes} is undone: {count(len(edits), 'reward')} as before{also}"


def line(edit: Edit) -> str:
    """One change of a reward."""
    by = f"undo of change {edit.undoes}" if edit.undoes else edit.source
    note = f" ({escape_control_chars(edit.note)})" if edit.note else ""
    who = escape_control_chars(edit.who)
    return f"{edit.at[:16].replace('T', ' ')} {who}, {by}: {number(edit.old)} -> {number(edit.new)}{note}"


def turns(trajectory: StoredTrajectory) -> list[dict[str, str]]:
    """Who said what, turn by turn."""
    return [_turn(item) for item in trajectory.items]


def _turn(item: MessageOrChoice) -> dict[str, str]:
    role, said, called = spoken(item)
    return {"role": role, "text": escape_control_chars("\n".join([*filter(None, [said]), *called]))}


def _heading(title: str, summary: Mapping[str, Any]) -> list[str]:
    scored, all_, mean = summary["scored"], summary["trajectories"], summary["mean_reward"]
    partly = f" ({scored:,} scored)" if 0 < scored < all_ else ""
    told = "not scored yet" if mean is None else f"mean reward {mean:.3f}{partly}"
    heading = f"{title}: {count(all_, 'trajectory')} in {count(summary['groups'], 'group')}, {told}"
    if summary["trainable"] is None:
        return [heading, "what would train is known when all is read"]
    groups = f"{summary['trainable_groups']:,} of {count(summary['groups'], 'group')}"
    return [heading, f"{summary['trainable']:,} will train: {count(summary['tokens'], 'token')} in {groups}"]


def _effect(row: Mapping[str, Any]) -> str:
    """The advantage, or in a word or two why there is none."""
    if row["reason"] is not None:
        return _WHY_NOT[row["reason"]]
    return "..." if row["advantage"] is None else f"{row['advantage']:+.2f}"


def _row(row: Mapping[str, Any], components: Sequence[str]) -> str:
    figures = [number(row["reward"]), _effect(row), *(number(row.get(f"component:{name}")) for name in components)]
    source = row["source"] or "-"
    by = source if row["was"] is None else f"{source}, was {number(row['was'])}"
    said = [words(escape(text)) for text in (by, row["prompt"], row["completion"])]
    cells = [words(f"<code>{escape(row['name'])}</code>"), *(f"<td>{escape(each)}</td>" for each in figures), *said]
    return f"<tr>{''.join(cells)}</tr>"


def _rest(left: int) -> list[str]:
    return ["", f"... and {left:,} more: .to_frame() has them"] if left > 0 else []


def _shortened(name: str, longest: int) -> str:
    """A name without its middle, where it is long: its end tells which trajectory it is."""
    return name if len(name) <= longest else f"{name[: longest // 2 - 2]}...{name[-(longest - longest // 2 - 1) :]}"


def _fitted(words: str, columns: int) -> str:
    """As much of a line as fits so many columns of a terminal, where some characters take two."""
    cells = [2 if east_asian_width(character) in "WF" else 1 for character in words]
    if sum(cells) <= columns:
        return words
    ends = accumulate(cells)
    return words[: sum(end <= columns - 3 for end in ends)] + "..."
