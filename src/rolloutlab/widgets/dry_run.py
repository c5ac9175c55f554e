"""How a dry run looks: the report, then each trajectory with what it would train with, or why it would not."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rolloutlab.objective.advantages import Reason, TokenWeight
from rolloutlab.objective.preflight import WHY, Preflight, Seat, count
from rolloutlab.sanitize import escape_control_chars

_MOST_GROUPS = 8


@dataclass(frozen=True)
class Rated:
    """One trajectory: every one of its `tokens` would train with this advantage and weight, unless there is a reason.

    reason: why nothing of it would train; advantage and weight are then 0.
    """

    name: str
    reward: float | None
    advantage: float
    weight: float
    tokens: int
    reason: Reason | None


def with_fix(line: str) -> dict[str, str]:
    """The two parts of a line of a report, visible: what there is to say, and what to type about it if anything."""
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


def text(title: str, report: Sequence[str], groups: Sequence[Sequence[Rated]]) -> str:
    """The dry run as plain text."""
    lines = [title, *report]
    for group in groups[:_MOST_GROUPS]:
        lines.append("")
        lines += [f"  {one.name:<16} {_number(one.reward):>7}  {_effect(one)}" for one in group]
    return "\n".join([*lines, *_rest(groups)])


def html(title: str, report: Sequence[str], groups: Sequence[Sequence[Rated]]) -> str:
    """The dry run as HTML."""
    head = "<tr><th>trajectory</th><th>reward</th><th>advantage</th><th>weight</th><th>tokens</th></tr>"
    rows = "".join(_row(one) for group in groups[:_MOST_GROUPS] for one in group)
    said = "".join(f"<p>{escape(line)}</p>" for line in [*report, *_rest(groups)])
    return f"<p><b>{escape(title)}</b></p>{said}<table>{head}{rows}</table>"


def _rated(seat: Seat, share: TokenWeight | None) -> Rated:
    reason = share.reason if share else Reason.UNSCORED
    advantage, weight = (share.advantage, share.weight) if share else (0.0, 0.0)
    return Rated(seat.name, seat.reward, advantage, weight, seat.tokens, reason)


def _effect(one: Rated) -> str:
    if one.reason:
        return WHY[one.reason]
    return f"advantage {one.advantage:+.2f} x weight {one.weight:.2f} on {count(one.tokens, 'token')}"


def _row(one: Rated) -> str:
    effect = (
        f'<td colspan="2" style="text-align:left"><div align="left">{escape(WHY[one.reason])}</div></td>'
        if one.reason
        else f"<td>{one.advantage:+.2f}</td><td>{one.weight:.2f}</td>"
    )
    return (
        f"<tr><td><code>{escape(one.name)}</code></td><td>{_number(one.reward)}</td>{effect}<td>{one.tokens}</td></tr>"
    )


def _number(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.3g}"


def _rest(groups: Sequence[Sequence[Rated]]) -> list[str]:
    left = len(groups) - _MOST_GROUPS
    return ["", f"... and {count(left, 'more group')}: .to_frame() has them"] if left > 0 else []
