"""Runs over common steps: runs of several seeds joined into their mean, with the least and the largest of them."""

from collections.abc import Mapping, Sequence

from rolloutlab.runs.run import Run
from rolloutlab.store.origins import Origin
from rolloutlab.widgets.run import RunCourse
from rolloutlab.widgets.run_list import option_text
from rolloutlab.widgets.run_numbers import known_numbers

Values = Sequence[float | None]


def join_seeds(runs: Sequence[Run], origins: Mapping[tuple[str, str], Origin]) -> list[list[Run]]:
    """Group the runs of a sweep that differ only in their seed; the groups are in the order of their first runs.

    If the models of a sweep have several runs each, only those of the same number are grouped: others differ in reward.
    """
    joined: dict[object, list[Run]] = {}
    for run in runs:
        origin = origins.get((run.service, run.model))
        seeded = origin is not None and origin.seed is not None and origin.sweep is not None
        key = (
            (origin.sweep, repr(sorted(origin.settings.items())), run.record.number) if origin and seeded else run.name
        )
        joined.setdefault(key, []).append(run)
    return list(joined.values())


def make_course(runs: Sequence[Run], origins: Mapping[tuple[str, str], Origin]) -> RunCourse:
    """Make the curves of a run, or of the mean of several seeds: its numbers by step.

    At a step, the mean is over the seeds that have the number there. A band is drawn where at least two have it.
    """
    first, hours = runs[0], _hours_by_step(runs)
    steps = sorted({step.step for run in runs for step in run.steps})
    names = [each.name for each in known_numbers(name for run in runs for step in run.steps for name in step.numbers)]
    means, lows, highs = dict[str, Values](), dict[str, Values](), dict[str, Values]()
    for name in names:
        at = [_values_at(runs, step, name) for step in steps]
        means[name] = [sum(values) / len(values) if values else None for values in at]
        if len(runs) > 1:
            lows[name] = [min(values) if len(values) > 1 else None for values in at]
            highs[name] = [max(values) if len(values) > 1 else None for values in at]
    return RunCourse(
        name=name_of(runs, origins),
        members=[run.name for run in runs],
        steps=steps,
        hours=[hours[step] for step in steps],
        numbers=means,
        lows=lows,
        highs=highs,
        main=first.main,
    )


def name_of(runs: Sequence[Run], origins: Mapping[tuple[str, str], Origin]) -> str:
    """Return what a view calls a run, or several seeds of one: in a sweep its settings, which are the shorter name."""
    origin = origins.get((runs[0].service, runs[0].model))
    if origin is None or origin.sweep is None:
        return runs[0].name
    settings = [f"{name} {option_text(value)}" for name, value in origin.settings.items()]
    seed = [f"seed {origin.seed}"] if len(runs) == 1 and not settings else []
    number = runs[0].record.number
    return " · ".join([*(settings or [origin.sweep]), *seed, *([f"run {number}"] if number > 1 else [])])


def _values_at(runs: Sequence[Run], step: int, name: str) -> list[float]:
    there = (each for run in runs for each in run.steps if each.step == step)
    return [each.numbers[name] for each in there if name in each.numbers]


def _hours_by_step(runs: Sequence[Run]) -> dict[int, float]:
    """Return the hours from the first job to each step, averaged over the runs that have it."""
    hours: dict[int, list[float]] = {}
    for run in runs:
        for step, since in zip(run.steps, run.hours(), strict=True):
            hours.setdefault(step.step, []).append(since)
    return {step: sum(each) / len(each) for step, each in hours.items()}
