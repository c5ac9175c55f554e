"""Tiny random policies with a chat template: their tokenizer is made of the template's own text."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolloutlab.policy.model import Policy

WORDS = "the quick brown fox jumps over the lazy dog; 12 + 30 is 42, she answers: because it is"
BAR = "[|\N{FULLWIDTH VERTICAL LINE}]"
SPECIAL = re.compile(rf"<{BAR}[^|<>'\"]+?{BAR}>|</?[a-z]+_of_[a-z]+>|\[/?[A-Z_]+\]|</?think>|</?tool_call>")


def policy_with(template: str, folder: Path, ends: tuple[str, ...], special: tuple[str, ...] = ()) -> "Policy":
    """The policy in a new folder. ends: special tokens that end a turn. special: those stripped from text too."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from rolloutlab.policy.model import load_policy

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=640, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([template, WORDS], trainer)
    named = dict.fromkeys(["<bos>", *ends, *SPECIAL.findall(template)])
    text = [mark for mark in named if mark.strip("</>") in {"think", "tool_call"} and mark not in special]
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in text])
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in named if mark not in text])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token=ends[0])
    wrapped.chat_template = template
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(wrapped),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=wrapped.convert_tokens_to_ids(list(ends)))
    model.save_pretrained(folder)
    return emphatic(load_policy(str(folder)))


def emphatic(policy: "Policy") -> "Policy":
    """The policy with larger weights: what an untrained model answers hardly depends on what it reads."""
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)
    return policy
