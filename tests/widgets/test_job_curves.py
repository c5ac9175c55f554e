"""The curves of a training job: which there are, and what is odd about them."""

import re
from typing import Any, get_args

import numpy as np
import pytest

from rolloutlab.api.wire.levels import ImportanceSamplingLevel
from rolloutlab.api.wire.training import Event, ExperimentalTrainingConfig
from rolloutlab.objective.advantages import Member, token_weights
from rolloutlab.objective.options import Options, settle
from rolloutlab.training.lag import importance_ratios
from rolloutlab.widgets.job import CURVES, Course, course_of, curves_of, curves_with_numbers, numbers_of, oddities, text


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
    assert titles({"reward": 0.5}, {"reward": 0.6}) == ["reward by step"]


@pytest.mark.parametrize(
    ("title", "name", "healthy", "odd"),
    [
        ("KL to the sampler", "kl", [0.01, 0.2], [0.06, 0.2]),
        ("agreement", "old_new_correlation", [0.999, 0.7], [0.6, 0.9]),
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
        assert {"KL to the sampler", "agreement"} <= oddities(numbers_of(steps(response))).keys()
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
    assert (np.mean(ratios) > 0.96) == ("Near 1 for any two policies" in caption)
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
    for word in ("Near 0", "advantage", "reward", "group", "ratio is", "policy"):
        assert word not in captions(SFT)
    assert "Cross-entropy" in captions(SFT)


def test_a_low_entropy_is_not_odd_in_fine_tuning_where_it_is_what_was_asked_for():
    assert oddities({"entropy": [0.9, 0.001]}, curves_of(SFT), Course(10.0)) == {}


def caption(name: str, options: dict[str, Any]) -> str:
    return next(curve.healthy for curve in curves_of(options) if curve.names[0] == name)


def fresh_loss(random: np.random.Generator, options: Options) -> float:
    """The loss of a first step on 8 fresh groups of 8 answers, of 5 to 60 tokens, by the trainer's own code."""
    torch = pytest.importorskip("torch")
    from rolloutlab.policy.loss import step_loss

    lengths_GN = random.integers(5, 60, (8, 8))
    groups = [[Member(f"{g}/{i}", float(random.random() < 0.4), (int(n),)) for i, n in enumerate(row)]
              for g, row in enumerate(lengths_GN)]  # fmt: skip
    shares = [share for group in token_weights(groups, options) for share in group if share.reason is None]
    lengths = [share.member.tokens for share in shares]
    old_T = torch.tensor(np.log(random.beta(4, 1, sum(lengths))))
    per_token = [np.repeat([getattr(share, name) for share in shares], lengths) for name in ("advantage", "weight")]
    history_T = torch.tensor(np.repeat(range(len(shares)), lengths))
    loss = step_loss(old_T, old_T, *map(torch.tensor, per_token), history_T, options).loss
    return abs(float(loss))


def test_only_the_loss_of_ppo_is_called_near_0_and_is_so():
    random = np.random.default_rng(0)
    plain = [fresh_loss(random, Options()) for _ in range(40)]
    ppo = [fresh_loss(random, Options(ppo=True, epsilon=0.2, epsilon_high=0.2)) for _ in range(40)]
    assert max(ppo) < 1e-6 < 1e-3 < np.median(plain)
    assert "Near 0" in caption("loss", {"ppo": True})
    assert "Near 0" not in caption("loss", {})
    assert "Near 0" not in caption("loss", {"custom_loss": "0" * 64, "ppo": True})


@pytest.mark.parametrize("tokens", [1, 10, 100, 1000])
@pytest.mark.parametrize("nats", [0.0001, 0.001, 0.01, 0.1, 1.0])
def test_answers_are_called_alike_where_they_are_and_at_least_as_often_as_it_says(tokens, nats):
    """Answers of independent tokens, of two kinds, with that much entropy for each token."""
    chances = np.linspace(0.5, 1, 200_001)[:-1]
    entropies = -(chances * np.log(chances) + (1 - chances) * np.log1p(-chances))
    best = int(np.abs(entropies - min(nats, np.log(2))).argmin())
    random = np.random.default_rng(tokens)
    pairs = random.random((2, 2000, tokens)) < chances[best]
    alike = float((pairs[0] == pairs[1]).all(axis=1).mean())
    odd = oddities({"entropy": [2.0, float(entropies[best])]}, course=Course(float(tokens))).get("entropy", "")
    assert bool(odd) == (entropies[best] * tokens < 0.2)
    if odd:
        (percent,) = re.findall(r"at least (\d+)%", odd)
        assert alike * 100 >= int(percent) - 2  # of 2,000 pairs
        assert int(percent) >= 80
    elif tokens == 1000 and nats == 0.01:  # what was called "all alike" before
        assert alike < 0.1


def test_an_entropy_of_answers_of_unknown_length_is_not_judged():
    assert oddities({"entropy": [0.9, 0.0001]}) == {}


def test_a_number_is_judged_on_the_first_step_alone_and_no_cause_is_guessed_later():
    for name in ("kl", "clipped", "kl_base", "loss", "grad_norm", "ratio_max"):
        assert oddities({name: [0.0, 50.0]}) == {}


def test_the_distance_as_one_number_is_near_the_truth_where_that_of_a_step_is_not():
    """A hundred jobs of 16 steps, of 256 tokens each, at 1.4 nats from the policy that sampled them."""
    random, single, shown = np.random.default_rng(0), [], []
    for _ in range(100):
        estimates, exact = [], []
        for _ in range(16):
            logits_TV = random.normal(0, 6, (256, 16))
            moved_TV = logits_TV + random.normal(0, 3, logits_TV.shape)
            old_TV, new_TV = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (logits_TV, moved_TV))
            sampled_T = (np.exp(old_TV).cumsum(1) < random.random((256, 1))).sum(1).clip(0, 15)
            delta_T = (new_TV - old_TV)[np.arange(256), sampled_T]
            estimates.append(float((np.expm1(delta_T) - delta_T).mean()))
            exact.append(float((np.exp(old_TV) * (old_TV - new_TV)).sum(1).mean()))
        (number,) = re.findall(r"kl ([\d.]+)", text("lab/practice", steps(*({"kl": each} for each in estimates))))
        single.append(max(estimates) / np.mean(exact))
        shown.append(float(number) / np.mean(exact))
    assert max(single) > 3
    assert 0.8 < min(shown) <= max(shown) < 1.2


def test_the_course_is_read_from_the_events():
    checked = {"trainable_tokens": 1200, "trainable_trajectories": 10}
    assert course_of([Event(id="b", type="preflight", data=checked), *steps({}, {})]) == Course(120.0)
    assert course_of(steps({})) == Course()


@pytest.mark.parametrize(
    "options",
    [{}, {"epsilon_high": 1.5}, {"max_negative_advantage_importance_sampling_weight": 3.0}, {"ppo": True},
     {"ppo": True, "epsilon": 0.3}, {"ppo": True, "max_negative_advantage_importance_sampling_weight": 7.0}],
)  # fmt: skip
def test_a_token_counts_as_often_as_the_caption_of_the_largest_ratio_says(options):
    torch = pytest.importorskip("torch")
    from rolloutlab.policy.loss import step_loss

    settled = settle(ExperimentalTrainingConfig.model_validate(options))
    counts = {}
    for advantage in (1.0, -1.0):
        new_T = torch.tensor([0.0], requires_grad=True)
        one = torch.ones(1)
        old_T = torch.tensor([-np.log(415.0)], dtype=torch.float32)
        loss = step_loss(new_T, old_T, one * advantage, one, torch.zeros(1, dtype=torch.long), settled).loss
        counts[advantage] = abs(float(loss.detach() if settled.ppo else torch.autograd.grad(loss, new_T)[0]))
    said = [float(number) for number in re.findall(r"at most ([\d.]+) times", caption("ratio_max", options))]
    in_full = ["in full" in caption("ratio_max", options)]
    negative = 415.0 if any(in_full) else said[-1]
    assert counts == {1.0: pytest.approx(said[0], rel=1e-4), -1.0: pytest.approx(negative, rel=1e-4)}


def test_no_caption_calls_a_size_fine_that_has_no_limit():
    for options in ({}, {"ppo": True}, SFT, {"custom_loss": "0" * 64}, {"importance_sampling_level": "sequence"}):
        for words in ("is fine", "is normal", "should rise", "usual", "at most a", "slowly", "every step", "look for"):
            assert words not in captions(options)
