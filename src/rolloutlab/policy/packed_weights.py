"""Weights of linear layers in the order in which a CPU multiplies them fastest.

torch multiplies fp32 matrices by MKL, which orders the weights anew in each call. For the few rows of a sampling step
that takes longer than the multiplication itself; for the 500 rows of a training batch, up to a quarter of the time.
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
"""The smallest number of weights for which packing a layer is worth it.

Measured for 16 rows on two cores of an AMD EPYC, packed and not: 512 x 512 takes 55 and 80 µs, 128 x 512 takes 36 and
28 µs, a head of 576 x 49,152 takes 6 and 20 ms.
"""
_MOST = 1 << 28
"""The most weights that are packed, beside those of the policy: 1 GiB. A model with more has none packed."""


class PackedWeights:
    """Packed weights of a policy, which the models for all its checkpoints share."""

    def __init__(self) -> None:
        self._packed: Any = WeakIdKeyDictionary()

    def use_in(self, model: nn.Module) -> None:
        """Let the linear layers of a model multiply by packed weights. The model must not be trained afterwards."""
        for layer, multiply in self.multipliers(model).items():
            setattr(layer, "forward", multiply)  # noqa: B010 - of this layer alone, not of its class

    def multipliers(self, model: nn.Module) -> dict[nn.Module, Multiply]:
        """Return products by packed weights for the linear layers of a model that are faster with them.

        Only frozen weights are packed: an adapter's change when the model takes another checkpoint.
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
