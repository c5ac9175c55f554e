"""Trackio: runs in its database on this machine, which `trackio show` displays. Nothing goes to a Space or a server.

`trackio.init` and `trackio.log` are not used: they end a run that the notebook itself has begun, ask a hub for the
user's name, and take no times.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError, LabError, described
from rolloutlab.fsutil import locked, own
from rolloutlab.integrations.trackers.written import (
    ByStep,
    find_added,
    identity,
    import_package,
    numbers_of,
    times_of,
)
from rolloutlab.runs.table import RunTable

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Variables that send the runs of `trackio.init` to a server."""


def open_tracker(place: str, home: Path) -> "TrackioRuns":
    """Open a project of Trackio: `place`, or that of each run."""
    import_package("trackio")
    return TrackioRuns(place, home)


class TrackioRuns:
    """Runs of a project of Trackio. A run that the notebook itself logs there is left alone, whatever its name is."""

    def __init__(self, project: str, home: Path) -> None:
        self._project, self._home = project, home

    def log(self, run: RunTable) -> str:
        """Add what is new of a run: steps, and numbers of earlier steps. It is written anew if a number has changed.

        A run that is written anew is complete before the older one is deleted.
        """
        from trackio.utils import TRACKIO_DIR

        project = self._name(run)
        if not any(run.by_step().values()):
            return f"Trackio: {run.name} has no numbers yet, and Trackio keeps no run without one"
        name = identity(run, self._home, "trackio", project)
        locks = self._home / "trackers"
        try:
            own(locks)
            with locked(locks / f"{name}.lock"):
                _update(run, project, name)
        except (OSError, sqlite3.Error) as error:
            hint = "TRACKIO_DIR=FOLDER before the kernel starts writes elsewhere"
            raise LabError(f"Trackio's {TRACKIO_DIR} cannot be written: {described(error)}", hint=hint) from error
        unused = [f"; nothing goes to {each}" for each in _ELSEWHERE if os.environ.get(each)]
        return f"Trackio: {run.name} of {project} in {TRACKIO_DIR} (trackio show --project {project}){''.join(unused)}"

    def _name(self, run: RunTable) -> str:
        """Return the project's name, without characters that Trackio would leave out of the name of its database."""
        from trackio.sqlite_storage import SQLiteStorage

        wanted = self._project or run.project
        project = "".join(each if each.isalnum() or each in "-_" else "-" for each in wanted).strip("-") or "runs"
        try:
            SQLiteStorage.validate_project_name(project)
        except ValueError as error:
            raise InputError(str(error), hint='report_to=["trackio:PROJECT"]') from error
        return project


def _update(run: RunTable, project: str, name: str) -> None:
    """Bring a run of a project up to date. The caller holds the lock of the run.

    The ids of a run are `NAME-0`, then `NAME-1` once it has been written anew, and so on. Each is written in one
    transaction, so the last one is complete, and what is there beside it was left by a process that was killed.
    """
    from trackio.sqlite_storage import SQLiteStorage

    names = {str(each["id"]): str(each["name"]) for each in SQLiteStorage.get_run_records(project)}
    ours = sorted(int(each.rpartition("-")[2]) for each in names if each.rpartition("-")[0] == name)
    last = ours.pop() if ours else 0
    shown = names.get(f"{name}-{last}", run.name)  # another one if the user has renamed it in the dashboard
    before, after = _read(project, f"{name}-{last}"), numbers_of(run)
    more = find_added(before, after)
    if more is None:
        ours.append(last)
        more, last = after, last + 1
    times = times_of(run)
    SQLiteStorage.bulk_log(
        project,
        shown,
        [dict(numbers) for numbers in more.values()],
        steps=list(more),
        timestamps=[times[step].isoformat(timespec="microseconds") for step in more],
        config=_config(run),
        run_id=f"{name}-{last}",
    )
    for older in ours:
        SQLiteStorage.delete_run(project, shown, run_id=f"{name}-{older}")


def _read(project: str, run_id: str) -> ByStep:
    from trackio.sqlite_storage import SQLiteStorage

    numbers: dict[int, dict[str, float]] = {}
    for row in SQLiteStorage.get_logs(project, run_id=run_id):
        values = {name: value for name, value in row.items() if name not in {"step", "timestamp"}}
        numbers.setdefault(row["step"], {}).update(values)
    return numbers


def _config(run: RunTable) -> Mapping[str, Any]:
    """Return the options as JSON. Trackio keeps names that begin with `_` for itself."""
    options = {str(name).lstrip("_"): value for name, value in {**run.config, "tags": list(run.tags)}.items()}
    begin = min(times_of(run).values(), default=None)
    created = {"_Created": begin.isoformat()} if begin else {}
    return {**json.loads(json.dumps(options, default=str)), **created}
