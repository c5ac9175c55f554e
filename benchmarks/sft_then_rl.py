"""SFT, then RL, against RL alone, at equal numbers of sampled completions: the practice policy sorts four letters.

Both sample and train the same rounds of prompts. SFT learns `DEMONSTRATIONS` sorted lines of a fine-tuning file before
them, for which nothing is sampled. The figure is the share of held-out prompts answered correctly after each round.
"""

import argparse
import json
from pathlib import Path
from random import Random
from statistics import fmean, stdev

from goals import Goal, conclude
from labs import open_lab
from letters import OPTIONS, PROMPT, draw_rows, is_sorted

from rolloutlab.session import Session

SEEDS, ROUNDS = 5, 4
PROMPTS, COMPLETIONS, HELD_OUT, DEMONSTRATIONS = 16, 8, 32, 64


def demonstration(letters: str) -> str:
    answer = " ".join(sorted(letters.split()))
    asked = {"role": "user", "content": PROMPT.replace("{{letters}}", letters)}
    return json.dumps({"messages": [asked, {"role": "assistant", "content": answer}]})


def shares(lab: Session, folder: Path, seed: int, rounds: int, *, sft: bool) -> list[float]:
    """The share of held-out prompts answered correctly before the first round and after each."""
    random = Random(seed)
    held_out, shown = draw_rows(random, HELD_OUT), draw_rows(random, DEMONSTRATIONS)
    name = f"{'sft' if sft else 'rl'}-{seed}"
    lab.model(f"lab/{name}")
    if sft:
        data = folder / f"{name}.jsonl"
        data.write_text("\n".join(demonstration(row["letters"]) for row in shown))
        lab.train(str(data), {**OPTIONS, "batch_size": 16}, sft=True, say=lambda _: None)
    measured = []
    for number in range(rounds + 1):
        lab.chat(f"{name}-held-{number}", PROMPT, over=held_out, n=4, max_tokens=16, seed=seed)
        measured.append(lab.reward(f"{name}-held-{number}", is_sorted).mean_reward or 0.0)
        if number < rounds:
            practised = draw_rows(random, PROMPTS)
            lab.chat(f"{name}-{number}", PROMPT, over=practised, n=COMPLETIONS, max_tokens=16, seed=number)
            lab.reward(f"{name}-{number}", is_sorted)
            lab.train(f"{name}-{number}", OPTIONS, say=lambda _: None)
    return measured


def measure(lab: Session, folder: Path, seeds: int, rounds: int) -> list[Goal]:
    after: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in range(seeds):
        for sft in after:
            after[sft].append(shares(lab, folder, seed, rounds, sft=sft))
            print(f"seed {seed}, {'SFT, then RL' if sft else 'RL alone'}: {after[sft][-1]}", flush=True)
    for sft, measured in after.items():
        for number, values in enumerate(zip(*measured, strict=True)):
            spread = stdev(values) if len(values) > 1 else 0.0
            sampled = number * PROMPTS * COMPLETIONS
            print(f"{'SFT, then RL' if sft else 'RL alone'}, {sampled} completions: {fmean(values):.3f} ± {spread:.3f}")
    gain = fmean(each[-1] for each in after[True]) - fmean(each[-1] for each in after[False])
    return [Goal("gain_of_sft_before_rl", gain, ">=", 0.0)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with open_lab() as lab:
        return conclude(measure(lab, lab.settings.home, options.seeds, options.rounds))


if __name__ == "__main__":
    raise SystemExit(main())
