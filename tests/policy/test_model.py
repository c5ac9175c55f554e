"""A policy is loaded or refused in words, and its copies share what never changes."""

import json
import shutil
from itertools import chain
from pathlib import Path

import pytest
import torch

from rolloutlab.errors import PolicyError
from rolloutlab.policy.model import (
    Policy,
    adapter_parameters,
    base_of,
    load_policy,
    read_adapter,
    write_adapter,
)
from rolloutlab.settings import ModelSettings

IDS = torch.tensor([[0, 20, 30, 40, 50, 60]])


@pytest.fixture(scope="module")
def policy(tiny_policy) -> Policy:
    return load_policy(str(tiny_policy))


@pytest.fixture
def folder(tiny_policy, tmp_path) -> Path:
    """A copy of the tiny policy, to spoil."""
    return Path(shutil.copytree(tiny_policy, tmp_path / "spoilt"))


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS.to(model.device)).logits.float()


def changed(policy: Policy, seed: int = 0) -> dict[str, torch.Tensor]:
    """The values of an adapter that does something."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t + 0.1 * torch.randn(t.shape, generator=generator)
        for name, t in read_adapter(policy.lora_copy()).items()
    }


def test_a_folder_becomes_a_policy_named_after_it(policy, tiny_policy):
    assert policy.name == tiny_policy.name
    assert policy.context == 128
    assert policy.end_ids == {policy.tokenizer.convert_tokens_to_ids("</s>")}


def test_a_small_policy_has_the_rank_and_the_learning_rate_of_small_ones(policy):
    assert (policy.lora.r, policy.lora.lora_alpha, policy.learning_rate) == (16, 32, 2e-3)


def test_a_row_is_of_1024_tokens_for_small_policies_and_of_2048_for_larger_ones(policy, folder, monkeypatch):
    assert policy.batch_tokens == 1024
    monkeypatch.setattr("rolloutlab.policy.model._SMALL", 1000)
    assert load_policy(str(folder)).batch_tokens == 2048


@pytest.mark.parametrize(("context", "batch_tokens"), [(96, 960), (1000, 1000), (32768, 1024)])
def test_a_batch_is_a_whole_number_of_contexts_where_they_fit(folder, context, batch_tokens):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": context}))
    assert load_policy(str(folder)).batch_tokens == batch_tokens


def test_all_the_tokens_that_end_a_turn_are_known(folder):
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [1, 2]}))
    assert load_policy(str(folder)).end_ids == {1, 2}


@pytest.mark.parametrize("name", ["no such policy", "./nowhere", "../nowhere/at-all"])
def test_an_unknown_name_is_refused_by_name(name):
    with pytest.raises(PolicyError) as caught:
        load_policy(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"nowhere' could not be loaded: there is no such folder") as caught:
        load_policy(str(tmp_path / "nowhere"))
    assert caught.value.hint == "practice, a folder, or ORG/NAME of the hub"


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="could not be loaded") as caught:
        load_policy(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_with_a_damaged_file_is_refused(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-10])
    with pytest.raises(PolicyError, match="could not be loaded"):
        load_policy(str(folder))


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match="could not be loaded"):
        load_policy(str(folder))


def test_a_policy_without_a_chat_template_is_refused(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="no chat template") as caught:
        load_policy(str(folder))
    assert caught.value.hint


def test_a_carrier_uses_the_tensors_of_the_base_and_not_copies(policy):
    carrier = policy.lora_copy()
    places = {t.data_ptr() for t in chain(carrier.parameters(), carrier.buffers())}
    assert places >= {t.data_ptr() for t in chain(policy.base.parameters(), policy.base.buffers())}
    own = sum(t.numel() for t in carrier.parameters()) - sum(t.numel() for t in policy.base.parameters())
    assert own == sum(t.numel() for t in adapter_parameters(carrier).values())


def test_carriers_have_adapters_of_their_own(policy):
    first, second = policy.lora_copy(), policy.lora_copy()
    ours = {t.data_ptr() for t in adapter_parameters(first).values()}
    assert ours.isdisjoint(t.data_ptr() for t in adapter_parameters(second).values())
    before = logits(second)
    write_adapter(first, changed(policy))
    assert torch.equal(logits(second), before)
    assert not torch.allclose(logits(first), before)


def test_carriers_are_all_alike_whatever_was_random_before(policy, tiny_policy):
    torch.manual_seed(1)
    first = read_adapter(policy.lora_copy())
    torch.manual_seed(2)
    second = read_adapter(policy.lora_copy())
    reloaded = read_adapter(load_policy(str(tiny_policy)).lora_copy())
    assert first.keys() == second.keys() == reloaded.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert torch.equal(tensor, reloaded[name])


def test_making_a_carrier_does_not_touch_the_global_random_numbers(policy):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    policy.lora_copy()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_new_carrier_says_what_the_base_says(policy):
    assert torch.allclose(logits(policy.lora_copy()), logits(policy.base), atol=1e-6)


def test_the_base_never_trains_and_carries_no_adapter(tiny_policy):
    policy = load_policy(str(tiny_policy))
    assert not any(parameter.requires_grad for parameter in policy.base.parameters())
    policy.lora_copy()
    assert not any(parameter.requires_grad for parameter in policy.base.parameters())
    assert not any("lora" in name for name, _ in policy.base.named_parameters())


def test_what_trains_is_the_adapter_in_full_precision(policy):
    parameters = adapter_parameters(policy.lora_copy())
    assert parameters
    assert all("lora" in name and p.dtype == torch.float32 for name, p in parameters.items())
    trains = sum(p.numel() for p in parameters.values())
    assert trains == sum(t.numel() for t in read_adapter(policy.lora_copy()).values())


def test_an_adapter_read_back_is_the_one_that_was_written(policy):
    carrier, adapter = policy.lora_copy(), changed(policy)
    write_adapter(carrier, adapter)
    found = read_adapter(carrier)
    assert found.keys() == adapter.keys()
    assert all(torch.equal(found[name], adapter[name]) for name in adapter)


def test_an_adapter_is_read_as_a_copy_and_written_into_place(policy):
    carrier = policy.lora_copy()
    initial = read_adapter(carrier)
    kept = {name: tensor.clone() for name, tensor in initial.items()}
    places = [p.data_ptr() for p in adapter_parameters(carrier).values()]
    adapter = changed(policy)
    write_adapter(carrier, adapter)
    for tensor in adapter.values():
        tensor.zero_()
    assert [p.data_ptr() for p in adapter_parameters(carrier).values()] == places
    assert all(torch.equal(initial[name], kept[name]) for name in kept)
    assert all(tensor.any() for tensor in read_adapter(carrier).values())


def test_writing_the_first_adapter_again_gives_the_first_model_back(policy):
    carrier = policy.lora_copy()
    initial, before = read_adapter(carrier), logits(carrier)
    write_adapter(carrier, changed(policy))
    write_adapter(carrier, initial)
    assert torch.equal(logits(carrier), before)


@pytest.mark.parametrize("small", [True, False])
def test_a_speaker_says_what_a_carrier_of_the_adapter_says_and_leaves_the_base_alone(policy, small, monkeypatch):
    monkeypatch.setattr("rolloutlab.policy.model._SMALL", 1e9 if small else 0)
    before = logits(policy.base)
    carrier = policy.lora_copy()
    speaker = None
    for seed in (1, 2):
        write_adapter(carrier, changed(policy, seed))
        speaker = policy.with_adapter(changed(policy, seed), speaker)
        assert torch.allclose(logits(speaker), logits(carrier), atol=1e-4)
        assert not torch.allclose(logits(speaker), before, atol=1e-2)
    assert torch.equal(logits(policy.base), before)


def test_a_speaker_under_an_adapter_that_does_not_fit_is_refused(policy):
    with pytest.raises(RuntimeError):
        policy.with_adapter({name: tensor[:-1] for name, tensor in changed(policy).items()})


def test_rank_alpha_and_targets_are_those_of_the_settings(tiny_policy):
    policy = load_policy(str(tiny_policy), ModelSettings(lora_rank=3, lora_alpha=5, lora_targets="v_proj, q_proj"))
    adapter = changed(policy)
    assert {name.split(".")[-3] for name in adapter} == {"q_proj", "v_proj"}
    assert {min(tensor.shape) for tensor in adapter.values()} == {3}
    assert policy.bound_options == ("--lora-rank=3", "--lora-alpha=5", "--lora-targets=q_proj,v_proj")
    carrier = policy.lora_copy()
    write_adapter(carrier, adapter)
    assert torch.allclose(logits(policy.with_adapter(adapter)), logits(carrier), atol=1e-4)


def test_an_alpha_that_is_not_given_is_twice_the_rank_and_no_option(tiny_policy):
    policy = load_policy(str(tiny_policy), ModelSettings(lora_rank=3))
    assert (policy.lora.lora_alpha, policy.bound_options) == (6, ("--lora-rank=3",))


@pytest.mark.parametrize("given", [{}, {"lora_rank": 16}, {"lora_alpha": 32}, {"lora_targets": "all-linear"}])
def test_the_default_is_no_option_also_where_it_is_given(tiny_policy, given):
    assert load_policy(str(tiny_policy), ModelSettings(device="cpu", dtype="float32", **given)).bound_options == ()


def test_a_target_that_no_layer_has_for_a_name_is_refused_with_those_that_there_are(tiny_policy):
    with pytest.raises(PolicyError, match="no linear layer 'query'") as refused:
        load_policy(str(tiny_policy), ModelSettings(lora_targets="q_proj,query"))
    assert "q_proj" in refused.value.hint


def test_a_device_that_is_not_there_is_refused(tiny_policy, monkeypatch):
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(PolicyError, match="no device 'mps'") as refused:
        load_policy(str(tiny_policy), ModelSettings(device="mps"))
    assert refused.value.hint == "--device cpu"


def test_in_bf16_the_adapter_stays_in_fp32_and_logprobs_are_fp32(tiny_policy):
    policy = load_policy(str(tiny_policy), ModelSettings(dtype="bfloat16", device="cpu"))
    assert policy.base.dtype == torch.bfloat16
    assert policy.bound_options == ("--dtype=bfloat16",)
    assert {p.dtype for p in adapter_parameters(policy.lora_copy()).values()} == {torch.float32}
    assert {tensor.dtype for tensor in read_adapter(policy.lora_copy()).values()} == {torch.float32}


def test_a_base_is_the_same_one_under_a_newer_release_of_transformers(policy, monkeypatch):
    before = base_of(policy).fingerprint
    monkeypatch.setattr("transformers.configuration_utils.__version__", "99.0.0")
    assert "99.0.0" in policy.base.config.to_json_string()
    assert base_of(policy).fingerprint == before
