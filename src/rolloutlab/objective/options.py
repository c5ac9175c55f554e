"""The options of a training job, with every default settled."""

from dataclasses import dataclass
from typing import Any

from rolloutlab.wire.training import ExperimentalTrainingConfig, ImportanceSamplingLevel


@dataclass(frozen=True)
class Options:
    """What a job trains with once its defaults are settled.

    - advantage_balance: b in [-1, 1]; b > 0 multiplies every advantage <= 0 by 1 - b, b < 0 every one >= 0 by 1 + b.
    - epsilon, epsilon_high: the importance ratio is clipped to [1 - epsilon, 1 + epsilon_high].
    - importance_sampling_level: whether the ratio is per token, per history, or their mean or geometric mean.
    - k2_tau: strength of the penalty on the change of a token's logprob; 0 is off.
    - learning_rate: None means the policy's own.
    - mask_prob_ratio: a ratio outside the clip range becomes 0 instead of the bound.
    - max_weight: upper bound of every ratio; None is off.
    - ppo: the clipped surrogate of PPO instead of clipped importance-weighted REINFORCE.
    - precalculate_logprobs: the old logprobs are recomputed under the job's starting weights.
    - scale_rewards: an advantage is divided by its group's standard deviation.
    - unknown: names of options this version does not know; they are accepted and have no effect.
    """

    advantage_balance: float = 0.0
    epsilon: float = 1.0
    epsilon_high: float = 4.0
    importance_sampling_level: ImportanceSamplingLevel = "token"
    k2_tau: float = 0.0
    learning_rate: float | None = None
    mask_prob_ratio: bool = False
    max_weight: float | None = None
    ppo: bool = False
    precalculate_logprobs: bool = False
    scale_rewards: bool = True
    unknown: tuple[str, ...] = ()


_OWN_NAME = {"vendor_k2_tau": "k2_tau", "max_negative_advantage_importance_sampling_weight": "max_weight"}


def settle(config: ExperimentalTrainingConfig | None) -> Options:
    """The options of `config`, each default applied alone.

    Without `ppo`, epsilon is 1.0 and epsilon_high 4.0, whatever the other is; with it, epsilon is 0.2 and
    epsilon_high equals epsilon. A `max_negative_advantage_importance_sampling_weight` of 0 is off.
    """
    config = config or ExperimentalTrainingConfig()
    given = _given(config)
    if given.get("ppo"):
        given.setdefault("epsilon", 0.2)
        given.setdefault("epsilon_high", given["epsilon"])
    return Options(**given, unknown=tuple(sorted(config.model_extra or {})))


def _given(config: ExperimentalTrainingConfig) -> dict[str, Any]:
    given = {
        _OWN_NAME.get(name, name): getattr(config, name)
        for name in config.model_fields_set & type(config).model_fields.keys()
    }
    if given.get("max_weight") == 0:
        del given["max_weight"]
    return given
