"""Rewards to advantages, and advantages to token weights (group-relative, after GRPO: arXiv 2402.03300).

Symbols: a job has groups g; a group has trajectories i with reward R_i; trajectory i has n_i trainable tokens over all
its histories; N is the sum of n_i over what trains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rolloutlab.objective.options import Options

_TINY = 1e-6
_EQUAL = 1e-9
_HUGE = 1e100


class Reason(StrEnum):
    """Why a trajectory does not train."""

    UNSCORED = "unscored"
    EQUAL_REWARDS = "equal_rewards"
    MEAN_REWARD = "mean_reward"
    NO_LOGPROBS = "no_logprobs"
    TOO_LONG = "too_long"
    BALANCED_AWAY = "balanced_away"


@dataclass(frozen=True)
class Member:
    """One trajectory as the objective sees it.

    `tokens_H` counts the trainable tokens of each history that can train: a history too long for the context, or
    without logprobs, is left out by the caller, and `too_long` says that the first was the case for at least one.
    """

    name: str
    reward: float
    tokens_H: tuple[int, ...]
    too_long: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.tokens_H)


@dataclass(frozen=True)
class Share:
    """What one trajectory contributes to the loss: every trainable token of it has this advantage and this weight.

    `reason` says why nothing of it trains; `advantage` and `weight` are then 0.
    """

    member: Member
    advantage: float
    weight: float
    reason: Reason | None = None


def group_advantages(rewards_G: Sequence[float], scale_rewards: bool = True, unit: float = 1.0) -> list[float]:
    """A_i = R_i - mean, over the population standard deviation + 1e-6 when `scale_rewards`, else over `unit`.

    Rewards that differ by rounding alone count as equal, and a reward within rounding of the mean has advantage 0:
    0.1, 0.1, 0.1 has mean 0.10000000000000002, and that residue must not become a full-size advantage.
    """
    if not rewards_G:
        return []
    low, high = min(rewards_G), max(rewards_G)
    if high - low <= _EQUAL * max(1.0, abs(low), abs(high)):
        return [0.0] * len(rewards_G)
    shrink = max(unit, abs(low) / _HUGE, abs(high) / _HUGE)  # the squares below stay finite
    bound = _EQUAL * max(1.0, abs(low), abs(high)) / shrink
    mean = math.fsum(r / shrink for r in rewards_G) / len(rewards_G)
    from_mean_G = [r / shrink - mean for r in rewards_G]
    deviation = math.sqrt(math.fsum(d**2 for d in from_mean_G) / len(rewards_G))
    scale = deviation + _TINY / shrink if scale_rewards else unit / shrink
    return [0.0 if abs(d) <= bound else d / scale for d in from_mean_G]


def job_shares(groups: Sequence[Sequence[Member]], options: Options) -> list[list[Share]]:
    """What each trajectory of a job contributes: one list of Shares per group, in order.

    Group statistics are over all members; everything after is over the members that train. Token weights are
    w_i = 1 / (n_i + 1e-6), scaled to mean 1 over the job's N tokens; advantages are balanced, then scaled so that
    the mean of |A|·w over the N tokens is 1. A global scale of the rewards therefore never matters.
    """
    largest = max((abs(m.reward) for group in groups for m in group), default=0.0)
    unit = 1.0 if options.scale_rewards else max(1.0, largest / _HUGE)
    raw = [group_advantages([m.reward for m in group], options.scale_rewards, unit) for group in groups]
    shares = [
        [_share(member, a, any(advantages_G)) for member, a in zip(group, advantages_G, strict=True)]
        for group, advantages_G in zip(groups, raw, strict=True)
    ]
    return _normalised(shares, options.advantage_balance)


def _share(member: Member, advantage: float, group_differs: bool) -> Share:
    reason = _reason(member, advantage, group_differs)
    weight = 0.0 if reason else 1.0 / (member.tokens + _TINY)
    return Share(member, 0.0 if reason else advantage, weight, reason)


def _reason(member: Member, advantage: float, group_differs: bool) -> Reason | None:
    if not member.tokens:
        return Reason.TOO_LONG if member.too_long else Reason.NO_LOGPROBS
    if not group_differs:
        return Reason.EQUAL_REWARDS
    return None if advantage else Reason.MEAN_REWARD


def _normalised(shares: list[list[Share]], balance: float) -> list[list[Share]]:
    training = [s for group in shares for s in group if s.reason is None]
    tokens = sum(s.member.tokens for s in training)
    if not tokens:
        return shares
    mean_weight = math.fsum(s.weight * s.member.tokens for s in training) / tokens
    mean_size = (
        math.fsum(abs(balanced(s.advantage, balance)) * s.weight * s.member.tokens for s in training)
        / mean_weight
        / tokens
    )
    return [[_scaled(s, balance, mean_weight, mean_size) for s in group] for group in shares]


def balanced(advantage: float, balance: float) -> float:
    """The advantage after `advantage_balance` b: b > 0 shrinks what is <= 0, b < 0 what is >= 0."""
    if balance > 0 and advantage <= 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage >= 0:
        return advantage * (1 + balance)
    return advantage


def _scaled(share: Share, balance: float, mean_weight: float, mean_size: float) -> Share:
    if share.reason is not None:
        return share
    if not mean_size:
        return Share(share.member, 0.0, 0.0, Reason.BALANCED_AWAY)
    advantage = balanced(share.advantage, balance) / mean_size
    return Share(share.member, advantage, share.weight / mean_weight)
