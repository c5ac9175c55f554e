"""Importance ratios of logprobs, as the loss of a training job has them; pure functions without torch."""

import math
from collections.abc import Sequence

from rolloutlab.api.wire.levels import ImportanceSamplingLevel

_MAX_LOG_RATIO = 80.0


def importance_ratios(delta_T: Sequence[float], level: ImportanceSamplingLevel) -> list[float]:
    """The ratio of each trained token of one sequence, before any bound (PPO, arXiv 1707.06347; GSPO, 2507.18071).

    delta_T: logprobs under the present weights minus those when sampled, in nats.
    """
    if not delta_T:
        return []
    mean = min(math.fsum(delta_T) / len(delta_T), _MAX_LOG_RATIO)
    clamped_T = [min(delta, _MAX_LOG_RATIO) for delta in delta_T]
    if level == "sequence":
        return [math.exp(mean)] * len(delta_T)
    if level == "average":
        return [(math.exp(delta) + math.exp(mean)) / 2 for delta in clamped_T]
    if level == "geometric_average":
        return [math.exp((delta + mean) / 2) for delta in clamped_T]
    return [math.exp(delta) for delta in clamped_T]
