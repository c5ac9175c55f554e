"""Which sequences are encoded together: common prompts once, and little padding.

A bundle is a prompt, then what follows it in each sequence that begins with it: positions go on from the prompt in each
of them, and a mask keeps them apart. A batch is bundles of similar length. All of it is arithmetic on lengths, the same
for the same sequences.

Axes: B bundles of a batch, L tokens of a bundle padded to the longest, T trained tokens of the batch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rolloutlab.policy.rendering import TokenSequence

_TWICE = 1024
"""The length of a bundle whose tokens cost twice those of sequences encoded apart: measured, see `docs/training.md`.

A prompt of P tokens is then cheapest shared in bundles of P + √(P² + 1024·P) tokens.
"""


@dataclass(frozen=True)
class Bundle:
    """`members`, indices of sequences, that share their first `prompt` tokens; `length` is what they are together."""

    prompt: int
    members: list[int]
    length: int


@dataclass(frozen=True)
class Batch:
    """What a model reads, and where it says what about the trained tokens.

    order: index of each sequence among those given; the trained tokens T are theirs, in this order.
    before_T: index of the token before each trained one, in B·L flattened. target_T: the trained tokens.
    positions_BL, mask_B1LL: None where every bundle is one sequence: padding on the right is behind what it could
    change. The mask is added to the attention scores.
    """

    order: list[int]
    ids_BL: Tensor
    before_T: Tensor
    target_T: Tensor
    positions_BL: Tensor | None = None
    mask_B1LL: Tensor | None = None

    def read(self, device: torch.device) -> dict[str, Tensor]:
        """The arguments of a model's forward."""
        given = {"input_ids": self.ids_BL, "position_ids": self.positions_BL, "attention_mask": self.mask_B1LL}
        return {name: tensor.to(device) for name, tensor in given.items() if tensor is not None}


def parts(sequences: Sequence[TokenSequence], workers: int) -> list[list[int]]:
    """Indices of the sequences, in order, in as many parts of about as many tokens; fewer where they are few."""
    total, before = sum(map(len, sequences)), 0
    found: dict[int, list[int]] = {}
    for i, sequence in enumerate(sequences):
        found.setdefault((before + len(sequence) // 2) * workers // total, []).append(i)
        before += len(sequence)
    return list(found.values())


def bundles(
    sequences: Sequence[TokenSequence], limit: int, shares: Callable[[int], bool], part: Iterable[int] | None = None
) -> list[Bundle]:
    """Every sequence, or every one of a part, in one bundle; bundles of several are of at most `limit` tokens.

    shares: whether a bundle of this length may be made of several at all.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for i in range(len(sequences)) if part is None else part:
        by_prompt.setdefault(sequences[i].ids[: _prompt(sequences[i])].tobytes(), []).append(i)
    return [
        bundle
        for members in by_prompt.values()
        for shared in _filled(sequences, members, limit)
        for bundle in ([shared] if _pays(shared, sequences, shares) else _singles(sequences, shared.members))
    ]


def batches(found: Sequence[Bundle], limit: int) -> Iterator[list[Bundle]]:
    """Bundles of like length, longest first; none more than twice as long as another of its batch.

    So padding at most doubles a batch, which holds `limit` tokens with it, or one bundle.
    """
    batch: list[Bundle] = []
    for bundle in sorted(found, key=lambda b: -b.length):
        if batch and ((len(batch) + 1) * batch[0].length > limit or 2 * bundle.length < batch[0].length):
            yield batch
            batch = []
        batch.append(bundle)
    if batch:
        yield batch


def collate(batch: Sequence[Bundle], sequences: Sequence[TokenSequence], dtype: torch.dtype) -> Batch:
    """The batch as tensors on the CPU; the mask has this dtype."""
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
            at_L = torch.cat([torch.arange(bundle.prompt), torch.arange(end, end + rest)])
            ids_BL[b, at_L] = ids_L
            positions_BL[b, at_L] = torch.arange(len(ids_L))
            segment_BL[b, end : end + rest] = m + 1
            end += rest
            trained_T = trained_at(sequences[i])
            before.append(b * longest + at_L[trained_T - 1])
            target.append(ids_L[trained_T])
    order = [i for bundle in batch for i in bundle.members]
    tensors = ids_BL, torch.cat(before), torch.cat(target)
    if len(order) == len(batch):
        return Batch(order, *tensors)
    return Batch(order, *tensors, positions_BL, _mask(segment_BL, dtype))


def trained_at(sequence: TokenSequence) -> Tensor:
    """Where the trained tokens are."""
    return torch.frombuffer(sequence.trained, dtype=torch.uint8).nonzero()[:, 0]


def _mask(segment_BL: Tensor, dtype: torch.dtype) -> Tensor:
    """A token sees what is before it of the prompt (segment 0) and of its own segment; padding (-1) is seen by none."""
    own_BLL = segment_BL[:, :, None] == segment_BL[:, None, :]
    seen_BLL = (own_BLL | (segment_BL == 0)[:, None, :]).tril()
    hidden_BLL = torch.zeros(seen_BLL.shape, dtype=dtype).masked_fill_(~seen_BLL, torch.finfo(dtype).min)
    return hidden_BLL[:, None]


def _filled(sequences: Sequence[TokenSequence], members: list[int], limit: int) -> Iterator[Bundle]:
    """Bundles of the members of one prompt, in order and alike, each of about the length that costs least."""
    prompt = _prompt(sequences[members[0]])
    rests = [len(sequences[i]) - prompt for i in members]
    count = max(1, round(sum(rests) / math.isqrt(prompt * (prompt + _TWICE))))
    share = math.ceil(sum(rests) / count)
    bundle, filled, before = Bundle(prompt, [], prompt), 0, 0
    for i, rest in zip(members, rests, strict=True):
        place = (before + rest // 2) // share
        if bundle.members and (place > filled or bundle.length + rest > limit):
            yield bundle
            bundle = Bundle(prompt, [], prompt)
        bundle, filled, before = Bundle(prompt, [*bundle.members, i], bundle.length + rest), place, before + rest
    yield bundle


def _pays(bundle: Bundle, sequences: Sequence[TokenSequence], shares: Callable[[int], bool]) -> bool:
    lengths = [len(sequences[i]) for i in bundle.members]
    return _cost(bundle.length) <= sum(lengths) and shares(bundle.length)


def _cost(length: int) -> float:
    """Of a bundle, in tokens of a sequence encoded by itself: attention under a mask costs more the longer it is."""
    return length * (1 + length / _TWICE)


def _singles(sequences: Sequence[TokenSequence], members: list[int]) -> list[Bundle]:
    return [Bundle(_prompt(sequences[i]), [i], len(sequences[i])) for i in members]


def _prompt(sequence: TokenSequence) -> int:
    """Tokens before the first trained one."""
    return sequence.trained.index(1)
