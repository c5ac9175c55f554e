"""Random policies, tiny or not, as `transformers` loads them. torch is imported inside, as in `conftest`."""

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


def emphatic(policy: "Policy") -> "Policy":
    """The policy with larger weights: what an untrained model answers hardly depends on what it reads."""
    import torch

    policy.base.to("cpu", torch.float32)  # also where there is an accelerator
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)
    return policy
