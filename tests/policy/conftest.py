"""What the tests of this room share: tiny policies in fp32 on the CPU, and sequences to train."""

import shutil
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from rolloutlab.policy.model import Adapter, Policy, load_policy, read_adapter
from rolloutlab.policy.token_sequence import TokenSequence
from tests.policies import emphatic


@pytest.fixture(scope="module")
def policy(tiny_policy: Path) -> Policy:
    return emphatic(load_policy(str(tiny_policy)))


@pytest.fixture(scope="session")
def policy_of(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Policy]:
    """Makes the tiny policy of another architecture: the same tokenizer before other layers."""

    def make(config: type[PretrainedConfig], **overrides: object) -> Policy:
        folder = tmp_path_factory.mktemp("policies") / config.model_type
        shutil.copytree(tiny_policy, folder)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        torch.manual_seed(0)
        made = config(**{"vocab_size": 292, "max_position_embeddings": 128} | sizes | overrides)
        AutoModelForCausalLM.from_config(made).save_pretrained(folder)
        return emphatic(load_policy(str(folder)))

    return make


@pytest.fixture(scope="session")
def adapter_of() -> Callable[..., Adapter]:
    """Makes an adapter that does something: a new one is zero in half of its matrices."""

    def make(policy: Policy, seed: int = 1) -> Adapter:
        generator = torch.Generator().manual_seed(seed)
        adapter = read_adapter(policy.lora_copy())
        return {name: t + 0.05 * torch.randn(t.shape, generator=generator) for name, t in adapter.items()}

    return make


@pytest.fixture(scope="session")
def group() -> Callable[[int, int, Sequence[Sequence[int]]], list[TokenSequence]]:
    """Makes sequences of one random prompt: `turns` are lengths, sampled and not in turn, the first sampled."""

    def make(seed: int, prompt: int, turns: Sequence[Sequence[int]]) -> list[TokenSequence]:
        random = Random(seed)
        start = [random.randrange(4, 260) for _ in range(prompt)]
        sequences = []
        for lengths in turns:
            ids = array("i", start + [random.randrange(4, 260) for _ in range(sum(lengths))])
            trained = bytearray(prompt) + b"".join(bytes([(i + 1) % 2]) * n for i, n in enumerate(lengths))
            sequences.append(TokenSequence(ids, trained, array("f", [-5.0 if t else 0.0 for t in trained])))
        return sequences

    return make
