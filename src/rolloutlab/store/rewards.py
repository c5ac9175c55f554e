"""Rewards as the lab keeps them: the present one of each trajectory, and every change that led to it."""

import getpass
import json
from collections.abc import Sequence
from datetime import UTC, datetime

from rolloutlab.store.records import Edit, Score, Trajectory
from rolloutlab.store.sqlite import Database, Row


class Rewards:
    """The rewards of a lab. One call of `give` is one change, whole or not at all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def give(self, scores: Sequence[Score], source: str) -> list[Edit]:
        """Give rewards and log each: who, when, old, new. What stays the same is not logged."""
        at, who = datetime.now(UTC).isoformat(), _user()
        edits = []
        with self._database.write() as connection:
            (change,) = connection.execute("SELECT coalesce(max(change), 0) + 1 FROM edits").fetchone()
            for score in scores:
                row_id, parts = score.trajectory.id, dict(score.components)
                old, had, old_source = connection.execute(
                    "SELECT reward, components, source FROM trajectories WHERE id = ?", (row_id,)
                ).fetchone()
                if (score.reward, parts) == (old, json.loads(had)):
                    continue
                connection.execute(
                    "UPDATE trajectories SET reward = ?, components = ?, source = ? WHERE id = ?",
                    (score.reward, json.dumps(parts), source, row_id),
                )
                connection.execute(
                    "INSERT INTO edits (trajectory_id, change, at, who, source, old, old_components, old_source, new,"
                    " components) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (row_id, change, at, who, source, old, had, old_source, score.reward, json.dumps(parts)),
                )
                edits.append(Edit(score.trajectory.name, at, who, source, old, score.reward, parts))
        return edits

    def history(self, trajectory: Trajectory) -> list[Edit]:
        """Every change of a trajectory's reward, oldest first."""
        rows = self._database.read("SELECT * FROM edits WHERE trajectory_id = ? ORDER BY id", trajectory.id)
        return [_edit(trajectory.name, row) for row in rows]


def _edit(name: str, row: Row) -> Edit:
    return Edit(name, row["at"], row["who"], row["source"], row["old"], row["new"], json.loads(row["components"]))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no user database
        return "unknown"
