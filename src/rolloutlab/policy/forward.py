"""Logprobs of the trained tokens of sequences: the forward pass of training and scoring.

Axes: B, L, T as in `policy.packing`; D the hidden states; V the vocabulary.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn.functional import embedding

from rolloutlab.errors import RenderingError
from rolloutlab.policy.memory import release_memory
from rolloutlab.policy.model import Adapter, Policy, write_adapter
from rolloutlab.policy.packing import Batch, batches, bundles, collate, parts
from rolloutlab.policy.share import WHOLE, Share
from rolloutlab.policy.token_sequence import TokenSequence

CHUNK = 1 << 22
"""Logits computed at a time: 16 MiB in fp32, and a few times that for intermediate results."""
_MOST_STATES = 1 << 26
"""Numbers of checkpoint 0 that are kept during a step: 256 MiB in fp32."""


class Scored(NamedTuple):
    """Of each trained token of a batch: its logprob, with gradients, and the entropy before it; in fp32, in nats.

    state_TX: what the logits are computed of, without gradients: hidden states, or logits where the head is not last.
    """

    logprob_T: Tensor
    entropy_T: Tensor
    state_TX: Tensor


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

    def batches(self, sequences: Sequence[TokenSequence]) -> Iterator[Batch]:
        """Batches of sequences of similar length, each with at least one trained token and one before it; the share's.

        A batch has at most twice `batch_tokens`, padding included, or is one sequence; there is at least one for each
        worker of all processes, if there are enough tokens. Each is collated when it is asked for.
        """
        for part in self._share.of(parts(sequences, self._parts)):
            for batch in batches(bundles(sequences, self._limit, self._probe.shares, part), 2 * self._limit):
                self._between_batches()
                yield collate(batch, sequences, self._dtype)

    def __call__(self, batch: Batch) -> Scored:
        """The forward pass of a batch."""
        target_T = batch.target_T.to(self._model.device)
        state_TX = self._states(batch)
        if self._head is None:
            return Scored(*_logprob_and_entropy(state_TX, target_T), state_TX.detach())
        logprob_T, entropy_T = _Head.apply(state_TX, self._head, target_T, self._chunk)  # type: ignore[no-untyped-call]
        return Scored(logprob_T, entropy_T, state_TX.detach())

    @torch.no_grad()
    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """Logprob of each trained token of each sequence, on the CPU; a sequence may have none."""
        scored = [torch.zeros(sequence.trainable) for sequence in sequences]
        trained = [i for i, sequence in enumerate(sequences) if sequence.trainable]
        for batch in self.batches([sequences[i] for i in trained]):
            order = [trained[i] for i in batch.order]
            parts = torch.split(self(batch)[0].cpu(), [sequences[i].trainable for i in order])
            for i, scored_T in zip(order, parts, strict=True):
                scored[i] = scored_T
        return self._share.sums(scored) if scored else []

    def states_of_base(
        self, sequences: Sequence[TokenSequence], measured: Sequence[int], pool: ThreadPoolExecutor
    ) -> dict[int, Tensor]:
        """`Scored.state_TX` of the measured sequences without the adapter, which is checkpoint 0; of the share's.

        Of the first ones alone, where all would be too many numbers to keep.
        """
        size = self._head.in_features if self._head else self._vocabulary
        so_far = accumulate(sequences[i].trainable * size for i in measured)
        few = {i for i, total in zip(measured, so_far, strict=True) if total <= _MOST_STATES} or {*measured[:1]}
        own = [i for part in self._share.of(parts(sequences, self._parts)) for i in part if i in few]
        if not own:
            return {}
        some = [sequences[i] for i in own]
        states: dict[int, Tensor] = {}
        remaining = batches(bundles(some, self._limit, self._probe.shares), 2 * self._limit)
        with self._model.disable_adapter():  # of all threads
            while bundled := list(islice(remaining, self._parts)):
                self._between_batches()
                batched = [collate(each, some, self._dtype) for each in bundled]
                for batch, state_TX in zip(batched, pool.map(torch.no_grad()(self._states), batched), strict=True):
                    counts = [some[i].trainable for i in batch.order]
                    states |= {own[i]: each for i, each in zip(batch.order, torch.split(state_TX, counts), strict=True)}
        return states

    @torch.no_grad()
    def divergence(self, state_TX: Tensor, counts: Sequence[int], base: Sequence[Tensor | None]) -> Tensor:
        """KL divergence (model || checkpoint 0) before each trained token of a batch, over the whole vocabulary.

        It needs no sampled token: a single one, of which checkpoint 0 is much surer, would rule an estimate by these.

        counts: tokens of each sequence. base: its states under checkpoint 0; NaN where there are none.
        """
        pairs = zip(torch.split(state_TX, list(counts)), base, strict=True)
        return torch.cat([self._divergence(*pair) for pair in pairs])

    def _states(self, batch: Batch) -> Tensor:
        """Hidden states before the trained tokens, or the logits where the head is not last."""
        device = self._model.device
        read, before_T = batch.read(device), batch.before_T.to(device)
        if self._head is None:
            return _rows(self._model(**read, use_cache=False).logits, before_T)
        return _rows(self._body(**read, use_cache=False).last_hidden_state, before_T)

    def _divergence(self, after_TX: Tensor, before_TX: Tensor | None) -> Tensor:
        if before_TX is None:
            return after_TX.new_full((len(after_TX),), math.nan, dtype=torch.float)
        size = max(1, self._chunk // (self._head.out_features if self._head else after_TX.shape[1]))
        pairs = zip(torch.split(after_TX, size), torch.split(before_TX, size), strict=True)
        return torch.cat([self._divergence_of_some(*pair) for pair in pairs])

    def _divergence_of_some(self, after_CX: Tensor, before_CX: Tensor) -> Tensor:
        after_CV, before_CV = (
            (self._head(each) if self._head else each).float().log_softmax(-1) for each in (after_CX, before_CX)
        )
        return (after_CV.exp() * (after_CV - before_CV)).sum(-1)


def _rows(values_BLD: Tensor, index_T: Tensor) -> Tensor:
    """Rows of the flattened values, by `embedding`: its gradient sums repeated rows in a deterministic order."""
    return embedding(index_T, values_BLD.flatten(0, 1))


def _logprob_and_entropy(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    all_TV = logits_TV.float().log_softmax(-1)
    with torch.no_grad():
        entropy_T = torch.special.entr(all_TV.exp()).sum(-1)
    return all_TV.gather(1, target_T[:, None])[:, 0], entropy_T


class _Head(torch.autograd.Function):
    """Logprob of the target and entropy under a frozen linear head, some tokens at a time.

    The gradient of a logprob with respect to its hidden state, (onehot[target] - softmax) @ W, is computed in the
    forward, so that no tensor with a vocabulary axis is saved for backward.
    """

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, head: nn.Linear, target_T: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        needs_grad = ctx.needs_input_grad[0]
        size = max(1, chunk // head.out_features)
        logprobs, entropies, slopes = [], [], []
        for hidden_CD, target_C in zip(torch.split(hidden_TD, size), torch.split(target_T, size), strict=True):
            all_CV = head(hidden_CD).float().log_softmax(-1)
            logprobs.append(all_CV.gather(1, target_C[:, None])[:, 0])
            probability_CV = all_CV.exp_()
            entropies.append(torch.special.entr(probability_CV).sum(-1))
            if needs_grad:  # 1 - p(target) as the sum of the others: subtraction cancels for a nearly certain target
                slope_CV = probability_CV.scatter_(1, target_C[:, None], 0.0).neg_()
                slope_CV.scatter_(1, target_C[:, None], -slope_CV.sum(-1, keepdim=True))
                slopes.append(slope_CV.to(head.weight.dtype) @ head.weight)
        ctx.save_for_backward(torch.cat(slopes) if needs_grad else None)
        entropy_T = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_T)
        return torch.cat(logprobs), entropy_T

    @staticmethod
    def backward(ctx: Any, slope_T: Tensor, _entropy_T: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_TD,) = ctx.saved_tensors
        return (slope_T[:, None] * slope_TD).to(slope_TD.dtype), None, None, None


class Scorer:
    """Scores on its own copy of the policy, beside sampling and training, one call at a time."""

    def __init__(self, policy: Policy) -> None:
        self._context = policy.context
        self._model = policy.lora_copy()
        self._forward = Forward(policy, self._model)
        self._small = policy.small
        self._lock = threading.Lock()

    def logprobs(self, adapter: Adapter, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The logprob of each trained token, in nats, of the unscaled full-vocabulary distribution.

        Raises:
            RenderingError: a sequence is longer than the policy's context.
        """
        if (longest := max(map(len, sequences), default=0)) > self._context:
            limit = f"the policy's context of {self._context:,}"
            raise RenderingError(f"a conversation of {longest:,} tokens is longer than {limit}")
        with self._lock:
            write_adapter(self._model, adapter)
            scored = [scored_T.tolist() for scored_T in self._forward.logprobs(sequences)]
            if not self._small:
                release_memory()
            return scored
