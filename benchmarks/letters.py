"""The task of the practice policy in benchmarks: to sort four letters, scored by an exact match."""

from random import Random
from string import ascii_lowercase

PROMPT = "Sort these letters: {{letters}}"
OPTIONS = {"learning_rate": 2e-3}


def is_sorted(answer: str, letters: str) -> float:
    return float(answer == " ".join(sorted(letters.split())))


def draw_rows(random: Random, number: int) -> list[dict[str, str]]:
    return [{"letters": " ".join(random.sample(ascii_lowercase, 4))} for _ in range(number)]
