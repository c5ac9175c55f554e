"""Where the runs of a model begin: a job whose rewards do not compare with those of the job before starts a new one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from rolloutlab.store.models import SubmittedJob
from rolloutlab.training.measures import BEGINS_RUN, Measure

Measures = Mapping[str, Measure]
"""By the name of a collection, how its mean was measured."""


@dataclass(frozen=True)
class TrainedJob:
    """A job that made a checkpoint, and how the means around it were measured.

    trained_on: of the collections that it trained on. held_out: of their held-out rows, sampled from the checkpoint
    that the job starts from; empty if they were not measured there.
    """

    job: SubmittedJob
    trained_on: Measures
    held_out: Measures


@dataclass(frozen=True)
class Stretch:
    """Consecutive jobs of one model whose means compare. because: what changed before the first one."""

    jobs: tuple[TrainedJob, ...]
    because: tuple[str, ...] = ()


def split_lineage(jobs: Sequence[TrainedJob]) -> list[Stretch]:
    """Split the jobs of one model, oldest first, where their means stop being comparable.

    A job without rewards, as of fine-tuning, belongs to the run that is there.
    """
    stretches: list[tuple[list[TrainedJob], tuple[str, ...]]] = []
    trained_on: Measures = {}
    held_out: Measures = {}
    for job in jobs:
        because = _differences(trained_on, job.trained_on, rows=False)
        because += [f"held-out {word}" for word in find_differences(held_out, job.held_out)]
        if because or not stretches:
            stretches.append(([], tuple(dict.fromkeys(because))))
        stretches[-1][0].append(job)
        trained_on = job.trained_on or trained_on
        held_out = job.held_out or ({} if because else held_out)
    return [Stretch(tuple(some), because) for some, because in stretches]


def find_differences(before: Measures, after: Measures) -> list[str]:
    """Why means of held-out rows do not compare; empty if they do, or if one side has none."""
    return _differences(before, after, rows=True)


def _differences(before: Measures, after: Measures, *, rows: bool) -> list[str]:
    """Why means do not compare. Of collections with other names, one pair that compares is enough."""
    if not before or not after:
        return []
    shared = [(before[name], after[name]) for name in after if name in before]
    pairs = shared or list(product(before.values(), after.values()))
    words = [[word for word in _words(*pair, rows=rows) if word in BEGINS_RUN | {"rows"}] for pair in pairs]
    if shared:
        return list(dict.fromkeys(word for some in words for word in some))
    return min(words, key=len)


def _words(one: Measure, other: Measure, *, rows: bool) -> list[str]:
    return one.differences(other, one.state | other.state, rows=rows)
