"""Divisors of the loss of an optimiser step, by `loss_aggregation`.

A step sums w·L over its tokens and divides by D_s. M_s are all trajectories of its groups, trained or not, N_s their
trainable tokens; N and M are the trained tokens and trajectories of the job:

    sequence_mean   w = 1/n_i, scaled to mean 1 over the job   D_s = M_s·N/M
    token_mean      w = 1                                      D_s = N_s
    constant        w = 1                                      D_s = M_s·loss_scale_factor

So with `sequence_mean` each trajectory of a step has the share 1/M_s, whether the others train or not.
"""

from collections.abc import Sequence

from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import Preflight

TINY = 1e-6
"""Added to divisors that are means over tokens, as openpipe-art does."""


def step_divisor(groups: Sequence[Sequence[TokenWeight]], job: Preflight, options: Options) -> float:
    """D_s of a step with these groups of a job, members that do not train included."""
    members = sum(map(len, groups))
    if options.loss_aggregation == "constant":
        return members * (options.loss_scale_factor or 1.0)
    if options.loss_aggregation == "token_mean":
        return sum(_counted(share, options) for group in groups for share in group) + TINY
    return members * job.trainable_tokens / job.trainable_trajectories + TINY


def _counted(share: TokenWeight, options: Options) -> int:
    """Tokens of a trajectory that N_s has: also those with advantage 0, but of turns only what trains."""
    if options.credit == "turn":
        return share.tokens
    return 0 if options.mask_truncated and share.member.truncated else share.member.tokens
