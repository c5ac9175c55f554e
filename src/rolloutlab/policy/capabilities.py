"""Detection of what a model's forward supports (shared-prompt masks, head-only logits), by trial runs.

Trial runs, because a list of architectures would be out of date with every new one.
"""

from array import array
from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rolloutlab.policy.base import context_of
from rolloutlab.policy.packing import Bundle, collate
from rolloutlab.policy.token_sequence import TokenSequence

_MIN_LENGTH = 64


class Probe:
    """Results of trial runs of one base model, each run at most once.

    head_is_last: whether the logits are a linear layer of the last hidden states, without a soft cap or scale. If so,
    they can be computed for some positions at a time.
    """

    def __init__(self, base: PreTrainedModel) -> None:
        self._base = base
        self._shares: dict[int, bool] = {}
        self._mixes_tokens = any(isinstance(module, nn.Conv1d | nn.RNNBase) for module in base.modules())
        self.head_is_last = _succeeds(lambda: _head_is_last(base))

    def shares(self, length: int) -> bool:
        """Whether sequences that share a prompt in a bundle of `length` tokens have the same hidden states as alone.

        False for recurrent and convolutional layers, and for attention windows shorter than that. Tested with sequences
        of the next power of two tokens, between 64 and the model's context.
        """
        if self._mixes_tokens:
            return False
        tested = min(max(_MIN_LENGTH, 1 << (length - 1).bit_length()), context_of(self._base.config))
        if tested not in self._shares:
            self._shares[tested] = _succeeds(lambda: _is_same_when_bundled(self._base, tested))
        return self._shares[tested]


def _succeeds(check: Callable[[], bool]) -> bool:
    try:
        with torch.no_grad():
            return check()
    except Exception:  # noqa: BLE001 - a forward that fails with these arguments does not support them
        return False


def _head_is_last(base: PreTrainedModel) -> bool:
    """Whether the head's input is the last hidden states, and its output (replaced by large values) the logits."""
    head: nn.Module | None = base.get_output_embeddings()
    if type(head) is not nn.Linear:
        return False
    ids_BL = torch.arange(8, device=base.device)[None] % head.out_features
    head_inputs: list[Tensor] = []
    output_V = torch.linspace(-100, 100, head.out_features, device=base.device)

    def hook(_head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        head_inputs.append(inputs[0])
        return output_V.to(output.dtype).expand_as(output)

    handle = head.register_forward_hook(hook)
    try:
        logits_BLV = base(input_ids=ids_BL, use_cache=False).logits
    finally:
        handle.remove()
    hidden_BLD = base.base_model(input_ids=ids_BL, use_cache=False).last_hidden_state
    output_BLV = output_V.to(hidden_BLD.dtype).expand(*ids_BL.shape, -1)
    same_input = len(head_inputs) == 1 and _are_close(head_inputs[0], hidden_BLD)
    return same_input and torch.equal(logits_BLV.to(output_BLV.dtype), output_BLV)


def _is_same_when_bundled(base: PreTrainedModel, length: int) -> bool:
    """Whether two sequences of `length` tokens have the same hidden states in a bundle as alone."""
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(base.config.vocab_size, (2, length), generator=generator)
    prompt = length // 2
    ids_BL[1, :prompt] = ids_BL[0, :prompt]
    trained = bytearray(prompt) + bytearray([1]) * (length - prompt)
    pair = [TokenSequence(array("i", ids_L), trained, array("f", [0.0]) * length) for ids_L in ids_BL.tolist()]
    batch = collate([Bundle(prompt, [0, 1], 2 * length - prompt)], pair, base.dtype)
    apart_BLD = base.base_model(input_ids=ids_BL.to(base.device), use_cache=False).last_hidden_state
    bundled_BLD = base.base_model(**batch.read(base.device), use_cache=False).last_hidden_state
    before_T = batch.before_T.to(base.device)
    return _are_close(bundled_BLD.flatten(0, 1)[before_T], apart_BLD[:, prompt - 1 : -1].flatten(0, 1))


def _are_close(a_TD: Tensor, b_TD: Tensor) -> bool:
    """Whether all rows are equal up to rounding: 1.5e-5 of their norm in fp32, 9 % in bf16."""
    if a_TD.shape != b_TD.shape:
        return False
    eps = torch.finfo(b_TD.dtype).eps
    difference_T = (a_TD.float() - b_TD.float()).norm(dim=-1)
    return bool((difference_T <= min(128 * eps, eps**0.5) * b_TD.float().norm(dim=-1)).all())
