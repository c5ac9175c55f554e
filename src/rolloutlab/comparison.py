"""Two checkpoints on the same prompts and seeds: what became better, by how much, and how sure that is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolloutlab.collection import Collection
from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.visible import as_written
from rolloutlab.widgets import comparison as view
from rolloutlab.widgets.plot import Plot

if TYPE_CHECKING:
    import pandas as pd

_RESAMPLES = 2000
_CHUNK = 100
_FEW = 10
_FEWEST = 5


@dataclass(frozen=True)
class Pair:
    """One prompt: the rewards of its trajectories before and after, in the order of their seeds."""

    name: str
    prompt: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def difference(self) -> float:
        """Mean reward after less mean reward before."""
        return _mean(self.after) - _mean(self.before)


class Comparison:
    """Two checkpoints on the same prompts and seeds.

    `interval` is by the bootstrap over prompts (Efron and Tibshirani 1993), which keeps the trajectories of a prompt
    together; paired, since a prompt that is hard is hard for both (Miller 2024, arXiv 2411.00640).
    """

    def __init__(self, name: str, before: str, after: str, pairs: Sequence[Pair]) -> None:
        if not pairs:
            raise InputError(f"no prompt of {name} has rewards on both sides", hint=f"%%compare {name}")
        self.name = name
        self.before = before
        self.after = after
        self.pairs = list(pairs)

    @property
    def mean_before(self) -> float:
        """Mean over prompts of the mean reward before."""
        return _mean([_mean(pair.before) for pair in self.pairs])

    @property
    def mean_after(self) -> float:
        """Mean over prompts of the mean reward after."""
        return _mean([_mean(pair.after) for pair in self.pairs])

    @property
    def difference(self) -> float:
        """Mean over prompts of the difference."""
        return _mean([pair.difference for pair in self.pairs])

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Between which bounds the difference lies, by resampling prompts; trajectories where there is one prompt.

        The same pairs give the same interval: the draws are seeded.

        Raises:
            InputError: the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"the level {level} is not between 0 and 1", hint="comparison.interval(0.95)")
        if len(self.pairs) > 1:
            return bootstrap([pair.difference for pair in self.pairs], level)
        (only,) = self.pairs
        return bootstrap([after - before for before, after in zip(only.before, only.after, strict=True)], level)

    def to_frame(self) -> "pd.DataFrame":
        """One row per prompt, the largest loss first: prompt, before, after, difference, n."""
        import pandas as pd

        from rolloutlab.widgets.frame import Frame

        rows = [[p.prompt, _mean(p.before), _mean(p.after), p.difference, len(p.after)] for p in self.pairs]
        names = pd.Index([pair.name for pair in self.pairs], name="group")
        frame = Frame(rows, index=names, columns=["prompt", "before", "after", "difference", "n"])
        return frame.sort_values("difference", kind="stable")

    def words(self) -> list[str]:
        """What came of it, line by line."""
        low, high = self.interval()
        better = sum(pair.difference > 0 for pair in self.pairs)
        worse = sum(pair.difference < 0 for pair in self.pairs)
        sure = "better" if low > 0 else "worse" if high < 0 else "no clear difference -> more prompts, or a larger -n"
        units = len(self.pairs) if len(self.pairs) > 1 else len(self.pairs[0].after)
        verdict = sure if units >= _FEWEST else "too few to say"
        few = f"an interval from {count(len(self.pairs), 'prompt')} is too narrow -> --over more rows"
        return [
            f"{self.name}: {self.before} -> {self.after} on {count(len(self.pairs), 'prompt')}",
            f"mean reward {self.mean_before:.3f} -> {self.mean_after:.3f}, "
            f"difference {self.difference:+.3f} (95% interval {low:+.3f} to {high:+.3f}): {verdict}",
            f"better on {better:,}, worse on {worse:,}, equal on {len(self.pairs) - better - worse:,}",
            *([few] if len(self.pairs) < _FEW else []),
        ]

    def plot(self) -> Plot:
        """Mean reward of each prompt before and after."""
        return view.plot(self._rows())

    def __repr__(self) -> str:
        return view.text(self.words(), self._rows())

    def _repr_html_(self) -> str:
        return as_written(view.html(self.words(), self._rows()))

    def _rows(self) -> list[view.Row]:
        pairs = sorted(self.pairs, key=lambda pair: pair.difference)
        return [(pair.name, pair.prompt, _mean(pair.before), _mean(pair.after)) for pair in pairs]


def pairs_of(before: Collection, after: Collection) -> list[Pair]:
    """The prompts of two collections that were sampled with the same prompts and seeds.

    Only trajectories that have a reward on both sides count; a prompt without any is left out.
    """
    found = []
    for old, new in zip(before.groups, after.groups, strict=True):
        olds = {t.name.rpartition("/")[2]: t.reward for t in old.trajectories if t.reward is not None}
        news = {t.name.rpartition("/")[2]: t.reward for t in new.trajectories if t.reward is not None}
        both = [place for place in olds if place in news]
        if both:
            rewards = tuple(olds[place] for place in both), tuple(news[place] for place in both)
            found.append(Pair(old.name.rpartition("/")[2], new.trajectories[0].prompt, *rewards))
    return found


def bootstrap(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean of `differences`, from 2,000 seeded resamples."""
    import numpy as np

    draws = np.random.default_rng(0)
    values_N = np.asarray(differences, dtype=float)
    means = [
        values_N[draws.integers(0, len(values_N), (_CHUNK, len(values_N)))].mean(axis=1)
        for _ in range(_RESAMPLES // _CHUNK)
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)
