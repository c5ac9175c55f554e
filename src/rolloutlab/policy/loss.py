"""The loss of one optimiser step: every option of a job, on flat tensors of the step's trainable tokens.

Axes: T is the trainable tokens of the step, over all its histories. Logprobs are of the unscaled full-vocabulary
distribution, in nats. Formulas: `docs/training.md`, after PPO (arXiv 1707.06347), GRPO (2402.03300), sequence-level
ratios of GSPO (2507.18071) the k2 term of Kimi K2 (2507.20534), and
truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL").
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rolloutlab.objective.options import Options

_TINY = 1e-6
_MAX_LOG_RATIO = 80.0
"""Larger ones are clamped: exp would be infinite in fp32, and the gradient through a clipped infinity is NaN."""


@dataclass(frozen=True)
class StepLoss:
    """The scalar to differentiate, and statistics without gradients.

    ratio_T: the importance ratios before any bound. clipped_T: the tokens whose gradient a bound changes. With `ppo` it
    is zero above the range for positive advantages, below the range for negative ones, and at `max_weight`; without, it
    is weighted by the bound, of the range or `max_weight`, instead of the ratio. masked_T: tokens whose ratio
    `mask_prob_ratio` set to 0; they do not count as clipped.
    """

    loss: Tensor
    ratio_T: Tensor
    clipped_T: Tensor
    masked_T: Tensor


def step_loss(
    new_T: Tensor,
    old_T: Tensor,
    advantage_T: Tensor,
    weight_T: Tensor,
    history_T: Tensor,
    options: Options,
    divisor: float | None = None,
    original_T: Tensor | None = None,
    reference_T: Tensor | None = None,
) -> StepLoss:
    """Sum of w·L over the step's trainable tokens, over `divisor`; None is their number + 1e-6.

    For some histories of a step, with its divisor, their summand of the step's loss.

    new_T: logprobs under the weights being trained, with gradients. old_T: logprobs when sampled; NaN if unknown, which
    counts as the detached new one. advantage_T and weight_T come from `objective.advantages`.
    history_T: index of the history of each token, 0-based and without gaps. reference_T: logprobs under the reference
    of `kl_penalty_coef`; the tokens must be a whole step then, as the penalty is centred on its mean. original_T:
    logprobs when sampled, NaN if unknown, where old_T was computed again; `truncated_importance_sampling` needs them.
    """
    old_T = torch.where(old_T.isnan(), new_T.detach(), old_T)
    delta_T = new_T - old_T
    ratio_T = _ratio(delta_T, history_T, options)
    seen_T = ratio_T.detach()
    bounded_T = torch.zeros_like(seen_T, dtype=torch.bool)
    if options.max_weight is not None:
        bounded_T = seen_T > options.max_weight
        ratio_T = ratio_T.clamp(max=options.max_weight)
    low, high = 1 - options.epsilon, 1 + options.epsilon_high
    outside_T = (ratio_T <= low) | (ratio_T >= high)
    masked_T = outside_T if options.mask_prob_ratio else torch.zeros_like(outside_T)
    above_T, below_T = ratio_T.detach() > high, ratio_T.detach() < low
    ratio_T = torch.where(masked_T, torch.zeros_like(ratio_T), ratio_T)
    advantage_T = advantage_T - options.k2_tau * delta_T.detach()
    if reference_T is not None:
        advantage_T = advantage_T + kl_penalty(new_T, reference_T, options.kl_penalty_coef)
    if options.ppo:
        cut_T = torch.where(advantage_T > 0, above_T, below_T) | bounded_T
        clipped_T = cut_T & (advantage_T != 0) & ~masked_T
        loss_T = -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(low, high) * advantage_T)
    else:
        weight_of_ratio_T = ratio_T.detach().clamp(low, high)
        clipped_T = (weight_of_ratio_T != seen_T) & ~masked_T  # also where `max_weight` alone has bounded it
        loss_T = -weight_of_ratio_T * advantage_T * new_T
    if options.truncated_importance_sampling and original_T is not None:
        loss_T = loss_T * _truncated(new_T, old_T, original_T, options.truncated_importance_sampling)
    loss = (weight_T * loss_T).sum() / (len(new_T) + _TINY if divisor is None else divisor)
    return StepLoss(loss, seen_T, clipped_T, masked_T)


def kl_penalty(new_T: Tensor, reference_T: Tensor, coefficient: float) -> Tensor:
    """What is added to the advantages: a token above the step's mean log ratio to the reference loses, others gain.

    The mean of log(new / reference) over sampled tokens estimates the KL divergence (k1, Schulman 2020).
    """
    kl_T = (new_T - reference_T).detach()
    return coefficient * (kl_T.sum() / (len(kl_T) + _TINY) - kl_T)


def _truncated(new_T: Tensor, old_T: Tensor, original_T: Tensor, bound: float) -> Tensor:
    """Weight of the mismatch between sampler and trainer, bounded: an original that is unknown is the detached new."""
    original_T = torch.where(original_T.isnan(), new_T, original_T)
    return (old_T - original_T).clamp(max=_MAX_LOG_RATIO).exp().clamp(max=bound).detach()


def _ratio(delta_T: Tensor, history_T: Tensor, options: Options) -> Tensor:
    if options.importance_sampling_level == "token":
        return delta_T.clamp(max=_MAX_LOG_RATIO).exp()
    mean_T = _history_mean(delta_T, history_T).clamp(max=_MAX_LOG_RATIO)
    delta_T = delta_T.clamp(max=_MAX_LOG_RATIO)
    if options.importance_sampling_level == "sequence":
        return mean_T.exp()
    if options.importance_sampling_level == "average":
        return (delta_T.exp() + mean_T.exp()) / 2
    return ((delta_T + mean_T) / 2).exp()


def _history_mean(values_T: Tensor, history_T: Tensor) -> Tensor:
    """Mean over each history, broadcast to its tokens."""
    histories = int(history_T.max()) + 1 if len(history_T) else 0
    sum_H = values_T.new_zeros(histories).index_add(0, history_T, values_T)
    return (sum_H / torch.bincount(history_T, minlength=histories))[history_T]
