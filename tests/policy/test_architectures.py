"""Small policies of other architectures: sampled beside others, under an adapter, and trained."""

import copy

import pytest
import torch
from transformers import BloomConfig, FalconH1Config, GPT2Config, Lfm2Config, MixtralConfig, RwkvConfig

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import PolicyError
from rolloutlab.policy.capabilities import Probe
from rolloutlab.policy.decode import CompletionRequest, Decoder
from rolloutlab.policy.model import base_of, write_adapter
from tests.decoding import decode

LFM2 = Lfm2Config, {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}
KINDS = [
    pytest.param((GPT2Config, {}), id="gpt2, whose weights are the other way round"),
    pytest.param(
        (MixtralConfig, {"num_key_value_heads": 2, "num_local_experts": 4}), id="mixtral, a mixture of experts"
    ),
    pytest.param(LFM2, id="lfm2, with convolutions"),
]


@pytest.fixture(scope="module", params=KINDS)
def other(request, policy_of):
    config, overrides = request.param
    return policy_of(config, **overrides)


def test_what_an_adapter_reaches_is_not_named_as_left_out(other):
    assert not [note for note in base_of(other).notes() if "no adapter" in note]


def read_whole(model, ids):
    """Logprobs of every next token, read at once and without a cache."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


def test_a_speaker_under_an_adapter_says_what_a_carrier_says(other, adapter_of):
    adapter, ids = adapter_of(other), [0, 2, 50, 99, 3, 120]
    carrier = other.lora_copy()
    write_adapter(carrier, adapter)
    before = copy.deepcopy(other.base.state_dict())
    said = read_whole(other.with_adapter(adapter), ids)
    assert torch.allclose(said, read_whole(carrier, ids), atol=1e-4)
    assert not torch.allclose(said, read_whole(other.base, ids), atol=1e-2)
    assert all(torch.equal(weight, before[name]) for name, weight in other.base.state_dict().items())


def test_completions_that_join_and_leave_are_those_of_a_policy_that_reads_all_at_once(other, adapter_of):
    speaker = other.with_adapter(adapter_of(other))
    decoder = Decoder(speaker, frozenset())
    requests = [
        CompletionRequest((0, 2, 50, 99, 3), 9, seed=1),
        CompletionRequest((0, 2), 4, seed=2),
        CompletionRequest((0, 3, 77, 120, 9, 41, 5, 6), 6, seed=3),
    ]
    ended = []
    for request in requests:
        decoder.admit([request])
        ended += decoder.step()
        ended += decoder.step()
    while len(decoder):
        ended += decoder.step()
    assert len(ended) == len(requests)
    for row in ended:
        alone = decode(speaker, [row.request], frozenset())[0]
        assert row.tokens == alone.tokens
        said = read_whole(speaker, [*row.request.prompt, *row.tokens])
        first = len(row.request.prompt) - 1
        expected = [float(said[first + i, token]) for i, token in enumerate(row.tokens)]
        assert row.logprobs == pytest.approx(expected, abs=1e-4)


def test_such_a_policy_is_sampled_trained_and_sampled_again(other, start):
    service = start(other)
    model, asked = service.register(), {"role": "user", "content": "the quick brown fox"}
    choices = service.chat(messages=[asked], model="lab/first", n=4, seed=2, max_tokens=12).choices
    trajectories = [
        {"messages_and_choices": [asked, choice.to_wire()], "reward": float(i)} for i, choice in enumerate(choices)
    ]
    job = {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    events = service.ended(service.train(CreateTrainingJob.model_validate(job)))
    step = next(event.data for event in events if event.type == "gradient_step")
    assert step["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert service.chat(model="lab/first").model == "lab/first@1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_convolves_tokens_with_those_before_never_shares_prompts(policy_of, dtype):
    config, overrides = LFM2
    base = copy.deepcopy(policy_of(config, **overrides).base)
    for name, weight in base.named_parameters():
        if "conv.conv" in name:
            weight.data.mul_(1e-3)  # so little that rounding in bf16 hides it
    assert not Probe(base.to(dtype)).shares(64)


def test_a_policy_that_reads_otherwise_with_a_cache_is_refused_when_it_is_loaded(policy_of):
    with pytest.raises(
        PolicyError, match=r"cannot be sampled: logprobs of sampled tokens are \S+ from those of a pass"
    ):
        policy_of(RwkvConfig, attention_hidden_size=32, context_length=128)


def test_the_context_of_a_model_is_read_under_any_of_its_names(policy_of):
    with pytest.raises(PolicyError, match="does not say how many tokens it can read"):
        policy_of(BloomConfig, n_head=4, max_position_embeddings=None)
    assert policy_of(BloomConfig, n_head=4, max_position_embeddings=None, seq_length=96).context == 96


def test_a_policy_from_which_no_token_can_be_sampled_is_refused_when_it_is_loaded(policy_of):
    sizes = {"num_key_value_heads": 2, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
    with pytest.raises(PolicyError, match="the policy 'falcon_h1' cannot be sampled: "):
        policy_of(FalconH1Config, **sizes)
