"""Training computes LoRA layers in fewer operations than peft, with the same logits and gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import GPT2Config, Qwen2Config

from rolloutlab.policy.lora_linear import fuse_lora
from rolloutlab.policy.model import Policy, adapter_parameters, write_adapter

IDS_BT = torch.arange(4, 40).view(3, 12)


@pytest.fixture(params=["plain", "biases", "gradient checkpointing"])
def trained(request, policy, policy_of) -> Policy:
    """A policy to train; those of Qwen2 have biases."""
    if request.param == "biases":
        return policy_of(Qwen2Config, num_key_value_heads=2)
    return replace(policy, gradient_checkpointing=request.param != "plain")


def logits_and_gradients(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logits_BTV = model(input_ids=IDS_BT).logits
    weights_V = torch.linspace(-1, 2, logits_BTV.shape[-1])
    parameters = adapter_parameters(model)
    gradients = torch.autograd.grad((logits_BTV.log_softmax(-1) * weights_V).sum(), list(parameters.values()))
    return logits_BTV.detach(), dict(zip(parameters, gradients, strict=True))


def fused(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if "forward" in vars(layer) and hasattr(layer, "lora_A")]


def test_logits_and_gradients_are_those_of_peft(trained, adapter_of):
    adapter, own, peft = adapter_of(trained), trained.training_copy(), trained.lora_copy()
    assert fused(own)
    assert not fused(peft)
    for model in (own, peft):
        write_adapter(model, adapter)
    (logits_BTV, gradients), (expected_BTV, expected) = map(logits_and_gradients, (own, peft))
    assert torch.allclose(logits_BTV, expected_BTV, atol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, expected[name], rtol=0, atol=1e-5 * float(expected[name].abs().max())), name


def test_without_the_adapter_it_is_the_base(policy, adapter_of):
    write_adapter(model := policy.training_copy(), adapter_of(policy))
    with torch.no_grad(), model.disable_adapter():
        assert torch.equal(model(input_ids=IDS_BT).logits, policy.base(input_ids=IDS_BT).logits)


def layers(dtype: torch.dtype = torch.float32, **options: Any) -> PeftModel:
    model = nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Linear(8, 8, dtype=dtype))
    return get_peft_model(model, LoraConfig(target_modules=["0", "1"], **options))


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        (layers(), True),
        (layers(use_dora=True), False),
        (layers(lora_dropout=0.1), False),
        (layers(lora_bias=True), False),
        (layers(torch.bfloat16), False),  # over which peft computes the adapter in fp32
    ],
    ids=["plain", "DoRA", "dropout", "bias of the adapter", "bf16"],
)
def test_layers_that_do_more_stay_those_of_peft(model, plain):
    fuse_lora(model, {})
    assert len(fused(model)) == (2 if plain else 0)


def test_convolutions_of_gpt2_stay_those_of_peft(policy_of):
    assert not fused(policy_of(GPT2Config, n_embd=32, n_head=4, n_layer=2).training_copy())
