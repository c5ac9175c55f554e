"""How a collection looks: per group its prompt, and each completion with reward and advantage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.objective.advantages import Reason, TokenWeight
from rolloutlab.objective.preflight import Preflight, count
from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.store.models import Group, StoredTrajectory, plain_text
from rolloutlab.widgets import group_html as page

MOST_GROUPS = 8
_MOST_MESSAGES = 20
_WIDEST = 100
WHY_NOT = {
    Reason.EQUAL_REWARDS: "all equal",
    Reason.MEAN_REWARD: "the mean",
    Reason.NO_LOGPROBS: "no logprobs",
    Reason.TOO_LONG: "too long",
    Reason.UNREADABLE: "unreadable",
    Reason.BALANCED_AWAY: "balanced away",
}
"""Where an advantage would be, why there is none; `rolloutlab.objective.preflight.WHY` in a word or two."""


@dataclass(frozen=True)
class Counts:
    """What a collection has. rewards: of the completions that have one. next: the first group that is not shown."""

    groups: int
    completions: int
    rewards: Sequence[float]
    next: str = ""


def text(name: str, groups: Sequence[Group], check: Preflight, counts: Counts | None = None) -> str:
    """The collection as plain text. groups: those to be shown. check: what of it would train.

    counts: of the whole collection, where not all of its groups are there.
    """
    counts = counts or counted(groups)
    lines, shares = [_heading(name, counts)], _by_name(check)
    for group in groups[:MOST_GROUPS]:
        lines += [
            "",
            f"{group.name}  {_short(_prompt(group))}",
            *(_given(group) if counts.groups == 1 else []),
        ]
        effects = [_effect(shares.get(trajectory.name)) for trajectory in group.trajectories]
        wide = max(6, *map(len, effects)) if effects else 0
        for trajectory, effect in zip(group.trajectories, effects, strict=True):
            lines.append(f"  {_reward(trajectory):>7} {effect:>{wide}}  {_short(_said(trajectory))}")
    return "\n".join([*lines, *_rest(counts)])


def html(name: str, groups: Sequence[Group], check: Preflight, counts: Counts | None = None) -> str:
    """The same as HTML; what people and policies wrote appears as text only. One group alone shows its whole prompt."""
    counts, shares = counts or counted(groups), _by_name(check)
    parts = [f"<p><b>{escape(_heading(name, counts))}</b></p>"]
    for group in groups[:MOST_GROUPS]:
        rows = [(t, _reward(t), _effect(shares.get(t.name))) for t in group.trajectories]
        whole = page.prompt(group) if counts.groups == 1 and group.prompt else ""
        parts.append(
            f"<details open><summary><code>{escape(group.name)}</code> {escape(_short(_prompt(group)))}</summary>"
            f"{whole}{page.completions(rows) if rows else ''}</details>"
        )
    return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in _rest(counts) if line)])


def counted(groups: Sequence[Group]) -> Counts:
    """What a collection of these groups has."""
    rewards = [t.reward for group in groups for t in group.trajectories if t.reward is not None]
    left = groups[MOST_GROUPS].name if len(groups) > MOST_GROUPS else ""
    return Counts(len(groups), sum(len(group.trajectories) for group in groups), rewards, left)


def _heading(name: str, counts: Counts) -> str:
    rewards = counts.rewards
    scored = f", mean reward {math.fsum(r / len(rewards) for r in rewards):.3f}" if rewards else ", not scored yet"
    partly = f" ({len(rewards)} scored)" if rewards and len(rewards) < counts.completions else ""
    return f"{name}: {count(counts.completions, 'completion')} in {count(counts.groups, 'group')}{scored}{partly}"


def _rest(counts: Counts) -> list[str]:
    left = counts.groups - MOST_GROUPS
    return ["", f"... and {count(left, 'more group')}: %group {counts.next}"] if left > 0 else []


def _by_name(check: Preflight) -> dict[str, TokenWeight]:
    return {share.member.name: share for share in check.all_shares()}


def _prompt(group: Group) -> str:
    asked = [message.to_wire() for message in group.prompt if message.role == "user"]
    return plain_text(asked[-1]["content"]) if asked else ""


def _given(group: Group) -> list[str]:
    """All messages of a prompt, where there are more than the one that the heading shows."""
    return [f"  {_short(_line(message))}" for message in group.prompt[:_MOST_MESSAGES]] if len(group.prompt) > 1 else []


def _said(trajectory: StoredTrajectory) -> str:
    """What was said after the prompt, with a mark where the token limit cut it off, and what the lab notes about it."""
    first = next((i for i, item in enumerate(trajectory.items) if isinstance(item, Choice)), 0)
    later = trajectory.items[first:]
    said = trajectory.answer if len(later) < 2 else "\n".join(map(_line, later))
    notes = [f"[{log}]" for log in trajectory.extra.get("logs", ())]
    return "\n".join([said + (" [cut off]" if trajectory.finish_reason == "length" else ""), *notes])


def _line(item: MessageOrChoice) -> str:
    """One message of a conversation, with the tools that it calls."""
    role, said, called = page.spoken(item)
    return " ".join([f"{role}:", *filter(None, [said]), *called])


def _reward(trajectory: StoredTrajectory) -> str:
    return "-" if trajectory.reward is None else f"{trajectory.reward:.3g}"


def _effect(share: TokenWeight | None) -> str:
    """The advantage that every token would train with, or why none would; nothing where there is no reward."""
    if share is None:
        return ""
    return WHY_NOT[share.reason] if share.reason else f"{share.advantage:+.2f}"


def _short(words: str) -> str:
    return escape_to_one_line(words, _WIDEST)
