"""A task with a length bias: answers whose reward has nothing to do with their length, and what happens to it.

Half of the questions of a group say that the game was won, and half that it was lost. Won games have reward 1 and lost
ones 0, whatever is answered, so that nothing can be learned, and no answer is better for being long or short. But where
a step is a mean over answers of their means over tokens, each token of an answer counts by 1 / its length n. Let p be
the probability of ending at each token, z its logit, and A the advantage. The derivative of an answer's logprob by z is
1 - n p, and its mean is 0, so that `token_mean` leaves z where it is. With `sequence_mean` it is (1 - n p) / n, of mean
E[1/n] - p, which is above 0, as p = 1 / E[n] (Jensen). So answers with A < 0 should end later and later, and those with
A > 0 earlier: "wrong answers grow" (Dr. GRPO, arXiv 2503.20783).

A tiny random model, of whose tokens a tenth end an answer, is trained with both, from the same start and seeds.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from goals import Goal, conclude
from local_loop import Answer, Model, opened, sampled

from rolloutlab.trajectories.intervals import student_interval

SEEDS, JOBS, GROUPS, COMPLETIONS, MEASURED = 10, 5, 16, 8, 64
LONGEST, ENDS = 48, 10
"""Tokens of an answer at most; one token in so many ends it."""
QUESTIONS = {"won": "You have won. What do you say?", "lost": "You have lost. What do you say?"}
REWARDS = {"won": 1.0, "lost": 0.0}
AGGREGATIONS = ("sequence_mean", "token_mean")
RATE = 5e-3


def tiny_policy(seed: int) -> Any:
    """A random model with the practice policy's tokenizer; another one with each seed."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    from rolloutlab.policy.model import limit_threads, policy_of
    from rolloutlab.policy.practice import FOLDER

    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    # the head is frozen: with a direction of their own the ends can become likelier together, as one token could
    model.lm_head.weight.data[::ENDS] += 0.05 * torch.randn(config.hidden_size)
    policy = policy_of("tiny", model, tokenizer)
    limit_threads(policy)
    return replace(policy, end_ids=frozenset(range(0, len(tokenizer), ENDS)))


def lengths(engine: Any, checkpoint: Path, seed: int) -> dict[str, float]:
    """The mean number of tokens of answers to each question."""
    asked = [question for question in QUESTIONS.values() for _ in range(MEASURED)]
    counts = [len(each.tokens) for each in sampled(engine, checkpoint, asked, LONGEST, seed)]
    return {"won": fmean(counts[:MEASURED]), "lost": fmean(counts[MEASURED:])}


def measure_growth(engine: Any, seed: int, jobs: int, aggregation: str) -> dict[str, float]:
    """By how many tokens answers to each question are longer after the jobs than before."""
    games = ["won", "lost"] * (GROUPS * COMPLETIONS // 2)
    asked, rewards = [QUESTIONS[game] for game in games], [REWARDS[game] for game in games]
    with tempfile.TemporaryDirectory() as folder:
        model = Model(engine, Path(folder))
        before = lengths(engine, model.checkpoint, seed)
        for number in range(jobs):
            completions = sampled(engine, model.checkpoint, asked, LONGEST, 1000 * seed + number)
            answers: list[Answer] = list(zip(asked, completions, rewards, strict=True))
            groups = [answers[start : start + COMPLETIONS] for start in range(0, len(answers), COMPLETIONS)]
            model.train(groups, {"learning_rate": RATE, "loss_aggregation": aggregation})
        after = lengths(engine, model.checkpoint, seed)
    return {game: after[game] - before[game] for game in QUESTIONS}


def print_mean(name: str, values: Sequence[float]) -> tuple[float, float]:
    """Print a mean with its interval, which is returned."""
    low, high = student_interval(values)
    print(f"{name}: {fmean(values):+.2f} tokens (95 % interval {low:+.2f} to {high:+.2f})", flush=True)
    return float(low), float(high)


def measure(seeds: int, jobs: int) -> list[Goal]:
    found: dict[str, list[Mapping[str, float]]] = {name: [] for name in AGGREGATIONS}
    for seed in range(seeds):
        with opened(tiny_policy(seed)) as engine:
            for name in AGGREGATIONS:
                found[name].append(measure_growth(engine, seed, jobs, name))
        changes = [f"{name} won {each[-1]['won']:+.1f}, lost {each[-1]['lost']:+.1f}" for name, each in found.items()]
        print(f"seed {seed}: {'; '.join(changes)}", flush=True)
    gaps = {name: [each["lost"] - each["won"] for each in runs] for name, runs in found.items()}
    if seeds < 2:
        return [Goal(f"length_bias_{name}", each[0], ">=", 0) for name, each in gaps.items()]
    for name, runs in found.items():
        for game in QUESTIONS:
            print_mean(f"{name}, {game}", [each[game] for each in runs])
    goals = []
    for name in AGGREGATIONS:
        low, high = print_mean(f"{name}, lost less won", gaps[name])
        goals += [Goal(f"length_bias_{name}_low", low, *((">=", 0) if name == "sequence_mean" else ("<=", 0)))]
        goals += [Goal("length_bias_token_mean_high", high, ">=", 0)] if name == "token_mean" else []
    low, _ = print_mean("the difference of both", [a - b for a, b in zip(*gaps.values(), strict=True)])
    return [*goals, Goal("length_bias_of_sequence_mean_over_token_mean_low", low, ">=", 0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    return conclude(measure(options.seeds, options.jobs))


if __name__ == "__main__":
    sys.exit(main())
