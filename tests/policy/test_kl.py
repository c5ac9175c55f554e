"""KL to a reference: its report in every job, its penalty, and truncated importance sampling, in whole jobs."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
import torch

from rolloutlab.errors import Cancelled
from rolloutlab.policy import trainer
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.metrics import metrics_of
from rolloutlab.policy.model import base_of, read_adapter, write_adapter
from rolloutlab.policy.reference import sample
from tests.policy.test_trainer import as_job, large_groups, run, same, sampled, small_job, steps


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


def policies(noise: float = 0.5) -> dict[str, torch.Tensor]:
    """Logprobs of 100,000 places and 8 tokens under three policies, and a generator to sample from them."""
    random = torch.Generator().manual_seed(1)
    logits_TV = torch.randn(100_000, 8, generator=random, dtype=torch.float64)
    new_TV, other_TV = (
        (logits_TV + noise * torch.randn(logits_TV.shape, generator=random, dtype=torch.float64)).log_softmax(-1)
        for _ in range(2)
    )
    return {"checkpoint 0": logits_TV.log_softmax(-1), "present policy": new_TV, "another": other_TV}


def distances(sampled_TV: torch.Tensor, old_TV: torch.Tensor, noise: float = 0.5) -> tuple[float, float]:
    """`kl_base` of tokens that a policy sampled, whose old logprobs are another's; and the exact KL divergence."""
    base_TV, new_TV, _ = policies(noise).values()
    token_T = torch.multinomial(sampled_TV.exp(), 1, generator=torch.Generator().manual_seed(2))
    new_T, base_T, old_T, sampled_T = (each.gather(1, token_T)[:, 0] for each in (new_TV, base_TV, old_TV, sampled_TV))
    nothing_T = torch.zeros_like(new_T)
    metrics = metrics_of(new_T, old_T, nothing_T, nothing_T, nothing_T, nothing_T, base_T, base_T, sampled_T)
    return metrics["kl_base"], float((new_TV.exp() * (new_TV - base_TV)).sum(-1).mean())


@pytest.mark.parametrize("sampler", ["checkpoint 0", "present policy", "another"])
def test_the_distance_is_the_kl_divergence_whichever_policy_sampled(sampler):
    each = policies()
    reported, exact = distances(each[sampler], each[sampler])
    assert reported == pytest.approx(exact, rel=0.03)
    assert exact > 0.05


@pytest.mark.parametrize("sampler", ["checkpoint 0", "another"])
def test_the_distance_is_the_kl_divergence_also_where_old_logprobs_are_recomputed(sampler):
    each = policies(1.0)
    reported, exact = distances(each[sampler], each["present policy"], noise=1.0)
    assert reported == pytest.approx(exact, rel=0.05)  # twice its standard error


def test_no_single_token_rules_the_estimate_of_the_distance():
    """Half of 300 places: checkpoint 0 is sure of one token, which the present policy still samples at times."""
    random = torch.Generator().manual_seed(3)
    sure_TV, unsure_TV = torch.zeros(300, 50, dtype=torch.float64), torch.zeros(300, 50, dtype=torch.float64)
    sure_TV[:150, 0], unsure_TV[:150, 0] = 12.0, -5.0
    base_TV, new_TV = sure_TV.log_softmax(-1), unsure_TV.log_softmax(-1)
    exact = float((new_TV.exp() * (new_TV - base_TV)).sum(-1).mean())
    estimates = []
    for _ in range(200):
        token_T = torch.multinomial(new_TV.exp(), 1, generator=random)
        new_T, base_T = (each.gather(1, token_T)[:, 0] for each in (new_TV, base_TV))
        nothing_T = torch.zeros_like(new_T)
        numbers = metrics_of(new_T, new_T, nothing_T, nothing_T, nothing_T, nothing_T, base_T, base_T, new_T)
        estimates.append(numbers["kl_base"])
    assert estimates == pytest.approx([exact] * 200, rel=0.05)


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 1e-6}, {"precalculate_logprobs": True}], ids=str)
def test_the_distance_of_a_job_is_the_kl_divergence_over_the_vocabulary(policy, start, options):
    """By the logits of both policies before each trained token, one sequence after the other."""
    data = steps(run(policy, start, small_job(0, **options))[1])[0]
    job, renderer = small_job(0), base_of(policy).renderer()
    moved, divergences = policy.lora_copy(), []
    write_adapter(moved, start.adapter)
    for trajectory in job.trajectory_groups[0].trajectories:
        for sequence in renderer.sequences(next(iter(trajectory.histories()))):
            ids = torch.tensor([list(sequence.ids)])
            with torch.no_grad():
                new_LV, base_LV = (m(input_ids=ids).logits[0].double().log_softmax(-1) for m in (moved, policy.base))
            places = [i - 1 for i, trained in enumerate(sequence.trained) if trained]
            divergences += (new_LV.exp() * (new_LV - base_LV)).sum(-1)[places].tolist()
    assert data["kl_base"] == pytest.approx(fmean(divergences), rel=1e-4)
    assert data["kl_base"] > 1e-3


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_the_distance_of_a_job_is_computed_by_the_threads_of_its_steps(policy, start, monkeypatch):
    threads, states = [], Forward._compute_states

    def noted(*values):
        threads.append(threading.current_thread().name.partition("_")[0])
        return states(*values)

    monkeypatch.setattr(Forward, "_compute_states", noted)
    run(replace(policy, workers=2), start, as_job(large_groups(), groups_per_step=0))
    assert threads.count("trainer") >= 3  # two batches of the step, and those of it that are measured at checkpoint 0
    assert len(threads) - threads.count("trainer") == 1  # whether the weights are finite, at the end


def measured_distances(forward, sequences, pool):
    """Of each sequence, in their order."""
    found, states = {}, forward.states_of_base(sequences, range(len(sequences)), pool)
    for batch in forward.batches(sequences):
        found |= zip(batch.order, forward(batch, states).divergence_T.split(batch.counts), strict=True)
    return [found[i] for i in range(len(sequences))]


def test_the_distance_of_a_job_is_that_of_a_model_whose_head_is_not_last(policy, start, pool):
    whole = Forward(policy, moved := policy.lora_copy())
    write_adapter(moved, start.adapter)
    sequences = large_sequences(policy)
    expected = measured_distances(whole, sequences, pool)
    whole._head = None
    for mine, theirs in zip(expected, measured_distances(whole, sequences, pool), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_distance_is_of_the_first_of_its_sample_where_all_would_be_too_much_to_keep(
    policy, start, pool, monkeypatch
):
    forward = Forward(policy, moved := policy.lora_copy())
    write_adapter(moved, start.adapter)
    sequences = large_sequences(policy)
    numbers = sum(each.trainable for each in sequences[:2]) * policy.base.config.hidden_size
    whole = measured_distances(forward, sequences, pool)
    for most, measured in ((numbers, 2), (numbers - 1, 1), (0, 1)):
        monkeypatch.setattr("rolloutlab.policy.forward._MOST_STATES", most)
        distances = measured_distances(forward, sequences, pool)
        assert [not each.isnan().any() for each in distances] == [i < measured for i in range(len(sequences))]
        for mine_T, expected_T in zip(distances[:measured], whole, strict=False):
            assert torch.allclose(mine_T, expected_T, rtol=1e-4, atol=1e-7)


def test_the_distance_of_checkpoint_0_from_itself_is_zero(policy, pool):
    forward = Forward(policy, policy.lora_copy())
    for distance_T in measured_distances(forward, large_sequences(policy), pool):
        assert distance_T.tolist() == [0.0] * len(distance_T)
        assert not distance_T.signbit().any()  # as "-0.000" it would be shown


def large_sequences(policy):
    renderer = base_of(policy).renderer()
    trajectories = small_job(0).trajectory_groups[0].trajectories
    return [each for t in trajectories for each in renderer.sequences(next(iter(t.histories())))]


def test_recomputed_logprobs_do_not_change_the_distance_to_checkpoint_0(policy, start):
    """The first step has the same weights: what was recorded of older completions is still known."""
    recorded = steps(run(policy, start, small_job(0))[1])[0]
    recomputed = steps(run(policy, start, small_job(0, precalculate_logprobs=True))[1])[0]
    assert recomputed["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert recorded["ratio_mean"] != pytest.approx(1, abs=1e-2)
    assert recomputed["kl_base"] == pytest.approx(recorded["kl_base"], rel=1e-3)


def sampled_at(job, *temperatures):
    """The job, with what its trajectories record as the temperature that they were sampled at."""
    body = job.to_wire()
    [group] = body["trajectory_groups"]
    for trajectory, temperature in zip(group["trajectories"], temperatures, strict=True):
        trajectory["metadata"] = {"temperature": temperature}
    return type(job).model_validate(body)


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 1e-6}, {"precalculate_logprobs": True}], ids=str)
def test_what_was_sampled_at_another_temperature_is_left_out_of_the_distance(policy, start, options):
    """Of four answers with as many tokens each, the distance is the mean over halves."""
    whole, first, second, none = (
        steps(run(policy, start, sampled_at(small_job(0, **options), *temperatures))[1])[0]
        for temperatures in ((1, 1.0, 1, 1), (1, 1, 0.7, 1.5), (0.7, 1.5, 1, 1), (0.7, 0.7, 0.7, 0.7))
    )
    assert "kl_base" not in none
    assert first["kl_base"] != pytest.approx(second["kl_base"], rel=1e-2)
    assert fmean([first["kl_base"], second["kl_base"]]) == pytest.approx(whole["kl_base"], rel=1e-3)
    if "kl_penalty_coef" in options:
        assert none["kl_reference"] == pytest.approx(whole["kl_reference"], rel=1e-3)


def test_the_sample_is_of_what_was_sampled_at_temperature_1_alone(policy, start):
    """Sixteen such of 48: all of them, as with the penalty."""
    random, temperatures = Random(0), [1.0, 0.7, 0.7] * 16
    group = [[sampled(random, float(i % 2), 5 + i) for i in range(48)]]
    [some], [every] = (
        steps(run(policy, start, sampled_at(as_job(group, learning_rate=0.0, **options), *temperatures))[1])[:1]
        for options in ({}, {"kl_penalty_coef": 1e-6})
    )
    assert some["kl_base"] == pytest.approx(every["kl_base"], rel=1e-3)


def test_the_sample_has_a_sixteenth_of_the_sequences_and_at_least_sixteen():
    assert [len(sample(range(n), 1)) for n in (0, 1, 15, 16, 17, 256, 320, 1600)] == [0, 1, 15, 16, 16, 16, 20, 100]
    assert sample([3, 5, 8], 1) == {3, 5, 8}
    assert sample(range(1000), 1) == sample(range(1000), 1) != sample(range(1000), 2)


def test_a_long_sequence_is_in_the_sample_as_often_as_a_short_one():
    """Where long answers moved far and short ones did not, the distance of samples is that of all tokens."""
    lengths = [20, 400] * 128
    moved = [0.01, 0.5] * 128

    def distance(picked) -> float:
        return sum(moved[i] * lengths[i] for i in picked) / sum(lengths[i] for i in picked)

    samples = [sample(range(256), seed) for seed in range(2000)]
    assert fmean(map(distance, samples)) == pytest.approx(distance(range(256)), rel=0.02)
    often = [sum(i in each for each in samples) / len(samples) for i in range(256)]
    assert fmean(often[::2]) == pytest.approx(fmean(often[1::2]), rel=0.05)
    assert all(0.5 / 16 < share < 2 / 16 for share in often)


def test_the_distance_of_a_small_job_is_of_all_its_sequences(policy, start):
    """With the penalty it is of all tokens."""
    random = Random(0)
    group = [[sampled(random, reward, 5, 40) for reward in (1.0, 0.0, 0.25, 0.5, 0.75, 0.9, 0.1, 0.2)]]
    [some], [every] = (
        steps(run(policy, start, as_job(group, learning_rate=0.0, **options))[1])
        for options in ({}, {"kl_penalty_coef": 1e-6})
    )
    assert some["kl_base"] == pytest.approx(every["kl_base"], rel=1e-3)


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
