"""Stored trajectories as input of the objective: the scored ones, and the names of those without a reward."""

from collections.abc import Sequence

from rolloutlab.objective.advantages import Member
from rolloutlab.objective.credit import turns
from rolloutlab.objective.preflight import first_non_text_part, is_truncated
from rolloutlab.store.models import Group, StoredTrajectory


def members_of(groups: Sequence[Group], text_only: bool = False) -> list[list[Member]]:
    """Convert the scored trajectories of stored groups for the objective. text_only: the policy reads only text."""
    return [[_member(t, t.reward, text_only) for t in group.trajectories if t.reward is not None] for group in groups]


def _member(trajectory: StoredTrajectory, reward: float, text_only: bool) -> Member:
    unreadable = first_non_text_part(trajectory.histories()) if text_only else ""
    tokens_H = () if unreadable else trajectory.history_tokens
    tokens_K = [0 if unreadable else len(choice.trained_tokens()) for choice in trajectory.choices]
    turns_K = turns(reward, trajectory.metrics, tokens_K)
    truncated = is_truncated(trajectory.choices)
    return Member(trajectory.name, reward, tokens_H, unreadable=unreadable, turns=turns_K, truncated=truncated)


def unscored_names(groups: Sequence[Group]) -> list[str]:
    """List the names of the trajectories without a reward."""
    return [t.name for group in groups for t in group.trajectories if t.reward is None]
