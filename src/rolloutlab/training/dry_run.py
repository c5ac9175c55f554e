"""Dry run of a training job: a report, and the advantage of each trajectory."""

from typing import TYPE_CHECKING

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.training.submission import Submission
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import dry_run as render
from rolloutlab.widgets.html import for_notebook

if TYPE_CHECKING:
    import pandas as pd


class DryRun:
    """What a job would train and why the rest would not; nothing was submitted.

    It is of the moment it was made: rewards that change afterwards are not in it.
    """

    def __init__(self, submission: Submission) -> None:
        self._title = f"dry run of {', '.join(submission.names)} for {submission.model}: nothing was submitted"
        self._report = submission.report()
        self.preflight = submission.check
        self.groups = render.rated(submission.seats, submission.check)

    def to_frame(self) -> "pd.DataFrame":
        """One row per trajectory, indexed by name (`capitals/0/3`).

        Columns: reward (NaN where none), advantage and weight as every token of it would train with (0 where none
        would), tokens, reason (why it would not train; missing where it would).
        """
        rated = [one for group in self.groups for one in group]
        columns = {
            "reward": [one.reward for one in rated],
            "advantage": [one.advantage for one in rated],
            "weight": [one.weight for one in rated],
            "tokens": [one.tokens for one in rated],
            "reason": [one.reason and str(one.reason) for one in rated],
        }
        return data_frame(columns, [one.name for one in rated], types={"reward": float})

    def __repr__(self) -> str:
        return escape_control_chars(render.text(self._title, self._report, self.groups))

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self._title, self._report, self.groups))
