"""Rewards to go: the rewards of each turn and those after it (`credit: turn`, docs/training_reference.md)."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlab.objective.advantages import Turn

ENVIRONMENT = "env"
"""The name of an environment's reward: as a component of the reward, and as a metric, which scoring does not change."""
TURN_REWARD = "turn_reward/"
"""The metrics with the rewards of single answers: `turn_reward/0` and so on."""
_TURN_REWARD = re.compile(TURN_REWARD + r"(0|[1-9][0-9]{0,8})")
_LARGEST = sys.float_info.max


def turn_rewards(metrics: Mapping[str, Any]) -> dict[int, float]:
    """The rewards of single turns by their index, from the metrics of a trajectory."""
    matches = ((_TURN_REWARD.fullmatch(name), value) for name, value in metrics.items())
    return {int(match[1]): float(value) for match, value in matches if match}


def misses_turns(
    reward: float, metrics: Mapping[str, Any], components: Mapping[str, float], weight: float | None = None
) -> bool:
    """Whether a reward does not contain the environment's reward for the turns exactly once.

    reward: the reward of the trajectory.
    metrics: its metrics; `env` is the environment's reward.
    components: the components of the reward.
    weight: the weight of the component `env` in the reward, if known. Without it, the reward is taken to miss `env` if
        it has no such component, or is the sum of the other components.
    """
    if ENVIRONMENT not in metrics or not any(turn_rewards(metrics).values()):
        return False
    if weight is not None:
        return weight != 1
    if ENVIRONMENT not in components:
        return True
    others = math.fsum(value for name, value in components.items() if name != ENVIRONMENT)
    return components[ENVIRONMENT] != 0 and math.isclose(reward, others, rel_tol=1e-12)


def turns(reward: float, metrics: Mapping[str, float], tokens_K: Sequence[int]) -> tuple[Turn, ...]:
    """The turns of a trajectory. The reward to go of turn k is the reward minus the rewards of earlier turns.

    A part of the reward that no turn gave thus counts as given at the end.

    tokens_K: the number of trainable tokens of each sampled answer of the main history.
    """
    rewards, to_go, turns_K = turn_rewards(metrics), reward, list[Turn]()
    for k, tokens in enumerate(tokens_K):
        turns_K.append(Turn(to_go, tokens))
        to_go = min(max(to_go - rewards.get(k, 0.0), -_LARGEST), _LARGEST)
    return tuple(turns_K)
