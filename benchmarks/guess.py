"""Guess the number in fewer turns: `practice-games` learns it from an environment, with five seeds.

As in notebooks/11_environments.ipynb: a guess costs 1, so the reward of a game is minus its turns, and one that is lost
counts as `TURNS`. A third of the targets, others with each seed, are held out of training. On these the turns after
training are compared, paired by target, with those of checkpoint 0, and with those of a random player who never repeats
a guess: it needs (NUMBERS + 1) / 2 on average, whatever the target is, and `TURNS` do not cut its games short either.
"""

import argparse
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from time import perf_counter
from typing import Any

from goals import Goal, conclude
from labs import open_lab

from rolloutlab import Step
from rolloutlab.session import Session
from rolloutlab.trajectories.intervals import student_interval

NUMBERS, TURNS = 10, 10
RANDOM_PLAYER = fmean(range(1, NUMBERS + 1))
TARGETS, HELD_OUT = 90, 30
SEEDS, JOBS, ROWS, COMPLETIONS, COMPARED = 5, 10, 12, 8, 4
OPTIONS = {"learning_rate": 1e-3, "credit": "turn"}
PROMPT = "system: Answer with one number."


class GuessNumber:
    """One instance per rollout; each guess costs 1."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.target = row["target"]
        self.turns = 0
        self.is_won = False

    def reset(self, seed: int) -> str:  # noqa: ARG002 - of the protocol
        first = self.target // NUMBERS * NUMBERS
        return f"Guess a number from {first} to {first + NUMBERS - 1}."

    def step(self, answer: str) -> Step:
        self.turns += 1
        if not answer.strip().isdecimal():
            return Step("a number", -1.0)
        guess = int(answer)
        self.is_won = guess == self.target
        if self.is_won:
            return Step("right", -1.0, done=True)
        return Step("higher" if guess < self.target else "lower", -1.0)

    def get_reward(self) -> float:
        """What a lost game costs beside its turns: an answer that is cut off would else be the cheapest game."""
        return 0.0 if self.is_won else float(self.turns - TURNS)


def turns(lab: Session, seed: int, jobs: int) -> tuple[list[float], list[float]]:
    """The mean turns on each held-out target under checkpoint 0 and after the jobs."""
    name = f"guess-{seed}"
    targets = [{"target": target} for target in Random(seed).sample(range(NUMBERS, NUMBERS + TARGETS), TARGETS)]
    held_out, train = targets[:HELD_OUT], targets[HELD_OUT:]
    lab.model(f"lab/{name}")
    loop = lab.loop(
        name,
        PROMPT,
        env=GuessNumber,
        over=lambda number: Random(f"{seed} {number}").sample(train, ROWS),
        jobs=jobs,
        n=COMPLETIONS,
        max_turns=TURNS,
        max_tokens=4,
        options=OPTIONS,
        seed=seed,
        say=lambda _: None,
    )
    print("  turns by round:", *(f"{-one.reward:.2f}" for one in loop.rounds if one.reward is not None), flush=True)
    compared = lab.compare(name, env=GuessNumber, over=held_out, n=COMPARED, bounds=(-TURNS, -1))
    return [-fmean(pair.before) for pair in compared.pairs], [-fmean(pair.after) for pair in compared.pairs]


def difference(these: Sequence[float], those: Sequence[float]) -> tuple[float, float, float]:
    """The mean paired difference, and the bounds of its 95 % interval."""
    differences = [one - other for one, other in zip(these, those, strict=True)]
    low, high = student_interval(differences)
    return fmean(differences), float(low), float(high)


def measure(lab: Session, seeds: int, jobs: int) -> list[Goal]:
    means: dict[str, list[float]] = {"checkpoint_0": [], "random_player": []}
    trained: list[float] = []
    goals = []
    for seed in range(seeds):
        begun = perf_counter()
        before, after = turns(lab, seed, jobs)
        trained.append(fmean(after))
        others = {"checkpoint_0": before, "random_player": [RANDOM_PLAYER] * len(after)}
        print(f"seed {seed}: {fmean(before):.2f} -> {fmean(after):.2f} turns, {perf_counter() - begun:.0f} s")
        for name, those in others.items():
            means[name].append(fmean(those))
            mean, low, high = difference(after, those)
            print(f"  less {name}: {mean:+.2f} (95 % interval {low:+.2f} to {high:+.2f})", flush=True)
            goals.append(Goal(f"turns_above_{name}_seed_{seed}", high, "<=", 0.0))
    for name, those in means.items() if len(trained) > 1 else ():
        mean, low, high = difference(trained, those)
        print(f"over seeds {fmean(trained):.2f}, less {name}: {mean:+.2f} (95 % interval {low:+.2f} to {high:+.2f})")
    return goals


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with open_lab(policy="practice-games") as lab:
        return conclude(measure(lab, options.seeds, options.jobs))


if __name__ == "__main__":
    raise SystemExit(main())
