"""Grid of a sweep: the check of its settings, and the names of the collection and the model of each loop."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

from rolloutlab.api.wire.training import LONGEST_NAME
from rolloutlab.errors import InputError
from rolloutlab.objective.algorithms import ALGORITHM
from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.training.models import as_id, split_name

Grid = Mapping[str, Sequence[Any]]
"""The values of each setting that differs between the loops."""
SAMPLED = frozenset({"n", "temperature", "top_p", "max_tokens", "max_turns", "stop", "top_up"})
"""Settings of a grid that are not options of a job."""
_LONGEST_VALUE = 40
_EXAMPLE = 'lab.sweep({"learning_rate": [1e-3, 2e-3]}, NAME, PROMPT, reward)'


@dataclass(frozen=True)
class Variant:
    """One loop of several.

    setting: a name that all loops with these settings share. collection, model: names of this loop alone. settings: the
    settings in which the loops differ. seed: its number among the loops with these settings.
    """

    setting: str
    collection: str
    model: str
    settings: Mapping[str, Any]
    seed: int

    def __str__(self) -> str:
        return f"{self.setting}, seed {self.seed}"

    @property
    def options(self) -> dict[str, Any]:
        """Its settings that are options of a job."""
        return {name: value for name, value in self.settings.items() if name not in SAMPLED}

    @property
    def sampling(self) -> dict[str, Any]:
        """Its settings of the sampling."""
        return {name: value for name, value in self.settings.items() if name in SAMPLED}


def check_grid(grid: Any) -> None:
    """Raise InputError unless a grid has lists of different values, for settings that a sweep knows."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError(f"the settings of a sweep are a dict of lists, not {grid!r}", hint=_EXAMPLE)
    known = [*OPTIONS, ALGORITHM, *sorted(SAMPLED)]
    for name, values in grid.items():
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            raise InputError(
                f"a sweep has no setting {name!r}", hint=f'"{close[0] if close else "learning_rate"}": [...]'
            )
        if not isinstance(values, list | tuple) or not values:
            raise InputError(f"{name}: {values!r} is not a list of values", hint=f'"{name}": [...]')
        for value in values:
            if not _is_plain(value):
                raise InputError(f"{name}: {value!r} is neither a number nor a text", hint=f'"{name}": [...]')
        once: list[Any] = []
        for value in values:
            # 1 and 1.0 would have different names, but are one setting
            if not any(value == each or _word(value) == _word(each) for each in once):
                once.append(value)
        if len(once) < len(values):
            raise InputError(f"{name}: two of the values {values!r} are the same", hint=f'"{name}": {once!r}')


def plan_variants(name: str, model: str, grid: Grid, seeds: int) -> list[Variant]:
    """List the loops of a grid, each setting with all its seeds.

    Names are readable: the collection `letters.learning_rate-0.002.seed1` has the model
    `lab/practice.letters.learning_rate-0.002.seed1`. A name that is longer than a service takes is cut, and ends with a
    digest.

    Raises:
        InputError: the selected model has no name of the form PROJECT/NAME.
    """
    if as_id(model):
        raise InputError(f"{model} was selected by its id, and the models of the loops follow its name", hint="%models")
    project, short = split_name(model)
    variants = []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        setting = ".".join([name, *(f"{key}-{_word(value)}" for key, value in settings.items())])
        for seed in range(seeds):
            own = _fit(f"{setting}.seed{seed}", LONGEST_NAME - len(short) - 1)
            variants.append(Variant(setting, own, f"{project}/{short}.{own}", settings, seed))
    return variants


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | bool | None)


def _word(value: Any) -> str:
    """Write a value as a part of a name, with the characters that names may have: `0.002`, `dapo`, `none`."""
    text = str(value) if value is None or isinstance(value, bool | str) else f"{value!r}"
    word = re.sub(r"[^\w.-]+", "_", text.lower() if not isinstance(value, str) else text)
    return word if word.lower() == text.lower() and len(word) <= _LONGEST_VALUE else _shorten(word, text, 20)


def _fit(name: str, longest: int) -> str:
    return name if len(name) <= longest else _shorten(name, name, longest - 9)


def _shorten(word: str, text: str, length: int) -> str:
    """Cut a word, and add a digest of the text that it stands for."""
    return f"{word[:length]}-{sha256(text.encode(errors='replace')).hexdigest()[:8]}"
