"""Sampling multiplies by weights packed for the CPU, and what it samples has the logprobs that training gives it."""

from array import array
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from rolloutlab.policy import packed_weights
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.forward import Scorer
from rolloutlab.policy.model import write_adapter
from rolloutlab.policy.packed_weights import PackedWeights
from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.token_sequence import TokenSequence
from tests.policy.test_lora_linear import logits_and_gradients

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="measured on these processors alone"
)
PROMPT = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def policy(policy_of) -> Any:
    """A policy with layers on both sides of the size from which on packing is faster."""
    return policy_of(LlamaConfig, hidden_size=512, intermediate_size=640, num_attention_heads=8)


@pytest.fixture
def packs(policy, monkeypatch) -> list[Any]:
    """What is multiplied by packed weights, in shapes; the policy counts as a large one, whose weights are shared."""
    multiplied, multiply = [], packed_weights._multiply

    def noted(packed, bias, x_BD):
        multiplied.append(x_BD.shape)
        return multiply(packed, bias, x_BD)

    monkeypatch.setattr(packed_weights, "_multiply", noted)
    monkeypatch.setattr("rolloutlab.policy.model._SMALL", 0)
    return multiplied


def test_what_is_sampled_with_packed_weights_has_the_logprobs_of_training(policy, adapter_of, packs):
    adapter, sampler, scorer = adapter_of(policy), Sampler(policy), Scorer(policy)
    requests = [CompletionRequest(PROMPT, 12, seed=seed) for seed in range(3)]
    rows = sampler.submit(adapter, requests).result()
    sampler.close()
    assert packs
    packs.clear()
    for row in rows:
        (logprobs,) = scorer.logprobs(adapter, [sequence(row)])
        assert row.logprobs == pytest.approx(logprobs, abs=1e-4)
    assert not packs  # scoring has the plain weights


def test_a_lane_that_takes_another_checkpoint_samples_that_one_also_with_an_adapter_as_large_as_a_layer(
    policy, adapter_of, packs
):
    wide = replace(policy, lora=replace(policy.lora, r=512))
    sampler, scorer = Sampler(wide, max_lanes=1), Scorer(wide)
    for seed in (1, 2, 3):
        adapter = {name: t / 4 for name, t in adapter_of(wide, seed).items()}
        (row,) = sampler.submit(adapter, [CompletionRequest(PROMPT, 12, seed=seed)]).result()
        assert row.logprobs == pytest.approx(scorer.logprobs(adapter, [sequence(row)])[0], abs=1e-3)
    sampler.close()
    assert packs


def sequence(row: Any) -> TokenSequence:
    ids, prompt = [*PROMPT, *row.tokens], len(PROMPT)
    trained = bytearray([0] * prompt + [1] * len(row.tokens))
    return TokenSequence(array("i", ids), trained, array("f", [0.0] * prompt + row.logprobs))


def test_layers_too_small_to_gain_and_layers_that_are_no_plain_ones_stay(policy):
    class Other(nn.Linear):
        pass

    model = nn.ModuleList([nn.Linear(512, 512), nn.Linear(512, 511), Other(512, 512)]).requires_grad_(False)
    model.append(nn.Linear(512, 512))  # which is trained
    PackedWeights().use_in(model)
    assert ["forward" in vars(layer) for layer in model] == [True, False, False, False]
    x_BD = torch.randn(3, 512)
    with torch.inference_mode():
        plain_BD = nn.functional.linear(x_BD, model[0].weight, model[0].bias)
        assert torch.allclose(model[0](x_BD), plain_BD, atol=1e-5)


def test_the_models_of_several_checkpoints_share_packed_weights(policy, adapter_of, packs):
    packed, models = PackedWeights(), [policy.with_adapter(adapter_of(policy, seed)) for seed in (1, 2)]
    for model in models:
        packed.use_in(model)
    one, other = ([layer.forward.args[0] for layer in packed_layers(model)] for model in models)
    assert one
    assert [id(each) for each in one] == [id(each) for each in other]


def packed_layers(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if type(layer) is nn.Linear and "forward" in vars(layer)]


def test_a_copy_that_is_trained_multiplies_by_packed_weights_and_has_the_gradients_of_peft(policy, adapter_of, packs):
    write_adapter(peft := policy.lora_copy(), adapter := adapter_of(policy))
    write_adapter(own := policy.training_copy(), adapter)
    logits_BTV, gradients = logits_and_gradients(own)
    assert packs
    packs.clear()
    expected_BTV, expected = logits_and_gradients(peft)
    assert not packs
    assert torch.allclose(logits_BTV, expected_BTV, atol=1e-4)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected[name], rtol=0, atol=1e-4 * float(expected[name].abs().max())), name


def test_weights_that_would_take_too_much_memory_twice_are_not_packed(policy, packs, adapter_of, monkeypatch):
    PackedWeights().use_in(packed := policy.with_adapter(adapter_of(policy)))
    layers = packed_layers(packed)
    total = sum({id(layer.weight): layer.weight.numel() for layer in layers}.values())
    for most, expected in ((total, len(layers)), (total - 1, 0)):
        monkeypatch.setattr(packed_weights, "_MOST", most)
        PackedWeights().use_in(model := policy.with_adapter(adapter_of(policy)))
        assert len(packed_layers(model)) == expected
