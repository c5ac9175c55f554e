"""A checkpoint that was taken away: merged or as an adapter, other tools load the model that the service samples."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rolloutlab.errors import PolicyError
from rolloutlab.policy.checkpoints import ADAPTER_CONFIG, State, adapter_sums, seal, write_state
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.merged_folder import write_merged
from rolloutlab.policy.model import fingerprint, load_policy, read_adapter
from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.tokenizer_files import tokenizer_files
from rolloutlab.settings import ModelSettings
from tests.policies import CHATML, WORDS, byte_tokenizer, save_policy, write_gguf

TOKENS, AT_ONCE, LEAST = 48, 48, 1000
NEAR = 1e-4
MARKS = ("<|end|>", "<|im_start|>", "<|im_end|>")
KINDS = {
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, untied": ("llama", {"tie_word_embeddings": False}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2, whose projections have biases": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3, whose heads are normalised": ("qwen3", {"tie_word_embeddings": False}),
    "gpt2, whose weights are transposed": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
}


@pytest.fixture
def made(tmp_path):
    """Makes a policy of a kind with an adapter that does something; the policy, and the adapter's folder."""

    def make(source, **settings):
        policy = load_policy(str(source), ModelSettings(device="cpu", dtype="float32", **settings))
        torch.manual_seed(1)
        adapter = {
            name: each + 0.05 * torch.randn_like(each) for name, each in read_adapter(policy.lora_copy()).items()
        }
        folder = tmp_path / "adapter"
        folder.mkdir()
        write_state(folder, State(adapter, {}), policy.lora)
        return policy, adapter, folder

    return make


@pytest.fixture
def tiny(tmp_path):
    """Writes a random policy of an architecture."""

    def write(config, **sizes):
        tokenizer = byte_tokenizer([CHATML, WORDS], 400, MARKS)
        names = {"eos_token": "<|im_end|>", "pad_token": "<|end|>"}
        folder = tmp_path / "base"
        save_policy(folder, tokenizer, CHATML, names, config, **{"max_position_embeddings": 256, **sizes})
        return folder

    return write


def sampled(policy, adapter, **settings):
    """Completions of the service's sampler under an adapter, with `LEAST` tokens or more."""
    sampler, rows = Sampler(policy), []
    try:
        while sum(len(each.tokens) for each in rows) < LEAST:
            prompts = [(1, 5 + i) for i in range(AT_ONCE)]
            asked = [CompletionRequest(each, TOKENS, index=len(rows) + i, **settings) for i, each in enumerate(prompts)]
            rows += sampler.submit(adapter, asked).result(120)
    finally:
        sampler.close()
    return rows


@torch.inference_mode()
def logprobs(model, completions):
    """The logprob of each sampled token."""
    return torch.cat([_of_one(model, torch.tensor([each.ids]))[-len(each.tokens) :] for each in completions])


def _of_one(model, ids):
    return model(input_ids=ids).logits[0, :-1].float().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def check_both(policy, adapter, folder, source, tmp_path):
    """Merged and as an adapter, the model has the logprobs that the service's has; the merged folder."""
    rows = sampled(policy, adapter)
    expected = torch.tensor([logprob for each in rows for logprob in each.logprobs])
    assert expected.numel() >= LEAST
    assert not torch.allclose(expected, logprobs(policy.base, rows), atol=0.01)
    on_base = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), folder)
    assert float((logprobs(on_base.eval(), rows) - expected).abs().max()) < NEAR
    write_merged(str(folder), str(tmp_path / "merged"), str(source), fingerprint(policy), "float32")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.dtype == torch.float32
    assert float((logprobs(merged, rows) - expected).abs().max()) < NEAR
    return tmp_path / "merged"


@pytest.mark.parametrize("kind", KINDS)
def test_merged_and_with_peft_it_has_the_logprobs_of_the_service(made, tiny, tmp_path, kind):
    config, sizes = KINDS[kind]
    source = tiny(config, **sizes)
    check_both(*made(source), source, tmp_path)


def test_so_has_the_practice_policy(made, practice_policy, tmp_path):
    check_both(*made("practice"), practice_policy.source, tmp_path)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
@pytest.mark.parametrize("tied", [True, False])
def test_an_adapter_on_the_output_layer_is_not_lost_where_its_weights_are_shared(made, tiny, tmp_path, tied):
    source = tiny("llama", tie_word_embeddings=tied)
    check_both(*made(source, lora_targets="lm_head,q_proj"), source, tmp_path)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


def test_a_gguf_file_is_merged_as_it_was_converted(made, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "small.gguf"
    write_gguf(file)
    policy, adapter, folder = made(file)
    assert policy.source != str(file)
    check_both(policy, adapter, folder, policy.source, tmp_path)


def test_the_merged_folder_is_a_policy_again_with_the_same_greedy_completions(made, practice_policy, tmp_path):
    policy, adapter, folder = made("practice")
    again = load_policy(str(check_both(policy, adapter, folder, practice_policy.source, tmp_path)))
    messages = [{"role": "user", "content": "hello"}]
    template = policy.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert again.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == template
    assert again.end_ids == policy.end_ids
    answers = [
        [each.ids for each in sampled(one, under, temperature=0.0)]
        for one, under in ((policy, adapter), (again, read_adapter(again.lora_copy())))
    ]
    assert answers[0] == answers[1]


def test_a_folder_has_what_other_tools_look_for(made, tiny, tmp_path):
    """`convert_hf_to_gguf.py` and vLLM read architectures, weights as safetensors, a fast tokenizer and a template."""
    source = tiny("llama")
    policy, _, folder = made(source)
    write_merged(str(folder), str(tmp_path / "merged"), str(source), fingerprint(policy), "float32")
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names >= {"generation_config.json", "chat_template.jinja"}
    assert AutoConfig.from_pretrained(tmp_path / "merged").architectures == ["LlamaForCausalLM"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert tokenizer.chat_template == policy.tokenizer.chat_template


def test_the_tokenizer_travels_in_files(policy, tmp_path):
    for name, content in tokenizer_files(policy.tokenizer).items():
        (tmp_path / name).write_bytes(content)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.chat_template == policy.tokenizer.chat_template
    assert again("the quick fox").input_ids == policy.tokenizer("the quick fox").input_ids


def test_another_base_under_the_same_name_is_refused(made, tiny, tmp_path):
    source = tiny("llama")
    policy, _, folder = made(source)
    expected = fingerprint(policy)
    tiny("llama", seed=5)
    with pytest.raises(PolicyError, match="is another base than the checkpoint was trained on"):
        write_merged(str(folder), str(tmp_path / "merged"), str(source), expected, "float32")
    assert not (tmp_path / "merged").exists()


def test_the_files_of_an_adapter_are_known_by_their_checksums(made, tiny, tmp_path):
    _, _, folder = made(tiny("llama"))
    seal(folder, tmp_path / "3")
    assert set(adapter_sums(tmp_path / "3")) == {"adapter_model.safetensors", ADAPTER_CONFIG}
