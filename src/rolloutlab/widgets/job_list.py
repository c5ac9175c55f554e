"""The jobs of a lab as a table: what each made, what it trained on, rewards before and after, options that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from rolloutlab.sanitize import escape_to_one_line
from rolloutlab.store.models import SubmittedJob
from rolloutlab.widgets.collection_list import OFTEN_CUT_OFF
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.change import draw_change
from rolloutlab.widgets.kit.listing import (
    Cell,
    Drawn,
    Listing,
    ListingRow,
    ago,
    draw_details,
    draw_mean,
    duration,
    percent,
    whole,
)
from rolloutlab.widgets.kit.parts import chip, share
from rolloutlab.widgets.kit.table import Heading

_COLUMNS = (
    Heading("job"),
    Heading("made"),
    Heading(""),
    Heading("trained on", middle=True),
    Heading("reward", number=True),
    Heading("after", number=True),
    Heading("train", number=True, middle=True),
    Heading("steps", number=True, middle=True, spare=True),
    Heading("time", number=True, middle=True),
    Heading("when"),
    Heading("changed since the last job", middle=True),
)
_ERROR_CHARS = 90
_LONG = 24  # characters of a value: those of a custom loss are 64


@dataclass(frozen=True)
class JobCourse:
    """How a job went, as far as its events tell; None is unknown.

    steps: how many gradient steps are done. done: their share of all steps. trains: how many groups train. groups: how
    many groups it has. seconds: the time of training. reward: the mean reward that it trained on. error: why it failed,
    or why the rest is unknown.
    """

    steps: int | None = None
    done: float | None = None
    trains: int | None = None
    groups: int | None = None
    seconds: float | None = None
    reward: float | None = None
    error: str = ""


@dataclass(frozen=True)
class JobResult:
    """A job with what came of it.

    names: the present names of the collections that it trained on. reward: their mean reward when it trained, or the
    present one if its events do not tell. after: the mean reward of their next generations, if the checkpoint that it
    made sampled these with the same settings; None if the rewards have changed since the job. cut_off: the share of
    answers that the token limit cut off. changed: the options that differ from the previous job of the model; None is
    the default.
    """

    job: SubmittedJob
    course: JobCourse
    names: Sequence[str]
    reward: float | None
    after: float | None
    cut_off: float
    changed: Mapping[str, Any]


def job_listing(results: Sequence[JobResult], shown: int, now: datetime) -> Listing:
    """List the newest jobs. results: those of all jobs of the lab."""
    rows = [_row(result, now) for result in results[: max(0, shown)]]
    left = len(results) - len(rows)
    about = f"{len(rows)} of {len(results):,}, newest first" if left else f"{len(results):,}" if rows else "none yet"
    cells = [f"%jobs -n {len(results)}"] if left else [] if rows else ["%collections"]
    return Listing("Jobs", about, _COLUMNS, rows, cells=cells)


def _row(result: JobResult, now: datetime) -> ListingRow:
    job, course = result.job, result.course
    names = result.names[0] + f" and {len(result.names) - 1} more" * (len(result.names) > 1) if result.names else ""
    error, options = escape_to_one_line(course.error, _ERROR_CHARS), [_option(*each) for each in result.changed.items()]
    drawn = f'<span class="rl-lost">{escape(error)}</span>' if error else "".join(map(chip, options))
    cells = [
        Drawn(job.id[:8], Html("")),
        _made(result),
        _state(result),
        whole(names),
        _reward(result),
        _after(result),
        _groups(course),
        Drawn("", Html(f"{course.steps:,}")) if course.steps is not None else "",
        duration(course.seconds) if course.seconds is not None else "",
        ago(job.created_at, now),
        Drawn("", Html(drawn)),
    ]
    return ListingRow(
        cells, opens=_draw_opened(result), below=[error] if error else [", ".join(options)] if options else []
    )


def _made(result: JobResult) -> Cell:
    job = result.job
    if job.step is not None:
        name = f"{job.model}@{job.step}"
    elif job.status in {"failed", "cancelled"}:
        return Drawn("nothing", Html('<span class="rl-dim">nothing</span>'))
    else:
        name = job.model
    return Drawn(name, Html(f"<b>{escape(name)}</b>"))


def _state(result: JobResult) -> Cell:
    """Draw the state of a job. If it is done and many answers were cut off, draw that instead."""
    status = result.job.status or "unknown"
    if status == "failed":
        return _chip(status, "bad")
    if status == "running":
        return _chip(status if result.course.done is None else percent(result.course.done), "now")
    if status != "succeeded":
        return _chip(status)
    often = result.cut_off >= OFTEN_CUT_OFF
    return _chip(f"{percent(result.cut_off)} cut off", "warn") if often else _chip("done", "ok")


def _chip(text: str, kind: Literal["", "bad", "warn", "ok", "now"] = "") -> Cell:
    return Drawn(text, chip(text, kind))


def _reward(result: JobResult) -> Cell:
    """Draw the reward before the job. The text has the one after it, too."""
    if result.reward is None:
        return ""
    before = draw_mean(result.reward)
    return before if result.after is None else Drawn(f"{before.text} → {draw_mean(result.after).text}", before.html)


def _after(result: JobResult) -> Cell:
    if result.after is None:
        return ""
    change = "" if result.reward is None else draw_change(result.after - result.reward)
    return Drawn("", Html(f"{draw_mean(result.after).html} {change}"))


def _groups(course: JobCourse) -> Cell:
    if course.trains is None or not course.groups:
        return ""
    text = f"{course.trains:,} of {course.groups:,}"
    bar = share((course.trains / course.groups, ""))
    return Drawn(text, Html(f'<span class="rl-measure">{text}<span class="rl-spare">{bar}</span></span>'))


def _option(name: str, value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:g}"
    text = "default" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"{name} {escape_to_one_line(text, _LONG)}"


def _draw_opened(result: JobResult) -> Html:
    job = result.job
    facts = (
        ("model", job.model),
        ("collections", ", ".join(result.names)),
        ("options", ", ".join(_option(*each) for each in job.options.items()) or "defaults"),
        ("service", job.service),
        ("failed" if job.status == "failed" else "not known", result.course.error),
    )
    return draw_details([(name, value) for name, value in facts if value], f"%job {job.id[:8]}")
