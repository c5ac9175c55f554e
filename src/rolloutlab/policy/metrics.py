"""Metrics of a gradient step, from the logprobs of its trained tokens."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rolloutlab.objective.preflight import count
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.packing import trained_positions
from rolloutlab.policy.steps import Step, recorded
from rolloutlab.policy.task import Callbacks
from rolloutlab.policy.token_sequence import TokenSequence

_MOST = 256
"""The most conversations that are looked at: each costs a third of its training."""
_AT_ONCE = 16
_LEAST = 0.1
"""Two logprobs of a token that are further apart, in nats, are not explained by rounding."""


def report_drift(forward: Forward, steps: Sequence[Step], callbacks: Callbacks) -> None:
    """Report `drift`: later turns whose logprobs differ more from the recorded ones than those of earlier tokens do."""
    every = [s.tokens for step in steps for s in step.sequences if s.tokens.reread is not None]
    sequences, drifted = every[:_MOST], list[int]()
    for first in range(0, len(sequences), _AT_ONCE):
        callbacks.raise_if_cancelled()
        part = sequences[first : first + _AT_ONCE]
        drifted += [_count_drifted(tokens, new_T) for tokens, new_T in zip(part, forward.logprobs(part), strict=True)]
    if any(drifted):
        conversations = sum(map(bool, drifted))
        of = f"{conversations:,} of {count(len(sequences), 'conversation')}" + " looked at" * (len(every) > _MOST)
        tokens = count(sum(drifted), "token")
        what = f"{tokens} of later turns, in {of}, were sampled after other tokens than they train after"
        why = "the service had forgotten an earlier answer, and read its text"
        warning = f"{what}: {why}. Their ratios are not 1 -> send token_ids back with earlier answers, or sample again"
        report = {"tokens": sum(drifted), "conversations": conversations, "warnings": [warning]}
        callbacks.report("drift", report)


def _count_drifted(tokens: TokenSequence, new_T: torch.Tensor) -> int:
    """Count tokens, from `reread` on, that are off by over 0.1 nats and over twice as much as any token before that."""
    delta_T = (new_T.cpu() - recorded(tokens)).abs().nan_to_num(0.0)
    assert tokens.reread is not None
    later_T = trained_positions(tokens) >= tokens.reread
    before_T = delta_T[~later_T]
    # relative to the tokens before: if another checkpoint sampled the conversation, all of its tokens are off
    limit = max(_LEAST, 2 * float(before_T.max())) if len(before_T) else _LEAST
    return int((delta_T[later_T] > limit).sum())


def metrics_of(
    new_T: Tensor,
    old_T: Tensor,
    entropy_T: Tensor,
    ratio_T: Tensor,
    clipped_T: Tensor,
    masked_T: Tensor,
    base_T: Tensor,
    reference_T: Tensor,
    sampled_T: Tensor,
) -> dict[str, float]:
    """Compute the metrics of a step from statistics of its trained tokens. Unknown logprobs are NaN.

    Args:
        new_T: Logprobs under the weights before the step.
        old_T: Logprobs that the ratios are computed with.
        entropy_T: Entropies of the distribution.
        ratio_T: Importance ratios before any bound.
        clipped_T: Whether each token is clipped.
        masked_T: Whether each token's ratio is set to 0.
        base_T: Logprobs under checkpoint 0, NaN if unknown. `kl_base` is estimated with them if an engine reports only
            the logprobs of sampled tokens.
        reference_T: Logprobs under the reference of the KL penalty.
        sampled_T: The recorded logprobs, even if `precalculate_logprobs` has replaced `old_T`.
    """
    known_T = ~old_T.isnan()
    known_2T = torch.stack([old_T[known_T], new_T[known_T]]).double()
    delta_T = known_2T[1] - known_2T[0]
    return {
        "entropy": float(entropy_T.mean()),
        "ratio_mean": float(ratio_T.mean()),
        "ratio_max": float(ratio_T.max()),
        "kl": float((delta_T.expm1() - delta_T).mean()),  # (old || new) by the k3 estimator, never negative
        "kl_base": _estimate_divergence(new_T.double(), base_T.double(), sampled_T.double()),
        "kl_reference": float((new_T - reference_T).double().nanmean()),
        "clipped": float(clipped_T.mean()),
        "masked": float(masked_T.mean()),
        "old_new_correlation": _correlation(*known_2T.exp()),
        "row_tokens": float(len(new_T)),
    }


def _estimate_divergence(new_T: Tensor, base_T: Tensor, sampled_T: Tensor) -> float:
    """Estimate KL(new || base) in nats per token, by the mean of log(new / base) over sampled tokens.

    The estimate can be below 0. The k3 estimator (http://joschu.net/blog/kl-approx.html) cannot, but it grows
    exponentially with the log ratio, so a few tokens would dominate its mean over a few hundred.

    The mean should be over tokens that `new` samples, but an earlier policy sampled them. So each token has the weight
    new / sampled. Without weights, tokens sampled from checkpoint 0 would give -KL(base || new).

    In fine-tuning no policy sampled the tokens, and `sampled_T` is NaN. The result is then the mean without weights:
    how much more probable the learned tokens have become.
    """
    known_T = ~base_T.isnan()
    if sampled_T.isnan().all():
        return float((new_T - base_T)[known_T].mean())
    known_T &= ~sampled_T.isnan()
    weight_T = (new_T - sampled_T).exp()[known_T]
    # divided by the sum of the weights, not by their number: their own noise then cancels
    return float(weight_T @ (new_T - base_T)[known_T] / weight_T.sum())


def _correlation(a_T: Tensor, b_T: Tensor) -> float:
    a_T, b_T = a_T - a_T.mean(), b_T - b_T.mean()
    scale = float(a_T.norm() * b_T.norm())
    return float(a_T @ b_T) / scale if scale else math.nan
