"""Paired comparison of two checkpoints on the same prompts and seeds, with a confidence interval and a verdict."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.models import StoredTrajectory, dumped
from rolloutlab.store.prompts import prompt_key
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.intervals import anytime_interval, interval, near_normal, only_extremes
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import comparison as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.plot import Plot

if TYPE_CHECKING:
    import pandas as pd

MIN_PROMPTS = 16
"""For a verdict."""

Bounds = tuple[float, float]

USUAL_BOUNDS: tuple[Bounds, ...] = ((0.0, 1.0), (-1.0, 1.0))
"""Those that rewards, or components of them, are taken to have where all of them are within."""


@dataclass(frozen=True)
class Pair:
    """One prompt: the rewards of its trajectories before and after, in the order of their seeds.

    trained: whether a job trained on it between the two checkpoints. rows: how many rows gave this same prompt.
    of_train: whether it is of the part `train` of a split. left_out: completions without a reward on one of the sides.
    """

    name: str
    prompt: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    trained: bool = False
    rows: int = 1
    of_train: bool = False
    left_out: int = field(default=0, compare=False)

    @property
    def difference(self) -> float:
        """Mean reward after less mean reward before."""
        return _mean(self.after) - _mean(self.before)


class Comparison:
    """Two checkpoints on the same prompts and seeds.

    `interval` is over prompts, since trajectories of a prompt are alike; paired, since a prompt that is hard is hard
    for both (Miller 2024, arXiv 2411.00640). A verdict needs 16 prompts, none of which was trained on in between: the
    interval holds for prompts like these, and prompts that were trained on are not like those that were not.

    bounds: the least and the largest reward there can be. By default those of the components, else 0 and 1, or -1 and
    1, where all rewards are within them, which is then an assumption; else they are unknown. Without bounds there is no
    verdict: a rare large reward that no sample has can move a mean to anywhere. of_components: the bounds that sums of
    the components of the rewards have (`component_bounds`). anytime: the interval stays valid where a comparison is
    made again and again on more and more prompts. notes: lines on what is not known of the prompts.

    Raises:
        InputError: there is no pair, or a reward is outside the given bounds.
    """

    def __init__(
        self,
        name: str,
        before: str,
        after: str,
        pairs: Sequence[Pair],
        *,
        anytime: bool = False,
        bounds: Bounds | None = None,
        of_components: Bounds | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        if not pairs:
            raise InputError(f"no prompt of {name} has rewards on both sides", hint=f"%%compare {name}")
        self.name = name
        self.before = before
        self.after = after
        self.pairs = list(pairs)
        self.anytime = anytime
        self.bounds = _bounds(self.pairs, bounds, of_components)
        self._notes = tuple(map(escape_control_chars, notes))
        self._assumption = ""
        if bounds is None:
            self._assumption = ", as their components allow" if of_components else ", as all of these are"

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

    @property
    def trained(self) -> int:
        """How many of the prompts were trained on between the two checkpoints."""
        return sum(pair.trained for pair in self.pairs)

    def interval(self, level: float = 0.95) -> Bounds:
        """The confidence interval of the difference over prompts; over trajectories where there is one prompt.

        By the exact sign test where each difference is none or as large as the bounds allow, as with one success or
        failure per prompt; else Student's t where differences are near enough to normal, else by betting where rewards
        have bounds; with `anytime` an interval of a confidence sequence; see `rolloutlab.trajectories.intervals`. Equal
        differences of rewards without bounds bound nothing: it is then everything.

        Raises:
            InputError: the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"the level {level} is not between 0 and 1", hint="comparison.interval(0.95)")
        differences = self._differences
        if self.bounds is None and len(set(differences)) == 1:
            return -math.inf, math.inf
        width = self.bounds[1] - self.bounds[0] if self.bounds else None
        low, high = (anytime_interval if self.anytime else interval)(differences, level, width)
        return float(low), float(high)

    @property
    def _differences(self) -> list[float]:
        """One number per prompt; per trajectory where there is one prompt."""
        if len(self.pairs) > 1:
            return [pair.difference for pair in self.pairs]
        (only,) = self.pairs
        return [after - before for before, after in zip(only.before, only.after, strict=True)]

    def to_frame(self) -> "pd.DataFrame":
        """One row per prompt, the largest loss first: prompt, before, after, difference, n, trained."""
        rows = [[p.prompt, _mean(p.before), _mean(p.after), p.difference, len(p.after), p.trained] for p in self.pairs]
        columns = ["prompt", "before", "after", "difference", "n", "trained"]
        frame = data_frame(rows, [pair.name for pair in self.pairs], "group", columns)
        return frame.sort_values("difference", kind="stable")

    def words(self) -> list[str]:
        """The result, line by line."""
        low, high = self.interval()
        left_out = sum(pair.left_out for pair in self.pairs)
        better = sum(pair.difference > 0 for pair in self.pairs)
        worse = sum(pair.difference < 0 for pair in self.pairs)
        rows = sum(pair.rows for pair in self.pairs)
        pooled = f" ({rows:,} rows; equal prompts count once)" if rows > len(self.pairs) else ""
        of_train = sum(pair.of_train and not pair.trained for pair in self.pairs)
        noted = f"{of_train:,} of these prompts are of the part train of a split -> --over split.held_out"
        bounds = f"95% interval {_signed(low)} to {_signed(high)}{self._basis()}"
        if math.isinf(low):
            bounds = "all differences equal" if len(self._differences) > 1 else "too few for an interval"
        return [
            f"{self.name}: {self.before} -> {self.after} on {count(len(self.pairs), 'prompt')}{pooled}",
            f"mean reward {self.mean_before:.3f} -> {self.mean_after:.3f}, "
            f"difference {self.difference:+.3f} ({bounds}): {self._verdict(low, high)}",
            f"better on {better:,}, worse on {worse:,}, equal on {len(self.pairs) - better - worse:,}",
            *([noted] if of_train else []),
            *self._notes,
            *([f"{count(left_out, 'completion')} without a reward on one of the sides left out"] if left_out else []),
        ]

    def _basis(self) -> str:
        """The assumptions of the interval, unless it is Student's for differences that are near enough to normal."""
        validity = ", valid at every look" if self.anytime else ""
        if self.bounds is None:
            return f"{validity}, which assumes roughly normal differences"
        low, high = self.bounds
        by_signs = only_extremes(self._differences, high - low)
        if not self.anytime and near_normal(self._differences, high - low) and not by_signs:
            return ""
        equal = ", all differences equal" if len(set(self._differences)) == 1 else ""
        within = f"for rewards within {low:g} and {high:g}"
        return f"{validity}{equal}, {within}{self._assumption}"

    def _verdict(self, low: float, high: float) -> str:
        if self.trained:
            some = "all of these prompts" if self.trained == len(self.pairs) else f"{self.trained:,} of these prompts"
            return f"no verdict, {some} were trained on in between -> --over ROWS that were not"
        if len(self.pairs) < MIN_PROMPTS:
            return f"no verdict from fewer than {MIN_PROMPTS} prompts -> --over more rows"
        if self.bounds is None:
            return "no verdict, rewards have no known bounds -> --bounds LEAST LARGEST, which a reward can be"
        return "better" if low > 0 else "worse" if high < 0 else "no clear difference -> more prompts, or a larger -n"

    def plot(self) -> Plot:
        """Mean reward of each prompt before and after."""
        return render.plot(self._rows())

    def __repr__(self) -> str:
        return render.text(self.words(), self._rows())

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self.words(), self._rows()))

    def _rows(self) -> list[render.Row]:
        pairs = sorted(self.pairs, key=lambda pair: pair.difference)
        return [(pair.name, pair.prompt, _mean(pair.before), _mean(pair.after)) for pair in pairs]


def pairs_of(
    before: Collection, after: Collection, trained: Set[str] = frozenset(), of_train: Set[int] = frozenset()
) -> list[Pair]:
    """The prompts of two collections that were sampled with the same prompts and seeds, in the order of their rows.

    Groups with the same prompt and script are one pair, since their trajectories are as alike as those of one group.
    Only trajectories that have a reward on both sides count; those of a prompt without any are in `left_out` of the
    first. trained: prompts that were trained on in between, as `Lab.prompts` has them. of_train: positions of the
    groups of a split's part `train`.
    """
    pairs: dict[tuple[str, ...], Pair] = {}
    lost = 0
    for place, (old, new) in enumerate(zip(before.groups, after.groups, strict=True)):
        olds = {t.name.rpartition("/")[2]: t.reward for t in old.trajectories if t.reward is not None}
        news = {t.name.rpartition("/")[2]: t.reward for t in new.trajectories if t.reward is not None}
        both = [position for position in olds if position in news]
        left_out = max(len(old.trajectories), len(new.trajectories)) - len(both)
        lost += 0 if both else left_out
        if both:
            rewards = tuple(olds[position] for position in both), tuple(news[position] for position in both)
            prompt = prompt_key(dumped(new.prompt), new.row, place, after.stored.plan)
            name, text = old.name.rpartition("/")[2], new.trajectories[0].prompt
            pair = Pair(name, text, *rewards, prompt in trained, of_train=place in of_train, left_out=left_out)
            key = (prompt, *map(dumped, new.script))
            pairs[key] = _pooled(pairs[key], pair) if key in pairs else pair
    listed = list(pairs.values())
    return [replace(pair, left_out=pair.left_out + (0 if i else lost)) for i, pair in enumerate(listed)]


def _pooled(one: Pair, other: Pair) -> Pair:
    rewards = one.before + other.before, one.after + other.after
    return Pair(
        one.name, one.prompt, *rewards, one.trained, one.rows + other.rows, one.of_train, one.left_out + other.left_out
    )


def component_bounds(
    trajectories: Iterable[StoredTrajectory], weights: Mapping[str, float] | None = None
) -> Bounds | None:
    """The bounds of rewards that are weighted sums of components, each within `USUAL_BOUNDS`.

    weights: of components, 1 by default. None where a reward is not the sum of its components, or where a component has
    no usual bounds.
    """
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        if trajectory.reward is None:
            continue
        parts = {name: (weights or {}).get(name, 1.0) * value for name, value in trajectory.components.items()}
        if not parts or not math.isclose(math.fsum(parts.values()), trajectory.reward, rel_tol=1e-9, abs_tol=1e-9):
            return None
        for name, value in trajectory.components.items():
            values.setdefault(name, []).append(value)
    lows, highs = [0.0], [0.0]
    for name, each in values.items():
        bounds = _usual_bounds(each)
        if bounds is None:
            return None
        ends = sorted((weights or {}).get(name, 1.0) * end for end in bounds)
        # a component that some trajectories lack adds nothing there
        lows.append(min(0.0, ends[0]))
        highs.append(max(0.0, ends[1]))
    low, high = math.fsum(lows), math.fsum(highs)
    return (low, high) if low < high else None


def _usual_bounds(values: Sequence[float]) -> Bounds | None:
    within = (bounds for bounds in USUAL_BOUNDS if all(bounds[0] <= value <= bounds[1] for value in values))
    return next(within, None)


def _bounds(pairs: Sequence[Pair], given: Bounds | None, of_components: Bounds | None) -> Bounds | None:
    """The bounds of the rewards, as far as they are known."""
    rewards = [reward for pair in pairs for reward in (*pair.before, *pair.after)]
    if given is None:
        return of_components or _usual_bounds(rewards)
    low, high = given
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{low:g} and {high:g} are not bounds: the first must be lower", hint="--bounds 0 1")
    if outside := [reward for reward in rewards if not low <= reward <= high]:
        hint = f"--bounds {min(low, *outside):g} {max(high, *outside):g}, if no reward can be beyond"
        raise InputError(f"the reward {outside[0]:g} is outside the bounds {low:g} and {high:g}", hint=hint)
    return given


def _signed(bound: float) -> str:
    """With three decimals, or as many as show on which side of 0 it is."""
    return f"{bound:+.3f}" if bound == 0 or abs(bound) >= 0.0005 else f"{bound:+.1g}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)
