"""The options of a training job, with every default settled."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.objective.options import Options, settle

WIRE_NAMES = {"k2_tau": "vendor_k2_tau", "max_weight": "max_negative_advantage_importance_sampling_weight"}


def settled(**sent: Any) -> Options:
    return settle(ExperimentalTrainingConfig.model_validate(sent))


DEFAULTS = Options(
    advantage_balance=0.0,
    epsilon=1.0,
    epsilon_high=4.0,
    importance_sampling_level="token",
    k2_tau=0.0,
    learning_rate=None,
    mask_prob_ratio=False,
    max_weight=None,
    ppo=False,
    precalculate_logprobs=False,
    scale_rewards=True,
    kl_penalty_coef=0.0,
    kl_ref_step=0,
    truncated_importance_sampling=0.0,
    credit="trajectory",
    groups_per_step=None,
    epochs=1,
    loss_aggregation="sequence_mean",
    loss_scale_factor=None,
    mask_truncated=False,
    max_grad_norm=1.0,
    weight_decay=0.1,
    custom_loss=None,
    unknown=(),
)


def test_without_a_config_every_option_has_its_default():
    assert settle(None) == settled() == Options() == DEFAULTS


@pytest.mark.parametrize(
    ("sent", "epsilon", "epsilon_high"),
    [
        ({}, 1.0, 4.0),
        ({"epsilon": 0.2}, 0.2, 4.0),
        ({"epsilon_high": 0.3}, 1.0, 0.3),
        ({"epsilon": 0.1, "epsilon_high": 0.3}, 0.1, 0.3),
        ({"epsilon": 0}, 0.0, 4.0),
        ({"ppo": False}, 1.0, 4.0),
        ({"ppo": False, "epsilon": 0.2}, 0.2, 4.0),
        ({"ppo": True}, 0.2, 0.2),
        ({"ppo": True, "epsilon": 0.1}, 0.1, 0.1),
        ({"ppo": True, "epsilon_high": 0.3}, 0.2, 0.3),
        ({"ppo": True, "epsilon": 0.1, "epsilon_high": 0.3}, 0.1, 0.3),
        ({"ppo": True, "epsilon": 0}, 0.0, 0.0),
        ({"ppo": True, "epsilon_high": 0}, 0.2, 0.0),
        ({"ppo": None, "epsilon": None, "epsilon_high": None}, 1.0, 4.0),
        ({"ppo": True, "epsilon": None, "epsilon_high": None}, 0.2, 0.2),
    ],
)
def test_the_clip_range_depends_on_ppo_and_each_default_applies_alone(sent, epsilon, epsilon_high):
    options = settled(**sent)
    assert (options.epsilon, options.epsilon_high) == (epsilon, epsilon_high)


VALUES = {
    "advantage_balance": st.floats(-1, 1),
    "epsilon": st.floats(0, 10),
    "epsilon_high": st.floats(0, 10),
    "importance_sampling_level": st.sampled_from(("token", "sequence", "average", "geometric_average")),
    "k2_tau": st.floats(-1, 1),
    "learning_rate": st.floats(0, 1),
    "mask_prob_ratio": st.booleans(),
    "max_weight": st.floats(0.01, 10),
    "ppo": st.booleans(),
    "precalculate_logprobs": st.booleans(),
    "scale_rewards": st.booleans(),
    "kl_penalty_coef": st.floats(0, 10),
    "kl_ref_step": st.integers(0, 999_999_999),
    "truncated_importance_sampling": st.floats(0, 10),
    "credit": st.sampled_from(("trajectory", "turn")),
    "custom_loss": st.just("0" * 64),
}


@given(st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in VALUES.items()}))
def test_what_is_given_is_taken_and_what_is_null_or_absent_has_its_default(chosen):
    options = settled(**{WIRE_NAMES.get(name, name): value for name, value in chosen.items()})
    given_ = {name: value for name, value in chosen.items() if value is not None}
    clip = {"epsilon": 0.2, "epsilon_high": given_.get("epsilon", 0.2)} if given_.get("ppo") else {}
    assert dataclasses.asdict(options) == dataclasses.asdict(DEFAULTS) | clip | given_


@pytest.mark.parametrize("off", [0, 0.0, None])
def test_a_maximal_weight_of_zero_is_off(off):
    assert settled(max_negative_advantage_importance_sampling_weight=off).max_weight is None


@pytest.mark.parametrize("name", ["vendor_k2_tau", "kimi_k2_tau"])
def test_k2_tau_is_known_by_both_its_names(name):
    assert settled(**{name: 0.5}) == dataclasses.replace(DEFAULTS, k2_tau=0.5)


def test_a_learning_rate_of_zero_is_not_the_policys_own():
    assert settled(learning_rate=0).learning_rate == 0.0


def test_unknown_options_are_named_in_order_and_have_no_effect():
    assert settled(zeal=1, kl_penalty=0.1) == dataclasses.replace(DEFAULTS, unknown=("kl_penalty", "zeal"))


@pytest.mark.parametrize("name", ["k2_tau", "max_weight", "unknown"])
def test_an_unknown_option_called_like_a_name_of_ours_has_no_effect_either(name):
    assert settled(**{name: 0.5}) == dataclasses.replace(DEFAULTS, unknown=(name,))


def test_options_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().ppo = True
