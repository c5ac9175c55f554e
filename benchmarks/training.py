"""Training: this trainer against one optimiser step of TRL's GRPOTrainer on the same completions, model and LoRA.

Timed on both sides is one step on everything: forward, backward, clipping and optimiser, with logprobs recorded at
sampling. Ours also measures the distance from checkpoint 0 on a sample. TRL's best of its thread counts and batch sizes
is compared.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from goals import Goal, conclude
from measure import ROOT, THREADS, alone, peer_python
from models import mid_size

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.api.wire.trajectories import Trajectory
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import Policy, base_of, limit_threads, load_policy, read_adapter
from rolloutlab.policy.practice import FOLDER
from rolloutlab.policy.sampler import Sampler
from rolloutlab.policy.task import Callbacks, read_task
from rolloutlab.policy.trainer import take_steps

REPEATS = 8
ONE_STEP = ExperimentalTrainingConfig(groups_per_step=0)
SHAPES = ((16, 4, 16), (8, 40, 32))
"""Groups of the practice policy, words of their prompts, tokens of their completions."""
MID_SHAPES = ((1, 40, 60),)
"""Those of the mid-size model."""
WORDS = [
    "river",
    "stone",
    "bird",
    "cloud",
    "summer",
    "winter",
    "bread",
    "cheese",
    "horse",
    "sheep",
    "lion",
    "tiger",
    "window",
    "garden",
    "flower",
]

Groups = list[list[Trajectory]]


def sampled(policy: Policy, groups: int, words: int, tokens: int) -> tuple[Groups, dict[str, Any]]:
    """Groups of eight completions of just so many tokens; as trajectories, and as TRL's peer script reads them."""
    renderer, random = base_of(policy).renderer(), Random(0)
    sampler, adapter = Sampler(Policy(**{**vars(policy), "end_ids": frozenset()})), read_adapter(policy.lora_copy())
    found: Groups = []
    rows: dict[str, Any] = {"group_size": 8, "prompt_ids": [], "completion_ids": [], "advantages": [], "logprobs": []}
    for g in range(groups):
        asked = UserMessage(role="user", content=" ".join(random.choice(WORDS) for _ in range(words)))
        prompt = renderer.prompt([asked])
        requests = [CompletionRequest(tuple(prompt), tokens, seed=g, index=i) for i in range(8)]
        found.append([])
        for i, row in enumerate(sampler.submit(adapter, requests).result()):
            entries = [
                {"token": "", "logprob": p, "top_logprobs": [], "token_id": t}
                for t, p in zip(row.tokens, row.logprobs, strict=True)
            ]
            message = {"role": "assistant", "content": renderer.text(row.tokens)}
            choice = {"finish_reason": "length", "index": i, "message": message, "logprobs": {"content": entries}}
            found[-1].append(
                Trajectory.model_validate({"messages_and_choices": [asked.to_wire(), choice], "reward": i % 2})
            )
            rows["prompt_ids"].append(prompt)
            rows["completion_ids"].append(row.tokens)
            rows["logprobs"].append(row.logprobs)
            rows["advantages"].append(2.0 * (i % 2) - 1)
    sampler.close()
    return found, rows


def ours(name: str, groups: int, words: int, tokens: int) -> tuple[float, dict[str, Any]]:
    """Seconds from the job read to its last step, the best of a few; and the job for the peer."""
    policy = load_policy(name)
    limit_threads(policy)
    job, rows = sampled(policy, groups, words, tokens)
    model, start = policy.training_copy(), State(read_adapter(policy.lora_copy()), {})
    return min(_timed(policy, model, start, job) for _ in range(REPEATS)), rows


def _timed(policy: Policy, model: Any, start: State, job: Groups) -> float:
    moments: list[float] = []
    callbacks = Callbacks(lambda *_: moments.append(time.perf_counter()), progress_seconds=math.inf)
    take_steps(policy, model, start, read_task(base_of(policy), job, ONE_STEP, 0, callbacks), callbacks)
    return moments[-1] - moments[1]  # from the preflight to the last step


def trl(folder: Path, rank: int, rows: dict[str, Any]) -> float:
    """Seconds of TRL's step, the best over thread counts and batch sizes."""
    count = len(rows["completion_ids"])
    settings = {(THREADS[-1], count), (THREADS[-1], min(16, count)), (1, count)}
    return min(seconds for setting in settings for seconds in _trl(folder, rank, rows, *setting))


def _trl(folder: Path, rank: int, rows: dict[str, Any], threads: int, batch: int) -> Iterator[float]:
    command = [peer_python("trl"), str(ROOT / "benchmarks/peers/trl_step.py"), str(folder)]
    command += ["--rank", str(rank), "--batch", str(batch), "--steps", str(REPEATS), "--warm-up", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, input=json.dumps(rows), env=environment, capture_output=True, text=True, check=True)
    yield from json.loads(done.stdout)["seconds"]


def compare(label: str, name: str, folder: Path, shape: tuple[int, int, int], rank: int) -> Goal:
    """Trained tokens a second of both."""
    seconds, rows = alone(ours, name, *shape)
    peer = trl(folder, rank, rows)
    tokens = sum(map(len, rows["completion_ids"]))
    read = len(rows["prompt_ids"][0])
    print(
        f"{label:9} {shape[0]:2} groups of 8, {read:3} + {shape[2]:3} tokens: "
        f"{tokens / seconds:6.0f} trained tokens/s; TRL {tokens / peer:6.0f}"
    )
    return Goal(f"training_over_trl_{label}_{read}_{shape[2]}", peer / seconds, ">=", 1.5)


def main() -> int:
    goals = [compare("practice", "practice", FOLDER, shape, 16) for shape in SHAPES]
    with mid_size() as folder:
        goals += [compare("mid-size", str(folder), folder, shape, 8) for shape in MID_SHAPES]
    return conclude(goals)


if __name__ == "__main__":
    sys.exit(main())
