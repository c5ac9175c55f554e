"""Steps of a training job: how many groups each optimiser step has, and the sentence that reports it."""

from collections.abc import Sequence

from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import Preflight, count

TINY = 1e-6
"""Added to divisors that are means over tokens, as openpipe-art does."""


def step_divisor(groups: Sequence[Sequence[TokenWeight]], job: Preflight, options: Options) -> float:
    """The divisor D_s of a step with these groups of a job. The groups include members that do not train."""
    members = sum(map(len, groups))
    if options.loss_aggregation == "constant":
        return members * (options.loss_scale_factor or 1.0)
    if options.loss_aggregation == "token_mean":
        return sum(_counted(share, options) for group in groups for share in group) + TINY
    return members * job.trainable_tokens / job.trainable_trajectories + TINY


def _counted(share: TokenWeight, options: Options) -> int:
    """The tokens of a trajectory that count in N_s.

    With `credit: turn` only tokens that train count. Otherwise all trainable tokens count, also with advantage 0, but
    not those of a trajectory that `mask_truncated` masks.
    """
    if options.credit == "turn":
        return share.tokens
    return 0 if options.mask_truncated and share.member.truncated else share.member.tokens


DEFAULT_GROUPS = 4, 8
"""`groups_per_step` of policies under 20 million parameters, and of larger ones."""


def plan_steps(groups: int, groups_per_step: int) -> list[int]:
    """How many groups each step has, in the order of the job; no steps where no group trains.

    There are as few steps as `groups_per_step` allows; 0 makes one step. The steps have about the same size, because
    each moves the weights about as far: 9 groups with `groups_per_step` 8 become steps of 5 and 4, not of 8 and 1.
    """
    if not groups:
        return []
    steps = -(-groups // groups_per_step) if groups_per_step else 1
    least, larger = divmod(groups, steps)
    return [least + 1] * larger + [least] * (steps - larger)


def step_words(groups: int, steps: int, completions: int, tokens: int, epochs: int = 1) -> str:
    """`2 steps of 8 groups (each 64 completions, ≈ 96k tokens)`, `2 epochs of 2 steps of 4 to 5 groups (…)`.

    All numbers are of one epoch of the whole job, and of what trains.
    """
    least, larger = divmod(groups, steps)
    of = f"{least:,} to {least + 1:,} groups" if larger else count(least, "group")
    repeated = f"{count(epochs, 'epoch')} of " if epochs > 1 else ""
    each = "each " if steps * epochs > 1 else ""
    parts = f"{_share(completions, steps, 'completion')}, {_share(tokens, steps, 'token')}"
    return f"{repeated}{count(steps, 'step')} of {of} ({each}{parts})"


def short(n: int) -> str:
    """`9,600`, `96k`, `1.2M`, `1.2B`."""
    if n < 10_000:
        return f"{n:,}"
    if n < 999_500:
        return f"{n / 1000:,.0f}k"
    return f"{n / 1e6:.3g}M" if n < 999_500_000 else f"{n / 1e9:.3g}B"


def _share(n: int, steps: int, noun: str) -> str:
    """What each of the steps has of n on average, with `≈` unless it is exact."""
    mean = round(n / steps)
    exact = mean * steps == n and mean < 10_000
    return f"{count(mean, noun)}" if exact else f"≈ {short(mean)} {noun}s"
