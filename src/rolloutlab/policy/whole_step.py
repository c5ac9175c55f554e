"""The loss of a step that is no sum over its histories: a penalty centred on the step's mean, or a loss of one's own.

A step is encoded in batches, so its logprobs are computed first, without gradients. The gradient of the loss by each of
them is then the slope of a linear loss, which is a sum over batches and has the same gradient by the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from rolloutlab.policy.loss import StepLoss


@dataclass(frozen=True)
class WholeStep:
    """A loss by the logprobs of a whole step, and its gradient. bounds: of each sequence's tokens, one more than those.

    Axes: T is the trained tokens of the step, in the order of its sequences.
    """

    result: StepLoss
    slope_T: Tensor
    bounds: list[int]

    def part(self, new_T: Tensor, order: Sequence[int]) -> StepLoss:
        """The share of some sequences, with their logprobs under the weights being trained."""

        def of(values_T: Tensor) -> Tensor:
            pairs = list(pairwise(self.bounds))
            return torch.cat([values_T[slice(*pairs[i])] for i in order]).to(new_T.device)

        linear = (of(self.slope_T) * new_T).sum()
        return StepLoss(linear, of(self.result.ratio_T), of(self.result.clipped_T), of(self.result.masked_T))


def whole_step(result: StepLoss, new_T: Tensor, counts: Sequence[int]) -> WholeStep:
    """A step's loss with its gradient by `new_T`, of which it was computed. counts: trained tokens of each sequence."""
    (slope_T,) = torch.autograd.grad(result.loss, new_T)
    return WholeStep(result, slope_T, list(accumulate(counts, initial=0)))
