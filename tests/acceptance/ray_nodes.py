"""What the engine on Ray does on two nodes, beside that of one process: a line of JSON for each trial.

    python ray_nodes.py HOST:PORT FOLDER

It kills a sampler, a trainer and a node of the cluster at HOST:PORT.
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from safetensors.torch import load_file

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.engines.engine import Engine, partial_of
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.sampling_check import step_of
from rolloutlab.errors import Cancelled
from rolloutlab.integrations.ray.engine import RayEngine
from rolloutlab.objective.options import settle
from rolloutlab.policy.checkpoints import open_draft, seal
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.model import limit_threads, load_policy
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings

POLICY, PROMPT, LENGTH, STEPS = "practice", 12, 48, 12
told = time.perf_counter()
SLOPE = "def loss(new, old, advantage, weight, history):\n    return -(weight * advantage * new).mean()\n"
CONFIGS: dict[str, tuple[dict[str, Any], str | None]] = {
    "default": ({}, None),
    "ppo": ({"ppo": True}, None),
    "sequence ratios": ({"importance_sampling_level": "sequence"}, None),
    "new logprobs": ({"precalculate_logprobs": True}, None),
    "KL penalty": ({"kl_penalty_coef": 0.1}, None),
    "a loss of one's own": ({}, SLOPE),
}


PATIENCE = 5.0
"""Seconds until a rank or sampler counts as hung: a batch takes less than one, on a busy machine as well."""


def main(address: str, folder: Path) -> None:
    policy = load_policy(POLICY)
    limit_threads(policy)
    local = LocalEngine(policy)
    tell("imports")
    engine = RayEngine(POLICY, ModelSettings(engine="ray", engine_url=address), patience=PATIENCE, least_seconds=0.0)
    wait_for_samplers(engine, 2)
    tell("start")
    with open_draft(folder / "0") as draft:
        local.create_initial(draft)
        seal(draft, folder / "0")
    trials = Trials(local, engine, folder)
    trials.sampling()
    for name, (config, source) in CONFIGS.items():
        trials.training(name, config, source)
    trials.rates("two nodes", local, engine)
    for what in ("lost", "hung"):
        trials.lost_sampler(what)
    trials.cancelled()
    trials.lost("trainer", lambda: os.kill(trials.last_trainer().loaded.pid, signal.SIGKILL))
    trials.lost("hung trainer", lambda: os.kill(trials.last_trainer().loaded.pid, signal.SIGSTOP))
    trials.lost("node", trials.kill_node)
    wait_for_samplers(engine, 1)
    tell("nodes left", **engine.status())
    trials.rates("one node", engine)
    trials.joined(folder.parent)
    engine.close()
    local.close()


class Trials:
    def __init__(self, local: LocalEngine, engine: RayEngine, folder: Path) -> None:
        self.local, self.engine, self.folder = local, engine, folder
        self.rows = local.sample(None, requests(192, LENGTH)).result()

    def task(self, config: dict[str, Any], source: str | None = None, steps: int = STEPS) -> Task:
        chance = random.Random(1)
        made = [TrainingSequence(sequence(row), chance.uniform(-1, 1), 1.0) for row in self.rows]
        some = [step_of(made[i : i + 32]) for i in range(0, len(made), 32)]
        options = settle(ExperimentalTrainingConfig.model_validate(config))
        return Task((some * steps)[:steps], [2e-3] * steps, options, 7, {}, loss_source=source)

    @cached_property
    def expected(self) -> Any:
        """What one process trains."""
        return self.train(self.local, self.task({}))

    def sampling(self) -> None:
        pieces: list[tuple[int, int]] = []
        asked = requests(64, 24)
        expected = self.local.sample(self.folder / "0", asked).result()
        sampled = self.engine.sample(
            self.folder / "0", asked, lambda row: pieces.append((row.request.index, row.tokens[-1]))
        ).result()
        each = zip(expected, sampled, strict=True)
        streamed = {row.request.index: [t for i, t in pieces if i == row.request.index] for row in sampled}
        sequences = [sequence(row) for row in sampled]
        scores = [engine.logprobs(self.folder / "0", sequences) for engine in (self.local, self.engine)]
        tell(
            "sampling",
            same=sum(a.tokens == b.tokens for a, b in each),
            of=len(sampled),
            streamed=all(streamed[row.request.index] == row.tokens for row in sampled),
            logprob_gap=max(abs(a - b) for x, y in zip(*scores, strict=True) for a, b in zip(x, y, strict=True)),
        )

    def training(self, name: str, config: dict[str, Any], source: str | None) -> None:
        task = self.task(config, source)
        tell(f"training: {name}", **apart(self.train(self.local, task), self.train(self.engine, task)))

    def rates(self, label: str, *engines: Engine) -> None:
        """All alternately, on the same cores: the faster of two. A job takes some time besides that of its steps."""
        short, long, asked = self.task({}, steps=4), self.task({}, steps=16), requests(512, LENGTH)
        tokens = sum(step.trained for step in long.steps) / len(long.steps)
        values: dict[str, float] = {}
        for engine in engines * 2:
            calls = {
                "sample": lambda e: e.sample(None, asked).result(),
                "short": lambda e: self.train(e, short),
                "long": lambda e: self.train(e, long),
            }
            for name, call in calls.items():
                begun = time.perf_counter()
                call(engine)
                key = f"{engine.name} {name}"
                values[key] = min(values.get(key, 1e9), time.perf_counter() - begun)
        figures = {}
        for name in [engine.name for engine in engines]:
            step = (values[f"{name} long"] - values[f"{name} short"]) / (len(long.steps) - len(short.steps))
            figures[f"{name}_rollouts_per_second"] = len(asked) / values[f"{name} sample"]
            figures[f"{name}_trained_tokens_per_second"] = tokens / step
            figures[f"{name}_seconds_per_step"] = step
            figures[f"{name}_seconds_per_job"] = values[f"{name} long"] - step * len(long.steps)
        tell(f"rates: {label}", tokens_per_step=tokens, **figures)

    def lost_sampler(self, what: str) -> None:
        """Killed or stopped after some tokens of a stream."""
        asked = requests(64, LENGTH)
        expected = self.local.sample(None, asked).result()
        victim = next(iter(self.engine.samplers.ready.values()))
        pid = ray.get(victim.__ray_call__.remote(lambda _: os.getpid()))
        count = 0

        def on_token(row: Completion) -> None:
            nonlocal count
            count += 1
            if count == 100:
                os.kill(pid, signal.SIGKILL if what == "lost" else signal.SIGSTOP)

        sampled = self.engine.sample(None, asked, on_token).result()
        same = sum(a.tokens == b.tokens for a, b in zip(expected, sampled, strict=True))
        tell(f"{what} sampler", same=same, of=len(asked), each_token_once=count == sum(len(r.tokens) for r in sampled))
        wait_for_samplers(self.engine, 2)

    def joined(self, folder: Path) -> None:
        """A node that comes: from the next job on it trains, and soon it samples."""
        begun = time.perf_counter()
        subprocess.run(["bash", str(folder / "join.sh")], check=True, stdout=subprocess.DEVNULL)
        wait_for_samplers(self.engine, 2)
        seconds = time.perf_counter() - begun
        self.training("with a node that joined", {}, None)
        tell("joined", seconds=seconds, trainers=len(self.engine.trainers.ranks), **self.engine.status())
        subprocess.run(["bash", str(folder / "without.sh")], check=True, stdout=subprocess.DEVNULL)
        while "not used" not in self.engine.status():
            time.sleep(0.1)
        tell("without rolloutlab", **self.engine.status())

    def cancelled(self) -> None:
        """After three steps; the same task then goes on from what was kept."""
        task, steps = self.task({}), 0

        def count(kind: str, data: dict[str, object]) -> None:
            nonlocal steps
            steps += kind == "gradient_step"

        name = "outcome"
        try:
            self.train(self.engine, task, Callbacks(count, lambda: steps >= 3), "again")
        except Cancelled as error:
            name = type(error).__name__
        kept = partial_of(self.folder / "again").exists()
        tell("cancelled", error=name, kept=kept, **apart(self.expected, self.train(self.engine, task, target="again")))

    def lost(self, what: str, kill: Callable[[], None]) -> None:
        """Killed after the fourth step."""
        task, steps = self.task({}), list[dict[str, object]]()
        begun = 0.0
        pause = 0.0

        def on_event(kind: str, data: dict[str, object]) -> None:
            nonlocal begun, pause
            steps.append(data)
            if len(steps) == 4:
                begun = time.perf_counter()
                kill()
            elif len(steps) == 5:
                pause = time.perf_counter() - begun

        trained = self.train(self.engine, task, Callbacks(on_event, progress_seconds=math.inf), steps=steps)
        tell(f"lost {what}", seconds=pause, **apart(self.expected, trained))

    def last_trainer(self) -> Any:
        return list(self.engine.trainers.ranks.values())[-1]

    def kill_node(self) -> None:
        """The raylet of the node that is not this one, whose workers end with it."""
        own = ray.get_runtime_context().get_node_id()
        rank = next(rank for node, rank in self.engine.trainers.ranks.items() if node != own)
        stat = Path(f"/proc/{rank.loaded.pid}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)

    def train(
        self,
        engine: Engine,
        task: Task,
        callbacks: Callbacks | None = None,
        target: str = "1",
        steps: list[dict[str, object]] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, object]]]:
        """Adapter, moments, and what each step reported."""
        reported: list[dict[str, object]] = [] if steps is None else steps
        collect = Callbacks(lambda kind, data: reported.append(data), progress_seconds=math.inf)
        path = self.folder / target
        path.mkdir(exist_ok=True)
        partial_of(path).unlink(missing_ok=True) if target == "1" else None
        engine.train(self.folder / "0", path, task, callbacks or collect)
        return load_file(path / "adapter_model.safetensors"), load_file(path / "optimizer.safetensors"), reported


def apart(first: Any, second: Any) -> dict[str, Any]:
    """Largest differences of two trainings."""
    gaps = [
        max(float((a[name] - b[name]).abs().max()) for name in a) for a, b in zip(first[:2], second[:2], strict=True)
    ]
    metrics = {
        name: max(abs(a[name] - b[name]) for a, b in zip(first[2], second[2], strict=False))
        for name in ("loss", "grad_norm", "entropy", "kl")
    }
    same = all(a[name].equal(b[name]) for a, b in zip(first[:2], second[:2], strict=True) for name in a)
    return {
        "steps": len(second[2]),
        "optimizer_steps": max(float(value) for name, value in second[1].items() if name.endswith(".step")),
        "same_bits": same and first[2] == second[2],
        "adapter_gap": gaps[0],
        "moments_gap": gaps[1],
        **{f"{n}_gap": v for n, v in metrics.items()},
    }


def requests(count: int, length: int) -> list[CompletionRequest]:
    chance = random.Random(0)
    prompts = [tuple(chance.randrange(200) for _ in range(PROMPT)) for _ in range(count // 8)]
    return [CompletionRequest(prompts[i // 8], length, seed=3, index=i) for i in range(count)]


def sequence(row: Completion) -> TokenSequence:
    context = len(row.request.prompt)
    logprobs = array("f", [0.0] * context + row.logprobs)
    return TokenSequence(array("i", row.ids), bytearray([0] * context + [1] * len(row.tokens)), logprobs)


def wait_for_samplers(engine: RayEngine, count: int) -> None:
    while len(engine.samplers.ready) != count:
        time.sleep(0.1)


def tell(trial: str, **values: Any) -> None:
    """Print a line; `took` is the time since the one before it."""
    global told
    told, before = time.perf_counter(), told
    print(json.dumps({"trial": trial, "took": round(told - before, 1), **values}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
