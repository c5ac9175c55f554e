"""Sampling: this service's continuous batch against `generate` of transformers in static batches of the same size.

Both sides sample the same number of tokens for the same prompts from the very same model; ours also records logprobs
and takes each completion as a request of its own. Then the latency of a short chat, with the service idle and while it
trains.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from goals import Goal, conclude
from measure import THREADS, alone, best, packages_of
from models import mid_size
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from rolloutlab.api.inference import complete
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import Policy, limit_threads, load_policy, read_adapter
from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.source import source_of
from rolloutlab.policy.threads import end_helpers
from rolloutlab.session import Session
from rolloutlab.settings import Settings

LETTERS = ["d b a c", "s h i f", "q m e r", "z x w v"]
TOKENS = 64
BATCHES = (16, 64)
CHATS = 60
PROMPTS = 256
"""Of the job beside which short chats are timed, each with eight completions."""


def lengths(batch: int, ragged: bool) -> list[int]:
    """How many tokens each completion has: all the same, or from an eighth of that up to it."""
    return [TOKENS * (1 + i % 8) // 8 if ragged else TOKENS for i in range(batch)]


def prompts_of(policy: Policy, batch: int) -> list[tuple[int, ...]]:
    return [tuple(policy.tokenizer(f"Sort these letters: {LETTERS[i % 4]}")["input_ids"]) for i in range(batch)]


def ours(name: str, batch: int, ragged: bool) -> float:
    """Seconds to answer as many requests, all submitted at once, as the service does it."""
    policy = load_policy(name)
    limit_threads(policy)
    policy = Policy(**{**vars(policy), "end_ids": frozenset()})
    prompts = prompts_of(policy, batch)
    sampler, adapter = Sampler(policy), read_adapter(policy.lora_copy())
    end_helpers()  # as the service does after loading
    requests = [
        CompletionRequest(p, n, seed=i)
        for i, (p, n) in enumerate(zip(prompts, lengths(len(prompts), ragged), strict=True))
    ]

    def work() -> None:
        for future in [sampler.submit(adapter, [request]) for request in requests]:
            future.result()

    seconds = best(work)
    sampler.close()
    return seconds


def static(name: str, batch: int, threads: int) -> float:
    """Seconds of one call of `generate`; it ends when the longest completion does."""
    torch.set_num_threads(threads)
    policy = load_policy(name)
    prompts = prompts_of(policy, batch)
    model = policy.with_adapter(read_adapter(policy.lora_copy()))
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    settings = {"do_sample": True, "top_k": 0, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "pad_token_id": 0}
    return best(lambda: model.generate(input_ids=ids, attention_mask=mask, **settings))


def manager(name: str, batch: int, threads: int) -> float:
    """Seconds of the continuous batching of transformers, which draws without a seed per request."""
    torch.set_num_threads(threads)
    policy = load_policy(name)
    prompts = [list(prompt) for prompt in prompts_of(policy, batch)]
    settings = GenerationConfig(max_new_tokens=TOKENS, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
    small = ContinuousBatchingConfig(
        num_blocks=2 * batch, max_batch_tokens=512, use_async_batching=False, allow_block_sharing=False
    )
    return best(lambda: policy.base.generate_batch(prompts, settings, continuous_batching_config=small))


def compare(name: str, policy: str, batch: int, goal: float = 1.0) -> list[Goal]:
    """Completions and tokens a second of both, for completions of one length and of many."""
    peer = min(alone(static, policy, batch, threads) for threads in THREADS)
    if name == "practice":
        rate = batch * TOKENS / min(alone(manager, policy, batch, threads) for threads in THREADS)
        print(f"{name:9} {batch:3} requests: continuous batching of transformers {rate:7.0f} tokens/s")
    goals = []
    for ragged in (False, True):
        seconds, tokens = alone(ours, policy, batch, ragged), sum(lengths(batch, ragged))
        kind = "ragged" if ragged else "equal"
        print(
            f"{name:9} {batch:3} requests, {kind:6} lengths: {batch / seconds:6.1f} completions/s "
            f"{tokens / seconds:7.0f} tokens/s; generate {batch / peer:6.1f} and {tokens / peer:7.0f}"
        )
        goals.append(Goal(f"sampling_over_generate_{name}_{batch}_{kind}", peer / seconds, ">=", goal))
    return goals


@contextmanager
def session() -> Iterator[Session]:
    """A new lab with an embedded service in a process of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        found = Session(Settings(home=Path(home), linger=0.5))
        try:
            yield found
        finally:
            found.embedded.stop()
            found.close()


def over_http(lab: Session, concurrent: int) -> float:
    """Seconds for as many chats of `TOKENS` tokens at once through the real service."""
    address = lab.embedded.address()
    requests = [chat(f"Sort these letters: {LETTERS[i % 4]}", seed=i) for i in range(concurrent)]

    async def together() -> None:
        await asyncio.gather(*(complete(lab._connector.http, address, request) for request in requests))

    return best(lambda: lab._connector.http.run(together()))


def chat(content: str, **options: Any) -> ChatRequest:
    body = {"model": "practice", "messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, **options}
    return ChatRequest.model_validate(body)


def latency(lab: Session) -> float:
    """Seconds of a short chat."""
    address = lab.embedded.address()
    begun = time.perf_counter()
    lab._connector.http.run(complete(lab._connector.http, address, chat("hello", max_tokens=8, seed=1)), every=10.0)
    return time.perf_counter() - begun


def beside_training(lab: Session) -> Goal:
    """A short chat with the service idle, and while a job of some thousand completions trains."""
    rows = [{"letters": text} for text in LETTERS * (PROMPTS // len(LETTERS))]
    lab.chat("letters", "Sort these letters: {{letters}}", n=8, over=rows, seed=1)
    lab.reward("letters", lambda _trajectory, answer, _messages, _row: float(len(answer)))
    idle = [latency(lab) for _ in range(CHATS)][CHATS // 6 :]
    job = lab.train("letters", wait=False, say=lambda _: None)
    busy = [latency(lab)]
    while job.status in {"queued", "running"}:
        busy.append(latency(lab))
    print(
        f"a chat of 8 tokens: {1000 * statistics.median(idle):.0f} ms idle, "
        f"{1000 * statistics.median(busy):.0f} ms beside a job (median of {len(busy)})"
    )
    return Goal("chat_beside_training_over_idle", statistics.median(busy) / statistics.median(idle), "<=", 5)


def smollm2() -> str:
    """The folder of a real model, whose package `make bench` installs for it."""
    sys.path.append(packages_of("smollm2"))
    return source_of("smollm2")


def main() -> int:
    goals = []
    with mid_size() as folder:
        for name, policy in (("practice", "practice"), ("mid-size", str(folder))):
            for batch in BATCHES:
                goals += compare(name, policy, batch)
    goals += compare("smollm2", smollm2(), BATCHES[-1], 1.3)
    with session() as lab:
        seconds = over_http(lab, 16)
        print(f"over HTTP, 16 chats at once: {16 / seconds:.1f} completions/s")
        goals.append(beside_training(lab))
    return conclude(goals)


if __name__ == "__main__":
    sys.exit(main())
