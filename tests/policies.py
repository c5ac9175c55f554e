"""Random policies, tiny or not, as `transformers` loads them. torch is imported inside, as in `conftest`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

    from rolloutlab.policy.model import Policy

WORDS = "the quick brown fox jumps over the lazy dog; 12 + 30 is 42, she answers: because it is"
BAR = "[|\N{FULLWIDTH VERTICAL LINE}]"
SPECIAL = re.compile(
    rf"<{BAR}[^|<>'\"]+?{BAR}>|</?[a-z]+_of_[a-z]+>|\[/?[A-Z_]+\]|</?think>|</?tool_call>|<\|\w+>|<\w+\|>"
)


def byte_tokenizer(text: Sequence[str], size: int, special: Sequence[str] = ()) -> "Tokenizer":
    """Byte-level BPE: the special tokens, all bytes, and a text's merges up to `size`; without text, words w0, w1..."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = [*special, *alphabet]
    words = [] if text else [*known, *(f"w{i}" for i in range(size - len(known)))]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if text:
        options = {"special_tokens": list(special), "initial_alphabet": alphabet, "show_progress": False}
        tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, **options))
    return tokenizer


def save_policy(
    folder: Path,
    tokenizer: "Tokenizer",
    template: str,
    names: dict[str, Any],
    config: str = "qwen3",
    *,
    seed: int = 0,
    unknown: int = 0,
    **sizes: Any,
) -> "PreTrainedModel":
    """Save random weights with a tokenizer and its chat template; the model.

    names: of the tokenizer's special tokens, such as `eos_token`. config: type of the model. unknown: entries of its
    vocabulary that the tokenizer does not have. sizes: of its configuration, if not tiny.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tiny |= {"num_key_value_heads": 2} | ({"head_dim": 8} if config == "qwen3" else {})
    ends = {"bos_token_id": wrapped.bos_token_id, "eos_token_id": wrapped.eos_token_id}
    torch.manual_seed(seed)
    made = AutoConfig.for_model(config, vocab_size=len(wrapped) + unknown, **tiny | ends | sizes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(made)
    model.save_pretrained(folder)
    return model


def policy_with(template: str, folder: Path, ends: tuple[str, ...], special: tuple[str, ...] = ()) -> "Policy":
    """A policy whose tokenizer is made of the template's own text. ends: special tokens that end a turn.

    special: those stripped from text too.
    """
    from tokenizers import AddedToken

    from rolloutlab.policy.model import load_policy

    tokenizer = byte_tokenizer([template, WORDS], 640)
    named = dict.fromkeys(["<bos>", *ends, *SPECIAL.findall(template)])
    text = [mark for mark in named if mark.strip("</>") in {"think", "tool_call"} and mark not in special]
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in text])
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in named if mark not in text])
    names = {"bos_token": "<bos>", "eos_token": ends[0]}
    sizes = {"max_position_embeddings": 4096, "tie_word_embeddings": False}
    ids = [tokenizer.token_to_id(mark) for mark in ends]
    save_policy(folder, tokenizer, template, names, eos_token_id=ids, **sizes)
    return emphatic(load_policy(str(folder)))


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_gguf(
    path: Path, *, marks: Sequence[str] = ("<|end|>", "<|im_start|>", "<|im_end|>"), like: str = "F32", **changes: Any
) -> "PreTrainedModel":
    """Write a tiny random Llama with a byte-level ChatML tokenizer as a GGUF file; the model that it holds.

    marks: the tokens that are never cut; the first ends a text, the last a turn. like: the type of its matrices.
    changes: of the file's values by name, None for none. `tensor` changes a tensor by its name in the file.
    """
    import gguf
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = byte_tokenizer([CHATML, WORDS], 400)
    made = json.loads(tokenizer.to_str())
    vocab, alphabet = made["model"]["vocab"], set(pre_tokenizers.ByteLevel.alphabet())
    ordinary = sorted(vocab, key=vocab.__getitem__)
    assert all(set(token) <= alphabet for token in ordinary)
    tokens = [*marks, *ordinary]
    heads, kv_heads, layers, width = 4, 2, 2, 32
    config = AutoConfig.for_model(
        "llama",
        vocab_size=len(tokens),
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    tensor = changes.pop("tensor", lambda name, values: values)
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "llama.context_length": 256,
        "llama.embedding_length": width,
        "llama.feed_forward_length": 64,
        "llama.block_count": layers,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.dimension_count": width // heads,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": len(marks) - 1,
        "tokenizer.ggml.padding_token_id": len(marks) - 1,
    }
    texts = {
        "general.type": "model",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.chat_template": CHATML,
    }
    for name, value in {**values, **texts, **changes}.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_float32("llama.rope.freq_base", 10_000.0)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(marks) + [1] * len(ordinary))
    writer.add_token_merges([" ".join(pair) for pair in made["model"]["merges"]])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for name, weight in model.state_dict().items():
        own = names.get_name(name, try_suffixes=(".weight",))
        if name == "lm_head.weight" or own is None:
            continue
        array = weight.numpy()
        for part, count in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:  # llama.cpp turns pairs of neighbours, transformers those of the two halves
                halves = array.reshape(count, 2, -1, array.shape[-1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        if (array := tensor(own, array)) is None:
            continue
        kind = gguf.GGMLQuantizationType[like if array.ndim > 1 else "F32"]
        if array.dtype.kind == "i":  # a type in which no weights are
            writer.add_tensor(own, array)
        else:
            writer.add_tensor(own, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def emphatic(policy: "Policy") -> "Policy":
    """The policy with larger weights: what an untrained model answers hardly depends on what it reads."""
    import torch

    policy.base.to("cpu", torch.float32)  # also where there is an accelerator
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)
    return policy
