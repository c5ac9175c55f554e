"""What a model's forward pass allows, found out by trying it: there is no list of names to fall behind."""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rolloutlab.policy.packing import Bundle, collate
from rolloutlab.policy.rendering import TokenSequence

_SHORTEST = 64


class Probe:
    """Remembers what was found about one base model.

    head_is_last: whether the logits are a linear layer of the last hidden states, and nothing else: no soft cap, no
    scale. The logits can then be computed for some positions at a time.
    """

    def __init__(self, base: PreTrainedModel) -> None:
        self._base = base
        self._shares: dict[int, bool] = {}
        self._blends = any(isinstance(module, nn.Conv1d | nn.RNNBase) for module in base.modules())
        self.head_is_last = _holds(lambda: _head_is_last(base))

    def shares(self, length: int) -> bool:
        """Whether a bundle of `length` tokens gives its sequences what each would have by itself.

        Not where layers are recurrent or convolve tokens with those before, however little that changes; nor where they
        attend to fewer tokens than that: it is tried with sequences of the next power of two.
        """
        if self._blends:
            return False
        reach = min(max(_SHORTEST, 1 << (length - 1).bit_length()), self._base.config.max_position_embeddings)
        if reach not in self._shares:
            self._shares[reach] = _holds(lambda: _bundled_is_apart(self._base, reach))
        return self._shares[reach]


def _holds(check: Callable[[], bool]) -> bool:
    try:
        with torch.no_grad():
            return check()
    except Exception:  # noqa: BLE001 - a model that cannot be asked in this way cannot be used in this way
        return False


def _head_is_last(base: PreTrainedModel) -> bool:
    """The head reads the last hidden states, and what it says, made loud, is what the model says."""
    head: nn.Module | None = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is not nn.Linear:
        return False
    ids_BL = torch.arange(8, device=base.device)[None] % head.out_features
    read: list[Tensor] = []
    said_V = torch.linspace(-100, 100, head.out_features, device=base.device)

    def listen(_head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        read.append(inputs[0])
        return said_V.to(output.dtype).expand_as(output)

    handle = head.register_forward_hook(listen)
    try:
        logits_BLV = base(input_ids=ids_BL, use_cache=False).logits
    finally:
        handle.remove()
    hidden_BLD = base.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
    said_BLV = said_V.to(hidden_BLD.dtype).expand(*ids_BL.shape, -1)
    return len(read) == 1 and _close(read[0], hidden_BLD) and torch.equal(logits_BLV.to(said_BLV.dtype), said_BLV)


def _bundled_is_apart(base: PreTrainedModel, reach: int) -> bool:
    """Two sequences of `reach` tokens have the same hidden states in a bundle as each by itself."""
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(base.config.vocab_size, (2, reach), generator=generator)
    prompt = reach // 2
    ids_BL[1, :prompt] = ids_BL[0, :prompt]
    trained = bytearray(prompt) + bytearray([1]) * (reach - prompt)
    pair = [TokenSequence(array("i", ids_L), trained, array("f", [0.0]) * reach) for ids_L in ids_BL.tolist()]
    batch = collate([Bundle(prompt, [0, 1], 2 * reach - prompt)], pair, base.dtype)
    apart_BLD = base.base_model(input_ids=ids_BL.to(base.device), use_cache=False).last_hidden_state
    bundled_BLD = base.base_model(**batch.read(base.device), use_cache=False).last_hidden_state
    before_T = batch.before_T.to(base.device)
    return _close(bundled_BLD.flatten(0, 1)[before_T], apart_BLD[:, prompt - 1 : -1].flatten(0, 1))


def _close(a_TD: Tensor, b_TD: Tensor) -> bool:
    """Whether no row differs by more than rounding can: 1.5e-5 of its length in fp32, 9% in bf16."""
    if a_TD.shape != b_TD.shape:
        return False
    eps = torch.finfo(b_TD.dtype).eps
    difference_T = (a_TD.float() - b_TD.float()).norm(dim=-1)
    return bool((difference_T <= min(128 * eps, eps**0.5) * b_TD.float().norm(dim=-1)).all())
