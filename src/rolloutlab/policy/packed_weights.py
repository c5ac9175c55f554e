"""Weights of linear layers in the order in which a CPU multiplies them fastest.

torch multiplies fp32 matrices by MKL, which orders the weights anew in each call: for the few rows of a step of
sampling that takes longer than the multiplication, and for the 500 of a batch of training up to a quarter of the time.
oneDNN, which torch has too, takes weights that were ordered once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

Multiply = Callable[[Tensor], Tensor]
"""`x @ weight.T + bias`, without gradients."""
_LEAST = 1 << 18
"""Weights of a layer that is worth it: one of 512 x 512 takes 55 instead of 80 µs for 16 rows, one of 128 x 512 takes
36 instead of 28 (two cores of an AMD EPYC). A head of 576 x 49,152 takes 6 instead of 20 ms.
"""
_MOST = 1 << 28
"""Weights that are packed at most, beside those of the policy: 1 GiB."""


class PackedWeights:
    """Packed weights of a policy, which the models for all its checkpoints share."""

    def __init__(self) -> None:
        self._packed: Any = WeakIdKeyDictionary()

    def use_in(self, model: nn.Module) -> None:
        """Let the linear layers of a model multiply by packed weights; it must not be trained then."""
        for layer, multiply in self.multipliers(model).items():
            setattr(layer, "forward", multiply)  # noqa: B010 - of this layer alone, not of its class

    def multipliers(self, model: nn.Module) -> dict[nn.Module, Multiply]:
        """How linear layers of a model multiply by packed weights, where they are faster and few enough.

        Of frozen weights alone: an adapter's are written anew when a model takes another checkpoint.
        """
        layers = [layer for layer in model.modules() if type(layer) is nn.Linear and _is_faster(layer.weight)]
        weights = {id(layer.weight): layer.weight.numel() for layer in layers}
        if sum(weights.values()) > _MOST:
            return {}
        for layer in layers:
            if layer.weight not in self._packed:
                self._packed[layer.weight] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
        return {layer: partial(_multiply, self._packed[layer.weight], layer.bias) for layer in layers}


def _is_faster(weight: Tensor) -> bool:
    """Whether a weight is frozen, and is multiplied faster once it is packed."""
    if weight.requires_grad:
        return False
    measured = weight.device.type == "cpu" and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    one_dnn: Any = torch.backends.mkldnn
    possible = one_dnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return measured and possible and weight.dtype == torch.float32 and weight.numel() >= _LEAST


def _multiply(packed: Tensor, bias: Tensor | None, x_BD: Tensor) -> Tensor:
    product_BD: Tensor = torch.ops.mkldnn._linear_pointwise(x_BD, packed, bias, "none", [], "")
    return product_BD
