"""Where the runs of a model begin: a job whose rewards do not compare with those of the job before starts a new one."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, product

from rolloutlab.store.models import SubmittedJob
from rolloutlab.training.measures import BEGINS_RUN, Measure

Measures = Mapping[str, Measure]
"""By the name of a collection, how its mean was measured."""
Measured = Mapping[str, Sequence[Measure]]
"""By the name of a collection of held-out rows, how a checkpoint was measured on them, newest first."""


@dataclass(frozen=True)
class TrainedJob:
    """A job that made a checkpoint, and how the means around it were measured.

    Attributes:
        job: The job.
        trained_on: How the means of the collections that it trained on were measured, by name, as far as it is known
            how they were scored.
        held_out: By the name of a collection of held-out rows, how the checkpoint that the job starts from was measured
            on them, newest first: it may have been measured several times, and in several ways.
        after: The same of the checkpoint that the job made.
        own: The names that the held-out rows of the collections have that the job trained on.
    """

    job: SubmittedJob
    trained_on: Measures
    held_out: Measured
    after: Measured = field(default_factory=dict)
    own: tuple[str, ...] = ()

    def own_held_out(self) -> Measured:
        """Return how the checkpoint was measured on the job's own held-out rows."""
        return {name: self.held_out[name] for name in self.own if self.held_out.get(name)}

    def other_held_out(self) -> Measures:
        """Return one measure of the checkpoint on other held-out rows, with the job's own prompt and reward, if any.

        After a rename, the held-out rows of a collection do not have its name.
        """
        for name, measured in self.held_out.items():
            if all(not _words(measured[0], own, rows=False) for own in self.trained_on.values()):
                return {name: measured[0]}
        return {}


@dataclass(frozen=True)
class Stretch:
    """Jobs of one model whose means can be compared, by step.

    Attributes:
        jobs: The jobs.
        because: What changed before the first one.
        held_out: How its checkpoints are measured on held-out rows; empty if none was.
    """

    jobs: tuple[TrainedJob, ...]
    because: tuple[str, ...] = ()
    held_out: Measures = field(default_factory=dict)

    @property
    def last_submitted(self) -> str:
        """When its last job was submitted."""
        return max(each.job.created_at for each in self.jobs)


def start_of(job: SubmittedJob) -> int:
    """Return the checkpoint that a job starts from. Services number them without gaps."""
    return 0 if job.step is None else job.step - 1


def split_lineage(jobs: Sequence[TrainedJob]) -> list[Stretch]:
    """Split the jobs of one model into runs, at each job whose means cannot be compared with those before it.

    jobs: in the order in which they were submitted. If it is not known how the rewards of a job were made, as with
    fine-tuning or imported collections, the job belongs to the present run. If a run already has a checkpoint of the
    same number, the model was deleted and made anew, and another run begins.
    """
    begun: list[_Run] = []
    trained_on: Measures = {}
    for i, job in enumerate(jobs):
        run = begun[-1] if begun else None
        later = [job.after, *chain.from_iterable((each.held_out, each.after) for each in jobs[i + 1 :])]
        because = [*_differences(trained_on, job.trained_on), *(run.differences(job, later) if run else [])]
        if run is None or because:
            run = _Run(tuple(dict.fromkeys(because)))
            begun.append(run)
        run.add(job)
        trained_on = job.trained_on or trained_on
    return [run.stretch() for run in begun]


class _Run:
    """A run while its jobs are added."""

    def __init__(self, because: tuple[str, ...]) -> None:
        self._because = because
        self._jobs: dict[int | None, TrainedJob] = {}
        self._held_out: Measures = {}

    def differences(self, job: TrainedJob, later: Sequence[Measured]) -> list[str]:
        """Return why a job belongs to another run, apart from what it trained on.

        later: how checkpoints after the one that the job starts from were measured. If that one was measured in several
        ways, the next checkpoint that was measured tells in which way the run goes on.
        """
        if job.job.step in self._jobs:
            return ["model"]
        words: list[str] = []
        own = job.own_held_out()
        for name, reference in self._held_out.items():
            # the rows of a loop of another name may be the same
            names = {name} if name in own else own.keys() - self._held_out.keys()
            if measured := _flatten(own, names):
                following = next(filter(None, (_flatten(each, names) for each in later)), [])
                goes_on = any(compares(reference, each) for each in measured) and (
                    not following or any(compares(reference, each) for each in following)
                )
                # both ways again at the next checkpoint: the newest one was not for once
                stays = any(compares(measured[0], each) for each in following)
                words += _words(reference, measured[0], rows=True) if stays or not goes_on else []
        return [f"held-out {word}" for word in dict.fromkeys(words)]

    def add(self, job: TrainedJob) -> None:
        self._jobs[job.job.step] = job
        self._held_out = self._held_out or {name: measured[0] for name, measured in job.own_held_out().items()}

    def stretch(self) -> Stretch:
        jobs = sorted(self._jobs.values(), key=lambda each: each.job.step or 0)  # a service may end them in any order
        others = (other for job in jobs if (other := job.other_held_out()))
        return Stretch(tuple(jobs), self._because, self._held_out or next(others, {}))


def _flatten(measured: Measured, names: Set[str]) -> list[Measure]:
    return [each for name, some in measured.items() if name in names for each in some]


def compares(one: Measure, other: Measure) -> bool:
    """Whether the means of two measurements on held-out rows can be compared."""
    return not _words(one, other, rows=True)


def _differences(before: Measures, after: Measures) -> list[str]:
    """Return why means cannot be compared. Between collections with different names, one pair that can be is enough."""
    if not before or not after:
        return []
    shared = [(before[name], after[name]) for name in after if name in before]
    words = [_words(*pair, rows=False) for pair in shared or product(before.values(), after.values())]
    return list(dict.fromkeys(word for some in words for word in some)) if shared else min(words, key=len)


def _words(one: Measure, other: Measure, *, rows: bool) -> list[str]:
    """Return the differences that begin another run. A new temperature, for instance, is a mere change of an option."""
    different = one.differences(other, one.state | other.state, rows=rows)
    return [word for word in different if word in BEGINS_RUN | {"rows"}]
