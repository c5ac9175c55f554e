"""Makes the practice policy that plays, from the other one: `python -m practice_policy.games --out DIR --seed 0`.

It adds games of guess the number, "Guess a number from 40 to 49.", with hints. The policy is taught by a
player who heeds every hint, and then, for a few steps, by one who mostly does not: a habit that a reward can turn.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from practice_policy.exchanges import Exchange, Message, any_of, assistant, chat_prompt, training_exchanges
from practice_policy.make import Recipe, batches, half_forget, main, save, train
from transformers import AutoTokenizer, LlamaForCausalLM

from rolloutlab.policy import practice

NUMBERS, TURNS = 10, 10
HEEDED_SHARE = 0.2
"""Of the guesses of the second player; the others are any of the numbers."""
GAMES_SHARE = 0.9
"""Of the chats that it learns; the others keep it from forgetting all else."""
SYSTEM = "Answer with one number."
RECIPE = Recipe(steps=450, batch_tokens=2048)


def make(
    folder: Path, *, base: Path = practice.FOLDER, seed: int = 0, recipe: Recipe = RECIPE, report_every: int = 0
) -> None:
    """Teach the policy in `base` to play and save it as a folder that `transformers` loads."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    rng = Random(f"games {seed}")
    train(model, batches(tokenizer, recipe, game_exchanges(rng, 1.0), rng), recipe, report_every)
    save(folder, model, tokenizer)
    rng = Random(f"careless games {seed}")
    careless = batches(tokenizer, recipe, game_exchanges(rng, HEEDED_SHARE), rng)
    save(folder, half_forget(folder, careless, recipe), tokenizer)


def game_exchanges(rng: Random, heeded: float) -> Iterator[Exchange]:
    """Draw exchanges without end: a whole game, or one of what the other policy knows."""
    others = training_exchanges(rng)
    while True:
        yield game(rng, heeded) if rng.random() < GAMES_SHARE else next(others)


def game(rng: Random, heeded: float) -> Exchange:
    """A game of ten numbers with the same tens; the last guess is the answer, and those before it are learned, too.

    heeded: the share of guesses that every hint so far allows; the others are any of the ten.
    """
    low = first = 10 * rng.randint(1, 9)
    high = last = first + NUMBERS - 1
    target = rng.randint(first, last)
    prompt: list[Message] = chat_prompt(f"Guess a number from {first} to {last}.", SYSTEM)
    guesses: list[int] = []
    while True:
        guesses.append(rng.randint(low, high) if rng.random() < heeded else rng.randint(first, last))
        guess, guessed = guesses[-1], assistant(str(guesses[-1]))
        if guess == target or len(guesses) == TURNS:
            right = any_of(*map(str, range(low, high + 1)))
            return Exchange("guess", prompt, guessed, right, f"guess {target} {guesses}")
        low, high = (max(low, guess + 1), high) if guess < target else (low, min(high, guess - 1))
        prompt += [guessed, {"role": "user", "content": "higher" if guess < target else "lower"}]


if __name__ == "__main__":
    main(make, "Make the practice policy that plays from the other one.", RECIPE, threads=1)
