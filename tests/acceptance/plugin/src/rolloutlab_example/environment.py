"""`--env guess:100`: guess a number up to 100."""

import random

from rolloutlab import Step
from rolloutlab.errors import InputError


class Guess:
    """One instance for each rollout."""

    def __init__(self, highest):
        self.highest = highest

    def reset(self, seed):
        self.number = random.Random(seed).randint(1, self.highest)
        return f"Guess my number, from 1 to {self.highest}."

    def step(self, answer):
        guess = int(answer) if answer.strip().isdecimal() else 0
        if guess == self.number:
            return Step(None, reward=1.0, done=True)
        return Step("higher" if guess < self.number else "lower")


class Guesses:
    """Makes the instances; a collection stores the name."""

    def __init__(self, highest):
        self.name = f"guess:{highest}"
        self.highest = highest

    def rows(self, limit, seed):
        return [{} for _ in range(limit or 1)]  # groups differ in their seed alone

    def environment(self, row):
        return Guess(self.highest)


def source(name, **options):
    if not name.isdecimal() or options:
        raise InputError(f"there is no guess:{name}", hint="guess:100, the highest number")
    return Guesses(int(name))


def names():
    return ["10", "100", "1000"]
