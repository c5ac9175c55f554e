"""Logprobs and their gradients, against each sequence by itself through the whole model."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import (
    CohereConfig,
    Gemma2Config,
    GPTNeoXConfig,
    GraniteConfig,
    Lfm2Config,
    MistralConfig,
    Qwen3Config,
)

from rolloutlab.policy.forward import Forward, _Base, _Head, _score_logits
from rolloutlab.policy.model import adapter_parameters, load_policy, write_adapter

MEMBERS = [[12], [20, 5, 9], [1], [7], [3, 2, 1, 6, 8]]

OTHERS = [
    pytest.param(Qwen3Config, {"head_dim": 8, "num_key_value_heads": 2}, True, True, id="qwen3"),
    pytest.param(GPTNeoXConfig, {}, True, True, id="gpt-neox, whose head and layers have other names"),
    pytest.param(MistralConfig, {"sliding_window": 24, "num_key_value_heads": 2}, True, False, id="sliding window"),
    pytest.param(
        Gemma2Config,
        {"sliding_window": 24, "head_dim": 8, "num_key_value_heads": 2, "final_logit_softcapping": 3.0},
        False,
        False,
        id="soft cap and sliding window",
    ),
    pytest.param(GraniteConfig, {"logits_scaling": 4.0, "num_key_value_heads": 2}, False, True, id="scaled logits"),
    pytest.param(CohereConfig, {"logit_scale": 0.25, "num_key_value_heads": 2}, False, True, id="scaled, other norms"),
    pytest.param(
        Lfm2Config,
        {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
        True,
        False,
        id="convolutions",
    ),
]


@pytest.fixture
def sequences(group):
    """Two groups of one prompt each, ragged and of several turns, and a sequence by itself."""
    return [*group(1, 40, MEMBERS), *group(2, 25, [[10], [30]]), *group(3, 2, [[4]])]


def carrier(policy, adapter):
    model = policy.lora_copy()
    write_adapter(model, adapter)
    return model


def naive(model, sequences):
    """Logprobs and entropies of each sequence, one at a time through the whole model."""
    outputs = []
    for s in sequences:
        all_TV = model(input_ids=torch.tensor([list(s.ids)])).logits[0].float().log_softmax(-1)
        at = [t for t in range(len(s)) if s.trained[t]]
        logprobs_T = torch.stack([all_TV[t - 1, s.ids[t]] for t in at])
        entropy_T = torch.stack([-(all_TV[t - 1].exp() * all_TV[t - 1]).sum() for t in at])
        outputs.append((logprobs_T, entropy_T.detach()))
    return outputs


def by_forward(forward, sequences):
    """The same from the code under test, in the order of the sequences, and how many of the batches had a mask."""
    outputs, masks = [None] * len(sequences), 0
    for batch in forward.batches(sequences):
        masks += batch.mask_B1LL is not None
        sizes = [sequences[i].trainable for i in batch.order]
        for i, *both in zip(batch.order, *(t.split(sizes) for t in forward(batch)[:2]), strict=True):
            outputs[i] = both
    return outputs, masks


def gradients(model, outputs):
    """Of a sum in which every token has another weight."""
    model.zero_grad()
    sum(((i + 1) * torch.linspace(-1, 2, len(p_T)) * p_T).sum() for i, (p_T, _) in enumerate(outputs)).backward()
    return {name: p.grad.clone() for name, p in adapter_parameters(model).items()}


def assert_same(model, outputs, expected):
    for (logprobs_T, entropy_T), (expected_T, expected_entropy_T) in zip(outputs, expected, strict=True):
        assert torch.allclose(logprobs_T, expected_T, rtol=0, atol=1e-5)
        assert torch.allclose(entropy_T, expected_entropy_T, rtol=0, atol=1e-5)
    slopes, expected_slopes = gradients(model, outputs), gradients(model, expected)
    scale = max(float(t.abs().max()) for t in expected_slopes.values())
    for name, slope in expected_slopes.items():
        assert torch.allclose(slopes[name], slope, rtol=0, atol=1e-5 * scale), name


def test_bundles_chunks_and_batches_change_nothing(policy, adapter_of, sequences):
    model = carrier(policy, adapter_of(policy))
    outputs, masks = by_forward(Forward(policy, model, chunk=7 * 292), sequences)
    assert masks > 0
    assert_same(model, outputs, naive(model, sequences))


def test_small_batches_are_the_same_as_large_ones(policy, adapter_of, sequences):
    model = carrier(policy, adapter_of(policy))
    forward = Forward(replace(policy, batch_tokens=64), model)
    assert len(list(forward.batches(sequences))) > 3
    assert_same(model, by_forward(forward, sequences)[0], naive(model, sequences))


@pytest.mark.parametrize(("config", "overrides", "head_is_last", "shares"), OTHERS)
def test_another_architecture_takes_the_way_that_is_right_for_it(
    policy_of, adapter_of, sequences, config, overrides, head_is_last, shares
):
    policy = policy_of(config, **overrides)
    assert (policy.probe.head_is_last, policy.probe.shares(128)) == (head_is_last, shares)
    model = carrier(policy, adapter_of(policy))
    outputs, masks = by_forward(Forward(policy, model), sequences)
    assert (masks > 0) == shares
    assert_same(model, outputs, naive(model, sequences))


def test_the_practice_policy_may_share_prompts_and_chunk_its_logits():
    probe = load_policy("practice").probe
    assert probe.head_is_last
    assert probe.shares(512)


def test_the_head_has_no_adapter(policy, policy_of):
    for each in (policy, policy_of(GPTNeoXConfig)):
        head = each.base.get_output_embeddings().weight
        model = each.lora_copy()
        assert model.get_base_model().get_output_embeddings().weight is head
        assert all(p is not head for p in adapter_parameters(model).values())


def test_nothing_of_the_vocabularys_size_is_kept_for_the_gradient(policy, adapter_of, sequences):
    model = carrier(policy, adapter_of(policy))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        by_forward(Forward(policy, model), sequences)
    shared = {p.data_ptr() for p in policy.base.parameters()}
    assert kept
    assert not [t.shape for t in kept if policy.base.config.vocab_size in t.shape and t.data_ptr() not in shared]


def test_probing_leaves_no_trace_on_the_model(policy):
    assert not policy.base.get_output_embeddings()._forward_hooks


def test_a_trained_token_right_after_the_prompt_reads_the_prompts_last_state_in_every_member(policy, adapter_of, group):
    model = carrier(policy, adapter_of(policy))
    twins = group(5, 40, [[1]]) * 3
    outputs, masks = by_forward(Forward(policy, model), twins)
    assert masks == 1
    assert len({float(logprobs_T.detach()) for logprobs_T, _ in outputs}) == 1
    assert_same(model, outputs, naive(model, twins))


def test_tokens_that_a_model_rules_out_count_nothing_in_entropy_and_divergence():
    logits_TV, base_TV = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(0))
    padded_TV, padded_base_TV = (torch.cat([each, torch.full((5, 3), -math.inf)], 1) for each in (logits_TV, base_TV))
    measured_T, target_T = torch.tensor([True, False, True, True, False]), torch.arange(5)
    expected = _score_logits(logits_TV, target_T, _Base(measured_T, base_TV[measured_T]))
    found = _score_logits(padded_TV, target_T, _Base(measured_T, padded_base_TV[measured_T]))
    for mine_T, expected_T in zip(found, expected, strict=True):
        assert torch.allclose(mine_T, expected_T, equal_nan=True)
    assert torch.allclose(expected[1], torch.distributions.Categorical(logits=logits_TV).entropy())
    own, other = (torch.distributions.Categorical(logits=each[measured_T]) for each in (logits_TV, base_TV))
    assert torch.allclose(expected[2][measured_T], torch.distributions.kl_divergence(own, other), rtol=1e-4)
    assert expected[2].isnan().tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("size", [8.0, 12.0, 16.0])
def test_the_gradient_of_a_nearly_certain_token_is_not_lost_in_bf16(size):
    generator = torch.Generator().manual_seed(0)
    head = torch.nn.Linear(64, 300, bias=False).requires_grad_(False)
    head.weight.copy_(torch.randn(300, 64, generator=generator) / 8)
    head = head.bfloat16()
    hidden_1D = (size * head.weight[7:8].double()).bfloat16().requires_grad_()
    nothing = _Base(torch.tensor([False]), hidden_1D[:0].detach())
    logprob_1, *_ = _Head.apply(hidden_1D, head, head, torch.tensor([7]), nothing, 1 << 22)
    logprob_1.sum().backward()

    logits_1V = head(hidden_1D.detach()).double().requires_grad_()  # rounded as the model rounds them
    logits_1V.log_softmax(-1)[0, 7].backward()
    exact_1D = logits_1V.grad @ head.weight.double()
    assert -1e-2 < float(logprob_1.detach()) < 0
    assert (hidden_1D.grad.double() - exact_1D).norm() < 0.02 * exact_1D.norm()
