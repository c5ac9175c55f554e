"""Check by logprobs alone that an engine's optimiser steps have the right size and direction.

With eps far above a gradient g, and without momentum and weight decay, a step of AdamW moves the weights by
-(rate / eps) g (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101). The slope of a token is the derivative of the
loss by its logprob. To first order, the sum over all tokens of slope x change of the logprob is then -(rate / eps)
|g|^2. A second step without a gradient shows the momentum.
"""

import math

import torch
from torch import Tensor

from rolloutlab.engines.engine import SlopedStep, TrialModel

LIMIT = 0.03
"""The largest relative gap that passes. Small changes suffer from rounding, large ones from curvature."""
_CHANGE = 3e-3
"""Nats by which a step must change the logprob that it changes most."""
_GROWTH, _ATTEMPTS = 10.0, 16
"""A step that is too short grows at most by this factor, and at most so many times."""
_EPS = 1e6
_RATE, _BETA1, _BETA2 = 1e-5, 0.9, 0.99


def gradient_gaps(model: TrialModel, sloped: SlopedStep) -> dict[str, float]:
    """Measure steps that should be proportional to the gradient. Returns relative gaps, by what was checked.

    rate: a step of twice the rate changes the loss twice as much.
    rows: one step on all sequences changes the loss as much as a step on each of them, added up.
    size: the change is -(rate / eps) times the squared gradient norm that the engine reports.
    sign: the loss goes down. This replaces `size` for an engine that reports no norm.

    If the gradient is 0, or if no step changes a logprob, the only gap is infinite and its key says why.
    """
    norm = model.step(sloped, 0.0, eps=_EPS)
    if norm == 0:
        return {"norm": math.inf}
    known = math.isfinite(norm)
    eps = 1000 * norm if known else _EPS
    part = _part(model, sloped, norm, eps)
    if math.isnan(part):
        return {"no step changes a logprob": math.inf}
    steps = [sloped, *([each] for each in sloped)]
    half_T = _slopes(sloped, _change(model, sloped, sloped, part * eps / 2, eps)[0])
    changes = [_change(model, sloped, some, part * eps, eps) for some in steps]
    whole_T, *alone = [_slopes(sloped, change_T) for change_T, _ in changes]
    gaps = {"rate": _relative(2 * half_T, whole_T), "rows": _relative(torch.stack(alone).sum(0), whole_T)}
    changed = [-float(whole_T.sum()), *(-float(each_T[i]) for i, each_T in enumerate(alone))]
    if known:
        norms = [reported for _, reported in changes]
        # a norm of 0 is reported by an engine that leaves a sequence out
        sizes = [abs(each / (part * n**2) - 1) if n else math.inf for each, n in zip(changed, norms, strict=True)]
        return {**gaps, "size": max(sizes, key=lambda each: math.inf if math.isnan(each) else each)}
    return {**gaps, "sign": 0.0 if min(changed) > 0 else math.inf}


def clip_gap(model: TrialModel, sloped: SlopedStep) -> float:
    """Measure the relative gap between twice a step clipped at half the gradient norm, and the unclipped step.

    NaN if the engine reports no norm; infinity if it reports 0.
    """
    norm = model.step(sloped, 0.0, eps=_EPS)
    if not math.isfinite(norm) or norm == 0:
        return math.nan if norm else math.inf
    eps = 1000 * norm
    part = _part(model, sloped, norm, eps)
    changes = (_change(model, sloped, sloped, part * eps, eps, max_norm)[0] for max_norm in (0.0, norm / 2))
    whole_T, half_T = (_slopes(sloped, change_T) for change_T in changes)
    return _relative(2 * half_T, whole_T)


def _part(model: TrialModel, sloped: SlopedStep, norm: float, eps: float) -> float:
    """Find rate / eps of a step that changes some logprob by `_CHANGE`; NaN if no step does."""
    slope_T = torch.cat([slope_S for _, slope_S in sloped])
    part = _CHANGE / 4 * float(slope_T.norm()) / norm**2 if math.isfinite(norm) else 1e-8
    for _ in range(_ATTEMPTS):
        change = float(_change(model, sloped, sloped, part * eps, eps)[0].abs().max())
        if change >= _CHANGE:
            return part
        part *= min(_GROWTH, 1.5 * _CHANGE / max(change, 1e-9))
    return math.nan


def momentum_gap(model: TrialModel, sloped: SlopedStep) -> float:
    """Measure the relative gap between the momentum that two steps show and AdamW's; infinity if the loss grows.

    Both are steps with the settings of a job, from a new adapter. The second has no gradient, so momentum alone moves
    the weights.
    """
    slope_T = torch.cat([slope_S for _, slope_S in sloped])
    still = [(tokens, torch.zeros_like(slope_S)) for tokens, slope_S in sloped]
    first, second = (float(slope_T @ _change(model, sloped, some, _RATE, None)[0]) for some in (sloped, still))
    if not first < 0:
        return math.inf
    expected = _BETA1 / (1 + _BETA1) * math.sqrt((1 + _BETA2) / _BETA2)
    return abs(second / first / expected - 1)


def _change(
    model: TrialModel, sloped: SlopedStep, stepped: SlopedStep, rate: float, eps: float | None, max_norm: float = 0.0
) -> tuple[Tensor, float]:
    """Take a step on some sequences; return the change of the logprobs of all sequences, and the reported norm."""
    sequences = [tokens for tokens, _ in sloped]
    before_T = torch.cat(model.logprobs(sequences))
    norm = model.step(stepped, rate, eps, max_norm)
    return torch.cat(model.logprobs(sequences)) - before_T, norm


def _slopes(sloped: SlopedStep, change_T: Tensor) -> Tensor:
    """Compute the change of each sequence's part of the loss."""
    slopes = [slope_S for _, slope_S in sloped]
    parts = torch.split(change_T, [len(each) for each in slopes])
    return torch.stack([slope_S @ change_S for slope_S, change_S in zip(slopes, parts, strict=True)])


def _relative(value_T: Tensor, expected_T: Tensor) -> float:
    return float((value_T - expected_T).norm() / expected_T.norm())
