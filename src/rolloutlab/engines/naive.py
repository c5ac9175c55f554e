"""One gradient step computed by its formulas, token by token: a second implementation, for `engine check`.

It shares nothing with `policy.trainer`, `policy.forward`, `policy.packing` and `policy.loss`: sequences go through the
model one at a time, without padding or shared prompts, and the loss is a loop in double precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rolloutlab.objective.options import Options
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.custom_loss import load_loss
from rolloutlab.policy.model import Policy, adapter_parameters, write_adapter
from rolloutlab.policy.steps import Step
from rolloutlab.policy.token_sequence import TokenSequence

BETAS, EPS = (0.9, 0.99), 1e-8
"""The settings of AdamW; see docs/training.md."""


@dataclass(frozen=True)
class StepGradient:
    """The loss of a step, its gradient by the adapter's parameters before clipping, and the gradient's norm."""

    loss: float
    gradients: dict[str, Tensor]
    norm: float


class Naive:
    """A policy with one adapter, computed as simply as possible."""

    def __init__(self, policy: Policy) -> None:
        self._model: Any = policy.lora_copy()

    def base_logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Compute the logprob of each trained token under checkpoint 0."""
        with torch.no_grad(), self._model.disable_adapter():
            return [self._logprobs(each).tolist() for each in sequences]

    def step(
        self, state: State, step: Step, options: Options, loss_source: str | None = None, reference: State | None = None
    ) -> StepGradient:
        """Compute the gradient of a step's loss at a checkpoint.

        Args:
            state: The checkpoint.
            step: The step.
            options: The options of the job.
            loss_source: The source of a custom loss, instead of the one of the options.
            reference: The reference of a KL penalty; None is checkpoint 0.
        """
        other = self._reference_logprobs(step.tokens, reference)
        write_adapter(self._model, state.adapter)
        parameters = adapter_parameters(self._model)
        new_T = torch.cat([self._logprobs(each) for each in step.tokens])
        loss, slope_T = slopes(new_T.detach(), step, options, other, loss_source)
        slopes_P = torch.autograd.grad((slope_T.to(new_T) * new_T).sum(), list(parameters.values()))
        gradients = dict(zip(parameters, (each.detach().cpu() for each in slopes_P), strict=True))
        return StepGradient(loss, gradients, norm_of(gradients))

    def _reference_logprobs(self, sequences: Sequence[TokenSequence], reference: State | None) -> list[float]:
        if reference is None:
            return [value for each in self.base_logprobs(sequences) for value in each]
        write_adapter(self._model, reference.adapter)
        with torch.no_grad():
            return [value for each in sequences for value in self._logprobs(each).tolist()]

    def _logprobs(self, sequence: TokenSequence) -> Tensor:
        ids = torch.tensor([list(sequence.ids)], device=self._model.device)
        logits_LV = self._model(input_ids=ids, use_cache=False).logits[0].float()
        at = [i for i, trained in enumerate(sequence.trained) if trained]
        return torch.stack([logits_LV[i - 1].log_softmax(-1)[sequence.ids[i]] for i in at])


def slopes(
    new_T: Tensor, step: Step, options: Options, reference: Sequence[float], loss_source: str | None = None
) -> tuple[float, Tensor]:
    """Compute a step's loss, and its derivative by the logprob of each trained token.

    Args:
        new_T: The logprobs of the trained tokens.
        step: The step.
        options: The options of the job.
        reference: The logprobs under the reference of a KL penalty.
        loss_source: The source of a custom loss, instead of the one of the options.
    """
    moving_T, row = new_T.detach().double().cpu().requires_grad_(), step.sequences
    tokens = [
        (h, old) for h, s in enumerate(row) for old, on in zip(s.tokens.logprobs, s.tokens.trained, strict=True) if on
    ]
    histories, recorded = [h for h, _ in tokens], [old for _, old in tokens]
    advantages = [float(each) for s in row for each in torch.as_tensor(s.advantage).expand(s.tokens.trainable)]
    weights = [row[h].weight for h in histories]
    if loss_source is not None:
        rest = [torch.tensor(each, dtype=torch.float64) for each in (recorded, advantages, weights)]
        loss = load_loss(loss_source).function(moving_T, *rest, torch.tensor(histories))
    else:
        old = new_T.tolist() if options.precalculate_logprobs else recorded
        kl = [new - other for new, other in zip(new_T.tolist(), reference, strict=True)]
        terms = []
        for t, h in enumerate(histories):
            deltas = [moving_T[s] - old[s] for s, other in enumerate(histories) if other == h]
            penalty = options.kl_penalty_coef * (sum(kl) / len(kl) - kl[t])
            advantage = advantages[t] + penalty - options.k2_tau * float(new_T[t] - old[t])
            term = _term(
                moving_T[t], _ratio(moving_T[t] - old[t], torch.stack(deltas).mean(), options), advantage, options
            )
            if options.truncated_importance_sampling:
                mismatch = torch.tensor(old[t] - recorded[t]).exp()
                term = term * min(float(mismatch), options.truncated_importance_sampling)
            terms.append(weights[t] * term)
        loss = torch.stack(terms).sum() / step.divisor
    (slope_T,) = torch.autograd.grad(loss, moving_T)
    return float(loss.detach()), slope_T


def _ratio(own: Tensor, mean: Tensor, options: Options) -> Tensor:
    """Compute the importance ratio of a token, by its own log ratio and the mean log ratio of its history."""
    ratios = {
        "token": own.exp(),
        "sequence": mean.exp(),
        "average": (own.exp() + mean.exp()) / 2,
        "geometric_average": ((own + mean) / 2).exp(),
    }
    ratio = ratios[options.importance_sampling_level]
    bounded = options.max_weight is not None and float(ratio.detach()) > options.max_weight
    return torch.tensor(options.max_weight, dtype=ratio.dtype) if bounded else ratio


def _term(new: Tensor, ratio: Tensor, advantage: float, options: Options) -> Tensor:
    """Compute the loss of a token, without its weight."""
    low, high, value = 1 - options.epsilon, 1 + options.epsilon_high, float(ratio.detach())
    if options.mask_prob_ratio and not low < value < high:
        ratio, value = 0 * ratio, 0.0
    clipped = min(max(value, low), high)
    if not options.ppo:
        return -clipped * advantage * new
    inside = ratio if low <= value <= high else torch.tensor(clipped, dtype=ratio.dtype)
    first, second = ratio * advantage, inside * advantage
    return -first if float(first.detach()) <= float(second.detach()) else -second


def clipped_gradients(gradient: StepGradient, max_norm: float) -> dict[str, Tensor]:
    """Scale gradients to a norm of at most `max_norm`; 0 does not clip."""
    scale = min(1.0, max_norm / (gradient.norm + 1e-6)) if max_norm else 1.0
    return {name: each * scale for name, each in gradient.gradients.items()}


def gradients_between(before: State, after: State) -> dict[str, Tensor]:
    """Compute the clipped gradients of the one step between two checkpoints, from their first moments of AdamW."""
    moments = {name: each for name, each in after.optimizer.items() if name.endswith(".exp_avg")}
    past = {name: before.optimizer.get(name, torch.zeros_like(each)) for name, each in moments.items()}
    return {
        name.removesuffix(".exp_avg"): (each - BETAS[0] * past[name]) / (1 - BETAS[0]) for name, each in moments.items()
    }


def adapter_after(
    before: dict[str, Tensor], moments: dict[str, Tensor], rate: float, weight_decay: float
) -> dict[str, Tensor]:
    """Compute parameters after a step of AdamW with these moments (Loshchilov and Hutter 2019, algorithm 2)."""
    after = {}
    for name, value in before.items():
        first, second = (moments[f"{name}.{which}"].double() for which in ("exp_avg", "exp_avg_sq"))
        count = float(moments[f"{name}.step"])
        first, second = first / (1 - BETAS[0] ** count), second / (1 - BETAS[1] ** count)
        after[name] = value.double() * (1 - rate * weight_decay) - rate * first / (second.sqrt() + EPS)
    return after


def norm_of(tensors: dict[str, Tensor]) -> float:
    """Compute the norm of tensors as one vector."""
    return float(torch.stack([each.double().norm() for each in tensors.values()]).norm())


def relative_gap(measured: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Divide the norm of the difference by the norm of the expected vector."""
    differences = {name: measured[name].double() - each.double() for name, each in expected.items()}
    return norm_of(differences) / max(norm_of(expected), 1e-12)
