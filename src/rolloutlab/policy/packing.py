"""Packing of sequences into batches: shared prompts are encoded once, and padding is bounded.

A bundle is a prompt followed by the rest of each sequence that begins with it. Position ids continue from the prompt in
each rest, and an attention mask separates the rests. A batch has bundles of similar length. Packing is deterministic:
it depends on prompts and lengths alone.

Axes: B bundles of a batch, L tokens of a bundle padded to the longest, T trained tokens of the batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from rolloutlab.policy.token_sequence import TokenSequence

_DOUBLE_COST = 1024
"""The length of a bundle whose tokens cost twice as much as those of a single sequence; see `docs/training.md`.

A prompt of P tokens is then cheapest shared in bundles of P + √(P² + 1024·P) tokens.
"""


@dataclass(frozen=True)
class Bundle:
    """Sequences, by index, that share their first `prompt` tokens. length: in tokens, with the prompt once."""

    prompt: int
    members: list[int]
    length: int


@dataclass(frozen=True)
class Batch:
    """The inputs of a forward pass, and the positions of its trained tokens.

    order: indices of the sequences; T has their trained tokens in this order. counts: trained tokens of each sequence
    in `order`. before_T: the index in the flattened B·L of the token before each trained one. target_T: the trained
    tokens. positions_BL, mask_B1LL: None if every bundle is one sequence, because causal attention ignores padding on
    the right. The mask is added to the attention scores.
    """

    order: list[int]
    counts: list[int]
    ids_BL: Tensor
    before_T: Tensor
    target_T: Tensor
    positions_BL: Tensor | None = None
    mask_B1LL: Tensor | None = None

    def read(self, device: torch.device) -> dict[str, Tensor]:
        """Return the arguments of a model's forward, on a device."""
        inputs = {"input_ids": self.ids_BL, "position_ids": self.positions_BL, "attention_mask": self.mask_B1LL}
        return {name: tensor.to(device) for name, tensor in inputs.items() if tensor is not None}


def parts(sequences: Sequence[TokenSequence], workers: int) -> list[list[int]]:
    """Divide the indices of the sequences, in order, into at most `workers` parts with about equally many tokens.

    A border between parts may cut some sequences off from others with the same prompt. These are moved to the others'
    part if they have at most a quarter of the tokens of that prompt and of a part. They would often be a batch of their
    own, whose forward pass takes as long as that of a few hundred tokens more in another batch.
    """
    total, before = sum(map(len, sequences)), 0
    part = []
    for sequence in sequences:
        part.append((before + len(sequence) // 2) * workers // total)
        before += len(sequence)
    for _, shared in groupby(range(len(sequences)), lambda i: sequences[i].ids[: _prompt_length(sequences[i])]):
        tokens: dict[int, int] = {}
        for i in (members := list(shared)):
            tokens[part[i]] = tokens.get(part[i], 0) + len(sequences[i])
        main = max(tokens, key=lambda k: tokens[k])
        for i in members:
            if 4 * tokens[part[i]] <= min(sum(tokens.values()), total / workers):
                part[i] = main
    indices: dict[int, list[int]] = {}
    for i, place in enumerate(part):
        indices.setdefault(place, []).append(i)
    return list(indices.values())


def bundles(
    sequences: Sequence[TokenSequence], limit: int, shares: Callable[[int], bool], part: Iterable[int] | None = None
) -> list[Bundle]:
    """Bundle all sequences, or those of a part. A bundle of several sequences has at most `limit` tokens.

    shares: whether the model supports bundles of several sequences with this length.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for i in range(len(sequences)) if part is None else part:
        by_prompt.setdefault(sequences[i].ids[: _prompt_length(sequences[i])].tobytes(), []).append(i)
    bundled: list[Bundle] = []
    for shared in (shared for members in by_prompt.values() for shared in _fill_bundles(sequences, members, limit)):
        if _is_cheaper(shared, sequences, shares):
            bundled.append(shared)
        else:
            bundled += [Bundle(_prompt_length(sequences[i]), [i], len(sequences[i])) for i in shared.members]
    return bundled


def batches(bundles: Sequence[Bundle], limit: int) -> Iterator[list[Bundle]]:
    """Yield batches of bundles, longest first. A batch has at most `limit` tokens with padding, or is one bundle.

    No bundle is more than twice as long as another of its batch, so padding at most doubles a batch.
    """
    batch: list[Bundle] = []
    for bundle in sorted(bundles, key=lambda b: -b.length):
        if batch and ((len(batch) + 1) * batch[0].length > limit or 2 * bundle.length < batch[0].length):
            yield batch
            batch = []
        batch.append(bundle)
    if batch:
        yield batch


def collate(batch: Sequence[Bundle], sequences: Sequence[TokenSequence], dtype: torch.dtype) -> Batch:
    """Make the tensors of a batch, on the CPU. dtype: the dtype of the mask."""
    longest = max(bundle.length for bundle in batch)
    ids_BL = torch.zeros(len(batch), longest, dtype=torch.long)
    positions_BL = torch.zeros_like(ids_BL)
    segment_BL = torch.full_like(ids_BL, -1)
    before, target = [], []
    for b, bundle in enumerate(batch):
        end = bundle.prompt
        segment_BL[b, :end] = 0
        for m, i in enumerate(bundle.members):
            ids_L = torch.frombuffer(sequences[i].ids, dtype=torch.int32).long()
            rest = len(ids_L) - bundle.prompt
            index_L = torch.cat([torch.arange(bundle.prompt), torch.arange(end, end + rest)])
            ids_BL[b, index_L] = ids_L
            positions_BL[b, index_L] = torch.arange(len(ids_L))
            segment_BL[b, end : end + rest] = m + 1
            end += rest
            trained_T = trained_positions(sequences[i])
            before.append(b * longest + index_L[trained_T - 1])
            target.append(ids_L[trained_T])
    order = [i for bundle in batch for i in bundle.members]
    tensors = list(map(len, target)), ids_BL, torch.cat(before), torch.cat(target)
    if len(order) == len(batch):
        return Batch(order, *tensors)
    return Batch(order, *tensors, positions_BL, _mask(segment_BL, dtype))


def trained_positions(sequence: TokenSequence) -> Tensor:
    """Return the positions of the trained tokens of a sequence."""
    return torch.frombuffer(sequence.trained, dtype=torch.uint8).nonzero()[:, 0]


def _mask(segment_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """Make a mask: tokens see earlier ones of the prompt (segment 0) and of their segment, and no padding (-1)."""
    own_BLL = segment_BL[:, :, None] == segment_BL[:, None, :]
    attends_BLL = (own_BLL | (segment_BL == 0)[:, None, :]).tril()
    mask_BLL = torch.zeros(attends_BLL.shape, dtype=dtype).masked_fill_(~attends_BLL, torch.finfo(dtype).min)
    return mask_BLL[:, None]


def _fill_bundles(sequences: Sequence[TokenSequence], members: list[int], limit: int) -> Iterator[Bundle]:
    """Yield bundles of sequences with one prompt, in order, of about equal length near the cheapest one."""
    prompt = _prompt_length(sequences[members[0]])
    rests = [len(sequences[i]) - prompt for i in members]
    count = max(1, round(sum(rests) / math.isqrt(prompt * (prompt + _DOUBLE_COST))))
    share = math.ceil(sum(rests) / count)
    bundle, filled, before = Bundle(prompt, [], prompt), 0, 0
    for i, rest in zip(members, rests, strict=True):
        position = (before + rest // 2) // share
        if bundle.members and (position > filled or bundle.length + rest > limit):
            yield bundle
            bundle = Bundle(prompt, [], prompt)
        bundle, filled, before = Bundle(prompt, [*bundle.members, i], bundle.length + rest), position, before + rest
    yield bundle


def _is_cheaper(bundle: Bundle, sequences: Sequence[TokenSequence], shares: Callable[[int], bool]) -> bool:
    """Whether a bundle is supported, and costs no more than its sequences one by one.

    The cost is in tokens of single sequences: attention with a mask is slower, the more the longer it is.
    """
    cost = bundle.length * (1 + bundle.length / _DOUBLE_COST)
    return cost <= sum(len(sequences[i]) for i in bundle.members) and shares(bundle.length)


def _prompt_length(sequence: TokenSequence) -> int:
    """Count the tokens before the first trained one."""
    return sequence.trained.index(1)
