"""Overview of a collection: its figures, the groups that train, and what a person should know first."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from rolloutlab.api import prices
from rolloutlab.errors import NotFoundError
from rolloutlab.hints import Hint
from rolloutlab.objective.advantages import Reason, mean_of, rewards_differ
from rolloutlab.objective.preflight import count
from rolloutlab.objective.steps import short
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.sampling.differences import find_differences
from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection, TrajectorySummary
from rolloutlab.trajectories.first_reward import first_body
from rolloutlab.trajectories.rewards_data import RewardsData
from rolloutlab.trajectories.rewards_rows import HUGE, RewardsRows
from rolloutlab.trajectories.top_up import top_up_cell
from rolloutlab.widgets.collection import name_errors
from rolloutlab.widgets.overview import MOST_BARS, Figures, GroupBar, Histogram, Overview, Standing
from rolloutlab.widgets.text import checkpoint_name, distinct

if TYPE_CHECKING:
    from rolloutlab.trajectories.intervals import Values

USUAL_BOUNDS = ((0.0, 1.0), (-1.0, 1.0))
"""Bounds that are assumed if all rewards, or all values of a component, are within them. The first that fits counts."""

_STANDINGS: Mapping[Reason | None, Standing] = {
    None: "trains",
    Reason.ALL_PASSED: "pass",
    Reason.ALL_FAILED: "fail",
    Reason.EQUAL_REWARDS: "equal",
    Reason.MEAN_REWARD: "equal",
    Reason.UNSCORED: "unscored",
}
_ORDER: tuple[Standing, ...] = ("trains", "fail", "equal", "pass", "other", "unscored")
"""The order of the groups in the strip: first those that train, then those that could, and last unscored ones."""
_BINS = 20
"""The number of bars of a histogram."""
_LEVEL = 0.95
"""The confidence level of intervals."""
_NOTABLE = 0.2
"""The share of failures (or of answers, if none is scored) that must be cut off for a hint."""
_NEARLY_ALL = 0.9
"""The share of answers that counts as nearly all of them."""
_LOOKED_AT = 2_000
"""The most groups in which equal answers are searched."""
_READ = 64
"""The most sets of equal answers with different rewards whose conversations are read."""
_QUOTED = 40
"""The most characters of a quoted answer."""
_NAMED = 3
"""The most groups that a hint names."""
_FEWEST_GROUPS = 8
"""The least number of groups with both complete and cut-off answers in which rewards are compared."""
_ERRORS = 2.4
"""The number of standard errors above which a difference of rewards is not taken for chance."""


def summarize(
    rows: RewardsRows, lab: Lab, stored: Sequence[StoredCollection], shown: Sequence[int] | None = None
) -> Overview:
    """Summarize all rows of a view, and those that fit a filter.

    Args:
        rows: The rows.
        lab: The lab.
        stored: The collections of the view.
        shown: The indices of the rows that fit the filter; None without a filter.
    """
    standings = _standings(rows)
    order = _order_by_standing(rows, standings)
    whole = _figures(rows, range(len(rows)), standings)
    fitting = None if shown is None else _figures(rows, shown, standings, whole)
    fits = None if shown is None else {rows.group_of[i] for i in shown}
    alone = stored[0] if len(stored) == 1 else None
    collection = None if rows.is_part else alone  # one group is not compared with a whole generation
    return Overview(
        whole,
        _bars(rows, standings, order, fits, whole.rewards),
        _interval(rows, whole),
        _pass_at(rows),
        _find_previous_generation(lab, collection, scored=whole.scored > 0) if collection else None,
        find_hints(rows, standings, order, lab, alone, whole) if alone else (),
        _describe(rows, alone, whole),
        _find_trained_on(lab, alone) if alone else "",
        rows.largest,
        usage=_describe_usage(lab, collection) if collection else "",
        fitting=fitting,
        next=_scoring_cell(lab, collection) if collection and whole.answers and not whole.scored else "",
    )


def mean_and_interval(rows: RewardsRows) -> tuple[float | None, tuple[float, float] | None]:
    """Compute the mean reward and its 95% interval, as the overview shows them."""
    whole = _figures(rows, range(len(rows)), _standings(rows))
    return whole.mean, _interval(rows, whole)


def summarize_job(job: RewardsData, lab: Lab, shown: Sequence[int] | None = None) -> Overview:
    """Summarize rows that views share. The result is cached, because a page asks for it more than once."""
    return job.derive(shown, lambda: summarize(job.rows, lab, job.stored, shown))


def order_groups(rows: RewardsRows) -> list[int]:
    """Order the groups by what there is to learn; return their indices.

    Groups that train come first, those with the most spread rewards before others. The rest is ordered by its kind.
    """
    return _order_by_standing(rows, _standings(rows))


def _order_by_standing(rows: RewardsRows, standings: Sequence[Standing]) -> list[int]:
    return sorted(range(len(standings)), key=lambda g: (_ORDER.index(standings[g]), -rows.deviation_of(g), g))


def _standings(rows: RewardsRows) -> list[Standing]:
    return [_STANDINGS.get(rows.why_not(g), "other") for g in range(len(rows.groups))]


def _figures(
    rows: RewardsRows, shown: Sequence[int], standings: Sequence[Standing], whole: Figures | None = None
) -> Figures:
    """Compute the figures of some rows. whole: the figures of all rows, whose histogram bins are used again."""
    import numpy as np

    outlines = [rows.outlines[i] for i in shown]
    given = np.array([each.reward for each in outlines], dtype=float)  # None is nan
    cut_off = np.array([each.finish_reason == "length" for each in outlines], dtype=bool)
    lengths = np.array([rows.lengths[i] for i in shown], dtype=float)
    rewards, sampled = given[~np.isnan(given)], lengths[lengths > 0]
    least = rewards.min(initial=math.inf)
    failures = (given == least) & (given <= 0)
    groups = {rows.group_of[i] for i in shown} if whole else range(len(rows.groups))
    kinds = Counter([standings[g] for g in groups])
    ends = (_ends(whole.rewards), _ends(whole.lengths)) if whole else (_range(rewards), (0.0, sampled.max(initial=0)))
    return Figures(
        answers=len(outlines),
        scored=len(rewards),
        groups=len(groups),
        standings={kind: kinds[kind] for kind in _ORDER if kinds[kind]},
        mean=mean_of(rewards.tolist()) if len(rewards) else None,
        parts=_means_of_parts(outlines),
        rewards=_histogram(rewards, *ends[0]),
        lengths=_histogram(sampled, *ends[1]),
        median=float(np.median(sampled)) if len(sampled) else None,
        cut_off=int(cut_off.sum()),
        failures=int(failures.sum()),
        failures_cut_off=int((failures & cut_off).sum()),
        scored_cut_off=int((~np.isnan(given) & cut_off).sum()),
    )


def _means_of_parts(outlines: Iterable[TrajectorySummary]) -> dict[str, float]:
    """Compute the mean of each component over the answers that have it."""
    values: dict[str, list[float]] = {}
    for each in outlines:
        for name, value in each.components.items():
            values.setdefault(name, []).append(value)
    return {name: mean_of(listed) for name, listed in values.items()}


def _range(rewards: "Values") -> tuple[float, float]:
    """Return the ends of an axis: the usual bounds if all rewards are within, else the least and the largest reward."""
    low, high = (float(rewards.min()), float(rewards.max())) if len(rewards) else (0.0, 1.0)
    return next(((a, b) for a, b in USUAL_BOUNDS if a <= low and high <= b), (low, high))


def _ends(histogram: Histogram | None) -> tuple[float, float]:
    return (histogram.low, histogram.high) if histogram else (0.0, 1.0)


def _histogram(values: "Values", low: float, high: float) -> Histogram | None:
    import numpy as np

    if not len(values) or not (high > low and math.isfinite(high - low)):
        return None
    bins = np.clip(_BINS * ((values - low) / (high - low)), 0, _BINS - 1).astype(int)
    return Histogram(np.bincount(bins, minlength=_BINS).tolist(), float(low), float(high))


def _interval(rows: RewardsRows, whole: Figures) -> tuple[float, float] | None:
    """Compute the interval of the mean reward, or None.

    The values are groups and not answers, because answers to one prompt are alike. A group counts by its size: its
    value is mean + (its share of the answers · groups) · (its mean - mean). The mean of these values is that of all
    answers (the linearised ratio; Cochran 1977, section 6.3).

    There is no interval below two groups, nor if all groups have the same mean and the rewards have no usual bounds.
    """
    from rolloutlab.trajectories.intervals import interval  # and numpy

    groups = rows.sizes_and_means()
    if whole.mean is None or len(groups) < 2 or max(abs(each) for _, each in groups) > HUGE:
        return None
    mean, total = whole.mean, sum(n for n, _ in groups)
    values = [mean + n * len(groups) / total * (each - mean) for n, each in groups]
    low, high = _ends(whole.rewards) if whole.rewards else (math.nan, math.nan)
    bounded = (low, high) in USUAL_BOUNDS and low <= min(values) and max(values) <= high
    if not bounded and max(values) - min(values) <= 0:
        return None
    middle, width = ((low + high) / 2, (high - low) / 2) if bounded else (0.0, None)
    least, most = interval([value - middle for value in values], _LEVEL, width)
    return float(least) + middle, float(most) + middle


def _pass_at(rows: RewardsRows) -> dict[int, float]:
    """Estimate pass@k without bias, if a reward of 1 is a pass: 1 - C(n-c, k) / C(n, k) (arXiv 2107.03374).

    k goes up to the size of the smallest group, so that all estimates are over the same groups. The result is empty if
    the largest reward is not 1.
    """
    groups, most = [], -math.inf
    given = [each.reward for each in rows.outlines]
    for group in rows.groups:
        rewards = [r for r in given[group.rows.start : group.rows.stop] if r is not None]
        groups += [(len(rewards), rewards.count(1))] if rewards else []
        most = max([most, *rewards])
    if most != 1:
        return {}
    smallest = min(n for n, _ in groups)
    chances = {}
    for k in sorted({1, *(2**p for p in range(2, 11) if 2**p < smallest), smallest}):
        chances[k] = mean_of([1 - math.comb(n - c, k) / math.comb(n, k) for n, c in groups])
    return chances if smallest > 1 else {}


def _find_previous_generation(
    lab: Lab, stored: StoredCollection, *, scored: bool
) -> tuple[str, float, int, str] | None:
    """Find the previous generation: its name, mean reward, number of scored answers, and the settings that differed.

    None if there is no previous generation, or if it has no rewards. scored: whether `stored` has rewards.
    """
    try:
        before = lab.collection(f"{stored.name}:{stored.generation - 1}")
    except NotFoundError:
        return None
    if before.mean_reward is None:
        return None
    otherwise = ", ".join(find_differences(lab, before, stored, scored=scored))
    return before.label, before.mean_reward, before.scored, otherwise


def _scoring_cell(lab: Lab, stored: StoredCollection) -> str:
    """Return the cell that scores a collection; empty if functions have failed on it, because a hint has that cell."""
    if lab.scorings.failed(stored):
        return ""
    return f"%%reward {stored.label}\n{first_body(lab.scorings.columns(stored))}"


def _describe(rows: RewardsRows, stored: StoredCollection | None, whole: Figures) -> str:
    """Describe the size of the rows, and the checkpoint that they were sampled from."""
    sizes = {len(group.rows) for group in rows.groups}
    each = f" \N{MULTIPLICATION SIGN} {sizes.pop()}" if len(sizes) == 1 else f", {count(whole.answers, 'answer')}"
    plan = stored.plan if stored else {}
    model = str(plan.get("model") or "")  # a plan of another version may have anything
    sampled = f" · {checkpoint_name(model, plan.get('step'))}"
    return f"{count(whole.groups, 'prompt')}{each}{sampled if model else ''}"


def _describe_usage(lab: Lab, stored: StoredCollection) -> str:
    """Describe what a collection took: `96k tokens with prompts · $0.210`. The cost is by the prices at that time."""
    tokens, amount = stored.prompt_tokens + stored.completion_tokens, lab.spending.of(stored)
    taken = f"{short(tokens)} tokens with prompts" if tokens else ""
    return " · ".join(filter(None, [taken, prices.shown(amount) if amount else ""]))


def _find_trained_on(lab: Lab, stored: StoredCollection) -> str:
    """Find the collections of the job that made the sampled checkpoint; empty if no job of this lab did."""
    made = stored.plan.get("model"), stored.plan.get("step")
    jobs = (job for job in lab.jobs.newest_first() if made[1] and (job.model, job.step) == made)
    return ", ".join(next((job.collections for job in jobs), ()))


def _bars(
    rows: RewardsRows,
    standings: Sequence[Standing],
    order: Sequence[int],
    fits: set[int] | None,
    rewards: Histogram | None,
) -> list[GroupBar]:
    """Make the bars of the strip. A bar stands for several groups of one standing if there are too many groups.

    Args:
        rows: The rows.
        standings: The standing of each group.
        order: The order of the groups.
        fits: The groups with rows that fit the filter; None without a filter.
        rewards: The histogram of the rewards. Its ends are those of the scale of a bar.
    """
    low, high = _ends(rewards)
    each = max(1, -(-len(order) // MOST_BARS))
    bars = []
    for standing, alike in groupby(order, standings.__getitem__):
        listed = list(alike)
        for some in (listed[first : first + each] for first in range(0, len(listed), each)):
            means = [mean for g in some if (mean := rows.mean_of(g)) is not None] if high > low else []
            level = mean_of([min(1.0, max(0.0, (mean - low) / (high - low))) for mean in means]) if means else None
            fitting, first_of = fits is None or not fits.isdisjoint(some), rows.groups[some[0]]
            bars.append(GroupBar(first_of.name, first_of.position, standing, level, len(some), fitting))
    return bars


def find_hints(
    rows: RewardsRows,
    standings: Sequence[Standing],
    order: Sequence[int],
    lab: Lab,
    stored: StoredCollection,
    whole: Figures,
) -> list[Hint]:
    """Find what a person should know about a collection, each hint with what to type.

    The hints that concern the most answers come first.

    Args:
        rows: The rows of the collection, or of one of its groups.
        standings: The standing of each group.
        order: The order of the groups.
        lab: The lab.
        stored: The collection.
        whole: The figures of all rows.
    """
    plan = read_config(stored.plan)
    again = partial(_cell_again, stored, plan)
    concerning: list[tuple[int, Hint]] = []
    errors = lab.scorings.failed(stored) if whole.scored < whole.answers else {}
    if failed := sum(errors.values()):
        fact = f"A reward function failed on {count(failed, 'answer')}:"
        concerning.append((failed, Hint(fact, f"{name_errors(errors)}.", f"%%reward {stored.label} --resume", "bad")))
    if plan and not rows.is_part and (missing := plan.total - whole.answers) > 0:
        cell = "" if plan.env or plan.tools or plan.program else _resume_cell(lab, stored, plan)
        concerning.append(
            (missing, Hint(f"{missing:,} of {count(plan.total, 'answer')} {_is(missing)} missing.", "", cell))
        )
    early = whole.cut_off > 0 and _is_early(rows, plan, whole)  # which reads every row, so only if one was cut off
    limit, longer = _limit_words(plan, early=early), "" if early else _longer_cell(plan, whole, again)
    cut = _cut_off_hint(whole, limit, longer) or _cut_off_loss_hint(rows, whole, limit, longer)
    concerning += [cut] if cut else []
    trains = whole.standings.get("trains", 0)
    if plan and plan.temperature == 0 and plan.n > 1 and not plan.env and not trains:
        fact = "All answers were sampled at temperature 0, where those of a group are mostly the same."
        concerning.append((whole.answers, Hint(fact, "", again("--temperature 1"))))
    elif whole.answers and max(len(group.rows) for group in rows.groups) == 1 and not (plan and plan.n > 1):
        fact = "Each prompt has one answer: nothing in its group is better or worse, so none of them trains."
        concerning.append((whole.answers, Hint(fact, "", again("-n 8"))))
    elif never := _never_hint(rows, standings, stored):
        concerning.append(never)
    other = _other_reward_hint(rows, order, lab, stored, plan)
    concerning += [other] if other else []
    untokened = rows.lengths.count(0)
    if untokened:
        fact = f"{count(untokened, 'answer')} without logprobs:"
        concerning.append((untokened, Hint(fact, "nothing of them trains.", f"%logprobs {stored.label}")))
    return [hint for _, hint in sorted(concerning, key=lambda each: -each[0])]


def _never_hint(rows: RewardsRows, standings: Sequence[Standing], stored: StoredCollection) -> tuple[int, Hint] | None:
    """Make the hint that all answers of some groups have the lowest reward. Only completely scored groups count."""
    failed = [
        group
        for group, kind in zip(rows.groups, standings, strict=True)
        if kind == "fail" and all(rows.outlines[i].reward is not None for i in group.rows)
    ]
    if not failed:
        return None
    lowest = min(_rewards(rows, failed[0].rows))
    one, sizes = len(failed) == 1, {len(group.rows) for group in failed}
    never = f"never pass{'es' * one}" if lowest <= 0 else f"{'has' if one else 'have'} nothing but {lowest:.3g}"
    at = f" at n = {sizes.pop()}" if len(sizes) == 1 else ""
    teach = f"so {'it teaches' if one else 'they teach'} nothing{at}."
    fact = f"{count(len(failed), 'group')} {never},"
    return sum(len(group.rows) for group in failed), Hint(fact, teach, top_up_cell(stored), "info")


def _cut_off_hint(whole: Figures, limit: str, longer: str) -> tuple[int, Hint] | None:
    """Make the hint that many failures (or answers, if none is scored) were cut off.

    None if complete answers fail as often, because more tokens would then change nothing.
    """
    nearly_all = whole.cut_off >= _NEARLY_ALL * whole.answers
    if nearly_all and whole.mean is not None and whole.failures_cut_off < _NOTABLE * whole.answers:
        return None  # another hint is about all answers, and a few failures matter less
    if whole.failures_cut_off > 1 and whole.failures_cut_off >= _NOTABLE * whole.failures:
        ended, others = whole.scored - whole.scored_cut_off, whole.failures - whole.failures_cut_off
        if ended and others * whole.scored_cut_off >= whole.failures_cut_off * ended:
            return None
        fact = (
            f"{whole.failures_cut_off:,} of {count(whole.failures, 'failure')} {_was(whole.failures)} cut off {limit}."
        )
        evidence = f"Of the {count(ended, 'answer')} that {_was(ended)} not, {others:,} failed." if ended else ""
        return whole.failures_cut_off, Hint(fact, evidence, longer)
    if whole.mean is None and whole.cut_off >= _NOTABLE * max(1, whole.answers):
        fact = f"{whole.cut_off:,} of {count(whole.answers, 'answer')} {_was(whole.answers)} cut off {limit}."
        return whole.cut_off, Hint(fact, "", longer)
    return None


def _cut_off_loss_hint(rows: RewardsRows, whole: Figures, limit: str, longer: str) -> tuple[int, Hint] | None:
    """Make the hint that cut-off answers have lower rewards, or that nearly all were cut off and may score more."""
    if whole.mean is None or whole.cut_off < _NOTABLE * whole.answers:
        return None
    fact = f"{whole.cut_off:,} of {count(whole.answers, 'answer')} {_was(whole.answers)} cut off {limit}."
    highest = whole.rewards.high if whole.rewards else math.inf
    if lost := compare_ends(rows):
        by, groups = lost
        evidence = f"In the {groups:,} groups with both, their mean reward is {by:.2g} lower than that of the others."
    elif whole.cut_off >= _NEARLY_ALL * whole.answers and whole.mean < highest:
        others = whole.answers - whole.cut_off
        evidence = f"{others:,} {_was(others)} not." if others else ""
    else:
        return None
    return whole.cut_off, Hint(fact, evidence, longer)


def _other_reward_hint(
    rows: RewardsRows, order: Sequence[int], lab: Lab, stored: StoredCollection, plan: SamplingConfig | None
) -> tuple[int, Hint] | None:
    """Make the hint that equal answers of a group have different rewards: a person, a judge or a function erred."""
    if plan and (plan.env or plan.program or plan.tools):
        return None  # the reward may be for the turns before the answer
    if rows.same is None:
        first = [rows.groups[g].position for g in order[:_LOOKED_AT]]
        ids = lab.outlines.same_answers(stored, first)
        rows.same = [[rows.index[i] for i in some if i in rows.index] for some in ids]
    mixed = [some for some in rows.same if (given := _rewards(rows, some)) and rewards_differ(min(given), max(given))]
    alone = lab.outlines.answers_alone(rows.outlines[i].id for some in mixed[:_READ] for i in some)
    sets = [[i for i in some if rows.outlines[i].id in alone] for some in mixed[:_READ]]
    sets = [some for some in sets if (given := _rewards(rows, some)) and rewards_differ(min(given), max(given))]
    if not sets:
        return None
    name = rows.groups[rows.group_of[sets[0][0]]].name
    rewards = _rewards(rows, sets[0])
    [text] = lab.outlines.answers([rows.outlines[sets[0][0]].id]).values()
    groups = list(dict.fromkeys(rows.groups[rows.group_of[some[0]]].name for some in sets))
    is_all = len(rows.groups) <= _LOOKED_AT and len(mixed) <= _READ
    named = f": {', '.join(groups[:_NAMED])}{f' and {len(groups) - _NAMED} more' if len(groups) > _NAMED else ''}"
    fact = f"The same answer has different rewards in {'' if is_all else 'at least '}{count(len(groups), 'group')}"
    fact += f"{named if len(groups) > 1 else ''}."
    most, least = distinct(max(rewards), min(rewards))
    evidence = f'In {name} "{escape_to_one_line(text, _QUOTED)}" has {most} and {least}.'
    return sum(map(len, sets)), Hint(fact, evidence, f"%group {name}")


def _rewards(rows: RewardsRows, some: Iterable[int]) -> list[float]:
    return [reward for i in some if (reward := rows.outlines[i].reward) is not None]


def compare_ends(rows: RewardsRows) -> tuple[float, int] | None:
    """Compare the rewards of complete and cut-off answers: their mean difference, and the number of groups compared.

    None if the difference may be chance. Answers are compared within groups, because hard prompts have long answers
    anyway. The sum of the groups' differences must exceed `_ERRORS` times its standard deviation if rewards were
    shuffled within each group. That variance is known exactly: S² · n / (k · (n - k)) for a group of n answers with k
    cut off. A variance estimated from the differences themselves would be too small if few answers pass. If cutting off
    makes no difference, fewer than 1 of 50 collections pass this test (simulated in
    tests/trajectories/test_overview.py).
    """
    differences, variances = [], []
    for g, group in enumerate(rows.groups):
        cut: list[float] = []
        ended: list[float] = []
        for each in (rows.outlines[i] for i in group.rows):
            if each.reward is not None:
                (cut if each.finish_reason == "length" else ended).append(each.reward)
        if cut and ended:
            if max(map(abs, [*cut, *ended])) > HUGE:
                return None
            differences.append(mean_of(ended) - mean_of(cut))
            n = len(cut) + len(ended)
            variances.append(rows.deviation_of(g) ** 2 * n / (n - 1) * n / (len(cut) * len(ended)))
    if len(differences) < _FEWEST_GROUPS:
        return None
    by, deviation = math.fsum(differences), math.sqrt(math.fsum(variances))
    return (by / len(differences), len(differences)) if by > _ERRORS * deviation > 0 else None


def _is_early(rows: RewardsRows, plan: SamplingConfig | None, whole: Figures) -> bool:
    """Whether most cut-off answers are shorter than max_tokens: the context was full, or the service gave up."""
    if plan is None or not plan.max_tokens:
        return False
    ended = zip(rows.outlines, rows.lengths, strict=True)
    lengths = (n for each, n in ended if each.finish_reason == "length")
    return 2 * sum(0 < n < plan.max_tokens for n in lengths) > whole.cut_off


def _limit_words(plan: SamplingConfig | None, *, early: bool) -> str:
    """Say what cut answers off: `by max_tokens=64`, or `before max_tokens=64`."""
    if plan is None or not plan.max_tokens:
        return "by max_tokens"
    return f"{'before' if early else 'by'} max_tokens={plan.max_tokens}"


def _longer_cell(plan: SamplingConfig | None, whole: Figures, again: "partial[str]") -> str:
    """Return the cell that samples the same prompts with twice the tokens; empty if no length is known."""
    longest = plan.max_tokens if plan and plan.max_tokens else int(whole.lengths.high) if whole.lengths else 0
    return again(f"--max-tokens {2 * longest}") if longest else ""


def _resume_cell(lab: Lab, stored: StoredCollection, plan: SamplingConfig) -> str:
    """Return the cell that samples the missing answers.

    A continuation begins no conversations. If it lacks whole ones, the collection that it continues has to be resumed.
    """
    groups = lab.groups(stored, unfinished=True) if plan.continues else []
    if plan.continues and not any(each.pending for group in groups for each in group.trajectories):
        return plan.cell_of_continued()
    return plan.cell_again(stored.label, "--resume")


def _is(n: int) -> str:
    return "is" if n == 1 else "are"


def _was(n: int) -> str:
    return "was" if n == 1 else "were"


def _cell_again(stored: StoredCollection, plan: SamplingConfig | None, option: str) -> str:
    """Return the cell that samples the same prompts again with another option.

    Empty if the cell would need variables of the notebook. Empty also for an older generation, because an empty cell
    samples the prompts of the newest one.
    """
    if plan is None or not stored.bare or plan.env or plan.tools or plan.program or plan.continues:
        return ""
    return plan.cell_again(stored.name, option)
