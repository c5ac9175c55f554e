"""Logprobs under a reference: checkpoint 0, which is the policy without its adapter, or another checkpoint.

They serve the penalty of `kl_penalty_coef`, and a report of how far a model has moved. The report needs another
forward pass, and the logits of both, so it is of a bounded sample.
"""

from collections.abc import Sequence
from random import Random

from peft import PeftModel
from torch import Tensor

from rolloutlab.policy.forward import Forward
from rolloutlab.policy.model import Adapter, read_adapter, write_adapter
from rolloutlab.policy.token_sequence import TokenSequence

_SHARE = 16
"""One sequence in so many is sampled: a forward pass costs about a third of a training step."""
_LEAST = 16
"""The fewest sequences in a sample, if there are as many: fewer would say little of the others."""


def base_logprobs(forward: Forward, model: PeftModel, sequences: Sequence[TokenSequence]) -> list[Tensor]:
    """Compute the logprobs of trained tokens with the adapter switched off, which is checkpoint 0."""
    with model.disable_adapter():
        return forward.logprobs(sequences)


def adapter_logprobs(
    forward: Forward, model: PeftModel, adapter: Adapter, sequences: Sequence[TokenSequence]
) -> list[Tensor]:
    """Compute the logprobs of trained tokens under another adapter. The model has its own again afterwards."""
    own = read_adapter(model)
    write_adapter(model, adapter)
    try:
        return forward.logprobs(sequences)
    finally:
        write_adapter(model, own)


def sample(candidates: Sequence[int], seed: int) -> set[int]:
    """Choose a sixteenth of the candidates at random, at least 16 or all. Lengths have no effect on the choice."""
    return set(Random(seed).sample(candidates, min(len(candidates), max(_LEAST, len(candidates) // _SHARE))))
