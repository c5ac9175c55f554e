"""Paired comparison of checkpoints on the same prompts and seeds, with a confidence interval and a verdict."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.objective.advantages import mean_of
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.models import Group, StoredTrajectory, TrajectorySummary, dump_items
from rolloutlab.store.prompts import prompt_key
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.intervals import anytime_interval, interval, near_normal, only_extremes
from rolloutlab.trajectories.overview import USUAL_BOUNDS
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import comparison as render
from rolloutlab.widgets.collection import conversation_text
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.plot import Plot
from rolloutlab.widgets.text import decimals, shape

if TYPE_CHECKING:
    import pandas as pd

MIN_PROMPTS = 16
"""A verdict needs at least this many prompts."""

_LARGE = 1e100

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Pair:
    """One prompt, with the rewards of its trajectories before and after.

    name: the position of its group.
    prompt: its text.
    before, after: the rewards, in the order of the seeds.
    trained: whether a job trained on the prompt between the two checkpoints.
    rows: how many rows have this prompt.
    of_train: whether its row is in the part `train` of a split.
    left_out: how many completions lack a reward on a side, and are left out.
    seats: group and position of each trajectory, which are the same in both collections.
    row: the row that filled in the prompt.
    """

    name: str
    prompt: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    trained: bool = False
    rows: int = 1
    of_train: bool = False
    left_out: int = field(default=0, compare=False)
    seats: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    row: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def difference(self) -> float:
        """Mean reward after minus mean reward before; 0 if they differ only by rounding."""
        before, after = mean_of(self.before), mean_of(self.after)
        return 0.0 if math.isclose(before, after, rel_tol=1e-12) else after - before


class Side(NamedTuple):
    """The scored samples of one checkpoint. reused: how many of them an earlier comparison sampled."""

    checkpoint: str
    collection: Collection
    reused: int = 0


@dataclass(frozen=True)
class ComparedAnswer:
    """One completion of a comparison. text: everything after its prompt."""

    text: str
    reward: float
    tokens: int
    finish_reason: str | None


@dataclass(frozen=True)
class AnswerPair:
    """Two completions of one prompt with the same seed, before and after.

    positions: the positions of all pairs that have these texts, rewards and finish reasons.
    """

    positions: tuple[int, ...]
    before: ComparedAnswer
    after: ComparedAnswer


class Comparison:
    """Two checkpoints on the same prompts and seeds.

    `interval` is over prompts, because trajectories of one prompt are alike. It is paired, because a hard prompt is
    hard for both checkpoints (Miller 2024, arXiv 2411.00640). A verdict needs 16 prompts, and none of them may have
    been trained on in between: the interval holds for prompts like these, and trained prompts are not like others.

    A verdict also needs bounds of the rewards. Without them, a rare large reward that no sample has could move the mean
    anywhere.

    Args:
        name: The name of the collection.
        before: The name of the first checkpoint.
        after: The name of the second checkpoint.
        pairs: The prompts, with their rewards on both sides.
        anytime: Keep the interval valid if you compare again and again, on more and more prompts.
        bounds: The smallest and the largest possible reward. By default `of_components`; otherwise 0 and 1, or -1 and
            1, if all rewards are within, which is an assumption. Otherwise they are unknown.
        of_components: The bounds of the sum of the components of the rewards, as of `component_bounds`.
        notes: Lines about what is not known of the prompts.
        sides: What was sampled. Without it only the rewards are shown.

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
        sides: Sequence[Side] = (),
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
        self._sides = tuple(sides)
        # read now, because the samples may be deleted while the result is still shown
        self._figures, self._only = _figures(sides, self.pairs)
        self._completions = sum(len(side.collection) for side in sides)
        self._assumption = ""
        if bounds is None:
            self._assumption = ", as their components allow" if of_components else ", as all of these are"

    @property
    def mean_before(self) -> float:
        """Mean over prompts of the mean reward before."""
        return mean_of([mean_of(pair.before) for pair in self.pairs])

    @property
    def mean_after(self) -> float:
        """Mean over prompts of the mean reward after."""
        return mean_of([mean_of(pair.after) for pair in self.pairs])

    @property
    def difference(self) -> float:
        """Mean over prompts of the difference."""
        return mean_of([pair.difference for pair in self.pairs])

    @property
    def trained(self) -> int:
        """How many of the prompts were trained on between the two checkpoints."""
        return sum(pair.trained for pair in self.pairs)

    def interval(self, level: float = 0.95) -> Bounds:
        """Compute the confidence interval of the difference over prompts. With one prompt it is over its trajectories.

        The method depends on the differences; `rolloutlab.trajectories.intervals` has them all:

        - with `anytime`: a confidence sequence;
        - each difference is 0 or as large as the bounds allow, as with one success or failure per prompt: the exact
          sign test;
        - the differences are near enough to normal, or the rewards have no bounds: Student's t;
        - otherwise: betting.

        If the rewards have no bounds and all differences are equal, the interval is infinite.

        Raises:
            InputError: the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"the level {level} is not between 0 and 1", hint="comparison.interval(0.95)")
        differences = self._differences
        if self.bounds is None and len(set(differences)) == 1:
            return -math.inf, math.inf
        # squares of larger rewards may be too large for a float
        largest = max(map(abs, differences))
        unit = largest if largest > _LARGE else 1.0
        width = (self.bounds[1] - self.bounds[0]) / unit if self.bounds else None
        low, high = (anytime_interval if self.anytime else interval)(
            [each / unit for each in differences], level, width
        )
        return float(low) * unit, float(high) * unit

    @property
    def _differences(self) -> list[float]:
        """One number per prompt, or if there is one prompt, per trajectory."""
        if len(self.pairs) > 1:
            return [pair.difference for pair in self.pairs]
        (only,) = self.pairs
        return [after - before for before, after in zip(only.before, only.after, strict=True)]

    def to_frame(self) -> "pd.DataFrame":
        """Make a DataFrame with a row per prompt, largest loss first: prompt, before, after, difference, n, trained."""
        rows = [
            [p.prompt, mean_of(p.before), mean_of(p.after), p.difference, len(p.after), p.trained] for p in self.pairs
        ]
        columns = ["prompt", "before", "after", "difference", "n", "trained"]
        frame = data_frame(rows, [pair.name for pair in self.pairs], "group", columns)
        return frame.sort_values("difference", kind="stable")

    def completions(self, group: str) -> list[AnswerPair]:
        """Read the completions of a prompt, paired by seed. Pairs with equal texts, rewards and endings are merged.

        group: its name in `to_frame()`.

        Raises:
            NotFoundError: there is no such prompt, or its samples have been deleted.
        """
        pair = next((pair for pair in self.pairs if pair.name == str(group)), None)
        if pair is None or not self._sides:
            raise NotFoundError(f"there is no prompt {group!r} in this comparison", hint="comparison.to_frame().index")
        merged: dict[Hashable, AnswerPair] = {}
        sides = (_answers(side, pair, i) for i, side in enumerate(self._sides))
        for position, (before, after) in enumerate(zip(*sides, strict=True)):
            key = tuple((each.text, each.reward, each.finish_reason) for each in (before, after))
            known = merged.get(key, AnswerPair((), before, after))
            merged[key] = replace(known, positions=(*known.positions, position))
        return list(merged.values())

    def describe(self) -> dict[str, Any]:
        """Describe the comparison in JSON values, without completions.

        - `prompts`: sorted by their difference, the largest loss first.
        - `figures`: means over prompts on both sides: tokens of a completion, the share of completions that were cut
          off, and components of the reward.
        - `only`: components that only one side has, with the side: `before` or `after`.
        """
        low, high = self.interval()
        known = None if math.isinf(low) else [low, high]
        return {
            "name": self.name,
            "checkpoints": [self.before, self.after],
            "completions": self._completions,
            "reused": sum(side.reused for side in self._sides),
            "means": [self.mean_before, self.mean_after],
            "difference": self.difference,
            "interval": known,
            "bounds": None if self.bounds is None else list(self.bounds),
            "basis": self._basis() if known else "",
            "verdict": self._verdict(low, high),
            "counts": self._counts(),
            "figures": {name: list(values) for name, values in self._figures.items()},
            "only": self._only,
            "notes": self._remarks(),
            "prompts": [
                {
                    "group": pair.name,
                    "prompt": pair.prompt,
                    "before": mean_of(pair.before),
                    "after": mean_of(pair.after),
                    "difference": pair.difference,
                    "row": {key: value for key, value in pair.row.items() if isinstance(value, str | int | float)},
                    "completions": len(pair.after),
                    "trained": pair.trained,
                }
                for pair in sorted(self.pairs, key=lambda pair: pair.difference)
            ],
        }

    def _counts(self) -> dict[str, int]:
        better = sum(pair.difference > 0 for pair in self.pairs)
        worse = sum(pair.difference < 0 for pair in self.pairs)
        equal = len(self.pairs) - better - worse
        return {"better": better, "worse": worse, "equal": equal, "rows": sum(pair.rows for pair in self.pairs)}

    def words(self) -> list[str]:
        """Describe the result, line by line."""
        low, high = self.interval()
        counts = self._counts()
        pooled = f" ({counts['rows']:,} rows; equal prompts count once)" if counts["rows"] > len(self.pairs) else ""
        bounds = f"95% interval {_with_sign(low)} to {_with_sign(high)}{self._basis()}"
        if math.isinf(low):
            bounds = "all differences equal" if len(self._differences) > 1 else "too few for an interval"
        return [
            f"{self.name}: {self.before} -> {self.after} on {count(len(self.pairs), 'prompt')}{pooled}",
            f"mean reward {decimals(self.mean_before)} -> {decimals(self.mean_after)}, "
            f"difference {self.difference:+{shape(self.difference)}} ({bounds}): {self._verdict(low, high)}",
            f"better on {counts['better']:,}, worse on {counts['worse']:,}, equal on {counts['equal']:,}",
            *self._remarks(),
            *self._reuse_lines(),
        ]

    def _reuse_lines(self) -> list[str]:
        """Say how many completions were reused, if any was."""
        reused = sum(side.reused for side in self._sides)
        return [f"{count(self._completions, 'completion')}, {reused:,} of them reused"] if reused else []

    def _remarks(self) -> list[str]:
        """Return lines about what limits the figures, such as completions that were left out."""
        left_out = sum(pair.left_out for pair in self.pairs)
        of_train = sum(pair.of_train and not pair.trained for pair in self.pairs)
        noted = f"{of_train:,} of these prompts are of the part train of a split -> --over split.held_out"
        return [
            *([noted] if of_train else []),
            *self._notes,
            *([f"{count(left_out, 'completion')} without a reward on one of the sides left out"] if left_out else []),
        ]

    def _basis(self) -> str:
        """State the assumptions of the interval; none if it is Student's, of differences near enough to normal."""
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
        if self.before == self.after:
            return "no verdict, it is one checkpoint with the same seeds on both sides -> another checkpoint"
        if self.trained:
            some = "all of these prompts" if self.trained == len(self.pairs) else f"{self.trained:,} of these prompts"
            return f"no verdict, {some} were trained on in between -> --over ROWS that were not"
        if len(self.pairs) < MIN_PROMPTS:
            return f"no verdict from fewer than {MIN_PROMPTS} prompts -> --over more rows"
        if self.bounds is None:
            return "no verdict, rewards have no known bounds -> --bounds LEAST LARGEST, which a reward can be"
        return "better" if low > 0 else "worse" if high < 0 else "no clear difference -> more prompts, or a larger -n"

    def plot(self) -> Plot:
        """Plot the mean reward of each prompt before and after."""
        return render.plot(self.describe()["prompts"])

    def __repr__(self) -> str:
        return render.text(self.words(), self.describe())

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self.describe(), self._completions_as_json))

    def _completions_as_json(self, group: str) -> list[dict[str, Any]]:
        """Return what `completions` returns as JSON values."""
        return [asdict(pair) for pair in self.completions(group)]


class Comparisons:
    """Several checkpoints, each compared with the same base on the same prompts and seeds.

    `comparisons["lab/sorter@3"]` is the comparison of that checkpoint, `comparisons[0]` is the first one. A completion
    counts only if it has a reward from every checkpoint.
    """

    def __init__(self, each: Sequence[Comparison]) -> None:
        self._each = list(each)

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self._each)

    def __getitem__(self, checkpoint: int | str) -> Comparison:
        """Return the comparison of a checkpoint, by its place or its name.

        Raises:
            NotFoundError: the checkpoint was not compared with the base.
        """
        if isinstance(checkpoint, int):
            return self._each[checkpoint]
        for each in self._each:
            if each.after == checkpoint:
                return each
        names = ", ".join(each.after for each in self._each)
        raise NotFoundError(f"{checkpoint!r} was not compared", hint=names)

    def to_frame(self) -> "pd.DataFrame":
        """Make a DataFrame with a row per prompt, in order: prompt, the mean reward of each checkpoint, n."""
        base = self._each[0]
        columns = ["prompt", base.before, *(each.after for each in self._each), "n"]
        rows = [
            [first.prompt, mean_of(first.before), *(mean_of(pair.after) for pair in (first, *others)), len(first.after)]
            for first, *others in zip(*(each.pairs for each in self._each), strict=True)
        ]
        return data_frame(rows, [pair.name for pair in base.pairs], "group", columns)

    def describe(self) -> list[dict[str, Any]]:
        """Describe each comparison, as `Comparison.describe` does."""
        return [each.describe() for each in self._each]

    def words(self) -> list[str]:
        """Describe the results, line by line."""
        return [line for each in self._each for line in each.words()]

    def __repr__(self) -> str:
        return render.several_text(self.describe(), [repr(each) for each in self._each])

    def _repr_html_(self) -> str:
        return for_notebook(render.several_html(self.describe(), [each._completions_as_json for each in self._each]))


def compare_sides(
    name: str,
    sides: Sequence[Side],
    apart: Sequence[tuple[Set[str], Sequence[str]]],
    weights: Mapping[str, float] | None,
    *,
    anytime: bool = False,
    bounds: Bounds | None = None,
) -> Comparison | Comparisons:
    """Compare the first of several sides with each of the others.

    Args:
        name: As in `Comparison`.
        sides: The sides; the first is the base.
        apart: For each other side, the prompts that either it or the base was trained on but not both, and notes.
        weights: The weights of the components of rewards.
        anytime: As in `Comparison`.
        bounds: As in `Comparison`.
    """
    base, *others = sides
    known = component_bounds(chain.from_iterable(side.collection.trajectories for side in sides), weights)
    comparisons = []
    for other, (trained, notes) in zip(others, apart, strict=True):
        beside = [side.collection for side in others if side is not other]
        of_train = other.collection.part("train")
        pairs = pairs_of(base.collection, other.collection, trained, of_train, beside)
        comparisons.append(
            Comparison(
                name,
                base.checkpoint,
                other.checkpoint,
                pairs,
                anytime=anytime,
                bounds=bounds,
                of_components=known,
                notes=notes,
                sides=(base, other),
            )
        )
    return comparisons[0] if len(comparisons) == 1 else Comparisons(comparisons)


def pairs_of(
    before: Collection,
    after: Collection,
    trained: Set[str] = frozenset(),
    of_train: Set[int] = frozenset(),
    beside: Sequence[Collection] = (),
) -> list[Pair]:
    """Pair the prompts of two collections that were sampled with the same prompts and seeds, in their order.

    Groups with the same prompt and script are one pair, because their trajectories are as alike as those of one group.
    Only trajectories with a reward on both sides count. If a prompt has no such trajectory, it has no pair, and its
    trajectories are counted in `left_out` of the first pair.

    Args:
        before: The first collection.
        after: The second collection.
        trained: Prompts that were trained on in between, as `Lab.prompts` has them.
        of_train: Positions of the groups in the part `train` of a split.
        beside: Further collections of these prompts and seeds, in which a trajectory must have a reward, too.
    """
    pairs: dict[tuple[str, ...], Pair] = {}
    lost = 0
    for place, (old, new, *others) in enumerate(zip(*(c.groups for c in (before, after, *beside)), strict=True)):
        olds, news, *further = (_rewards_by_position(group) for group in (old, new, *others))
        both = [position for position in olds if position in news and all(position in each for each in further)]
        left_out = max(len(group.trajectories) for group in (old, new, *others)) - len(both)
        if not both:
            lost += left_out
        else:
            rewards = tuple(olds[position] for position in both), tuple(news[position] for position in both)
            prompt = prompt_key(dump_items(new.prompt), new.row, place, after.stored.plan)
            name, text = old.name.rpartition("/")[2], new.trajectories[0].prompt
            seats = tuple((place, position) for position in both)
            pair = Pair(
                name,
                text,
                *rewards,
                prompt in trained,
                of_train=place in of_train,
                left_out=left_out,
                seats=seats,
                row=new.row,
            )
            key = (prompt, *map(dump_items, new.script))
            pairs[key] = _pool(pairs[key], pair) if key in pairs else pair
    listed = list(pairs.values())
    return [replace(pair, left_out=pair.left_out + (0 if i else lost)) for i, pair in enumerate(listed)]


def _rewards_by_position(group: Group) -> dict[int, float]:
    return {int(t.name.rpartition("/")[2]): t.reward for t in group.trajectories if t.reward is not None}


def _pool(one: Pair, other: Pair) -> Pair:
    """Join two pairs of the same prompt."""
    rewards = one.before + other.before, one.after + other.after
    return replace(
        one,
        before=rewards[0],
        after=rewards[1],
        rows=one.rows + other.rows,
        left_out=one.left_out + other.left_out,
        seats=one.seats + other.seats,
    )


_OF_SUMMARY: dict[str, Callable[[TrajectorySummary], float]] = {
    "tokens": lambda each: sum(each.tokens_H),
    "cut_off": lambda each: each.finish_reason == "length",
}


def _figures(sides: Sequence[Side], pairs: Sequence[Pair]) -> tuple[dict[str, tuple[float, float]], dict[str, str]]:
    """Average token counts, cut-offs and reward components over prompts, on both sides.

    The second result names, for each measure that only one side has, that side: `before` or `after`. A component with
    the name of another measure is called `reward.NAME`.
    """
    both = [{(each.group, each.position): each for each in side.collection.outlines()} for side in sides]
    parts = dict.fromkeys(name for seats in both for each in seats.values() for name in each.components)
    named = {f"reward.{name}" if name in _OF_SUMMARY else name: _component(name) for name in parts}
    measures = {**_OF_SUMMARY, **named}
    means, only = {}, {}
    for name, measure in measures.items():
        values = [[_mean_at(measure, summaries, pair) for pair in pairs] for summaries in both]
        known = [(old, new) for old, new in zip(*values, strict=True) if old is not None and new is not None]
        if known:
            means[name] = mean_of([old for old, _ in known]), mean_of([new for _, new in known])
        having = [any(value is not None for value in of_side) for of_side in values]
        if sum(having) == 1:
            only[name] = "before" if having[0] else "after"
    return means, only


def _component(name: str) -> Callable[[TrajectorySummary], float | None]:
    return lambda each: each.components.get(name)


def _mean_at(
    measure: Callable[[TrajectorySummary], float | None],
    summaries: Mapping[tuple[int, int], TrajectorySummary],
    pair: Pair,
) -> float | None:
    values = [value for seat in pair.seats if (value := measure(summaries[seat])) is not None]
    return mean_of(values) if values else None


def _answers(side: Side, pair: Pair, which: int) -> list[ComparedAnswer]:
    """Read the completions of a prompt on one side, with the rewards that were compared and may have changed since."""
    places = dict.fromkeys(place for place, _ in pair.seats)
    stored = {(place, t.position): t for place in places for t in side.collection.group(place).trajectories}
    rewards = (pair.before, pair.after)[which]
    return [_answer(stored[seat], reward) for seat, reward in zip(pair.seats, rewards, strict=True)]


def _answer(trajectory: StoredTrajectory, reward: float) -> ComparedAnswer:
    text = conversation_text(trajectory.items[trajectory.given :])
    return ComparedAnswer(text, reward, trajectory.tokens, trajectory.finish_reason)


def component_bounds(
    trajectories: Iterable[StoredTrajectory], weights: Mapping[str, float] | None = None
) -> Bounds | None:
    """Find the bounds of rewards that are weighted sums of components with usual bounds.

    None if a reward is not the weighted sum of its components, or if a component is outside all `USUAL_BOUNDS`.
    weights: the weight of each component, 1 by default.
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
    """Find the first of `USUAL_BOUNDS` that all values are within."""
    within = (bounds for bounds in USUAL_BOUNDS if all(bounds[0] <= value <= bounds[1] for value in values))
    return next(within, None)


def _bounds(pairs: Sequence[Pair], given: Bounds | None, of_components: Bounds | None) -> Bounds | None:
    """Find the bounds of the rewards, as far as they are known. InputError: the given ones are wrong."""
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


def _with_sign(bound: float) -> str:
    """Format a number with its sign and three decimals, or more digits if three would show it as 0."""
    if 0 < abs(bound) < 0.0005:
        return f"{bound:+.1g}"
    return f"{bound:+{'.3f' if abs(bound) < 0.001 else shape(bound)}}"
