"""LoRA layers in training: what peft computes, in fewer operations.

peft computes `base(x) + up(down(x)) * scale` in five operations, each with a node of autograd and a tensor of its own.
This module needs three operations and one node.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn.functional import linear

from rolloutlab.policy.packed_weights import Multiply


def fuse_lora(model: nn.Module, multipliers: Mapping[nn.Module, Multiply]) -> None:
    """Replace the forward of the plain LoRA layers of a model by one of fewer operations; others stay as they are.

    multipliers: faster products for the forward pass, by the layer below an adapter.
    """
    for layer in model.modules():
        if type(layer) is LoraLinear and _is_plain(layer):
            base: Any = layer.base_layer
            multiply = multipliers.get(base) or partial(linear, weight=base.weight, bias=base.bias)
            setattr(layer, "forward", partial(_run_layer, layer, multiply))  # noqa: B010 - of this layer alone, not of its class


def _is_plain(layer: Any) -> bool:
    """Whether a layer is a `Linear` with one adapter, without variant, bias or dropout, all of one dtype."""
    names = layer.active_adapters
    if type(layer.base_layer) is not nn.Linear or len(names) != 1 or names[0] not in layer.lora_A or layer.lora_variant:
        return False
    parts = layer.base_layer, layer.lora_A[names[0]], layer.lora_B[names[0]]
    one_dtype = len({part.weight.dtype for part in parts}) == 1  # over bf16, peft keeps the adapter in fp32
    return one_dtype and parts[2].bias is None and type(layer.lora_dropout[names[0]]) is nn.Identity


def _run_layer(layer: Any, multiply: Multiply, x_BD: Tensor) -> Tensor:
    """Compute the forward of a plain LoRA layer."""
    (name,) = layer.active_adapters
    if layer.disable_adapters:
        return multiply(x_BD)
    down_RD, up_ER = layer.lora_A[name].weight, layer.lora_B[name].weight
    y_BE: Tensor = _Lora.apply(x_BD, multiply, layer.base_layer.weight, down_RD, up_ER, layer.scaling[name])  # type: ignore[no-untyped-call]
    return y_BE


class _Lora(torch.autograd.Function):
    """A frozen linear layer from D to E with an adapter of rank R beside it. Axes: B is all but the last."""

    @staticmethod
    def forward(
        ctx: Any, x_BD: Tensor, multiply: Multiply, weight_ED: Tensor, down_RD: Tensor, up_ER: Tensor, scale: float
    ) -> Tensor:
        low_BR = linear(x_BD, down_RD)
        y_BE = multiply(x_BD)
        y_BE.flatten(0, -2).addmm_(low_BR.flatten(0, -2), up_ER.T, alpha=scale)
        ctx.save_for_backward(x_BD, weight_ED, down_RD, up_ER, low_BR)
        ctx.scale = scale
        return y_BE

    @staticmethod
    def backward(ctx: Any, slope_BE: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        x_BD, weight_ED, down_RD, up_ER, low_BR = ctx.saved_tensors
        slope_NE, x_ND, low_NR = (each.reshape(-1, each.shape[-1]) for each in (slope_BE, x_BD, low_BR))
        slope_NR = (slope_NE @ up_ER).mul_(ctx.scale)
        slope_ND = (slope_NE @ weight_ED).addmm_(slope_NR, down_RD) if ctx.needs_input_grad[0] else None
        slope_BD = None if slope_ND is None else slope_ND.view_as(x_BD)
        return slope_BD, None, None, slope_NR.T @ x_ND, (slope_NE.T @ low_NR).mul_(ctx.scale), None
