"""Tracker: the protocol of a plug-in of `rolloutlab.trackers`, which keeps the numbers of runs for other programs."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from rolloutlab.errors import InputError
from rolloutlab.plugins import TRACKERS, load
from rolloutlab.runs.table import RunTable


class Tracker(Protocol):
    """Keeps runs where a dashboard shows them."""

    def log(self, run: RunTable) -> str:
        """Bring a run up to date, and return a line for the user that says where it is now.

        The lab calls it again whenever a run has more steps, and passes all steps each time. Afterwards the tracker has
        every number of the table once, however often it was called; two processes may call it at the same time. A
        number may also have changed since the last call, or may be new at an earlier step.

        Raises:
            LabError: the run cannot be written.
            ServiceError: a server does not take it.
        """


class TrackerPlugin(Protocol):
    """A plug-in of `rolloutlab.trackers`, for `report_to=["PLUGIN"]` or `report_to=["PLUGIN:PLACE"]`."""

    def open_tracker(self, place: str, home: Path) -> Tracker:
        """Open a tracker without sending anything.

        Args:
            place: The part of `PLUGIN:PLACE` after the first colon, such as a folder or a project; "" without one.
            home: The lab folder, where a tracker may keep files of its own.

        Raises:
            InputError: there is no such place, or a package is not installed.
        """


def open_trackers(report_to: str | Sequence[str], home: Path) -> list[Tracker]:
    """Open every tracker before anything is sent, so that a wrong name is an error before a long run.

    Args:
        report_to: Names of plug-ins, each with a place after a colon if it has one.
        home: The lab folder.

    Raises:
        InputError: there is no tracker of this name (the hint has the closest one), or its package is not installed.
    """
    names = [report_to] if isinstance(report_to, str) else report_to
    if not isinstance(names, Collection) or not all(isinstance(each, str) for each in names):
        raise InputError(f"report_to: {report_to!r} is not a list of texts", hint='report_to=["tensorboard"]')
    opened: list[Tracker] = []
    for each in names:
        name, _, place = each.partition(":")
        plugin: TrackerPlugin = load(TRACKERS, name)
        opened.append(plugin.open_tracker(place, home))
    return opened
