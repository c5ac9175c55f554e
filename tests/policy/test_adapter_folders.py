"""Adapter folders as TRL and peft save them: checkpoint 0 is the adapter, and a folder that cannot be is refused."""

import json
import shlex
import shutil
import warnings

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GptOssConfig, GraniteMoeConfig, Lfm2MoeConfig

from rolloutlab.errors import PolicyError
from rolloutlab.policy.adapter_folder import merge_command
from rolloutlab.policy.model import base_of, describe, load_policy

IDS = torch.tensor([[0, 2, 50, 99, 3, 120]])
KINDS = {
    "lora": {},
    "DoRA": {"use_dora": True},
    "ranks by pattern": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 9}},
    "rank-stabilised": {"use_rslora": True},
    "modules to save": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "a regular expression": {"target_modules": r".*\.layers\.1\.self_attn\.(q|v)_proj"},
    "biases": {"bias": "lora_only"},
}


@pytest.fixture
def saved(tiny_policy, tmp_path):
    """Saves an adapter of the tiny policy that does something; the folder."""

    def make(config=None, *, safe=True, tokenizer=True, base=tiny_policy, new_tokens=(), padded=None, **options):
        folder = tmp_path / "adapter"
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(base)
        words = AutoTokenizer.from_pretrained(base)
        if words.add_tokens(list(new_tokens)):
            model.resize_token_embeddings(len(words), pad_to_multiple_of=padded)
        options = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = get_peft_model(model, config or LoraConfig(**options))
            for name, parameter in adapted.named_parameters():
                if parameter.requires_grad and "magnitude" not in name:
                    parameter.data += 0.3 * torch.randn_like(parameter)
            adapted.save_pretrained(folder, safe_serialization=safe)
        if tokenizer:
            words.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(params=[False, True], ids=["apart", "tied"])
def base(request, tiny_policy, tmp_path):
    """The tiny policy, whose output layer has weights of its own or those of the embedding."""
    folder = tmp_path / "base"
    AutoTokenizer.from_pretrained(tiny_policy).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    if request.param:
        model.lm_head.weight = model.model.embed_tokens.weight
        model.config.tie_word_embeddings = True
    model.save_pretrained(folder)
    return folder


def logits_of(folder, base):
    """The logits of an adapter that is not merged."""
    model = AutoModelForCausalLM.from_pretrained(base)
    if (size := len(AutoTokenizer.from_pretrained(folder))) > model.config.vocab_size:
        model.resize_token_embeddings(size)
    return logits(PeftModel.from_pretrained(model, folder))


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_0_of_an_adapter_folder_is_the_adapter(saved, tiny_policy, kind):
    folder = saved(**KINDS[kind])
    expected = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_policy), folder))
    policy = load_policy(str(folder))
    first = policy.lora_copy()
    assert torch.allclose(logits(policy.base), expected, atol=1e-4)
    assert torch.allclose(logits(first), expected, atol=1e-4)
    assert not torch.allclose(logits(load_policy(str(tiny_policy)).base), expected, atol=1e-2)
    assert base_of(policy).fingerprint != base_of(load_policy(str(tiny_policy))).fingerprint
    [note] = base_of(policy).notes()
    assert note.startswith(f"adapter is an adapter, and is merged into its base {tiny_policy}: ")


@pytest.mark.filterwarnings("ignore:You have requested")
@pytest.mark.parametrize("tokens", [{}, {"trainable_token_indices": {"embed_tokens": [3, 50]}}])
def test_embeddings_that_were_padded_in_training_are_taken_with_their_padding(saved, tiny_policy, tokens):
    named = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", *["embed_tokens"] * (not tokens)]}
    folder = saved(new_tokens=("<one>", "<two>"), padded=64, **named, **tokens)
    rows = load_file(folder / "adapter_model.safetensors")["base_model.model.lm_head.weight"].shape[0]
    base = AutoModelForCausalLM.from_pretrained(tiny_policy)
    assert rows % 64 == 0
    assert rows > len(AutoTokenizer.from_pretrained(folder))
    base.resize_token_embeddings(rows)
    expected = logits(PeftModel.from_pretrained(base, folder))
    assert torch.allclose(logits(load_policy(str(folder)).base), expected, atol=1e-4)


EMBEDDINGS = {
    "the embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "the output layer": {"target_modules": ["lm_head", "q_proj"]},
    "both": {"target_modules": ["embed_tokens", "lm_head"]},
    "both alike": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "a copy of the embedding": {"modules_to_save": ["embed_tokens"]},
    "copies of both": {"modules_to_save": ["lm_head", "embed_tokens"]},
    "some tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [3, 50]},
}


@pytest.mark.filterwarnings("ignore:Model .* `tie_word_embeddings")
@pytest.mark.filterwarnings("ignore:You have requested")
@pytest.mark.parametrize(
    ("kind", "new_tokens"),
    [*((kind, ("<one>", "<two>")) for kind in EMBEDDINGS), ("both alike", ()), ("copies of both", ())],
)
def test_an_adapter_of_embeddings_is_merged_where_they_are_shared_and_where_tokens_were_added(
    saved, base, kind, new_tokens
):
    folder = saved(base=base, new_tokens=new_tokens, **EMBEDDINGS[kind])
    policy = load_policy(str(folder))
    expected = logits_of(folder, base)
    assert torch.allclose(logits(policy.base), expected, atol=1e-4)
    assert torch.allclose(logits(policy.lora_copy()), expected, atol=1e-4)


HALVES = {
    "LoRA": (LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]), "lora_A"),
    "IA3": (IA3Config(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], feedforward_modules=[]), "ia3_l"),
    "LoHa": (LoHaConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]), "hada_w1_a"),
    "biases": (LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], bias="all"), ".bias"),
    "modules to save": (LoraConfig(task_type="CAUSAL_LM", modules_to_save=["lm_head"]), "lm_head"),
}


@pytest.mark.parametrize("kind", HALVES)
def test_an_adapter_whose_file_lacks_tensors_is_refused(saved, tiny_policy, tmp_path, kind):
    config, lacking = HALVES[kind]
    biased = tmp_path / "biased"
    AutoTokenizer.from_pretrained(tiny_policy).save_pretrained(biased)
    AutoModelForCausalLM.from_pretrained(tiny_policy, attention_bias=True).save_pretrained(biased)
    folder = saved(config, base=biased)
    tensors = load_file(folder / "adapter_model.safetensors")
    assert any(lacking in name for name in tensors)
    kept = {name: tensor for name, tensor in tensors.items() if lacking not in name}
    save_file(kept, folder / "adapter_model.safetensors")
    with pytest.raises(PolicyError, match=rf"cannot be merged into .*{lacking}"):
        load_policy(str(folder))


def test_a_model_that_merging_makes_another_one_is_refused(saved, monkeypatch):
    folder = saved()
    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self, **_: self.unload(), raising=False)
    with pytest.raises(PolicyError, match=r"merged, its logits differ by \d+% from those of the adapter"):
        load_policy(str(folder))


def test_an_adapter_in_a_bin_file_and_without_a_tokenizer_is_read_with_that_of_its_base(saved, tiny_policy):
    folder = saved(tokenizer=False)
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    expected = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_policy), folder))
    (folder / "adapter_model.safetensors").unlink()
    policy = load_policy(str(folder))
    assert torch.allclose(logits(policy.base), expected, atol=1e-4)
    assert policy.tokenizer.chat_template == load_policy(str(tiny_policy)).tokenizer.chat_template


def change(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_an_adapter_whose_base_is_not_there_is_refused(saved):
    folder = saved()
    change(folder, base_model_name_or_path="/nowhere/base")
    with pytest.raises(PolicyError, match="is an adapter of '/nowhere/base', which could not be loaded") as told:
        load_policy(str(folder))
    assert told.value.hint == "base_model_name_or_path in adapter_config.json: where its base is"
    change(folder, base_model_name_or_path=None)
    with pytest.raises(PolicyError, match=r"its adapter_config\.json names no base model"):
        load_policy(str(folder))


@pytest.mark.parametrize("relative", ["../base", "base", "./adapter/../base"])
@pytest.mark.parametrize("working", ["elsewhere", "."])
@pytest.mark.parametrize("base", [False], ids=["apart"], indirect=True)
def test_a_relative_base_is_found_from_the_working_folder_and_beside_the_adapter(
    saved, base, tmp_path, monkeypatch, relative, working
):
    folder = saved(base=base)
    expected = logits_of(folder, base)
    change(folder, base_model_name_or_path=relative)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / working)
    assert torch.allclose(logits(load_policy(str(folder)).base), expected, atol=1e-4)


@pytest.mark.parametrize("absent", ["../absent", "./absent", "runs/of/mine", "/absent"])
def test_a_base_that_is_no_folder_is_called_that(saved, absent):
    folder = saved()
    change(folder, base_model_name_or_path=absent)
    with pytest.raises(PolicyError, match=f"adapter of '{absent}', which could not be loaded: there is no such folder"):
        load_policy(str(folder))


def test_an_adapter_that_does_not_fit_its_base_is_refused(saved, tiny_policy, policy_of, tmp_path):
    folder = saved()
    change(folder, task_type="SEQ_CLS")
    with pytest.raises(PolicyError, match="cannot be merged into"):
        load_policy(str(folder))
    change(folder, task_type="CAUSAL_LM", target_modules=["q_proj"])
    with pytest.raises(PolicyError, match=r"it has other layers: .*lora_A"):
        load_policy(str(folder))
    shutil.rmtree(folder)
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(PolicyError, match="cannot be merged into"):
        load_policy(str(saved(prompts)))


@pytest.mark.filterwarnings("ignore:Model .* `tie_word_embeddings")
@pytest.mark.parametrize("options", [{}, {"target_modules": ["embed_tokens"], "new_tokens": ["<one>"]}])
def test_an_engine_elsewhere_refuses_an_adapter_with_what_merges_it(saved, base, options):
    folder = saved(base=base, **options)
    change(folder, base_model_name_or_path="../base")
    with pytest.raises(PolicyError, match="this engine needs a whole model") as told:
        describe(str(folder))
    python, *arguments = shlex.split(told.value.hint)  # as a shell takes it
    assert (python, arguments) == ("python", ["-c", merge_command(str(folder))])
    exec(arguments[1], {})
    whole = load_policy(f"{folder}-merged")
    assert torch.allclose(logits(whole.base), logits(load_policy(str(folder)).base), atol=1e-5)
    assert base_of(whole).notes() == []


MIXTURES = {
    "gpt-oss": (GptOssConfig, {"head_dim": 8, "num_local_experts": 4, "num_key_value_heads": 2}, "mlp"),
    "granite": (GraniteMoeConfig, {"num_local_experts": 4, "num_key_value_heads": 2}, "block_sparse_moe"),
    "lfm2": (
        Lfm2MoeConfig,
        {"num_experts": 4, "num_dense_layers": 1, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
        | {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
        "feed_forward",
    ),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_experts_that_no_adapter_reaches_are_named_at_the_start(policy_of, mixture):
    config, overrides, module = MIXTURES[mixture]
    policy = policy_of(config, **overrides)
    note = next(note for note in base_of(policy).notes() if "no adapter" in note)
    for tensor in ("gate_up_proj", "down_proj"):
        assert f"model.layers.*.{module}.experts.{tensor}" in note
    assert "of the parameters) of " in note
    assert "conv" not in note
