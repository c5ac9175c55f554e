"""The loss of one optimiser step: every option of a job, on flat tensors of the step's trainable tokens.

Axes: T is the trainable tokens of the step, over all its histories. Logprobs are of the unscaled full-vocabulary
distribution, in nats. The formulas are in `docs/training_reference.md`, "Loss of one step". Sources: PPO (arXiv
1707.06347), GRPO (2402.03300), sequence-level ratios of GSPO (2507.18071), the k2 term of Kimi K2 (2507.20534), and
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

    A token is clipped if a bound changes its gradient:

    - With `ppo` its gradient is zero: the ratio is above the range and the advantage positive, the ratio is below the
      range and the advantage negative, or the ratio is above `max_weight`.
    - Without `ppo` its gradient is weighted by the bound (an end of the range, or `max_weight`) instead of the ratio.

    Attributes:
        loss: The scalar.
        ratio_T: The importance ratios before any bound.
        clipped_T: Whether each token is clipped.
        masked_T: Whether `mask_prob_ratio` set the ratio to 0; such tokens do not count as clipped.
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
    """Compute the loss of a step: the sum of w·L over its trainable tokens, divided by `divisor`.

    Called with some histories of a step and the divisor of the whole step, it returns their part of the step's loss.

    Args:
        new_T: Logprobs under the weights being trained, with gradients.
        old_T: Logprobs when sampled, or computed again before the job. NaN if unknown: the token counts as on-policy,
            with the detached new logprob.
        advantage_T: Advantages, from `objective.advantages`.
        weight_T: Weights, from `objective.advantages`.
        history_T: The index of each token's history, 0-based and without gaps.
        options: The options of the job. Their `max_weight` bounds the ratios of all tokens.
        divisor: None is the number of tokens + 1e-6.
        original_T: Logprobs when sampled, NaN if unknown; given only if `old_T` was computed again.
            `truncated_importance_sampling` needs them.
        reference_T: Logprobs under the reference of `kl_penalty_coef`. The tokens must then be a whole step, because
            the penalty is centred on its mean over the step.
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
        clipped_T = (weight_of_ratio_T != seen_T) & ~masked_T  # even if only `max_weight` has bounded it
        loss_T = -weight_of_ratio_T * advantage_T * new_T
    if options.truncated_importance_sampling and original_T is not None:
        loss_T = loss_T * _truncated_weight(new_T, old_T, original_T, options.truncated_importance_sampling)
    loss = (weight_T * loss_T).sum() / (len(new_T) + _TINY if divisor is None else divisor)
    return StepLoss(loss, seen_T, clipped_T, masked_T)


def kl_penalty(new_T: Tensor, reference_T: Tensor, coefficient: float) -> Tensor:
    """Compute what the KL penalty adds to the advantages.

    A token whose log ratio to the reference is above the step's mean loses advantage; the others gain some. The mean of
    log(new / reference) over sampled tokens estimates the KL divergence (k1, Schulman 2020).
    """
    kl_T = (new_T - reference_T).detach()
    return coefficient * (kl_T.sum() / (len(kl_T) + _TINY) - kl_T)


def _truncated_weight(new_T: Tensor, old_T: Tensor, original_T: Tensor, bound: float) -> Tensor:
    """Compute the truncated importance weight exp(old - original). An unknown original logprob is the new one."""
    original_T = torch.where(original_T.isnan(), new_T, original_T)
    return (old_T - original_T).clamp(max=_MAX_LOG_RATIO).exp().clamp(max=bound).detach()


def _ratio(delta_T: Tensor, history_T: Tensor, options: Options) -> Tensor:
    """Compute importance ratios at the level of the options: per token, per history, or between the two."""
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
    """Compute the mean over each history, broadcast to its tokens."""
    histories = int(history_T.max()) + 1 if len(history_T) else 0
    sum_H = values_T.new_zeros(histories).index_add(0, history_T, values_T)
    return (sum_H / torch.bincount(history_T, minlength=histories))[history_T]
