"""Sequences are scored as the model itself would, whoever else asks."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rolloutlab.errors import RenderingError
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.forward import Scorer
from rolloutlab.policy.model import write_adapter
from rolloutlab.policy.token_sequence import TokenSequence
from tests.decoding import decode


def naive(policy, adapter, sequence):
    model = policy.lora_copy()
    write_adapter(model, adapter)
    with torch.no_grad():
        all_TV = model(input_ids=torch.tensor([list(sequence.ids)])).logits[0].log_softmax(-1)
    return [float(all_TV[t - 1, sequence.ids[t]]) for t in range(len(sequence)) if sequence.trained[t]]


def test_the_logprob_of_each_trained_token_under_the_adapter_that_is_asked_for(policy, adapter_of, group):
    scorer = Scorer(policy)
    sequences = [*group(1, 30, [[12], [20, 5, 9], [1]]), *group(2, 3, [[60]])]
    for adapter in (adapter_of(policy, 1), adapter_of(policy, 2)):
        found = scorer.logprobs(adapter, sequences)
        for scored, sequence in zip(found, sequences, strict=True):
            assert scored == pytest.approx(naive(policy, adapter, sequence), abs=1e-5)


def test_a_sequence_without_trained_tokens_has_no_logprobs(policy, adapter_of, group):
    [scored] = group(1, 3, [[2]])
    found = Scorer(policy).logprobs(adapter_of(policy), [TokenSequence(), scored, TokenSequence()])
    assert [len(each) for each in found] == [0, 2, 0]
    assert Scorer(policy).logprobs(adapter_of(policy), []) == []


def test_what_was_sampled_has_the_logprobs_that_were_recorded_with_it(policy, adapter_of, group):
    [asked] = group(1, 9, [[1]])
    adapter, model = adapter_of(policy), policy.lora_copy()
    write_adapter(model, adapter)
    rows = decode(model, [CompletionRequest(tuple(asked.ids[:9]), 20, index=i) for i in range(4)], policy.end_ids)
    sequences = [TokenSequence() for _ in rows]
    for sequence, row in zip(sequences, rows, strict=True):
        sequence.ids.extend([*asked.ids[:9], *row.tokens])
        sequence.trained.extend([0] * 9 + [1] * len(row.tokens))
    for scored, row in zip(Scorer(policy).logprobs(adapter, sequences), rows, strict=True):
        assert scored == pytest.approx(row.logprobs, abs=1e-4)


def test_what_is_longer_than_the_context_is_refused_with_its_length(policy, adapter_of, group):
    with pytest.raises(RenderingError, match=r"129 tokens .* context of 128"):
        Scorer(policy).logprobs(adapter_of(policy), group(1, 9, [[120]]))


def test_calls_at_the_same_time_do_not_mix_their_adapters(policy, adapter_of, group):
    scorer, sequences = Scorer(policy), group(1, 10, [[5], [8]])
    adapters = [adapter_of(policy, seed) for seed in range(4)]
    expected = [scorer.logprobs(adapter, sequences) for adapter in adapters]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda adapter: scorer.logprobs(adapter, sequences), adapters * 3))
    assert found == expected * 3
