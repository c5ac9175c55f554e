"""Models made on the spot, to measure with; nothing is downloaded."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rolloutlab.policy.practice import FOLDER


@contextmanager
def mid_size(vocabulary: int = 32_000, hidden: int = 512, layers: int = 8) -> Iterator[Path]:
    """A folder with an untrained model of some 50M parameters that has the practice policy's tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        AutoTokenizer.from_pretrained(FOLDER).save_pretrained(name)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=4 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=2048,
            bos_token_id=None,
            eos_token_id=json.loads((FOLDER / "config.json").read_text())["eos_token_id"],
        )
        LlamaForCausalLM(config).save_pretrained(name)
        yield Path(name)
