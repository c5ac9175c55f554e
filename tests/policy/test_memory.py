"""Memory after sampling and training: nothing that was computed stays, and what is free goes back to the system."""

import ctypes
import gc
import os
import platform
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rolloutlab.policy import forward, sampler, trainer
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.forward import Forward, Scorer
from rolloutlab.policy.model import Policy, load_policy, read_adapter
from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.share import release_memory
from rolloutlab.policy.token_sequence import TokenSequence
from tests.policy.test_trainer import as_job, large_groups, run, small_job

MEGABYTE = 1 << 20


class Large(Policy):
    """A policy that is handled as one of more than 20M parameters."""

    small = False


@pytest.fixture(scope="module")
def large(tiny_policy) -> Policy:
    policy = load_policy(str(tiny_policy))
    policy.base.to("cpu", torch.float32)
    return Large(**vars(replace(policy, workers=1, batch_tokens=64, end_ids=frozenset())))


@pytest.fixture
def released(monkeypatch) -> list[str]:
    """Who has given memory back, in order."""
    calls: list[str] = []
    for module in (forward, sampler, trainer):
        monkeypatch.setattr(module, "release_memory", lambda name=module.__name__: calls.append(name))
    return calls


def live_bytes() -> int:
    """The bytes of all tensors that can be reached in this process."""
    gc.collect()
    found = [each for each in gc.get_objects() if type(each) in {torch.Tensor, torch.nn.Parameter}]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())


def test_a_sampler_at_rest_holds_neither_caches_nor_logits_of_any_model(large):
    adapters = [read_adapter(large.lora_copy()) for _ in range(4)]
    requests = [CompletionRequest((*range(1, 60), i), 4, index=i) for i in range(40)]
    held = []
    for used in (adapters[:1], adapters[:1] * 4, adapters):
        resting = Sampler(large)
        before = live_bytes()
        for adapter in used:
            resting.submit(adapter, requests).result()
            resting.submit(adapter, requests[:1]).result()
        resting.close()
        held.append(live_bytes() - before)
    lane = sum(t.nbytes for t in adapters[0].values())
    assert max(held) <= 4 * lane + len(requests) * large.vocabulary  # a byte instead of a logit in fp32


def test_a_job_leaves_no_gradients(large):
    model = large.lora_copy()
    run(large, State(read_adapter(model), {}), small_job(1), model=model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_memory_is_given_back_between_the_batches_of_a_large_policy_alone(large, released, monkeypatch):
    passes, encode = [], Forward.__call__
    monkeypatch.setattr(Forward, "__call__", lambda *values: passes.append(1) or encode(*values))
    start, job = State(read_adapter(large.lora_copy()), {}), as_job(large_groups(), groups_per_step=0)
    run(large, start, job)
    assert len(passes) > 20
    assert len(released) >= len(passes)
    released.clear()
    run(Policy(**vars(large)), start, job)
    assert released == []


def test_memory_is_given_back_when_sampling_or_scoring_has_ended(large, released):
    adapter = read_adapter(large.lora_copy())
    resting = Sampler(large)
    resting.submit(adapter, [CompletionRequest((1, 2, 3), 4)]).result()
    resting.close()
    assert released
    assert set(released) == {"rolloutlab.policy.sampler"}
    released.clear()
    Scorer(large).logprobs(adapter, [TokenSequence(array("i", [1, 2]), bytearray([0, 1]), array("f", [0.0, -1.0]))])
    assert released == ["rolloutlab.policy.forward"]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps free memory in its own way")
def test_what_is_free_between_what_is_used_goes_back_to_the_system():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    size = 100_000  # smaller than what glibc maps by itself
    blocks = [libc.malloc(size) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # the last one keeps the others from being the end of the heap
        libc.free(block)
    before = resident()
    release_memory()
    assert before - resident() > 50 * MEGABYTE
    libc.free(blocks[-1])
