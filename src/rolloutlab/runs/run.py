"""A run as a user has it: its steps as a table, its best checkpoint, notes and tags, and the texts of its steps."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rolloutlab.api.wire.base import moment
from rolloutlab.errors import InputError
from rolloutlab.runs.csv_file import write_csv
from rolloutlab.runs.judgement import Change, Sign, best_step, find_changes, find_signs, main_number, measured_steps
from rolloutlab.runs.records import RunRecord, RunStep
from rolloutlab.runs.table import RunTable
from rolloutlab.sanitize import replace_surrogates
from rolloutlab.store.lab import Lab
from rolloutlab.store.origins import Origin
from rolloutlab.store.run_notes import RunNote
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets.run_numbers import known_numbers

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """The jobs of one model whose mean rewards can be compared: what each checkpoint sampled, and what trained on it.

    Attributes:
        name: What it is called in `%runs NAME`: its model, or `MODEL:N` if another run of the model was trained later.
        model: The model.
        service: The service that trained it.
        steps: Its checkpoints, in order, as `RunStep`.
        because: What changed before its first job, so that its means cannot be compared with those of the run before.
        made_from: The checkpoint that its model was made from, if it was made from one.
    """

    def __init__(self, lab: Lab, record: RunRecord, note: RunNote, origin: Origin) -> None:
        self._lab, self._note, self._origin = lab, note, origin
        self.record = record
        self.name, self.model, self.service = record.name, record.model, record.service
        self.steps: Sequence[RunStep] = record.steps
        self.because = record.because
        self.made_from = origin.made_from

    @property
    def main(self) -> str:
        """The number that the run is judged by: `held_out` if any step has it, else `reward`."""
        return main_number(self.record)

    @property
    def before(self) -> RunStep | None:
        """The first step at which the number `main` was measured."""
        return next(iter(measured_steps(self.record)), None)

    @property
    def best(self) -> str | None:
        """The checkpoint with the highest held-out mean, or if nothing was held out, the highest mean reward."""
        step = self.best_step
        return None if step is None else f"{self.model}@{step.step}"

    @property
    def best_step(self) -> RunStep | None:
        """The step of `best`."""
        return best_step(self.record)

    @property
    def best_mean(self) -> float | None:
        """The held-out mean of `best`, measured again with other seeds than it was chosen by; None if it was not."""
        step = self.best_step
        return None if step is None else self.record.second_means.get(step.step)

    @property
    def signs(self) -> list[Sign]:
        """What went wrong, with the step at which it began."""
        return find_signs(self.record)

    @property
    def changes(self) -> list[Change]:
        """The options that changed between its jobs."""
        return find_changes(self.record)

    @property
    def seconds(self) -> float:
        """From its earliest step to its latest, in seconds of the clock."""
        return (max(self._times) - min(self._times)).total_seconds()

    def hours(self) -> list[float]:
        """Return the hours from its earliest step to each step, or to the latest step before that.

        Jobs of several kernels may be submitted in another order than that of the checkpoints that they make.
        """
        begun = min(self._times)
        return [(at - begun).total_seconds() / 3600 for at in accumulate(self._times, max)]

    @property
    def _times(self) -> list[datetime]:
        return [moment(step.at) for step in self.steps]

    @property
    def cost(self) -> float | None:
        """Dollars, as far as prices are in the settings."""
        costs = [step.numbers["cost"] for step in self.steps if "cost" in step.numbers]
        return sum(costs) if costs else None

    @property
    def history(self) -> "pd.DataFrame":
        """A DataFrame with a row per step and a column per number, such as `reward`, `held_out`, `kl` and `tokens`.

        A step is the number of the checkpoint that the job starts from. `at` is when the job was submitted, in UTC.
        `docs/runs.md` lists the numbers.
        """
        names = self._names()
        columns = {name: [step.numbers.get(name) for step in self.steps] for name in names}
        at = [step.at for step in self.steps]
        kinds = dict.fromkeys(names, float)
        return data_frame({"at": at, **columns}, [step.step for step in self.steps], "step", types=kinds)

    def table(self) -> RunTable:
        """Make the table that trackers get: numbers, options, tags, and a project, which is the sweep if it has one.

        At a tracker a run is called after its model, and later runs of the model `MODEL:N`. Unlike `name`, this does
        not change when another run of the model begins.
        """
        own = {"model": self.model, "service": self.service, "collections": ", ".join(self._collections())}
        options = next((step.options for step in reversed(self.steps) if step.job), {})
        history = {name: [step.numbers.get(name) for step in self.steps] for name in self._names()}
        return RunTable(
            project=self._origin.sweep or "rolloutlab",
            name=self.record.fixed_name,
            config={**options, **own},
            tags=self.tags,
            steps=[step.step for step in self.steps],
            times=[moment(step.at) for step in self.steps],
            numbers=history,
        )

    def to_csv(self, path: str | PathLike[str]) -> Path:
        """Write the numbers as CSV, a row per step with all their digits; returns the path. A file there is replaced.

        Raises:
            InputError: it is not a path. LabError: the file cannot be written.
        """
        return write_csv(self.table(), path)

    def _names(self) -> list[str]:
        return [each.name for each in known_numbers(name for step in self.steps for name in step.numbers)]

    def _collections(self) -> list[str]:
        return list(dict.fromkeys(each.name for step in self.steps for each in step.collections))

    @property
    def note(self) -> str:
        """What a user has written about it. It can be set; None removes it. InputError: it is not a text."""
        return self._note.text

    @note.setter
    def note(self, text: str | None) -> None:
        if not isinstance(text, str | None):
            raise InputError(f"a note is a text, not {text!r}", hint=f"%runs {quote(self.name)} --note 'steady'")
        written = replace_surrogates(text or "")
        self._lab.run_notes.write_note(self._first_job, written)
        self._note = replace(self._note, text=written)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags. They can be set; one text is one tag. InputError: a tag is empty, or not a text."""
        return self._note.tags

    @tags.setter
    def tags(self, tags: str | Sequence[str]) -> None:
        given = [tags] if isinstance(tags, str) else tags
        if not isinstance(given, Collection) or not all(isinstance(tag, str) and tag.strip() for tag in given):
            message = f"{tags!r} is no list of tags: a tag is a text that is not empty"
            raise InputError(message, hint=f"%runs {quote(self.name)} --tag keep")
        written = tuple(dict.fromkeys(map(replace_surrogates, given)))
        self._lab.run_notes.write_tags(self._first_job, written)
        self._note = replace(self._note, tags=written)

    @property
    def _first_job(self) -> str:
        return next(step.job.id for step in self.steps if step.job)

    def __repr__(self) -> str:
        return f"<run {self.name}: {len(self.steps)} steps>"
