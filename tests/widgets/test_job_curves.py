"""The curves of a training job: which there are, and what is odd about them."""

from typing import Any, get_args

import numpy as np
import pytest

from rolloutlab.api.wire.levels import ImportanceSamplingLevel
from rolloutlab.api.wire.training import Event
from rolloutlab.objective.ratios import importance_ratios
from rolloutlab.widgets.job import CURVES, curves_of, curves_with_numbers, numbers_of, oddities


def steps(*response: dict[str, Any]) -> list[Event]:
    return [Event(id=str(i), type="gradient_step", data=data) for i, data in enumerate(response)]


def titles(*response: dict[str, Any]) -> list[str]:
    return [curve.title for curve in curves_with_numbers(numbers_of(steps(*response)))]


def test_numbers_have_a_place_for_every_step_also_where_a_step_does_not_tell_one():
    result = numbers_of(steps({"loss": 1.0}, {"loss": 2, "entropy": 0.123456789}, {"entropy": True}))
    assert result == {"loss": [1.0, 2.0, None], "entropy": [None, 0.123457, None]}


def test_only_the_steps_from_one_on_can_be_asked_for():
    assert numbers_of(steps({"loss": 1.0}, {"loss": 2.0}, {"kl": 3.0}), 2) == {"kl": [3.0]}


def test_there_is_a_curve_for_what_there_are_numbers_of():
    assert titles({"loss": 1.0, "grad_norm": 2.0, "unheard_of": 3.0}) == ["loss", "gradient norm"]
    assert titles() == []


def test_a_reward_that_is_the_whole_jobs_is_no_curve():
    assert titles({"reward": 0.5}, {"reward": 0.5}) == []
    assert titles({"reward": 0.5}, {"reward": 0.6}) == ["reward"]


@pytest.mark.parametrize(
    ("title", "name", "healthy", "odd"),
    [
        ("entropy", "entropy", [0.9, 0.5], [0.9, 0.001]),
        ("distance (kl)", "kl", [0.0, 0.2], [0.0, 2.0]),
        ("distance (kl)", "kl", [0.01, 0.2], [0.06, 0.2]),
        ("clipped tokens", "clipped", [0.0, 0.1], [0.0, 0.5]),
        ("old/new correlation", "old_new_correlation", [0.999, 0.7], [0.6, 0.9]),
    ],
)
def test_what_is_odd_about_a_curve_is_told_and_what_is_healthy_is_not(title, name, healthy, odd):
    assert oddities({name: healthy}) == {}
    assert list(oddities({name: odd})) == [title]


def first_step(random: np.random.Generator, moved: float) -> dict[str, float]:
    """What a first gradient step tells of 256 tokens sampled from one policy, under another `moved` away from it.

    Policies are rows of 16 logits; a recorded logprob is that of the policy that sampled.
    """
    logits_TV = random.normal(0, 2, (256, 16))
    policies = logits_TV, logits_TV + random.normal(0, moved, logits_TV.shape)
    both = [now_TV - np.log(np.exp(now_TV).sum(1, keepdims=True)) for now_TV in policies]
    sampled_T = [random.choice(16, p=np.exp(row)) for row in both[0]]
    old_T, new_T = (logprobs_TV[np.arange(256), sampled_T] for logprobs_TV in both)
    delta_T = new_T - old_T
    return {
        "ratio_mean": float(np.exp(delta_T).mean()),
        "kl": float((np.expm1(delta_T) - delta_T).mean()),
        "old_new_correlation": float(np.corrcoef(np.exp(old_T), np.exp(new_T))[0, 1]),
    }


def test_every_old_batch_is_told_by_distance_and_correlation_while_its_mean_ratio_is_near_1():
    """Fifty batches of older policies, fifty of the same one: the mean ratio misses many of the former."""
    random = np.random.default_rng(0)
    old = [first_step(random, moved) for moved in np.linspace(0.4, 1.2, 50)]
    assert all(response["kl"] > 0.05 for response in old)
    assert sum(abs(response["ratio_mean"] - 1) <= 0.02 for response in old) >= 5
    for response in old:
        assert {"distance (kl)", "old/new correlation"} <= oddities(numbers_of(steps(response))).keys()
    assert [oddities(numbers_of(steps(first_step(random, 1e-3)))) for _ in range(50)] == [{}] * 50


@pytest.mark.parametrize("level", get_args(ImportanceSamplingLevel))
def test_the_caption_of_the_mean_ratio_is_true_of_older_completions_at_each_level(level):
    """Histories of 64 tokens, sampled from one policy, under another: the mean over all is 1 for tokens alone."""
    random, ratios = np.random.default_rng(0), []
    for _ in range(200):
        logits_TV = random.normal(0, 2, (64, 16))
        old_TV, new_TV = (
            each - np.log(np.exp(each).sum(1, keepdims=True))
            for each in (logits_TV, logits_TV + random.normal(0, 0.8, logits_TV.shape))
        )
        sampled_T = [random.choice(16, p=np.exp(row)) for row in old_TV]
        ratios += importance_ratios((new_TV - old_TV)[np.arange(64), sampled_T].tolist(), level)
    (caption,) = (c.healthy for c in curves_of({"importance_sampling_level": level}) if c.names == ("ratio_mean",))
    assert (np.mean(ratios) > 0.96) == ("near 1 for old completions too" in caption)
    assert (np.mean(ratios) < 0.94) == ("the further below 1" in caption)


def test_the_mean_ratio_alone_is_never_odd():
    assert oddities({"ratio_mean": [1.2, 1.0]}) == {}


def test_every_curve_says_in_a_sentence_what_is_healthy():
    assert all(curve.healthy for curve in CURVES)


SFT = {"sft": True}
STEP = {"loss": 2.0, "entropy": 1.0, "kl_base": 0.1, "grad_norm": 0.5}


def captions(options: dict[str, Any]) -> str:
    return " ".join(f"{curve.title} {curve.healthy}" for curve in curves_of(options))


def test_the_distance_to_checkpoint_0_has_a_curve_in_every_job():
    for options in ({}, SFT, {"custom_loss": "0" * 64}):
        curves = curves_of(options)
        drawn = curves_with_numbers(numbers_of(steps(STEP), curves=curves), curves)
        assert [curve.names for curve in drawn if "kl_base" in curve.names] == [("kl_base",)]


def test_captions_of_fine_tuning_say_nothing_of_rewards_ratios_or_a_policy_that_sampled():
    for word in ("near 0 is normal", "advantage", "reward", "group", "ratio is", "policy"):
        assert word not in captions(SFT)
    assert "cross-entropy" in captions(SFT)
    assert "near 0 is normal" in captions({})


def test_a_loss_of_ones_own_is_not_called_normal_near_0():
    assert "near 0 is normal" not in captions({"custom_loss": "0" * 64})


def test_no_entropy_is_odd_in_fine_tuning_without_a_word_of_groups():
    (odd,) = oddities({"entropy": [0.9, 0.001]}, curves_of(SFT)).values()
    assert "group" not in odd
    assert odd.endswith(" -> learning_rate: lower")
