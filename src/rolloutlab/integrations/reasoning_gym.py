"""Adapter of reasoning-gym: `reasoning-gym:DATASET`, questions made from seeds, with the package's own scores."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from rolloutlab.environments.adapters import check_name, import_package, name_with
from rolloutlab.environments.protocol import Step
from rolloutlab.errors import InputError

_BEFORE_FINAL = re.compile(r"(?:answer is|answer:|result is)[ \t]*:?", re.IGNORECASE)
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def source(name: str, **options: Any) -> "ReasoningGym":
    """Make the source of a data set. options: of its configuration, such as `min_terms=2`."""
    check_name("reasoning-gym", name, names())
    return ReasoningGym(name, options)


def names() -> list[str]:
    """List the data sets of the package, without `composite`, which only mixes others."""
    return sorted(set(import_package("reasoning_gym.factory", "reasoning-gym").DATASETS) - {"composite"})


class ReasoningGym:
    """Questions of one data set. Each row is a question with its solution and the seed that it is made from."""

    def __init__(self, dataset: str, options: Mapping[str, Any]) -> None:
        self.name = name_with(f"reasoning-gym:{dataset}", options)
        self._dataset = dataset
        self._options = options
        self._entries: dict[int, Mapping[str, Any]] = {}
        self._lock = Lock()
        self._score = self._make(0).score_answer  # one for all: it takes the entry, and some data sets are large

    def rows(self, limit: int | None, seed: int) -> list[dict[str, Any]]:
        seeds = random.Random(seed).sample(
            range(2**31), limit or 1
        )  # far apart: in the package, seeds 1, 2, ... overlap
        entries = map(self._entry, seeds)
        return [
            {"question": entry["question"], "solution": entry["answer"], "seed": each}
            for each, entry in zip(seeds, entries, strict=True)
        ]

    def environment(self, row: Mapping[str, Any]) -> "AskedQuestion":
        if not isinstance(row.get("seed"), int):
            raise InputError(f"{self.name} makes its own rows", hint="--limit N instead of --over")
        return AskedQuestion(self._entry(row["seed"]), self._score)

    def _entry(self, seed: int) -> Mapping[str, Any]:
        """Return the question of a seed; make it unless this process has made it before."""
        with self._lock:
            if seed not in self._entries:
                with _global_generators(seed):
                    self._entries[seed] = self._make(seed)[0]
            return self._entries[seed]

    def _make(self, seed: int) -> Any:
        """Make a data set of one question."""
        create = import_package("reasoning_gym", "reasoning-gym").create_dataset
        try:
            return create(self._dataset, **self._options, seed=seed, size=1)
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"{self.name}: {error}", hint="other options") from error


class AskedQuestion:
    """One question: the episode is one answer."""

    def __init__(self, entry: Mapping[str, Any], score: Callable[[str, Mapping[str, Any]], float]) -> None:
        self._entry = entry
        self._score = score

    def reset(self, seed: int) -> str:  # noqa: ARG002 - the question was made from a seed of its own
        return str(self._entry["question"])

    def step(self, answer: str) -> Step:
        return Step(None, self._score(final_answer(answer), self._entry), done=True)


def final_answer(text: str) -> str:
    """Cut the answer out of a text, because scorers compare all that they are given.

    The answer is what the last `<answer>...</answer>` has. Without one, it is what follows the last "answer is" or
    "answer:", without a full stop; without these, it is the whole text.
    """
    before, closing, _ = text.rpartition("</answer>")  # else the pattern would scan from each unclosed tag to the end
    if tagged := _TAGGED.findall(before + closing):
        return str(tagged[-1]).strip()
    _, *after = _BEFORE_FINAL.split(text)
    if after and (final := after[-1].strip().partition("\n")[0].strip("*`$ ")):
        return final.removesuffix(".").strip("*`$ ")
    return text.strip()


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
    """Seed the generators of the process, which some data sets draw from, and restore them at the end."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
