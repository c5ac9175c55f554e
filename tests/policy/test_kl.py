"""KL to a reference: its report in every job, its penalty, and truncated importance sampling, in whole jobs."""

from dataclasses import replace

import pytest
import torch

from rolloutlab.errors import Cancelled
from rolloutlab.policy import trainer
from rolloutlab.policy.metrics import metrics_of
from rolloutlab.policy.model import read_adapter
from rolloutlab.policy.reference import sample
from rolloutlab.policy.state import State
from tests.policy.test_trainer import as_job, large_groups, run, same, small_job, steps


@pytest.fixture(scope="module")
def start(policy, adapter_of) -> State:
    return State(adapter_of(policy), {})


def test_every_job_reports_how_far_the_model_is_from_checkpoint_0(policy, start):
    fresh = State(read_adapter(policy.lora_copy()), {})
    data = steps(run(policy, fresh, as_job(large_groups()))[1])[0]
    assert data["kl_base"] == pytest.approx(0, abs=1e-6)
    moved = steps(run(policy, start, small_job(0))[1])[0]
    assert moved["kl_base"] > 1e-3
    assert "kl_reference" not in moved


@pytest.mark.parametrize("sampler", ["checkpoint 0", "present policy", "another"])
def test_the_distance_is_the_kl_divergence_whichever_policy_sampled(sampler):
    random = torch.Generator().manual_seed(1)
    logits_TV = torch.randn(100_000, 8, generator=random, dtype=torch.float64)
    base_TV = logits_TV.log_softmax(-1)
    new_TV, other_TV = (
        (logits_TV + 0.5 * torch.randn(logits_TV.shape, generator=random, dtype=torch.float64)).log_softmax(-1)
        for _ in range(2)
    )
    old_TV = {"checkpoint 0": base_TV, "present policy": new_TV, "another": other_TV}[sampler]
    token_T = torch.multinomial(old_TV.exp(), 1, generator=random)
    new_T, base_T, old_T = (each.gather(1, token_T)[:, 0] for each in (new_TV, base_TV, old_TV))
    exact = float((new_TV.exp() * (new_TV - base_TV)).sum(-1).mean())
    nothing_T = torch.zeros_like(new_T)
    metrics = metrics_of(new_T, old_T, nothing_T, nothing_T, nothing_T, nothing_T, base_T, base_T)
    assert metrics["kl_base"] == pytest.approx(exact, rel=0.03)
    assert exact > 0.05


def test_the_sample_begins_with_the_first_sequence_and_has_a_sixteenth_of_the_tokens():
    picked = sample([10] * 160)
    assert picked[0] == 0
    assert len(picked) == 10
    assert sample([500, 3, 3]) == [0]
    assert sample([]) == []


def test_a_penalty_to_checkpoint_0_reports_the_kl_of_all_tokens(policy, start):
    for data in steps(run(policy, start, as_job(large_groups(), kl_penalty_coef=0.1))[1]):
        assert data["kl_base"] > 0
        assert data["kl_reference"] != 0


def test_the_penalty_is_nothing_where_the_model_is_its_reference(policy, start):
    plain = steps(run(policy, start, small_job(0))[1])[0]
    job = small_job(0)
    penalised = job.model_copy(update={"experimental_config": as_job([], kl_penalty_coef=9.0).experimental_config})
    data = steps(run(policy, start, penalised, reference=start.adapter)[1])[0]
    assert data["kl_reference"] == pytest.approx(0, abs=1e-5)
    assert data["loss"] == pytest.approx(plain["loss"], abs=1e-3)
    assert data["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-2)


def test_the_penalty_is_centred_on_the_whole_row_however_it_is_batched(policy, start):
    job = as_job(large_groups(), kl_penalty_coef=0.5)
    for one, three in zip(*(steps(run(replace(policy, workers=n), start, job)[1]) for n in (1, 3)), strict=True):
        assert one["loss"] == pytest.approx(three["loss"], rel=1e-3, abs=1e-5)
        assert one["kl_base"] == pytest.approx(three["kl_base"], rel=1e-3, abs=1e-5)


def test_the_penalty_changes_what_is_learned_and_the_reference_matters(policy, start):
    ends = [
        run(policy, start, as_job(large_groups(), **options), **given)[0].adapter
        for options, given in (
            ({}, {}),
            ({"kl_penalty_coef": 1.0}, {}),
            ({"kl_penalty_coef": 1.0}, {"reference": start.adapter}),
        )
    ]
    assert not same(ends[0], ends[1])
    assert not same(ends[1], ends[2])


def test_truncated_importance_sampling_weighs_the_difference_to_the_recorded_logprobs(policy, start):
    plain = steps(run(policy, start, as_job(large_groups(), precalculate_logprobs=True))[1])[0]
    options = {"precalculate_logprobs": True, "truncated_importance_sampling": 1e-6}
    data = steps(run(policy, start, as_job(large_groups(), **options))[1])[0]
    assert data["grad_norm"] == pytest.approx(plain["grad_norm"] * 1e-6, rel=1e-2)


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 0.1}])
def test_a_job_is_cancelled_between_the_reference_passes_of_two_rows(policy, start, options, monkeypatch):
    passes, compute = [], trainer.base_logprobs

    def counted(*values):
        passes.append(values)
        return compute(*values)

    monkeypatch.setattr(trainer, "base_logprobs", counted)
    with pytest.raises(Cancelled):
        run(policy, start, as_job(large_groups(), **options), cancelled=lambda: bool(passes))
    assert len(passes) == 1
