"""Check whether the lab's database, the service's database and the checkpoints belong together, after a backup.

Each can be put back alone, or be copied while it is written. Nothing here writes, and no service is needed.
"""

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutlab.errors import LabError
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Settings
from rolloutlab.store.sqlite import connect_read_only

_TIMEOUT = 5.0
_STEP = re.compile(r"[0-9]{1,18}(-[0-9]{1,6})?")
_UNENDED = ("queued", "running")
_AS_AFTER_A_BACKUP = "as after a backup was put back"


@dataclass(frozen=True)
class Disagreement:
    """Two parts of a lab folder that are from different times, as a model shows.

    model: the model. hint: what to type or do. lost: whether the service goes on from an older checkpoint than the
    newest.
    """

    model: str
    message: str
    hint: str
    lost: bool = True

    def __str__(self) -> str:
        return f"{self.message} -> {self.hint}"


@dataclass
class _Service:
    """What `service.db` lists.

    newest: the largest listed step of each model. last: the largest step that each model ever had. jobs: the model and
    the status of each job. steps: the id of the model and the step of each checkpoint.
    """

    newest: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, tuple[str, str]] = field(default_factory=dict)
    steps: set[tuple[str, int]] = field(default_factory=set)


def find_disagreements(settings: Settings) -> list[Disagreement]:
    """Find the parts of a lab folder that are from different times; empty if a file cannot be read."""
    try:
        service = _read_service(settings.service_folder / "service.db")
        sent = _read_rows(settings.database, "SELECT id, model, status FROM jobs WHERE service = 'embedded'")
        return [
            *_find_lost_checkpoints(settings.service_folder / "models", service),
            *_compare_jobs(settings, service, sent),
        ]
    except (LabError, OSError, sqlite3.Error):  # `%service check` says what is damaged
        return []


def _read_service(path: Path) -> _Service:
    listed = _Service()
    for row in _read_rows(path, "SELECT id, project || '/' || name AS name, last_step FROM models"):
        listed.last[row["name"]] = row["last_step"]
    sql = "SELECT c.model_id, c.step, m.project || '/' || m.name AS name FROM checkpoints c JOIN models m"
    for row in _read_rows(path, f"{sql} ON m.id = c.model_id ORDER BY c.step"):
        listed.newest[row["name"]] = row["step"]
        listed.steps.add((row["model_id"], row["step"]))
    sql = "SELECT j.id, m.project || '/' || m.name AS name, j.status FROM jobs j JOIN models m ON m.id = j.model_id"
    listed.jobs = {row["id"]: (row["name"], row["status"]) for row in _read_rows(path, sql)}
    return listed


def _read_rows(path: Path, sql: str) -> list[sqlite3.Row]:
    if not path.exists():
        return []
    with closing(connect_read_only(path, _TIMEOUT)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(sql).fetchall()


def _find_lost_checkpoints(models: Path, service: _Service) -> Iterator[Disagreement]:
    """Find the checkpoints newer than the one that their model goes on from, which are set aside or about to be."""
    newer: dict[str, set[int]] = {}
    for path in _find_unlisted(models, service):
        step, made = int(path.name.partition("-")[0]), _read_metadata(path)
        name = f"{made['project']}/{made['name']}" if {"project", "name"} <= made.keys() else path.parent.name
        status = service.jobs.get(str(made.get("job_id")), ("", ""))[1]
        # a job that has not ended makes its step again: it was killed before its end was recorded
        if status not in _UNENDED and step > service.newest.get(name, -1) and step > 0:
            newer.setdefault(name, set()).add(step)
    for name, steps in sorted(newer.items()):
        which = f"{count(len(steps), 'newer checkpoint')} of {name} ({_range(steps)})"
        has = f"goes on from {service.newest[name]}" if name in service.newest else "begins anew"
        are, them = ("is", "it") if len(steps) == 1 else ("are", "them")
        why = f"service.db is older and does not list {them}, {_AS_AFTER_A_BACKUP}"
        message = f"{which} {are} set aside: {why}; {name} {has}"
        yield Disagreement(name, message, f"%models --recover lists {them} again")


def _find_unlisted(models: Path, service: _Service) -> Iterator[Path]:
    """Find the folders of checkpoints that were set aside, or that the next start of the service will set aside."""
    for path in sorted(models.glob(".lost/*/*")):
        if path.is_dir() and _STEP.fullmatch(path.name):
            yield path
    for path in sorted(models.glob("[!.]*/*")):
        if path.is_dir() and path.name.isdecimal() and (path.parent.name, int(path.name)) not in service.steps:
            yield path


def _read_metadata(path: Path) -> Mapping[str, Any]:
    """Read what a checkpoint says about itself; empty if that cannot be read, or is of an older version."""
    with suppress(OSError, ValueError):
        made = json.loads((path / "checkpoint.json").read_bytes())
        return made if isinstance(made, dict) else {}
    return {}


def _compare_jobs(settings: Settings, service: _Service, sent: list[sqlite3.Row]) -> Iterator[Disagreement]:
    """Find the jobs that only one of the two databases has."""
    trained: dict[str, int] = {}
    for row in sent:
        _, _, step = (row["status"] or "").partition("@")
        if step.isdecimal() and row["id"] not in service.jobs:
            trained[row["model"]] = max(trained.get(row["model"], 0), int(step))
    for name, step in sorted(trained.items()):
        there = service.last.get(name)
        if there is not None and there >= step:
            continue  # its jobs were deleted with an older model of this name
        has = f"has no more than {there}" if there is not None else "does not list it"
        message = f"this lab has trained {name} to checkpoint {step}, and service.db {has}: they are not of one time"
        yield Disagreement(name, message, f"put {settings.service_folder} of the same backup in its place")
    known = {row["id"] for row in sent}
    others: dict[str, int] = {}
    for job, (name, _) in service.jobs.items():
        if job not in known:
            others[name] = others.get(name, 0) + 1
    for name, number in sorted(others.items()):
        what = f"{count(number, 'job')} of {name} in service.db that lab.db does not have"
        message = f"{what}: another program has sent them, or lab.db is older, {_AS_AFTER_A_BACKUP}"
        yield Disagreement(name, message, "%compare cannot know what they trained on", lost=False)


def _range(steps: set[int]) -> str:
    return str(min(steps)) if len(steps) == 1 else f"{min(steps)} to {max(steps)}"
