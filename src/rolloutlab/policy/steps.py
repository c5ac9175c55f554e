"""Optimiser steps as data: their training sequences, and the logprobs and weights of the trained tokens."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.policy.loss import StepLoss
from rolloutlab.policy.packing import trained_positions
from rolloutlab.policy.token_sequence import TokenSequence


@dataclass(frozen=True)
class WholeStep:
    """A loss that needs the logprobs of a whole step, and its gradient by them.

    Axes: T is the trained tokens of the step, in the order of its sequences. bounds: where the tokens of each sequence
    begin in T, and the length of T.
    """

    result: StepLoss
    slope_T: Tensor
    bounds: list[int]

    def part(self, new_T: Tensor, order: Sequence[int]) -> StepLoss:
        """Return the part of some sequences, by their logprobs under the weights being trained.

        Its loss is linear in `new_T`, with the gradient of the whole loss.
        """

        def of(values_T: Tensor) -> Tensor:
            pairs = list(pairwise(self.bounds))
            return torch.cat([values_T[slice(*pairs[i])] for i in order]).to(new_T.device)

        linear = (of(self.slope_T) * new_T).sum()
        return StepLoss(linear, of(self.result.ratio_T), of(self.result.clipped_T), of(self.result.masked_T))


def whole_step(result: StepLoss, new_T: Tensor, counts: Sequence[int]) -> WholeStep:
    """Make a WholeStep of a loss that was computed from `new_T`. counts: the trained tokens of each sequence."""
    (slope_T,) = torch.autograd.grad(result.loss, new_T)
    return WholeStep(result, slope_T, list(accumulate(counts, initial=0)))


@dataclass(frozen=True)
class TrainingSequence:
    """A sequence with the weight of its trajectory, and its advantage.

    Attributes:
        tokens: The sequence.
        advantage: One number, or one for each trained token.
        weight: The weight of the trajectory.
        at_one: Whether it was sampled from the distribution of its logprobs, that of temperature and top_p 1.
        measured: Whether its divergence from checkpoint 0 is measured.
        original_T: The recorded logprobs, if others have replaced them in `tokens`.
        base_T: The logprobs under checkpoint 0, if the divergence is estimated by them.
        reference_T: The logprobs under the reference of `kl_penalty_coef`.
    """

    tokens: TokenSequence
    advantage: float | Tensor
    weight: float
    at_one: bool = True
    measured: bool = False
    original_T: Tensor | None = None
    base_T: Tensor | None = None
    reference_T: Tensor | None = None


@dataclass(frozen=True)
class Step:
    """The sequences of one optimiser step, whose loss is the sum of w·L over their trained tokens, over `divisor`.

    groups: the number of groups that the sequences are of; in fine-tuning, the number of conversations.
    """

    sequences: list[TrainingSequence]
    divisor: float
    groups: int

    @property
    def tokens(self) -> list[TokenSequence]:
        return [each.tokens for each in self.sequences]

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return sum(each.tokens.trainable for each in self.sequences)


def credit_sequence(tokens: TokenSequence, share: TokenWeight, *, at_one: bool) -> TrainingSequence | None:
    """Give a sequence of a trajectory its advantage, or those of its turns; None if nothing of it trains.

    Turns that do not train become context. Those after the last one that trains are cut off.
    """
    if not share.turns:
        return TrainingSequence(tokens, share.advantage, share.weight, at_one)
    trained, advantages = bytearray(tokens.trained), list[float]()
    for turn, part in tokens.spans():
        if (advantage := share.turns[turn]) is None:
            trained[part] = bytes(len(trained[part]))
        else:
            advantages += [advantage] * sum(trained[part])
    if not advantages:
        return None
    end = trained.rindex(1) + 1
    logprobs = [p if on else 0.0 for p, on in zip(tokens.logprobs, trained, strict=True)]
    kept = TokenSequence(tokens.ids[:end], trained[:end], array("f", logprobs[:end]), reread=tokens.reread)
    return TrainingSequence(kept, torch.tensor(advantages, dtype=torch.double), share.weight, at_one)


def recorded(tokens: TokenSequence) -> Tensor:
    """Return the recorded logprob of each trained token."""
    return torch.frombuffer(tokens.logprobs, dtype=torch.float32)[trained_positions(tokens)]


def with_logprobs(tokens: TokenSequence, new_T: Tensor) -> TokenSequence:
    """Return the sequence with other logprobs of its trained tokens T."""
    logprobs_L = torch.zeros(len(tokens)).index_copy(0, trained_positions(tokens), new_T)
    return replace(tokens, logprobs=array("f", logprobs_L.tolist()))


class StepTokens(NamedTuple):
    """What is known of the trained tokens of sequences before a step. Unknown logprobs are NaN.

    sampled_T: the recorded logprobs. original_T: the same, but NaN unless others have replaced them in `old_T`.
    """

    old_T: Tensor
    advantage_T: Tensor
    weight_T: Tensor
    history_T: Tensor
    original_T: Tensor
    base_T: Tensor
    reference_T: Tensor
    sampled_T: Tensor


def tokens_of(part: Sequence[TrainingSequence], device: torch.device) -> StepTokens:
    """Collect what is known of the trained tokens of sequences, on a device."""
    counts = [s.tokens.trainable for s in part]
    history_T = torch.arange(len(part)).repeat_interleave(torch.tensor(counts))
    advantages = [
        torch.as_tensor(s.advantage, dtype=torch.float32).expand(n) for s, n in zip(part, counts, strict=True)
    ]
    weight_H = torch.tensor([s.weight for s in part], dtype=torch.float32)

    def known(logprobs: Iterable[Tensor | None]) -> Tensor:
        each = zip(logprobs, counts, strict=True)
        return torch.cat([torch.full((n,), math.nan) if some_T is None else some_T for some_T, n in each])

    tensors = (
        torch.cat([recorded(s.tokens) for s in part]), torch.cat(advantages), weight_H[history_T], history_T,
        known(s.original_T for s in part), known(s.base_T for s in part), known(s.reference_T for s in part),
        torch.cat([recorded(s.tokens) if s.original_T is None else s.original_T for s in part]),
    )  # fmt: skip
    return StepTokens(*(tensor.to(device) for tensor in tensors))
