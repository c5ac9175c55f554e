"""The options of a training job, with every default settled."""

from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.levels import ImportanceSamplingLevel
from rolloutlab.api.wire.training import ExperimentalTrainingConfig


@dataclass(frozen=True)
class Options:
    """What a job trains with once its defaults are settled; what each does is in `rolloutlab.objective.option_docs`.

    k2_tau and max_weight are `vendor_k2_tau` and `max_negative_advantage_importance_sampling_weight`. learning_rate:
    None means the policy's own. max_weight: None is off. unknown: names of options this version does not know; they
    are accepted and have no effect.
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
