"""Autoregressive sampling of a batch that completions join and leave between steps.

Axes: B completions in the batch, T cached positions (left-padded), V vocabulary.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, PreTrainedModel

from rolloutlab.errors import PolicyError
from rolloutlab.policy.cache_rows import empty_cache, join_rows, keep, select_rows, trim

Finish = Literal["stop", "length", "abandoned"]
_FIRST = 4096
"""So many tokens, the first of the vocabulary, have noise of their own: then two checkpoints with the same seed mostly
draw the same token, as the first tokens of vocabularies that were built by merging are the most frequent. Noise for all
of 49,152 took as long as the forward pass of a model with 135 million parameters (128 completions, two cores).
"""
_BLOCK = 16
"""Each block of so many other tokens shares its noise."""
KEPT_PROMPTS = 8192
"""Prompt tokens, padding included, that a batch keeps the cache of, for further completions of the same prompts."""


@dataclass(frozen=True)
class CompletionRequest:
    """One completion to sample. Its randomness depends on (seed, index, position) alone, not on the rest of the batch.

    temperature: 0 takes the most likely token. top: how many of the most likely tokens to record at each position.
    forced: tokens to begin with, instead of sampled ones. stops: the completion ends at the first of these strings.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    index: int = 0
    top: int = 0
    forced: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()


@dataclass
class Completion:
    """The sampled tokens of a request, the end-of-turn token included.

    logprobs: one per token, in nats, of the distribution over the whole vocabulary at temperature 1. top: for each
    token, the most likely tokens at its position with their logprobs, best first. watch: called after each token; if it
    returns a Finish, the completion ends.
    """

    request: CompletionRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: Finish | None = None
    watch: "Callable[[Completion], Finish | None] | None" = field(default=None, compare=False, repr=False)

    @property
    def ids(self) -> tuple[int, ...]:
        """The prompt and what was sampled after it."""
        return self.request.prompt + tuple(self.tokens)


@dataclass(frozen=True)
class _Prefill:
    """The forward pass over some prompts P. rows: the row of each prompt. logits_PV: after its last token."""

    rows: dict[tuple[int, ...], int]
    cache: DynamicCache
    mask_PT: Tensor
    logits_PV: Tensor

    def copy_rows(self, prompts: Sequence[tuple[int, ...]]) -> tuple[DynamicCache, Tensor, Tensor]:
        """Copy the cache, mask and logits of these prompts, which may repeat."""
        index_B = torch.tensor([self.rows[ids] for ids in prompts], device=self.mask_PT.device)
        return select_rows(self.cache, index_B), self.mask_PT[index_B], self.logits_PV[index_B]


class Decoder:
    """A running batch. `admit` adds completions between steps; `step` samples one token for each."""

    def __init__(self, model: PreTrainedModel | PeftModel, end_ids: frozenset[int]) -> None:
        self._model = model
        self._cache_argument = _cache_argument(model)
        self._end_ids = end_ids
        self._rows: list[Completion] = []
        self._places: list[int] = []
        """The number of each row in the order of joining. Rows move when others leave."""
        self._joined = 0
        self._cache = empty_cache(model)
        self._mask_BT = torch.zeros(0, 0, dtype=torch.long, device=model.device)
        self._logits_BV = torch.zeros(0, 0, device=model.device)
        self._noise = _Noise([], model.device)
        self._prefills: list[_Prefill] = []
        """The forward passes over the last prompts, the newest at the end."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def length(self) -> int:
        """Cached positions of each completion, padding included."""
        return self._mask_BT.shape[1] if self._rows else 0

    @property
    def kept_tokens(self) -> int:
        """Cached positions of prompts that are kept for further completions."""
        return sum(prefill.mask_PT.numel() for prefill in self._prefills)

    def admit(self, requests: Iterable[CompletionRequest]) -> None:
        """Add new completions to the batch."""
        self.resume([Completion(request) for request in requests])

    @torch.inference_mode()
    def resume(self, rows: Sequence[Completion]) -> None:
        """Add completions to the batch with the tokens that they have. Each distinct prompt is prefilled once."""
        places = {ids: i for i, prefill in enumerate(self._prefills) for ids in prefill.rows}
        if missing := [ids for ids in dict.fromkeys(row.ids for row in rows) if ids not in places]:
            places.update(dict.fromkeys(missing, len(self._prefills)))
            self._prefills.append(self._prefill(missing))
        members: dict[int, list[Completion]] = {}
        for row in rows:
            members.setdefault(places[row.ids], []).append(row)
        parts = [self._prefills[i].copy_rows([row.ids for row in group]) for i, group in members.items()]
        if self._rows:
            parts.insert(0, (self._cache, self._mask_BT, self._logits_BV))
        caches, masks, logits = zip(*parts, strict=True)
        length = max(mask.shape[1] for mask in masks)
        self._cache = join_rows(caches, length)
        self._mask_BT = torch.cat([pad(mask, (length - mask.shape[1], 0)) for mask in masks])
        self._logits_BV = torch.cat(logits)
        newcomers = [row for group in members.values() for row in group]
        self._places += range(self._joined, self._joined + len(newcomers))
        self._joined += len(newcomers)
        self._rows += newcomers
        self._trim()
        self._noise = _Noise([row.request for row in self._rows], self._model.device)
        while len(self._prefills) > 1 and self.kept_tokens > KEPT_PROMPTS:
            del self._prefills[0]

    def forget_prompts(self) -> None:
        """Free the cache of prompts that is kept for further completions."""
        self._prefills.clear()

    def release(self) -> None:
        """Free what an empty batch still holds: hundreds of megabytes with a large policy."""
        self.forget_prompts()
        if not self._rows:
            self._cache, self._logits_BV = empty_cache(self._model), self._logits_BV[:0].clone()

    @torch.inference_mode()
    def preempt(self, count: int) -> list[Completion]:
        """Take the newest completions out of the batch; `resume` computes their cache again."""
        newest = sorted(range(len(self._rows)), key=self._places.__getitem__)[-count:]
        rows = [self._rows[i] for i in newest]
        self._logits_BV = self._logits_BV[self._drop(set(newest))]
        return rows

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Sample the next token of every completion; those that ended leave the batch and are returned."""
        logprobs_BV = self._logprobs()
        token_B = self._choose(logprobs_BV)
        logprob_B = logprobs_BV.gather(1, token_B[:, None])[:, 0]
        self._note_top(logprobs_BV)
        for row, token, logprob in zip(self._rows, token_B.tolist(), logprob_B.tolist(), strict=True):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.finish = self._finish(row)
        if ended := [row for row in self._rows if row.finish]:
            token_B = token_B[self._drop({i for i, row in enumerate(self._rows) if row.finish})]
        if self._rows:
            self._advance(token_B)
        return ended

    def _prefill(self, prompts: list[tuple[int, ...]]) -> _Prefill:
        longest = max(map(len, prompts))
        ids_PT = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=self._model.device)
        mask_PT = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self._model.device)
        positions_PT = (mask_PT.cumsum(1) - 1).clamp(min=0)
        cache = empty_cache(self._model)
        logits_PV = self._forward(ids_PT, mask_PT, positions_PT, cache, logits_to_keep=1)
        return _Prefill({ids: i for i, ids in enumerate(prompts)}, cache, mask_PT, logits_PV)

    def _forward(
        self, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: DynamicCache, **options: Any
    ) -> Tensor:
        """Compute the logits (B, V) after the last token, and add the tokens to the cache."""
        inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": positions_BT}
        out = self._model(**inputs, **{self._cache_argument: cache}, use_cache=True, **options)
        logits_BV: Tensor = out.logits[:, -1].float()
        return logits_BV

    def _logprobs(self) -> Tensor:
        logprobs_BV = self._logits_BV.log_softmax(-1)
        if logprobs_BV[:, 0].isnan().any():  # one logit that is not finite makes a whole row NaN
            raise PolicyError("the policy gives no finite probabilities", hint="sample an earlier checkpoint")
        return logprobs_BV

    def _choose(self, logprobs_BV: Tensor) -> Tensor:
        token_B = choose(logprobs_BV, self._noise, torch.tensor([len(r.tokens) for r in self._rows]))
        for i, row in enumerate(self._rows):
            if len(row.tokens) < len(row.request.forced):
                token_B[i] = row.request.forced[len(row.tokens)]
        return token_B

    def _note_top(self, logprobs_BV: Tensor) -> None:
        if not (count := max(row.request.top for row in self._rows)):
            return
        best = logprobs_BV.topk(min(count, logprobs_BV.shape[1]))
        for row, ids, values in zip(self._rows, best.indices.tolist(), best.values.tolist(), strict=True):
            if row.request.top:
                possible = [pair for pair in zip(ids, values, strict=True) if pair[1] > -torch.inf]
                row.top.append(possible[: row.request.top])

    def _finish(self, row: Completion) -> Finish | None:
        finish = row.watch(row) if row.watch else None  # called for the last token too
        if row.tokens[-1] in self._end_ids:
            return "stop"
        return finish or ("length" if len(row.tokens) >= row.request.max_tokens else None)

    def _drop(self, left: Set[int]) -> Tensor:
        """Remove rows; the last rows take their places. Returns the former index of each row that stays."""
        count = len(self._rows) - len(left)
        behind = [i for i in range(count, len(self._rows)) if i not in left]
        order = [behind.pop() if i in left else i for i in range(count)]
        index_B = torch.tensor(order, dtype=torch.long, device=self._model.device)
        self._rows = [self._rows[i] for i in order]
        self._places = [self._places[i] for i in order]
        self._mask_BT = self._mask_BT[index_B]
        keep(self._cache, order)
        self._trim()
        self._noise = _Noise([row.request for row in self._rows], self._model.device)
        return index_B

    def _trim(self) -> None:
        """Drop positions that are padding in every row. Without this a busy batch would grow for ever."""
        if unused := int(self._mask_BT.any(0).int().argmax()) if self._rows else 0:
            self._mask_BT = self._mask_BT[:, unused:]
            trim(self._cache, unused)

    def _advance(self, token_B: Tensor) -> None:
        self._mask_BT = pad(self._mask_BT, (0, 1), value=1)
        positions_BT = self._mask_BT.sum(1, keepdim=True) - 1
        self._logits_BV = self._forward(token_B[:, None], self._mask_BT, positions_BT, self._cache)


def _cache_argument(model: Any) -> str:
    """Find the name of a model's argument for the cache: `cache` since transformers 5.24, `past_key_values` before.

    The signature decides, not the release: a model with code of its own keeps the name that it was written with.
    """
    model = model.get_base_model() if isinstance(model, PeftModel) else model
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class _Noise:
    """Sampling settings of each request as tensors, with a key for its random numbers."""

    def __init__(self, requests: list[CompletionRequest], device: torch.device) -> None:
        self.temperature_B = torch.tensor([request.temperature for request in requests], device=device)
        self.top_p_B = torch.tensor([request.top_p for request in requests], device=device)
        seeds = [hashlib.sha256(f"{request.seed}:{request.index}".encode()).digest() for request in requests]
        keys = [int.from_bytes(digest[:8], signed=True) for digest in seeds]
        self.key_B = torch.tensor(keys, dtype=torch.long, device=device)
        self.greedy_B = self.temperature_B == 0
        self.any_greedy = any(request.temperature == 0 for request in requests)
        self.any_top_p = any(request.top_p < 1 for request in requests)


def choose(logprobs_BV: Tensor, noise: _Noise, position_B: Tensor) -> Tensor:
    """Draw the next token of each completion from the softmax of logprob / temperature.

    The randomness is a hash of (seed, index, position, token), so a completion is the same whatever else is in the
    batch, up to rounding in the model.
    """
    scores_BV = logprobs_BV / noise.temperature_B.clamp(min=1e-4)[:, None]
    if noise.any_top_p:
        scores_BV = _nucleus(scores_BV, noise.top_p_B)
    chosen_B = _draw(scores_BV, noise.key_B, position_B.to(noise.key_B.device))
    return torch.where(noise.greedy_B, logprobs_BV.argmax(-1), chosen_B) if noise.any_greedy else chosen_B


def _draw(scores_BV: Tensor, key_B: Tensor, position_B: Tensor) -> Tensor:
    """Draw tokens from the softmax of scores: the token with the largest score + Gumbel noise.

    The largest score + noise of a block of tokens is distributed like the log of the sum of their exponentials + noise
    (Maddison et al., arXiv 1411.0030). So tokens behind the first `_FIRST` are drawn in two stages: a block, and if it
    wins, a token within it. That draws from the same distribution with less noise to compute.
    """
    rows, _vocabulary = scores_BV.shape
    first_BF, rest_BR = scores_BV[:, :_FIRST], scores_BV[:, _FIRST:]
    token_F = torch.arange(first_BF.shape[1], device=scores_BV.device)
    best_B, chosen_B = (first_BF + gumbel(key_B, position_B, token_F)).max(1)
    if not rest_BR.shape[1]:
        return chosen_B
    blocks = -(-rest_BR.shape[1] // _BLOCK)
    rest_BKN = pad(rest_BR, (0, blocks * _BLOCK - rest_BR.shape[1]), value=-torch.inf).reshape(rows, blocks, _BLOCK)
    most_B = scores_BV.amax(1)
    sum_BK = (rest_BKN - most_B[:, None, None]).exp_().sum(-1).log_() + most_B[:, None]
    block_K = -1 - torch.arange(blocks, device=scores_BV.device)  # counters below those of tokens
    best_block_B, block_B = (sum_BK + gumbel(key_B, position_B, block_K)).max(1)
    within_BN = rest_BKN[torch.arange(rows, device=scores_BV.device), block_B]
    token_BN = _FIRST + block_B[:, None] * _BLOCK + torch.arange(_BLOCK, device=scores_BV.device)
    other_B = token_BN[:, 0] + (within_BN + gumbel(key_B, position_B, token_BN)).argmax(1)
    return torch.where(best_block_B > best_B, other_B, chosen_B)


def gumbel(key_B: Tensor, position_B: Tensor, counter: Tensor) -> Tensor:
    """Compute standard Gumbel noise (B, V) with a counter-based hash (SplitMix64, doi 10.1145/2714064.2660195).

    counter: a number per value of the noise, such as the token; of shape V, the same for all completions, or (B, V).
    """
    x = _mix_(key_B + _wrap(0x9E3779B97F4A7C15) * (position_B + 1))[:, None] + _wrap(0xD1B54A32D192ED03) * (counter + 1)
    uniform = _shift(_mix_(x), 41).float().add_(0.5).mul_(2.0**-23)  # 23 bits and a half: never 0, and never 1 in fp32
    return uniform.log_().neg_().log_().neg_()


def _mix_(x: Tensor) -> Tensor:
    """Mix the bits (the finalizer of SplitMix64), in place: a draw then takes a tenth less time."""
    x.bitwise_xor_(_shift(x, 30)).mul_(_wrap(0xBF58476D1CE4E5B9))
    x.bitwise_xor_(_shift(x, 27)).mul_(_wrap(0x94D049BB133111EB))
    return x.bitwise_xor_(_shift(x, 31))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without the sign; torch's own shift is arithmetic."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _wrap(constant: int) -> int:
    """Return the signed integer with the bits of a 64-bit constant."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _nucleus(scores_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Keep the fewest tokens whose probability reaches top_p (arXiv 1904.09751); the most likely one always stays."""
    sorted_BV, order_BV = scores_BV.softmax(-1).sort(-1, descending=True)
    cut_BV = sorted_BV.cumsum(-1) - sorted_BV >= top_p_B[:, None]
    cut_BV[:, 0] = False  # top_p may be 0 in fp32, which would cut all
    return scores_BV.masked_fill(cut_BV.scatter(1, order_BV, cut_BV), -torch.inf)
