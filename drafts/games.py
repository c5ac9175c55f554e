"""Proposal, not run yet: `python -m practice_policy.games --out DIR --seed 0` makes a third policy, `practice-games`.

As reasoning.py it starts from the committed weights, so that `practice` and all figures that depend on it stay.
"""
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from practice_policy.exchanges import Exchange, Message, any_of, assistant, chat_prompt, training_exchanges
from practice_policy.make import Recipe, batches, main, save, train
from transformers import AutoTokenizer, LlamaForCausalLM

from rolloutlab.policy import practice

MOST, TURNS = 20, 10
OBEYS = 0.6
"""The share of guesses that heed the last hint; the others are any number: a habit that a reward can turn."""
GAMES_SHARE = 0.8
RECIPE = Recipe(steps=400, batch_tokens=2048)


def make(folder: Path, *, base: Path = practice.FOLDER, seed: int = 0, recipe: Recipe = RECIPE, report_every: int = 0) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    rng = Random(f"games {seed}")
    train(model, batches(tokenizer, recipe, exchanges(rng), rng, last_only=True), recipe, report_every)
    save(folder, model, tokenizer)


def exchanges(rng: Random) -> Iterator[Exchange]:
    others = training_exchanges(rng)
    while True:
        if rng.random() < GAMES_SHARE:
            yield from game(rng)
        else:
            yield next(others)


def game(rng: Random) -> list[Exchange]:
    """The turns of a game; each guess is an exchange of its own."""
    target = rng.randint(1, MOST)
    prompt: list[Message] = chat_prompt(f"Guess a number from 1 to {MOST}.", "Answer with one number.")
    turns: list[Exchange] = []
    low, high = 1, MOST
    for _ in range(TURNS):
        heeds = rng.random() < OBEYS and low <= high
        guess = rng.randint(low, high) if heeds else rng.randint(1, MOST)
        said = assistant(str(guess))
        numbers = any_of(*map(str, range(1, MOST + 1)))
        turns.append(Exchange("guess", list(prompt), said, numbers, f"guess {target} {len(turns)}"))
        if guess == target:
            break
        hint = "higher" if guess < target else "lower"
        low, high = (guess + 1, MOST) if hint == "higher" else (1, guess - 1)
        prompt += [said, {"role": "user", "content": hint}]
    return turns


if __name__ == "__main__":
    main(make, "Make the practice policy that plays, from the other one.", RECIPE, threads=1)
