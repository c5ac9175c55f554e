"""Loops with and without `--top-up`, side by side: what of the sampled tokens trains, and what 0.9 held out takes.

The practice policy sorts four letters for an exact match, in small groups, so that many have nothing to learn: all of
one fail at first, and later all pass. The loops of a seed sample the same prompts in each job. The third has no top-up,
and groups so large from the start that a job has as many completions as one with a top-up.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean

from goals import Goal, conclude
from labs import open_lab
from letters import OPTIONS, PROMPT, draw_rows, is_sorted

from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import preflight
from rolloutlab.session import Session
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.intervals import student_interval
from rolloutlab.trajectories.members import members_of

SEEDS, JOBS = 10, 24
PROMPTS, HELD_OUT, HELD_OUT_N = 16, 32, 4
LOOPS = {"without": (4, 1.0), "top-up 2": (4, 2.0), "six at once": (6, 1.0)}
"""Completions of a group, and how many times as many it may have."""
WANTED = 0.9


@dataclass
class Learned:
    """What one loop sampled and trained until it was there. jobs: None where `WANTED` was not reached."""

    jobs: int | None = None
    completions: int = 0
    sampled: int = 0
    trained: int = 0
    groups: int = 0
    trained_groups: int = 0
    held_out: list[float] = field(default_factory=list)

    def add(self, collection: Collection) -> None:
        check = preflight(members_of(collection.groups), Options())
        self.completions += check.trajectories
        self.sampled += sum(each.tokens for each in collection.trajectories)
        self.trained += check.trainable_tokens
        self.groups += len(check.shares)
        self.trained_groups += check.trainable_groups


def quiet(_line: str) -> None:
    """What calls say is not shown."""


def learn(lab: Session, seed: int, n: int, factor: float, jobs: int) -> Learned:
    """Sample, score, top up and train until the held-out share is `WANTED`, or for so many jobs."""
    random, learned = Random(seed), Learned()
    held_out, name = draw_rows(random, HELD_OUT), f"seed-{seed}-of-{n}-factor-{factor:g}"
    lab.model(f"lab/{name}")
    for number in range(jobs):
        lab.chat(name, PROMPT, over=draw_rows(random, PROMPTS), n=n, max_tokens=16, seed=1000 * number)
        lab.reward(name, is_sorted, say=quiet)
        if factor > 1:
            lab.top_up(name, factor, is_sorted, say=quiet)
        learned.add(lab.collection(name))
        if preflight(members_of(lab.collection(name).groups), Options()).trainable_groups:
            lab.train(name, OPTIONS, wait=False, say=quiet).wait(progress=False)
        lab.chat(f"{name}-held", PROMPT, over=held_out, n=HELD_OUT_N, max_tokens=16, seed=seed)
        learned.held_out.append(lab.reward(f"{name}-held", is_sorted, say=quiet).mean_reward or 0.0)
        if learned.held_out[-1] >= WANTED:
            learned.jobs = number + 1
            break
    return learned


def interval(values: Sequence[float]) -> str:
    """The mean of values with the half-width of its 95 % interval."""
    low, high = student_interval(values) if len(values) > 1 else (0.0, 0.0)
    return f"{fmean(values):.3g} ± {(high - low) / 2:.2g}"


def measure(lab: Session, seeds: int, jobs: int) -> list[Goal]:
    learned: dict[str, list[Learned]] = {name: [] for name in LOOPS}
    for seed in range(seeds):
        for name, (n, factor) in LOOPS.items():
            learned[name].append(one := learn(lab, seed, n, factor, jobs))
            held = " ".join(f"{share:.2f}" for share in one.held_out)
            print(f"seed {seed}, {name}: {one.completions} completions, held out {held}", flush=True)
    for name, each in learned.items():
        print(f"{name}, {seeds} seeds:")
        print(f"  trained tokens per sampled token {interval([one.trained / max(1, one.sampled) for one in each])}")
        print(f"  share of groups that train {interval([one.trained_groups / one.groups for one in each])}")
        print(f"  jobs to {WANTED} {interval([one.jobs or jobs for one in each])}")
        print(f"  completions to {WANTED} {interval([one.completions for one in each])}")
        if missed := sum(one.jobs is None for one in each):
            print(f"  {missed} did not reach it in {jobs} jobs, and count as if they had with the last")
    without, *others = LOOPS
    goals = []
    for name in others:
        pairs = list(zip(learned[without], learned[name], strict=True))
        fewer = [(b.jobs or jobs) - (a.jobs or jobs) for a, b in pairs]
        dearer = [math.log(b.completions / a.completions) for a, b in pairs]
        print(f"{name} less {without}: jobs {interval(fewer)}, logarithm of completions {interval(dearer)}")
        share = fmean((b.trained / max(1, b.sampled)) - (a.trained / max(1, a.sampled)) for a, b in pairs)
        words = name.replace("-", "_").replace(" ", "_")
        goals += [
            Goal(f"trained_per_sampled_gain_of_{words}", share, ">=", 0.0),
            Goal(f"jobs_more_with_{words}", fmean(fewer), "<=", 0.0),
        ]
    return goals


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    with open_lab() as lab:
        return conclude(measure(lab, options.seeds, options.jobs))


if __name__ == "__main__":
    raise SystemExit(main())
