"""Results of jobs: how each went, the mean reward before and after it, and which options changed."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolloutlab.api.job_state import (
    fraction_done,
    gradient_steps,
    job_progress,
    last_value,
    last_whole,
    number,
    numbers,
    since_restart,
)
from rolloutlab.api.wire.training import Event
from rolloutlab.sampling.differences import find_differences
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob
from rolloutlab.store.results import CollectionResult
from rolloutlab.trajectories.tables import data_frame, format_minute, here_and_now
from rolloutlab.widgets.job_list import JobCourse, JobResult, job_listing

if TYPE_CHECKING:
    import pandas as pd


def job_course(events: Sequence[Event]) -> JobCourse:
    """Summarise the course of a job, from its last restart on."""
    events = since_restart(events)
    steps, of, _ = job_progress(events)
    trains, groups = (last_whole(events, "preflight", name) for name in ("trainable_groups", "groups"))
    seconds = number(last_value(events, "checkpoint_saved", "seconds"))
    rewards = set(numbers(gradient_steps(events), "reward"))
    reward = rewards.pop() if len(rewards) == 1 else None
    error = str(last_value(events, "training_failed", "error_message") or "")
    done = fraction_done(events) / of if of else None
    return JobCourse(steps if of else None, done, trains, groups, seconds, reward, error)


def read_course(read: Callable[[], Sequence[Event]]) -> JobCourse:
    """Summarise the course of a job. If its events cannot be read, the course has that error: other jobs are listed."""
    try:
        return job_course(read())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # odd or damaged
        return JobCourse(error=f"its events cannot be read: {type(error).__name__}: {error}")


def job_results(
    lab: Lab, jobs: Sequence[SubmittedJob], courses: Mapping[str, JobCourse], name_now: Callable[[str], str]
) -> list[JobResult]:
    """Find the results of jobs, given newest first. name_now: returns the present name of a collection."""
    results = lab.results.by_id()
    stored = {f"{c.name}:{c.generation}": c for c in lab.collections() if c.id in results} if jobs else {}
    of_label = {label: results[collection.id] for label, collection in stored.items()}
    before: dict[str, Mapping[str, Any]] = {}
    made = []
    for job in jobs[::-1]:
        own = [of_label[label] for label in job.collections if label in of_label]
        next_ones = [_find_next(of_label, label, job) for label in job.collections] if job.step else []
        pairs = [(label, after) for label, after in zip(job.collections, next_ones, strict=False) if after]
        alike = [after for label, after in pairs if not find_differences(lab, stored[label], stored[after])]
        answers, cut_off = sum(result.answers for result in own), sum(result.cut_off for result in own)
        course, reward = courses.get(job.id, JobCourse()), _mean(own)
        if course.reward is not None and not (reward is not None and math.isclose(reward, course.reward, abs_tol=1e-6)):
            reward, alike = course.reward, []  # the rewards were changed afterwards: no later mean can be compared
        made.append(
            JobResult(
                job=job,
                course=course,
                names=[name_now(label) for label in job.collections],
                reward=reward,
                after=_mean(of_label[label] for label in alike),
                cut_off=cut_off / answers if answers else 0.0,
                changed=_find_changes(before.get(job.model, {}), job.options),
            )
        )
        before[job.model] = job.options
    return made[::-1]


def job_table(results: Sequence[JobResult], shown: int) -> "pd.DataFrame":
    """Make a table with one row per job, indexed by the beginning of its id; `step` is the checkpoint that it made.

    shown: how many rows its view has.
    """
    from rolloutlab.trajectories.frame import ListingFrame

    jobs, courses = [result.job for result in results], [result.course for result in results]
    columns = {
        "status": [job.status or "unknown" for job in jobs],
        "step": [job.step for job in jobs],
        "model": [job.model for job in jobs],
        "options": [", ".join(f"{name} {value}" for name, value in job.options.items()) for job in jobs],
        "collections": [", ".join(result.names) for result in results],
        "reward": [result.reward for result in results],
        "reward_after": [result.after for result in results],
        "trains": [course.trains for course in courses],
        "groups": [course.groups for course in courses],
        "steps": [course.steps for course in courses],
        "seconds": [course.seconds for course in courses],
        "created (UTC)": [format_minute(job.created_at) for job in jobs],
    }
    types = dict.fromkeys(["step", "trains", "groups", "steps"], "Int64")
    types |= dict.fromkeys(["reward", "reward_after", "seconds"], "float64")
    frame = data_frame(columns, [job.id[:8] for job in jobs], "job", types=types)
    return ListingFrame.of(frame, job_listing(results, shown, here_and_now()))


def _find_next(of_label: Mapping[str, CollectionResult], label: str, job: SubmittedJob) -> str:
    """Find the next generation of a collection, if the checkpoint that a job made has sampled all of it; else empty."""
    name, _, generation = label.rpartition(":")
    after = f"{name}:{int(generation) + 1}" if label in of_label and generation.isdecimal() else ""
    sampled = of_label.get(after)
    if sampled is None or sampled.others:  # a mean over several checkpoints is the mean of none of them
        return ""
    return after if (sampled.model, sampled.step) == (job.model, job.step) else ""


def _mean(results: Iterable[CollectionResult]) -> float | None:
    """Compute the mean reward of collections, each weighted by its scored answers; None if none is scored."""
    scored = [(result.mean, result.scored) for result in results if result.mean is not None]
    total = sum(n for _, n in scored)
    return math.fsum(mean * n / total for mean, n in scored) if total else None


def _find_changes(before: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Find the options that differ from those of the job before; a removed option is None."""
    names = dict.fromkeys([*options, *before])
    return {name: options.get(name) for name in names if options.get(name) != before.get(name)}
