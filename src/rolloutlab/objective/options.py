"""Options of a training job with all defaults resolved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.fine_tuning import SFTTrainingConfig
from rolloutlab.api.wire.levels import Credit, ImportanceSamplingLevel, LossAggregation
from rolloutlab.api.wire.training import ExperimentalTrainingConfig


@dataclass(frozen=True)
class Options:
    """Resolved options; their effects are documented in `rolloutlab.objective.option_docs`.

    - `k2_tau` is `vendor_k2_tau`.
    - `max_weight` is `max_negative_advantage_importance_sampling_weight`; None is off.
    - `learning_rate`, `groups_per_step`: None is the default of the policy. 0 groups per step makes the job one step.
    - `custom_loss`: the SHA-256 of the source of the user's own loss.
    - `unknown`: the names of options that this version does not know. They have no effect.
    """

    advantage_balance: float = 0.0
    epsilon: float = 1.0
    epsilon_high: float = 4.0
    importance_sampling_level: ImportanceSamplingLevel = "token"
    k2_tau: float = 0.0
    kl_penalty_coef: float = 0.0
    kl_ref_step: int = 0
    learning_rate: float | None = None
    mask_prob_ratio: bool = False
    max_weight: float | None = None
    ppo: bool = False
    precalculate_logprobs: bool = False
    scale_rewards: bool = True
    truncated_importance_sampling: float = 0.0
    credit: Credit = "trajectory"
    groups_per_step: int | None = None
    epochs: int = 1
    loss_aggregation: LossAggregation = "sequence_mean"
    loss_scale_factor: float | None = None
    mask_truncated: bool = False
    max_grad_norm: float = 1.0
    weight_decay: float = 0.1
    custom_loss: str | None = None
    unknown: tuple[str, ...] = ()


_OWN_NAME = {"vendor_k2_tau": "k2_tau", "max_negative_advantage_importance_sampling_weight": "max_weight"}


def settle(config: ExperimentalTrainingConfig | None) -> Options:
    """The options of `config` with defaults.

    Without `ppo`, epsilon is 1.0 and epsilon_high 4.0, independently of each other; with it, epsilon is 0.2 and
    epsilon_high equals epsilon. A `max_negative_advantage_importance_sampling_weight` of 0 is off.
    """
    config = config or ExperimentalTrainingConfig()
    values: dict[str, Any] = {
        _OWN_NAME.get(name, name): getattr(config, name)
        for name in config.model_fields_set & type(config).model_fields.keys()
    }
    if values.get("max_weight") == 0:
        del values["max_weight"]
    if values.get("ppo"):
        values.setdefault("epsilon", 0.2)
        values.setdefault("epsilon_high", values["epsilon"])
    return Options(**values, unknown=tuple(sorted(config.model_extra or {})))


_OPTIMIZER = {"max_grad_norm", "weight_decay"}


def not_honoured(
    config: ExperimentalTrainingConfig | SFTTrainingConfig | None, unsupported: Mapping[str, str]
) -> dict[str, str]:
    """The options of `config` that an engine does not support, with the reason. Options at their default are left out.

    Options of the optimizer count even at our default, because other services have other defaults for them.

    unsupported: the reasons, by the names of options in requests.
    """
    if isinstance(config, SFTTrainingConfig):  # whose defaults are None
        return {
            n: why
            for n, why in unsupported.items()
            if n in type(config).model_fields and getattr(config, n) is not None
        }
    settled, default = settle(config), Options()
    given = {name: _OWN_NAME.get(name, name) for name in unsupported if config and name in config.model_fields_set}
    differ = (n for n, own in given.items() if n in _OPTIMIZER or getattr(settled, own) != getattr(default, own))
    return {name: unsupported[name] for name in differ}
