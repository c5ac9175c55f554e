"""Logprobs of the trained tokens of sequences: the forward pass of training and scoring.

Axes: B, L, T as in `policy.packing`; M the tokens of T that are measured against checkpoint 0; C a chunk of T; D the
hidden states; V the vocabulary; X is D, or V if the head is not the last layer (the states are then logits already).
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate, chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.linalg import vecdot
from torch.nn.functional import embedding

from rolloutlab.errors import RenderingError
from rolloutlab.policy.model import Adapter, Policy, write_adapter
from rolloutlab.policy.packed_weights import Multiply
from rolloutlab.policy.packing import Batch, batches, bundles, collate, parts
from rolloutlab.policy.share import WHOLE, Share, release_memory
from rolloutlab.policy.token_sequence import TokenSequence

CHUNK = 1 << 22
"""Logits computed at a time: 16 MiB in fp32, and a few times that for intermediate results."""
_MOST_STATES = 1 << 26
"""Numbers of checkpoint 0 that are kept during a step: 256 MiB in fp32."""
_LEAST = torch.finfo(torch.float).min
"""What a logprob of -inf counts as: times a probability of 0, it is 0."""
_NOTHING: Mapping[int, Tensor] = MappingProxyType({})


class Scored(NamedTuple):
    """The logprob of each trained token, with gradients, and the entropy and divergence of its distribution.

    In fp32, in nats. divergence_T: KL divergence (model || checkpoint 0), over the whole vocabulary; NaN where it is
    not measured. An estimate from the sampled tokens alone would be dominated by any token whose probability under
    checkpoint 0 is much higher.
    """

    logprob_T: Tensor
    entropy_T: Tensor
    divergence_T: Tensor


class _Base(NamedTuple):
    """Checkpoint 0's states of the measured tokens of a batch, and which tokens are measured."""

    measured_T: Tensor
    state_MX: Tensor


class Forward:
    """Runs a LoRA copy of a policy over sequences, in batches of bounded size.

    between_batches: called before each batch of any pass, in the caller's thread; may raise, to end the pass.
    """

    def __init__(
        self,
        policy: Policy,
        model: PeftModel,
        chunk: int = CHUNK,
        share: Share = WHOLE,
        between_batches: Callable[[], None] = lambda: None,
    ) -> None:
        self._chunk = chunk
        self._between_batches = between_batches
        self._probe = policy.probe
        self._model = model
        self._dtype = policy.base.dtype
        self._limit = policy.batch_tokens
        self._parts = share.parts or policy.workers
        self._share = share
        causal: Any = model.get_base_model()
        head = causal.get_output_embeddings()
        self._body = causal.base_model
        self._vocabulary = policy.vocabulary
        self._head = head if policy.probe.head_is_last and type(head) is nn.Linear else None
        self._multiply: Multiply = policy.packed.multipliers(model).get(head) or head

    def batches(self, sequences: Sequence[TokenSequence]) -> Iterator[Batch]:
        """Yield this process's share of the batches, each collated when it is asked for.

        A batch has sequences of similar length, and at most twice `batch_tokens` with padding, unless it is one
        sequence. There is at least one batch for each worker of all processes, if there are enough tokens. Each
        sequence must have a trained token, and a token before the first of these.
        """
        for part in self._share.of(parts(sequences, self._parts)):
            for batch in batches(bundles(sequences, self._limit, self._probe.shares, part), 2 * self._limit):
                self._between_batches()
                yield collate(batch, sequences, self._dtype)

    def __call__(self, batch: Batch, base: Mapping[int, Tensor] = _NOTHING) -> Scored:
        """Run the forward pass of a batch. base: `states_of_base` of its measured sequences, by their index."""
        target_T = batch.target_T.to(self._model.device)
        state_TX = self._compute_states(batch)
        before = _base_of(batch, base, state_TX)
        if self._head is None:
            return Scored(*_score_logits(state_TX, target_T, before))
        return Scored(*_Head.apply(state_TX, self._head, self._multiply, target_T, before, self._chunk))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Compute the logprob of each trained token of each sequence, on the CPU; a sequence may have none."""
        scored = [torch.zeros(sequence.trainable) for sequence in sequences]
        trained = [i for i, sequence in enumerate(sequences) if sequence.trainable]
        for batch in self.batches([sequences[i] for i in trained]):
            order = [trained[i] for i in batch.order]
            for i, scored_T in zip(order, torch.split(self(batch).logprob_T.cpu(), batch.counts), strict=True):
                scored[i] = scored_T
        return self._share.sums(scored) if scored else []

    def states_of_base(
        self, sequences: Sequence[TokenSequence], measured: Sequence[int], pool: ThreadPoolExecutor
    ) -> dict[int, Tensor]:
        """Compute what checkpoint 0 (the model without its adapter) has as states of the measured sequences.

        Only this process's share is computed, and only the first sequences if all would be too many numbers to keep.
        """
        size = self._head.in_features if self._head else self._vocabulary
        so_far = accumulate(sequences[i].trainable * size for i in measured)
        few = {i for i, total in zip(measured, so_far, strict=True) if total <= _MOST_STATES} or {*measured[:1]}
        own = [[i for i in part if i in few] for part in self._share.of(parts(sequences, self._parts))]
        # bundled part by part, as `batches` does, so that several processes compute the same bits as one
        bundled = (bundles(sequences, self._limit, self._probe.shares, part) for part in own if part)
        remaining = chain.from_iterable(batches(each, 2 * self._limit) for each in bundled)
        states: dict[int, Tensor] = {}
        with self._model.disable_adapter():  # for all threads of the pool
            while some := list(islice(remaining, self._parts)):
                self._between_batches()
                batched = [collate(each, sequences, self._dtype) for each in some]
                for batch, state_TX in zip(
                    batched, pool.map(torch.no_grad()(self._compute_states), batched), strict=True
                ):
                    states |= zip(batch.order, torch.split(state_TX, batch.counts), strict=True)
        return states

    def _compute_states(self, batch: Batch) -> Tensor:
        """Compute the hidden states before the trained tokens, or their logits if the head is not the last layer."""
        device = self._model.device
        read, before_T = batch.read(device), batch.before_T.to(device)
        if self._head is None:
            return _select_rows(self._model(**read, use_cache=False).logits, before_T)
        return _select_rows(self._body(**read, use_cache=False).last_hidden_state, before_T)


def _select_rows(values_BLD: Tensor, index_T: Tensor) -> Tensor:
    """Select rows of the flattened values by `embedding`, whose gradient sums repeated rows in a fixed order."""
    return embedding(index_T, values_BLD.flatten(0, 1))


def _base_of(batch: Batch, base: Mapping[int, Tensor], state_TX: Tensor) -> _Base:
    states = [base[i] for i in batch.order if i in base]
    measured_T = torch.repeat_interleave(torch.tensor([i in base for i in batch.order]), torch.tensor(batch.counts))
    # the mask stays on the CPU: counting its tokens there does not wait for a GPU
    return _Base(measured_T, torch.cat(states) if states else state_TX[:0].detach())


def _score_logits(logits_TV: Tensor, target_T: Tensor, base: _Base) -> tuple[Tensor, Tensor, Tensor]:
    all_TV = logits_TV.float().log_softmax(-1)
    with torch.no_grad():
        facts = _entropy_and_divergence(all_TV.exp(), all_TV, base.measured_T, base.state_MX)
    return all_TV.gather(1, target_T[:, None])[:, 0], *facts


def _entropy_and_divergence(
    probability_CV: Tensor, logprob_CV: Tensor, measured_C: Tensor, base_MV: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute entropies, and divergences from checkpoint 0 where measured. base_MV: logits of checkpoint 0."""
    # a model may give the tokens of a padded vocabulary logits of -inf, and 0 * -inf is NaN
    logprob_CV = logprob_CV.clamp_min(_LEAST)
    divergence_C = torch.full_like(probability_CV[:, 0], math.nan)
    if len(base_MV):
        every = len(base_MV) == len(logprob_CV)  # then nothing is copied
        own_MV, own_logprob_MV = (each if every else each[measured_C] for each in (probability_CV, logprob_CV))
        less_MV = base_MV.float().log_softmax(-1).clamp_min_(_LEAST).sub_(own_logprob_MV)
        divergence_C[measured_C] = 0 - vecdot(own_MV, less_MV)  # not -vecdot(…), which would be -0.0 at checkpoint 0
    return 0 - vecdot(probability_CV, logprob_CV), divergence_C


class _Head(torch.autograd.Function):
    """`Scored` under a frozen linear head, some tokens at a time.

    The gradient of a logprob with respect to its hidden state, (onehot[target] - softmax) @ W, is computed in the
    forward, so that no tensor with a vocabulary axis is saved for backward.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_TD: Tensor, head: nn.Linear, multiply: Multiply, target_T: Tensor, base: _Base, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]
        size = max(1, chunk // head.out_features)
        logprobs, facts, slopes = [], [], []
        chunks = (torch.split(each, size) for each in (hidden_TD, target_T, base.measured_T))
        remaining_MD = base.state_MX
        for hidden_CD, target_C, measured_C in zip(*chunks, strict=True):
            measured = int(measured_C.sum())
            base_MD, remaining_MD = remaining_MD[:measured], remaining_MD[measured:]
            all_CV = multiply(hidden_CD).float().log_softmax(-1)
            logprobs.append(all_CV.gather(1, target_C[:, None])[:, 0])
            probability_CV = all_CV.exp()
            facts.append(_entropy_and_divergence(probability_CV, all_CV, measured_C, multiply(base_MD)))
            if needs_grad:  # 1 - p(target) as the sum of the others: subtraction cancels for a nearly certain target
                slope_CV = probability_CV.scatter_(1, target_C[:, None], 0.0).neg_()
                slope_CV.scatter_(1, target_C[:, None], -slope_CV.sum(-1, keepdim=True))
                slopes.append(slope_CV.to(head.weight.dtype) @ head.weight)
        ctx.save_for_backward(torch.cat(slopes) if needs_grad else None)
        entropy_T, divergence_T = map(torch.cat, zip(*facts, strict=True))
        ctx.mark_non_differentiable(entropy_T, divergence_T)
        return torch.cat(logprobs), entropy_T, divergence_T

    @staticmethod
    def backward(ctx: Any, slope_T: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        (slope_TD,) = ctx.saved_tensors
        return (slope_T[:, None] * slope_TD).to(slope_TD.dtype), None, None, None, None, None


class Scorer:
    """Scores on its own copy of the policy, beside sampling and training, one call at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lock = threading.Lock()

    def logprobs(self, adapter: Adapter, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Compute the logprob of each trained token, in nats, under the unscaled full-vocabulary distribution.

        Raises:
            RenderingError: a sequence is longer than the policy's context.
        """
        if (longest := max(map(len, sequences), default=0)) > self._policy.context:
            limit = f"the policy's context of {self._policy.context:,}"
            raise RenderingError(f"a conversation of {longest:,} tokens is longer than {limit}")
        with self._lock:
            write_adapter(self._model, adapter)
            scored = [scored_T.tolist() for scored_T in self._forward.logprobs(sequences)]
            if not self._policy.small:
                release_memory()
            return scored

    @cached_property
    def _model(self) -> PeftModel:
        """A copy that is made at the first call, because most services never score."""
        return self._policy.lora_copy()

    @cached_property
    def _forward(self) -> Forward:
        return Forward(self._policy, self._model)
