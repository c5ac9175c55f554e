"""A dry run as text and HTML: the report, then each trajectory with its advantage, or why it would not train."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rolloutlab.objective.advantages import Reason, TokenWeight, TurnWeight
from rolloutlab.objective.preflight import WHY, Preflight, Seat, count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import Cell, Words, code, html_table, paragraphs, title
from rolloutlab.widgets.text import more, number, text_table

_MAX_GROUPS, _MAX_TURNS = 8, 8
_REST = ".to_frame() has them"


@dataclass(frozen=True)
class Rated:
    """One trajectory: every one of its `tokens` would train with this advantage and weight, unless there is a reason.

    reason: why nothing of it would train; advantage and weight are then 0. sequences, split: as of `Seat`. turns: where
    turns have advantages of their own, these.
    """

    name: str
    reward: float | None
    advantage: float
    weight: float
    tokens: int
    reason: Reason | None
    sequences: int = 1
    split: str = ""
    turns: Sequence[TurnWeight] = ()


def with_fix(line: str) -> dict[str, str]:
    """A line of a report as `text`, and `fix`: what to type about it, empty where there is nothing to type."""
    text, _, fix = line.partition(" -> ")
    expected = fix.removeprefix("nothing: ")
    return {
        "text": escape_control_chars(f"{text}: {expected}" if expected != fix else text),
        "fix": escape_control_chars(fix) * (expected == fix),
    }


def rated(stored: Sequence[Sequence[Seat]], check: Preflight) -> list[list[Rated]]:
    """Every trajectory of the stored groups, with its share of the job."""
    shares = {share.member.name: share for share in check.all_shares()}
    return [[_rated(seat, shares.get(seat.name)) for seat in group] for group in stored]


def by_turn(one: Rated) -> list[Rated]:
    """Its turns, each as one of its own; itself where turns have no advantages of their own."""
    turns = [turn for turn in one.turns if turn.turn is not None or turn.tokens]
    return [_turn(one, turn) for turn in turns] or [one]


def _turn(one: Rated, turn: TurnWeight) -> Rated:
    idle = None if turn.advantage is not None else Reason.NO_TURN_ADVANTAGE if turn.tokens else Reason.NO_LOGPROBS
    advantage, weight = turn.advantage or 0.0, 0.0 if idle else one.weight
    return replace(
        one, advantage=advantage, weight=weight, tokens=turn.tokens, reason=one.reason or idle, turns=(turn,)
    )


def text(heading: str, report: Sequence[str], groups: Sequence[Sequence[Rated]]) -> str:
    """The dry run as plain text."""
    lines = [heading, *report]
    for group in groups[:_MAX_GROUPS]:
        rows = [(one.name, number(one.reward), _effect(one)) for one in group]
        lines += ["", *text_table((), rows, "<16 >7")]
    rest = more(len(groups) - _MAX_GROUPS, _REST, "group")
    return "\n".join([*lines, *([""] if rest else []), *rest])


def html(heading: str, report: Sequence[str], groups: Sequence[Sequence[Rated]]) -> str:
    """The dry run as HTML."""
    rows = (_row(one) for group in groups[:_MAX_GROUPS] for one in group)
    table = html_table(("trajectory", "reward", "advantage", "weight", "tokens"), rows)
    return f"{title(heading)}{paragraphs([*report, *more(len(groups) - _MAX_GROUPS, _REST, 'group')])}{table}"


def _rated(seat: Seat, share: TokenWeight | None) -> Rated:
    reason = share.reason if share else Reason.UNSCORED
    advantage, weight = (share.advantage, share.weight) if share else (0.0, 0.0)
    turns = share.by_turn() if share and share.turns else ()
    return Rated(seat.name, seat.reward, advantage, weight, seat.tokens, reason, seat.sequences, seat.split, turns)


def _effect(one: Rated) -> str:
    if one.reason:
        return WHY[one.reason]
    tokens = f"{_trained(one)}{count(one.tokens, 'token')}{f' in {one.split}' if one.split else ''}"
    return f"advantage {_advantage(one)} x weight {one.weight:.2f} on {tokens}"


def _trained(one: Rated) -> str:
    return f"{sum(turn.tokens for turn in one.turns if turn.advantage is not None):,} of " if one.turns else ""


def _advantage(one: Rated) -> str:
    """The advantage, or those of the first turns and of additional histories."""
    if not one.turns:
        return f"{one.advantage:+.2f}"
    *turns, rest = ["none" if turn.advantage is None else f"{turn.advantage:+.2f}" for turn in one.turns]
    hidden = [f"and {len(turns) - _MAX_TURNS} more"] if len(turns) > _MAX_TURNS else []
    additional = [f"additional {rest}"] if one.turns[-1].tokens else []
    return ", ".join([*turns[:_MAX_TURNS], *hidden, *additional])


def _row(one: Rated) -> list[Cell]:
    why = [Words(WHY[one.reason], columns=2)] if one.reason else [_advantage(one), f"{one.weight:.2f}"]
    trained = f"{_trained(one)}{one.tokens:,}"
    tokens = Words(f"{trained} in {one.split}") if one.split else trained if one.turns else one.tokens
    return [code(one.name), number(one.reward), *why, tokens]
