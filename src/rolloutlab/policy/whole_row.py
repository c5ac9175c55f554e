"""The loss of a row that is no sum over its histories: a penalty centred on the row's mean, or a loss of one's own.

A row is encoded in batches, so its logprobs are computed first, without gradients. The gradient of the loss by each of
them is then the slope of a linear loss, which is a sum over batches and has the same gradient by the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from rolloutlab.policy.loss import RowLoss


@dataclass(frozen=True)
class WholeRow:
    """A loss by the logprobs of a whole row, and its gradient. bounds: of each sequence's tokens, one more than those.

    Axes: T is the trained tokens of the row, in the order of its sequences.
    """

    result: RowLoss
    slope_T: Tensor
    bounds: list[int]

    def part(self, new_T: Tensor, order: Sequence[int]) -> RowLoss:
        """The share of some sequences, with their logprobs under the weights being trained."""

        def of(values_T: Tensor) -> Tensor:
            pairs = list(pairwise(self.bounds))
            return torch.cat([values_T[slice(*pairs[i])] for i in order]).to(new_T.device)

        linear = (of(self.slope_T) * new_T).sum()
        return RowLoss(linear, of(self.result.ratio_T), of(self.result.clipped_T), of(self.result.masked_T))


def whole_row(result: RowLoss, new_T: Tensor, counts: Sequence[int]) -> WholeRow:
    """A row's loss with its gradient by `new_T`, of which it was computed. counts: trained tokens of each sequence."""
    (slope_T,) = torch.autograd.grad(result.loss, new_T)
    return WholeRow(result, slope_T, list(accumulate(counts, initial=0)))
