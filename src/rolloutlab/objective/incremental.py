"""Incremental advantages: recompute only the groups whose rewards changed."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rolloutlab.objective import advantages
from rolloutlab.objective.advantages import GroupWeights, Member, Reason, RewardRange, Scale, TokenWeight
from rolloutlab.objective.options import Options


class IncrementalAdvantages:
    """Keeps token weights up to date. They always equal `token_weights` of the same groups, bit for bit.

    After a change, only the groups that changed are computed again, and one sum per statistic over all groups. If the
    unit of `job` changed, all groups are computed again.

    job: the advantages of the whole job, with the same options, if these groups are only a part of it. Its scale and
        its range of rewards are then used. By default these groups are the whole job.
    """

    def __init__(
        self, groups: Sequence[Sequence[Member]], options: Options, job: "IncrementalAdvantages | None" = None
    ) -> None:
        self._options = options
        self._job = job or self
        self._largest_reward_g = [self._largest_reward(group) for group in groups]
        self._unit = advantages.job_unit(self._largest_reward_g, options)
        self._groups = [advantages.group_weights(group, options, self._unit) for group in groups]
        self._trains_g = [group.trains for group in self._groups]
        self._tokens_g = [group.tokens for group in self._groups]
        self._weight_g = [group.weight for group in self._groups]
        self._size_g = [group.size for group in self._groups]
        self._largest_advantage_g = [_largest_advantage(group) for group in self._groups]
        self._reasons = Counter(reason for group in self._groups for reason in group.reasons_G if reason)
        self._range_g = [advantages.reward_range(group) for group in groups]
        self._own_range = advantages.joint_range(self._range_g)
        self._equal_by_group = {i: n for i, group in enumerate(self._groups) if (n := _count_equal_rewards(group))}
        self._own_scale = advantages.job_scale(self._tokens_g, self._weight_g, self._size_g)

    def change(self, groups: Mapping[int, Sequence[Member]]) -> None:
        """Replace the members of some groups."""
        for index, members_G in groups.items():
            self._largest_reward_g[index] = self._largest_reward(members_G)
        changed = groups
        if (unit := advantages.job_unit(self._largest_reward_g, self._options)) != self._unit:
            self._unit = unit
            changed = {i: group.members_G for i, group in enumerate(self._groups)} | dict(groups)
        for index, members_G in changed.items():
            self._replace(index, advantages.group_weights(members_G, self._options, unit))
        self._own_range = advantages.joint_range(self._range_g)
        self._own_scale = advantages.job_scale(self._tokens_g, self._weight_g, self._size_g)

    def weights_of(self, index: int) -> list[TokenWeight]:
        """Return the token weights of a group."""
        return advantages.scale_weights(self._groups[index], self._scale, self._range)

    def reason_of(self, index: int) -> Reason | None:
        """Return why nothing of a group trains; None if something trains. A group without members is unscored."""
        group = self._groups[index]
        if self._trains and group.trains:
            return None
        if not group.members_G:
            return Reason.UNSCORED
        if index in self._equal_by_group:
            return advantages.why_equal(self._range_g[index].low, len(group.members_G), self._range)
        return group.reasons_G[0] or Reason.BALANCED_AWAY

    def spread(self, index: int) -> float:
        """Return the highest minus the lowest reward of a group; 0 without members."""
        low, high = self._range_g[index]
        return high - low if self._groups[index].members_G else 0.0

    @property
    def _scale(self) -> Scale | None:
        return self._job._own_scale

    @property
    def _range(self) -> RewardRange:
        return self._job._own_range

    def reasons(self) -> dict[Reason, int]:
        """Count how many members each reason keeps from training."""
        balanced_away = 0 if self._trains else sum(self._trains_g)
        reasons = Counter({**self._reasons, Reason.BALANCED_AWAY: balanced_away, Reason.EQUAL_REWARDS: 0})
        for index, n in self._equal_by_group.items():
            members = len(self._groups[index].members_G)
            reasons[advantages.why_equal(self._range_g[index].low, members, self._range)] += n
        return {reason: n for reason, n in reasons.items() if n}

    @property
    def largest(self) -> float:
        """The largest |advantage| of any member."""
        return max(self._largest_advantage_g, default=0.0) / self._scale.size if self._scale and self._trains else 0.0

    @property
    def trainable_trajectories(self) -> int:
        return sum(self._trains_g) if self._trains else 0

    @property
    def trainable_groups(self) -> int:
        return len(self._trains_g) - self._trains_g.count(0) if self._trains else 0

    @property
    def trainable_tokens(self) -> int:
        return sum(self._tokens_g) if self._trains else 0

    @property
    def _trains(self) -> bool:
        return self._scale is not None and self._scale.size > 0

    def _largest_reward(self, members_G: Sequence[Member]) -> float:
        # with `scale_rewards` the unit does not depend on it, so it is not computed
        return 0.0 if self._options.scale_rewards else advantages.largest_reward(members_G, self._options)

    def _replace(self, index: int, group: GroupWeights) -> None:
        self._reasons.subtract(filter(None, self._groups[index].reasons_G))
        self._reasons.update(filter(None, group.reasons_G))
        self._groups[index] = group
        self._range_g[index] = advantages.reward_range(group.members_G)
        self._equal_by_group.pop(index, None)
        if equal := _count_equal_rewards(group):
            self._equal_by_group[index] = equal
        self._trains_g[index], self._tokens_g[index] = group.trains, group.tokens
        self._weight_g[index], self._size_g[index] = group.weight, group.size
        self._largest_advantage_g[index] = _largest_advantage(group)


def _count_equal_rewards(group: GroupWeights) -> int:
    """Count the members that do not train because all rewards of the group are equal."""
    return group.reasons_G.count(Reason.EQUAL_REWARDS)


def _largest_advantage(group: GroupWeights) -> float:
    return max([abs(a) for a in group.advantages_P if a is not None], default=0.0)
