"""Generations of a loop that an interrupt or a kill has left unfinished: how far each came, and what it lacks."""

from collections.abc import Callable
from dataclasses import dataclass

from rolloutlab.api.job_state import ENDED
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import count, preflight
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import CollectionSummary, StoredCollection, SubmittedJob
from rolloutlab.trajectories.members import members_of
from rolloutlab.trajectories.top_up import can_top_up, count_unscored


@dataclass(frozen=True)
class Unfinished:
    """A generation that a loop has begun and not finished.

    Attributes:
        stored: The generation.
        plan: The settings that it was begun with.
        unscored: The number of its completions that are not scored yet.
        scoring_begun: Whether a reward function has scored some of it.
        job: The job that trains on it, if one was submitted whose end the lab has not seen.
    """

    stored: CollectionSummary
    plan: SamplingConfig
    unscored: int = 0
    scoring_begun: bool = False
    job: SubmittedJob | None = None

    @property
    def label(self) -> str:
        """`NAME:N`."""
        return f"{self.stored.name}:{self.stored.generation}"

    @property
    def is_sampled_and_scored(self) -> bool:
        return not (self.stored.missing or self.unscored)

    def __str__(self) -> str:
        """Say how far it came: `5 of 16 completions were sampled`."""
        if self.job:
            return "its job was submitted"
        there, planned = self.stored.trajectories, count(self.stored.trajectories + self.stored.missing, "completion")
        if self.stored.missing:
            return f"{there:,} of {planned} were sampled"
        if self.unscored:
            return f"{there - self.unscored:,} of {planned} were scored"
        return f"{planned} were scored, and nothing was trained on them"


def find_unfinished(lab: Lab, name: str, *, scores: bool) -> Unfinished | None:
    """Find the newest generation of a collection, if some of its completions are not sampled or not scored yet.

    scores: the loop has a reward of its own, so that rewards of an environment or a program do not suffice.
    """
    newest = _read_newest(lab, name, scores=scores)
    return None if newest is None or newest.is_sampled_and_scored else newest


def find_unfinished_round(
    lab: Lab,
    name: str,
    trained: tuple[str, str],
    options: Callable[[int], Options],
    factor: float | None,
    *,
    scores: bool,
) -> Unfinished | None:
    """Find the newest round of a loop, if it is not finished.

    Besides what `find_unfinished` checks, a round is unfinished if it would train and no job has trained on it, or if
    the lab has not seen the end of its job.

    Args:
        lab: the store.
        name: the collection.
        trained: the service and the model that the loop trains.
        options: the options of the job of a round, by its number. Called only if no job has trained on the newest.
        factor: the factor by which the loop tops up its rounds; None if it does not.
        scores: as of `find_unfinished`.
    """
    newest = _read_newest(lab, name, scores=scores)
    if newest is None:
        return None
    if job := newest.job:
        # by the status that the lab stored: to ask the service would make the result depend on when this call is made
        is_own = (job.service, job.model) == trained and not job.options.get("sft")
        return newest if is_own and job.status not in ENDED else None
    if not newest.is_sampled_and_scored:
        return newest
    of_job = options(newest.stored.generation)
    if preflight(members_of(lab.groups(newest.stored)), of_job).trainable_groups:
        return newest
    return newest if factor is not None and can_top_up(lab, newest.stored, factor, of_job) else None


def is_finished(lab: Lab, stored: StoredCollection, *, scores: bool) -> bool:
    """Whether a generation is wholly sampled and scored, as far as is known. scores: as of `find_unfinished`."""
    missing = lab.collection(f"{stored.name}:{stored.generation}").missing
    return read_config(stored.plan) is None or not (missing or _count_unscored(lab, stored, scores=scores))


def _read_newest(lab: Lab, name: str, *, scores: bool) -> Unfinished | None:
    """Read how far the newest generation of a collection came; None if it was not sampled from prompts or rows here."""
    stored = next(iter(lab.generations(name)), None)
    plan = read_config(stored.plan) if stored and stored.plan else None
    if stored is None or plan is None or plan.sessions or plan.continues:
        return None
    label, last = f"{stored.name}:{stored.generation}", lab.scorings.last(stored)
    job = next((each for each in lab.jobs.newest_first() if label in each.collections), None)
    begun = last is not None and last.source == "function"
    return Unfinished(lab.collection(label), plan, _count_unscored(lab, stored, scores=scores), begun, job)


def _count_unscored(lab: Lab, stored: StoredCollection, *, scores: bool) -> int:
    """Count the completions of a generation that are not scored yet."""
    if scores and lab.scorings.last(stored) is None:
        return lab.collection(f"{stored.name}:{stored.generation}").trajectories
    return count_unscored(lab, stored)
