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
"""One sequence in so many is in the sample: a forward pass costs about a third of a training step."""
_LEAST = 16
"""Sequences in a sample, if there are as many: fewer say little of the others."""


def base_logprobs(forward: Forward, model: PeftModel, sequences: Sequence[TokenSequence]) -> list[Tensor]:
    """Logprob of each trained token of each sequence with the adapter switched off, which is checkpoint 0."""
    with model.disable_adapter():
        return forward.logprobs(sequences)


def adapter_logprobs(
    forward: Forward, model: PeftModel, adapter: Adapter, sequences: Sequence[TokenSequence]
) -> list[Tensor]:
    """The same under another adapter; the model has its own again afterwards."""
    own = read_adapter(model)
    write_adapter(model, adapter)
    try:
        return forward.logprobs(sequences)
    finally:
        write_adapter(model, own)


def sample(candidates: Sequence[int], seed: int) -> set[int]:
    """A sixteenth of the candidates, at least 16 or all; each is as likely as any other, whatever its length."""
    return set(Random(seed).sample(candidates, min(len(candidates), max(_LEAST, len(candidates) // _SHARE))))
