"""What the numbers of a run say: its best checkpoint, what changed between its steps, and what went wrong where."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from rolloutlab.objective.preflight import count
from rolloutlab.runs.records import RunRecord, RunStep
from rolloutlab.widgets.collection_list import OFTEN_CUT_OFF
from rolloutlab.widgets.kit.listing import percent
from rolloutlab.widgets.text import distinct

_SIGNIFICANCE = 0.05
_MANY_IDLE = 0.5
"""Share of groups with nothing to learn from which on it is a sign."""
_MUCH_LONGER = 2.0
"""Length of answers, as a multiple of that at the first step, from which on it is a sign."""
_FEWEST = 3
"""Steps that a run needs before its course is judged."""


@dataclass(frozen=True)
class Sign:
    """A sign that a run may have gone wrong. step: where it began. cell: what to type about it."""

    step: int
    fact: str
    cell: str = ""


@dataclass(frozen=True)
class Change:
    """An option that the jobs of a run changed. step: the first checkpoint that was trained with the new value."""

    step: int
    option: str
    before: Any
    after: Any


def main_number(record: RunRecord) -> str:
    """Name the number that a run is judged by: the held-out mean if any step has it, else the mean reward."""
    return "held_out" if any("held_out" in step.numbers for step in record.steps) else "reward"


def measured_steps(record: RunRecord) -> list[RunStep]:
    """Find the steps whose main number was measured with the same settings as the last one."""
    name = main_number(record)
    having = [step for step in record.steps if name in step.numbers]
    return [step for step in having if step.settings.get(name) == having[-1].settings.get(name)]


def best_step(record: RunRecord) -> RunStep | None:
    """Find the measured step with the highest main number; the first of equal ones."""
    name = main_number(record)
    return max(measured_steps(record), key=lambda step: step.numbers[name], default=None)


def find_changes(record: RunRecord) -> list[Change]:
    """Find the options that changed from one job to the next."""
    changes: list[Change] = []
    jobs = [step for step in record.steps if step.job]
    for one, other in pairwise(jobs):
        for name in dict.fromkeys([*one.options, *other.options]):
            before, after = one.options.get(name), other.options.get(name)
            if _differ(before, after):
                changes.append(Change(other.step, name, before, after))
    return changes


def _differ(before: Any, after: Any) -> bool:
    """Whether a value of an option changed. True differs from 1, and NaN equals itself."""
    both_nan = before != before and after != after
    return not both_nan and (before != after or isinstance(before, bool) != isinstance(after, bool))


def find_signs(record: RunRecord) -> list[Sign]:
    """Find what may have gone wrong, with the step at which it began; the reward first."""
    jobs = [step for step in record.steps if step.job]
    signs = [
        _find_fall(record),
        _find_excess(jobs, "cut_off", OFTEN_CUT_OFF, "{} of the answers are cut off by the token limit"),
        _find_excess(jobs, "nothing", _MANY_IDLE, "{} of the groups have nothing to learn"),
        _find_longer_answers(jobs),
        _find_gap(jobs),
        _find_failed_jobs(record),
    ]
    return [sign for sign in signs if sign]


def _find_fall(record: RunRecord) -> Sign | None:
    """Report that the last mean is below the best one by more than chance explains.

    The best of K means is too high by chance, so the bound on the difference grows with K: the quantile of a normal
    distribution at 1 - 0.05 / (K - 1), in standard errors. If nothing has changed, at most 5% of runs exceed it,
    whatever K is (Bonferroni): `tests/runs/test_judgement.py`.
    """
    name, steps, best = main_number(record), measured_steps(record), best_step(record)
    if best is None or len(steps) < _FEWEST or best is steps[-1]:
        return None
    last = steps[-1]
    errors = [step.errors.get(name) for step in (best, last)]
    if errors[0] is None or errors[1] is None:
        return None
    quantile = NormalDist().inv_cdf(1 - _SIGNIFICANCE / (len(steps) - 1))
    if best.numbers[name] - last.numbers[name] <= quantile * math.hypot(errors[0], errors[1]):
        return None
    high, low = distinct(best.numbers[name], last.numbers[name])
    what = "the held-out mean" if name == "held_out" else "the mean reward"
    return Sign(best.step, f"{what} falls from {high} at step {best.step} to {low} at step {last.step}")


def _find_excess(jobs: Sequence[RunStep], name: str, least: float, says: str) -> Sign | None:
    """Report that a number is at least `least`, from some step to the last one."""
    having = [step for step in jobs if name in step.numbers]
    first = _begin_of_last_series(having, lambda step: step.numbers[name] >= least)
    if first is None:
        return None
    now = percent(having[-1].numbers[name])
    return Sign(first.step, f"{says.format(now)}{_from(first, having)}")


def _find_longer_answers(jobs: Sequence[RunStep]) -> Sign | None:
    having = [step for step in jobs if "length" in step.numbers]
    if len(having) < _FEWEST:
        return None
    begun = having[0].numbers["length"]
    first = _begin_of_last_series(having, lambda step: step.numbers["length"] >= _MUCH_LONGER * begun)
    if first is None:
        return None
    times = having[-1].numbers["length"] / begun
    return Sign(first.step, f"answers are {times:.1f} times as long as at step {having[0].step}{_from(first, having)}")


def _begin_of_last_series(steps: Sequence[RunStep], is_odd: Callable[[RunStep], bool]) -> RunStep | None:
    """Find where the last unbroken series of odd steps begins; None if the last step is not odd."""
    first = None
    for step in reversed(steps):
        if not is_odd(step):
            break
        first = step
    return first


def _from(first: RunStep, steps: Sequence[RunStep]) -> str:
    return "" if first is steps[0] else f" since step {first.step}"


def _find_gap(jobs: Sequence[RunStep]) -> Sign | None:
    """Report steps that no job of this lab has made."""
    gaps = [(one.step + 1, other.step) for one, other in pairwise(jobs) if other.step > one.step + 1]
    if not gaps:
        return None
    made = sum(until - since for since, until in gaps)
    return Sign(gaps[0][0], f"{count(made, 'checkpoint')} since step {gaps[0][0]} not made by jobs of this lab")


def _find_failed_jobs(record: RunRecord) -> Sign | None:
    if not record.failed:
        return None
    newest = record.failed[-1]
    fact = f"{count(len(record.failed), 'job')} made no checkpoint, the last one {newest.status}"
    return Sign(record.steps[-1].step, fact, f"%job {newest.id[:8]}")
