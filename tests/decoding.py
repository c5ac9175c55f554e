"""Completions sampled in one batch, without the sampler's thread."""

from collections.abc import Iterable

from peft import PeftModel
from transformers import PreTrainedModel

from rolloutlab.policy.decode import Completion, CompletionRequest, Decoder


def decode(
    model: PreTrainedModel | PeftModel, requests: Iterable[CompletionRequest], end_ids: frozenset[int]
) -> list[Completion]:
    """All completions of the requests, in their order."""
    decoder = Decoder(model, end_ids)
    requests = list(requests)
    decoder.admit(requests)
    done: dict[int, Completion] = {}
    while len(decoder):
        done.update({id(row.request): row for row in decoder.step()})
    return [done[id(request)] for request in requests]
