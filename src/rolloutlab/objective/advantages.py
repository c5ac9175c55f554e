"""Rewards to advantages, and advantages to token weights (group-relative, after GRPO: arXiv 2402.03300).

Symbols: a job has groups g; a group has trajectories i with reward R_i; trajectory i has n_i trainable tokens over all
its histories; N is the sum of n_i over what trains. With `credit: turn`, turn k of a trajectory has a reward to go and
an advantage of its own; else a trajectory is as one turn, whose reward to go is R_i.

Axes at the end of a name: G, the members of a group; H, the histories of a trajectory; P, the members of a group and,
with `credit: turn`, then their turns: those of index 0, those of index 1, and so on; g, the groups of a job.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

from rolloutlab.objective.options import Options

_TINY = 1e-6
_EQUAL = 1e-9
_HUGE = 1e100


def plain_weights(rewards: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Compute the advantage and the token weight of each trajectory of a job, in their simplest form.

    Start reading here. `token_weights` gives the same numbers (a test compares the two). Beyond them it handles rewards
    that differ only by rounding, credit per turn, the other options, and why a trajectory does not train.

    Args:
        rewards: of each trajectory, by group.
        tokens: how many trainable tokens each trajectory has, at least 1.
    """
    spread = [math.sqrt(fmean((r - fmean(group)) ** 2 for r in group)) for group in rewards]
    advantages = [(r - fmean(group)) / (s + _TINY) for group, s in zip(rewards, spread, strict=True) for r in group]
    lengths = [n for group in tokens for n in group]
    trained = [i for i, advantage in enumerate(advantages) if advantage]
    size = fmean(abs(advantages[i]) for i in trained) if trained else 1.0  # so a factor of all rewards has no effect
    length = fmean(lengths[i] for i in trained) if trained else 0.0  # so each trajectory counts the same
    return [(a / size, length / n if a else 0.0) for a, n in zip(advantages, lengths, strict=True)]


class Reason(StrEnum):
    """Why a trajectory does not train."""

    UNSCORED = "unscored"
    EQUAL_REWARDS = "equal_rewards"
    """All rewards of the group are equal, and neither ALL_FAILED nor ALL_PASSED fits: they lie between the lowest and
    the highest reward of the job, or the job has no other reward, or the group has one member."""
    ALL_FAILED = "all_failed"
    """All rewards of the group equal the lowest reward of the job."""
    ALL_PASSED = "all_passed"
    """All rewards of the group equal the highest reward of the job."""
    MEAN_REWARD = "mean_reward"
    NO_LOGPROBS = "no_logprobs"
    TOO_LONG = "too_long"
    UNREADABLE = "unreadable"
    NO_TURN_ADVANTAGE = "no_turn_advantage"
    """With `credit: turn`: others of the group have an advantage, but no turn of this trajectory has one."""
    BALANCED_AWAY = "balanced_away"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    """With `mask_truncated`: it would train if its last answer were not cut off."""


class Turn(NamedTuple):
    """A sampled answer of the main history. tokens: trainable ones."""

    reward_to_go: float
    tokens: int


class Member(NamedTuple):
    """The input of the objective for one trajectory.

    tokens_H: trainable tokens of each history, without histories that are too long for the context or have no logprobs.
    too_long: a history was too long. unreadable: the part that the policy cannot read, with its path; there are no
    tokens then. turns: the sampled answers of the main history; their tokens are among `tokens_H`. truncated: the
    last of them ended at the token limit.
    """

    name: str
    reward: float
    tokens_H: tuple[int, ...]
    too_long: bool = False
    unreadable: str = ""
    turns: tuple[Turn, ...] = ()
    truncated: bool = False

    @property
    def tokens(self) -> int:
        return sum(self.tokens_H)


class TokenWeight(NamedTuple):
    """Advantage and weight of every trainable token of a trajectory.

    reason: why it does not train; `advantage` and `weight` are then 0. turns: with `credit: turn`, the advantage of
    each turn, then the advantage of all other tokens; None for tokens that do not train. Without `credit: turn` it is
    empty, and every token has `advantage`.
    """

    member: Member
    advantage: float
    weight: float
    reason: Reason | None = None
    turns: tuple[float | None, ...] = ()

    def by_turn(self) -> list["TurnWeight"]:
        """Return a TurnWeight per turn, then one for all other tokens; without `credit: turn` one for all tokens."""
        turns = self.member.turns if self.turns else ()
        rest = Turn(self.member.reward, self.member.tokens - sum([turn.tokens for turn in turns]))
        advantages = self.turns or (None if self.reason else self.advantage,)
        numbers: list[int | None] = [*range(len(turns)), None]
        return [TurnWeight(k, *turn, a) for k, turn, a in zip(numbers, [*turns, rest], advantages, strict=True)]

    @property
    def tokens(self) -> int:
        """How many tokens train."""
        return sum(each.tokens for each in self.by_turn() if each.advantage is not None)


class TurnWeight(NamedTuple):
    """A turn and its advantage. turn: its index; None for all other tokens. advantage: None if it does not train."""

    turn: int | None
    reward_to_go: float
    tokens: int
    advantage: float | None


def mean_of(values: Iterable[float]) -> float:
    """Compute the mean of at least one number. It is right even if the sum is too large for a float."""
    listed = list(values)
    return math.fsum(value / len(listed) for value in listed)


def group_advantages(
    rewards_G: Sequence[float], scale_rewards: bool = True, unit: float = 1.0, largest: float = 0.0
) -> list[float]:
    """Compute A_i = (R_i - mean) / (population standard deviation + 1e-6), or / `unit` without `scale_rewards`.

    Rewards that differ only by rounding are equal, and a reward within rounding of the mean has advantage 0: the mean
    of 0.1, 0.1, 0.1 is 0.10000000000000002, and that residue must not become a full-size advantage.

    unit: as of `job_unit`. largest: the largest magnitude among the numbers that the rewards were computed from. If it
    is larger than all |R_i|, it sets the tolerance for rounding.
    """
    if not rewards_G:
        return []
    low, high = min(rewards_G), max(rewards_G)
    largest = max(abs(low), abs(high), largest)
    if high - low <= _EQUAL * max(1.0, largest):
        return [0.0] * len(rewards_G)
    shrink = max(unit, largest / _HUGE)  # the squares below stay finite
    bound = _EQUAL * max(1.0, largest) / shrink
    shrunk_G = rewards_G if shrink == 1.0 else [r / shrink for r in rewards_G]
    mean = math.fsum(shrunk_G) / len(shrunk_G)
    from_mean_G = [r - mean for r in shrunk_G]
    deviation = math.sqrt(math.fsum([d * d for d in from_mean_G]) / len(from_mean_G))
    scale = deviation + _TINY / shrink if scale_rewards else unit / shrink
    return [0.0 if abs(d) <= bound else d / scale for d in from_mean_G]


class GroupWeights(NamedTuple):
    """Advantages and weights of one group before the scale of the job, and the group's sums for that scale.

    advantages_P: None for an advantage that no token trains with.
    member_P: the index of the member.
    weights_G: w_i; 0 for members with a reason.
    reasons_G: why a member does not train; None if it trains.
    trains: the number of members that train.
    tokens: the sum of n_i over these.
    weight: the sum of w_i·n_i over these.
    size: the sum of |A|·w_i over their tokens.
    """

    members_G: Sequence[Member]
    advantages_P: list[float | None]
    member_P: Sequence[int]
    weights_G: list[float]
    reasons_G: list[Reason | None]
    trains: int
    tokens: int
    weight: float
    size: float


class RewardRange(NamedTuple):
    """The lowest and the highest reward of a group or a job; (inf, -inf) if there is no reward."""

    low: float = math.inf
    high: float = -math.inf


class Scale(NamedTuple):
    """The divisors of a job: the mean weight of its N tokens, and the mean of |A|·w over them at mean weight 1."""

    weight: float
    size: float


def token_weights(groups: Sequence[Sequence[Member]], options: Options) -> list[list[TokenWeight]]:
    """Compute the token weights of a job, one list per group, in order.

    Group statistics are over all members, everything else is over the members that train.

    - Token weights are w_i = 1 / (n_i + 1e-6), scaled to mean 1 over the job's N tokens. They are 1 if
      `loss_aggregation` is not `sequence_mean`.
    - Advantages are balanced, then scaled so that the mean of |A|·w over the N tokens is 1. So multiplying all rewards
      by a factor has no effect.
    """
    return job_weights(groups, options).weights


class JobWeights(NamedTuple):
    """The token weights of a job, one list per group, and the factor that scaled its advantages; None: none trains."""

    weights: list[list[TokenWeight]]
    advantage_scale: float | None


def job_weights(groups: Sequence[Sequence[Member]], options: Options) -> JobWeights:
    """Do what `token_weights` does, and return the factor of the advantages as well."""
    unit = job_unit((largest_reward(group, options) for group in groups), options)
    weights = [group_weights(group, options, unit) for group in groups]
    scale = job_scale([g.tokens for g in weights], [g.weight for g in weights], [g.size for g in weights])
    rewards = joint_range(map(reward_range, groups))
    factor = 1 / scale.size / unit if scale and scale.size else None
    return JobWeights([scale_weights(group, scale, rewards) for group in weights], factor)


def reward_range(members_G: Sequence[Member]) -> RewardRange:
    """Find the lowest and the highest reward of a group."""
    rewards_G = [m.reward for m in members_G]
    return RewardRange(min(rewards_G), max(rewards_G)) if rewards_G else RewardRange()


def joint_range(range_g: Iterable[RewardRange]) -> RewardRange:
    """Join the ranges of the groups of a job."""
    ranges = [RewardRange(), *range_g]
    return RewardRange(min(each.low for each in ranges), max(each.high for each in ranges))


def rewards_differ(low: float, high: float) -> bool:
    """Whether the lowest and the highest reward of a group differ by more than rounding, so that it trains."""
    return any(group_advantages([low, high]))


def why_equal(reward: float, members: int, job: RewardRange) -> Reason:
    """Return why a group whose members all have this reward does not train.

    members: the number of members. job: the range of the rewards of the job.
    """
    near = _EQUAL * max(1.0, abs(job.low), abs(job.high))
    if members < 2 or job.high - job.low <= near:
        return Reason.EQUAL_REWARDS
    if reward - job.low <= near:
        return Reason.ALL_FAILED
    return Reason.ALL_PASSED if job.high - reward <= near else Reason.EQUAL_REWARDS


def largest_reward(members_G: Sequence[Member], options: Options) -> float:
    """Find the largest |R_i| of a group; with `credit: turn` also among its rewards to go."""
    rewards = [abs(m.reward) for m in members_G]
    if options.credit == "turn":
        rewards += [abs(turn.reward_to_go) for m in members_G for turn in m.turns]
    return max(rewards, default=0.0)


def job_unit(largest_g: Iterable[float], options: Options) -> float:
    """Compute the unit: the divisor of all advantages without `scale_rewards`, which keeps sums of huge rewards finite.

    largest_g: `largest_reward` of each group.
    """
    return 1.0 if options.scale_rewards else max(1.0, max(largest_g, default=0.0) / _HUGE)


def group_weights(members_G: Sequence[Member], options: Options, unit: float = 1.0) -> GroupWeights:
    """Compute the weights of a group before the scale of the job. Other groups matter only through `unit`."""
    raw_P, tokens_P, member_P = _list_advantages(members_G, options, unit)
    trained_P = [n if a else 0 for a, n in zip(raw_P, tokens_P, strict=True)]
    tokens_G = trained_P[: len(members_G)]
    for i, n in zip(member_P[len(members_G) :], trained_P[len(members_G) :], strict=True):
        tokens_G[i] += n
    reasons_G = _reasons(members_G, any(raw_P), tokens_G, options)
    if Reason.TRUNCATED in reasons_G:
        trained_P = [0 if reasons_G[i] is Reason.TRUNCATED else n for i, n in zip(member_P, trained_P, strict=True)]
        tokens_G = [0 if reason is Reason.TRUNCATED else n for reason, n in zip(reasons_G, tokens_G, strict=True)]
    advantages_P: list[float | None] = [a if n else None for a, n in zip(raw_P, trained_P, strict=True)]
    if options.advantage_balance:
        advantages_P = [a and apply_balance(a, options.advantage_balance) for a in advantages_P]
    is_sequence_mean = options.loss_aggregation == "sequence_mean"
    weights_G = [(1.0 / (n + _TINY) if is_sequence_mean else 1.0) if n else 0.0 for n in tokens_G]
    weight_P = [weights_G[i] * n for i, n in zip(member_P, trained_P, strict=True)]  # w_i times tokens
    size = math.fsum([abs(a) * weight for a, weight in zip(advantages_P, weight_P, strict=True) if a])
    weight = math.fsum([w * n for w, n in zip(weights_G, tokens_G, strict=True)])
    sums = reasons_G.count(None), sum(tokens_G), weight, size
    return GroupWeights(members_G, advantages_P, member_P, weights_G, reasons_G, *sums)


def _list_advantages(
    members_G: Sequence[Member], options: Options, unit: float
) -> tuple[list[float], list[int], list[int]]:
    """Compute each advantage of a group over the axis P.

    Returns:
        advantages_P; tokens_P, the trainable tokens that have the advantage: those of a turn, or of a member those
        outside its turns; and member_P, the index of the member.
    """
    advantages = group_advantages([m.reward for m in members_G], options.scale_rewards, unit)
    tokens, members = [sum(m.tokens_H) for m in members_G], list(range(len(members_G)))
    if options.credit == "turn":
        largest = largest_reward(members_G, options)
        for k in range(max([len(m.turns) for m in members_G], default=0)):
            having = [i for i, m in enumerate(members_G) if k < len(m.turns)]
            rewards = [members_G[i].turns[k].reward_to_go for i in having]
            advantages += group_advantages(rewards, options.scale_rewards, unit, largest)
            members += having
            for i in having:
                tokens.append(members_G[i].turns[k].tokens)
                tokens[i] -= tokens[-1]
    return advantages, tokens, members


def job_scale(tokens_g: Sequence[int], weight_g: Sequence[float], size_g: Sequence[float]) -> Scale | None:
    """Compute the scale of a job from the sums of its groups; None if there are no trainable tokens."""
    if not (tokens := sum(tokens_g)):
        return None
    mean_weight = math.fsum(weight_g) / tokens
    return Scale(mean_weight, math.fsum(size_g) / mean_weight / tokens)


def scale_weights(group: GroupWeights, scale: Scale | None, rewards: RewardRange) -> list[TokenWeight]:
    """Scale the weights of a group to a job of this scale and this range of rewards."""
    reasons_G = group.reasons_G
    if Reason.EQUAL_REWARDS in reasons_G:
        equal = why_equal(group.members_G[0].reward, len(group.members_G), rewards)
        reasons_G = [equal if reason is Reason.EQUAL_REWARDS else reason for reason in reasons_G]
    if scale and not scale.size:
        reasons_G = [reason or Reason.BALANCED_AWAY for reason in reasons_G]
        untrained: list[float | None] = [None] * len(group.member_P)
        group, scale = group._replace(advantages_P=untrained, weights_G=[0.0] * len(reasons_G)), None
    weight, size = scale or (1.0, 1.0)
    scaled_P = [a and a / size for a in group.advantages_P]
    turns_G: list[tuple[float | None, ...]] = [()] * len(reasons_G)
    for i, a in zip(group.member_P[len(reasons_G) :], scaled_P[len(reasons_G) :], strict=True):
        turns_G[i] += (a,)
    rows_G = zip(group.members_G, scaled_P, group.weights_G, reasons_G, turns_G, strict=False)
    return [TokenWeight(m, a or 0.0, w / weight, r, (*turns, a) if turns else ()) for m, a, w, r, turns in rows_G]


def _reasons(
    members_G: Sequence[Member], any_advantage: bool, tokens_G: Sequence[int], options: Options
) -> list[Reason | None]:
    """Find why each member does not train; None if it does.

    any_advantage: whether the group has an advantage other than 0. tokens_G: tokens of each member with an advantage.
    """
    masked = options.mask_truncated and any(m.truncated for m in members_G)
    if all(tokens_G) and not masked:
        return [None] * len(members_G)
    beside_others = Reason.NO_TURN_ADVANTAGE if options.credit == "turn" else Reason.MEAN_REWARD
    zero = beside_others if any_advantage else Reason.EQUAL_REWARDS
    pairs = zip(members_G, tokens_G, strict=True)
    return [
        (Reason.TRUNCATED if masked and m.truncated else None) if n else zero if m.tokens else _untrainable(m)
        for m, n in pairs
    ]


def _untrainable(member: Member) -> Reason:
    """Return why a member has no trainable tokens."""
    if member.unreadable:
        return Reason.UNREADABLE
    return Reason.TOO_LONG if member.too_long else Reason.NO_LOGPROBS


def apply_balance(advantage: float, balance: float) -> float:
    """Apply `advantage_balance`: above 0 it shrinks advantages up to 0, below 0 it shrinks those from 0 on."""
    if balance > 0 and advantage <= 0:
        return advantage * (1 - balance)
    if balance < 0 and advantage >= 0:
        return advantage * (1 + balance)
    return advantage
