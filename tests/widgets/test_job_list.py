"""The table of jobs: what its rows say of the state of each."""

from datetime import UTC, datetime

import pytest

from rolloutlab.store.models import SubmittedJob
from rolloutlab.widgets.job_list import JobCourse, JobResult, job_listing

NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def row(
    status: str | None,
    course: JobCourse | None = None,
    cut_off: float = 0.5,
    means: tuple[float | None, float | None] = (None, None),
) -> str:
    """The line of a job. means: rewards before and after."""
    job = SubmittedJob("0" * 32, "embedded", "lab/practice", ("a:1",), {}, "2026-01-31T12:00:00+00:00", status)
    result = JobResult(job, course or JobCourse(), ["a:1"], *means, cut_off, {})
    return job_listing([result], 20, NOW).text().splitlines()[2]


@pytest.mark.parametrize("status", ["cancelled", "queued", "failed", "running", "unreachable", None])
def test_answers_that_were_cut_off_do_not_hide_what_became_of_a_job(status):
    line = row(status)
    assert (status or "unknown") in line
    assert "cut off" not in line


def test_of_a_job_that_is_done_it_is_said_that_many_answers_were_cut_off():
    assert "50% cut off" in row("succeeded")
    assert "done" in row("succeeded", cut_off=0.1)


def test_a_job_that_is_nearly_done_is_not_done():
    assert ">99%" in row("running", JobCourse(done=0.997))
    assert "<1%" in row("running", JobCourse(done=0.001))


@pytest.mark.parametrize(
    ("means", "shown"),
    [((0.5, 0.75), "0.50 → 0.75"), ((1e60, 2e60), "1e+60 → 2e+60"), ((0.0003, 0.0006), "0.0003 → 0.0006")],
)
def test_rewards_of_any_size_have_few_digits_before_and_after(means, shown):
    assert shown in row("succeeded", means=means)
