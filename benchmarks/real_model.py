"""A real model in a loop: SmolLM2 learns to tell animals from plants here and with TRL's GRPOTrainer, on the CPU.

The task is that of notebooks/15_a_real_model.ipynb. Both sides sample eight completions of the same sixteen prompts a
round, train them with GRPO's loss in two steps of eight groups, with the same LoRA, optimiser and learning rate, and
are measured on the same words, which are not trained on. Compared are the gains on these by tokens sampled, and by
seconds of sampling and training. A quarter of an hour on two cores; `--rounds 3` takes half of that.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, TypedDict

from animals import PROMPT, Row, judged, rows
from goals import Goal, conclude
from measure import ROOT, packages_of, peer_python

from rolloutlab.errors import NothingTrainsError
from rolloutlab.session import Session
from rolloutlab.settings import Settings

SEEDS, ROUNDS, EVERY = 1, 6, 3
WORDS, HELD_OUT, COMPLETIONS, MAX_TOKENS = 16, 16, 8, 12
GOALS = {"tokens": 0.8, "seconds": 1.0}
"""By tokens both learn alike; the ratio of one seed has a standard error of about 0.14, of 128 held-out completions."""
OPTIONS = {"algorithm": "grpo", "learning_rate": 2e-4, "groups_per_step": 8}
RANK = 8
"""Of policies of more than 20M parameters, by default."""


class Point(TypedDict):
    """tokens: sampled so far. seconds: of sampling and training. held_out: the mean reward of words not trained on."""

    tokens: float
    seconds: float
    held_out: float


def words_of(seed: int, rounds: int) -> tuple[list[list[Row]], list[Row]]:
    """The words of each round, and those held out."""
    known = rows()
    return [Random(f"{seed} {number}").sample(known[:-HELD_OUT], WORDS) for number in range(rounds)], known[-HELD_OUT:]


def reward(answer: str, kind: str) -> float:
    return judged(answer, kind)


def ours(lab: Session, seed: int, rounds: list[list[Row]], held_out: list[Row]) -> list[Point]:
    """The points of a new model."""
    points: list[Point] = []
    tokens = seconds = 0.0

    def measure() -> None:
        name = f"held-{seed}-{len(points)}"
        lab.chat(name, PROMPT, over=held_out, n=COMPLETIONS, max_tokens=MAX_TOKENS, seed=seed)
        held = lab.reward(name, reward).mean_reward or 0.0
        points.append({"tokens": tokens, "seconds": seconds, "held_out": held})

    lab.model(f"lab/seed-{seed}")
    measure()
    for number, words in enumerate(rounds, start=1):
        name, begun = f"words-{seed}-{number}", time.perf_counter()
        chats = lab.chat(name, PROMPT, over=words, n=COMPLETIONS, max_tokens=MAX_TOKENS, seed=100 * seed + number)
        lab.reward(name, reward)
        with suppress(NothingTrainsError):  # TRL takes such a step too, of zero
            lab.train(name, OPTIONS, say=lambda _: None)
        seconds += time.perf_counter() - begun
        tokens += float(chats.to_frame()["tokens"].sum())
        if number % EVERY == 0:
            measure()
    return points


def trl(folder: Path, seed: int, rounds: list[list[Row]], held_out: list[Row]) -> list[Point]:
    """The points of TRL's trainer."""
    job = {
        "rounds": rounds,
        "held_out": held_out,
        "every": EVERY,
        "group_size": COMPLETIONS,
        "groups_per_step": OPTIONS["groups_per_step"],
        "max_tokens": MAX_TOKENS,
        "learning_rate": OPTIONS["learning_rate"],
        "rank": RANK,
        "seed": seed,
    }
    command = [peer_python("trl"), str(ROOT / "benchmarks/peers/trl_loop.py"), str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, input=json.dumps(job), env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    points: list[Point] = json.loads(done.stdout)["points"]
    return points


def gain(last: Point, start: float, by: str) -> float:
    """What held-out words gained up to the last point, by thousand tokens or by minute."""
    spent: dict[str, Any] = {**last}
    return (last["held_out"] - start) / spent[by] * {"tokens": 1000, "seconds": 60}[by]


def compare(lab: Session, folder: Path, seeds: int, rounds: int) -> list[Goal]:
    """Both sides in turn, seed by seed; the ratios of their mean gains."""
    runs: dict[str, list[list[Point]]] = {"rolloutlab": [], "TRL": []}
    for seed in range(1, seeds + 1):
        words = words_of(seed, rounds)
        for name in runs:
            points = ours(lab, seed, *words) if name == "rolloutlab" else trl(folder, seed, *words)
            runs[name].append(points)
            for each in points:
                spent = f"{each['tokens']:7.0f} tokens {each['seconds']:6.0f} s"
                print(f"seed {seed}, {name:10} {spent}: held out {each['held_out']:.3f}", flush=True)
    # all begin with the same weights, so that each of their first points is a measurement of the same
    start = fmean(points[0]["held_out"] for each in runs.values() for points in each)
    goals = []
    for by, unit in (("tokens", "thousand tokens"), ("seconds", "minute")):
        means = {name: fmean(gain(points[-1], start, by) for points in each) for name, each in runs.items()}
        print(f"gain by {unit}: {means['rolloutlab']:.3f}, TRL {means['TRL']:.3f}")
        ratio = means["rolloutlab"] / means["TRL"]
        goals.append(Goal(f"real_model_gain_by_{by}_over_trl", ratio, ">=", GOALS[by]))
    return goals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"a multiple of {EVERY} (%(default)s)")
    options = parser.parse_args()
    sys.path.append(packages_of("smollm2"))
    from rolloutlab.policy.source import source_of  # imports transformers, which the other side does not need

    folder = source_of("smollm2")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        lab = Session(Settings(home=Path(home), policy=folder, linger=5.0))
        try:
            lab.embedded.address()
            return conclude(compare(lab, Path(folder), options.seeds, options.rounds))
        finally:
            lab.embedded.stop()
            lab.close()


if __name__ == "__main__":
    sys.exit(main())
