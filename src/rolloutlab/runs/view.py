"""The view of one or several runs: curves over common steps, what differs, and texts of each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.hints import Hint
from rolloutlab.objective.preflight import count
from rolloutlab.runs.catalogue import find_runs, load_runs
from rolloutlab.runs.overlay import join_seeds, make_course, name_of
from rolloutlab.runs.run import Run
from rolloutlab.runs.sending import send_runs
from rolloutlab.runs.texts import Kind, pick_texts
from rolloutlab.runs.tracker import open_trackers
from rolloutlab.store.lab import Lab
from rolloutlab.store.origins import Origin
from rolloutlab.training.measures import were_changed
from rolloutlab.widgets import run as render
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.tree import tree
from rolloutlab.widgets.run import Overlay, RunRow
from rolloutlab.widgets.run_numbers import known_numbers

_REPORTED = 5
"""Runs that a cell names for a report."""
_NAMED = 3
"""Collections that are named above the curves."""


class RunView(NotebookView):
    """One or several runs. `runs` are the runs, in the order in which they were named.

    lab: the store. home: the lab folder. names: as of `find_runs`. Each request of a page reads the runs again, because
    another kernel may have gone on with them.
    """

    module = "run"

    def __init__(self, lab: Callable[[], Lab], names: Sequence[str], home: Path) -> None:
        self._lab, self._names, self._home = lab, list(names), home
        self.runs: Sequence[Run] = find_runs(load_runs(lab()), names)

    def write(self, note: str | None = None, tags: Sequence[str] = (), untags: Sequence[str] = ()) -> None:
        """Write a note on each of the runs, unless it is None; add and remove tags."""
        for run in self.runs:
            if note is not None:
                run.note = note
            if tags or untags:
                run.tags = [tag for tag in (*run.tags, *tags) if tag not in untags]

    def to_csv(self, path: str | PathLike[str]) -> Path:
        """Write the numbers of the one run as `Run.to_csv` does. InputError: there are several."""
        if len(self.runs) > 1:
            raise InputError(
                "a CSV file has the numbers of one run", hint=f"%runs {quote(self.runs[0].name)} --csv run.csv"
            )
        return self.runs[0].to_csv(path)

    def send(self, report_to: str | Sequence[str], *, say: Callable[[str], None] = print) -> None:
        """Bring the runs up to date at trackers, such as `["tensorboard"]`; `say` gets a line for each: where it is.

        Raises:
            InputError: there is no such tracker, or its package is not installed.
            LabError, ServiceError: it does not take a run.
        """
        for line in send_runs(self.runs, open_trackers(report_to, self._home)):
            say(line)

    def state(self) -> Mapping[str, Any]:
        shown = self.overlay()
        return {
            "version": list(self._lab().changes()),
            "top": render.top(shown),
            "courses": [asdict(course) for course in shown.courses],
            "numbers": [asdict(number) for number in shown.numbers],
            "best": [row.at[0] if len(row.at) == 1 else None for row in shown.rows],
            "names": self._names,
        }

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"renewed": self._state_if_changed, "texts": self._texts}

    def _state_if_changed(self, version: Sequence[int]) -> Mapping[str, Any] | None:
        """Return the state if the lab has changed since a version; else None."""
        if list(self._lab().changes()) == list(version):
            return None
        if any(set(name) & set("*?[") for name in self._names):
            self.runs = find_runs(load_runs(self._lab()), self._names)
        else:  # by identity, because the name may now mean a later run of the model
            listed = {_identity(run): run for run in load_runs(self._lab(), {run.model for run in self.runs})}
            self.runs = [listed.get(_identity(run), run) for run in self.runs]
        return self.state()

    def _texts(self, step: int, kind: Kind, place: int = 0) -> Mapping[str, Any]:
        texts = pick_texts(self._lab(), self.runs, step, kind, place)
        return {"texts": tree(render.text_cards(texts, render.looks_of(self.overlay().courses)))}

    def overlay(self) -> Overlay:
        """Lay the runs over each other: the plain values that the view draws, with seeds of one setting joined."""
        origins = self._lab().origins.all()
        groups = join_seeds(self.runs, origins)
        courses = [make_course(runs, origins) for runs in groups]
        rows = [_row(course.name, runs) for course, runs in zip(courses, groups, strict=True)]
        numbers = known_numbers(name for course in courses for name in course.numbers)
        hints = [hint for runs in groups for run in runs for hint in _hints(run, self._label(run))]
        return Overlay(courses, rows, numbers, hints, _about(self.runs, origins), _next_cells(self.runs))

    def _label(self, run: Run) -> str:
        """Return what a hint calls a run; empty for the only one."""
        origins = self._lab().origins.all()
        label, own = name_of([run], origins), origins.get((run.service, run.model))
        alike = sum(name_of([each], origins) == label for each in self.runs) > 1
        return "" if len(self.runs) == 1 else f"{label} · seed {own.seed}" if alike and own else label

    def __repr__(self) -> str:
        return render.text(self.overlay())

    def _repr_html_(self) -> str:
        sampled = [step.step for run in self.runs for step in run.steps if step.held_out or step.collections]
        # none if everything that was sampled has been deleted
        texts = pick_texts(self._lab(), self.runs, max(sampled), "random") if sampled else []
        return for_notebook(render.html(self.overlay(), texts))


def _identity(run: Run) -> tuple[str, str, int]:
    """Return the key of a run. Unlike its name, it stays the same when another run of its model begins."""
    return run.service, run.model, run.record.number


def _about(runs: Sequence[Run], origins: Mapping[tuple[str, str], Origin]) -> str:
    sweeps = {origin.sweep if origin else None for run in runs for origin in [origins.get((run.service, run.model))]}
    trained = dict.fromkeys(each.name for run in runs for step in run.steps for each in step.collections)
    of = f"sweep {sweeps.pop()}" if sweeps != {None} and len(sweeps) == 1 else ", ".join(list(trained)[:_NAMED])
    models = dict.fromkeys(run.model for run in runs)
    steps = count(max(len(run.steps) for run in runs), "step")
    return " · ".join(filter(None, [of, steps, *(models if len(models) == 1 else [])]))


def _next_cells(runs: Sequence[Run]) -> list[str]:
    """Return cells to type next: compare the two best checkpoints, export the best, report on all."""
    ranked = sorted((run for run in runs if run.best_step), key=_best_mean, reverse=True)
    if not ranked:
        return []
    held = [step.held_out for step in ranked[0].steps if step.held_out]
    # two runs of a model may have the same best checkpoint: where one ends, the other begins
    best, *others = dict.fromkeys(quote(str(each.best)) for each in ranked)
    compared = [f"%compare {quote(held[0].name)} {others[0]} {best}"] if held and others else []
    names = ", ".join(repr(run.name) for run in runs[:_REPORTED])
    named = names if len(runs) == 1 else f"[{names}]"
    report = [f'lab.report({named}, "run.html")'] if len(runs) <= _REPORTED else []
    return [*compared, f"%export {best} --to best", *report]


def _hints(run: Run, label: str) -> list[Hint]:
    """Return hints on a run. label: what the view calls it; empty if it is the only one."""
    name = f"{label}: " if label else ""
    hints = [Hint(f"{name}{sign.fact}", "", sign.cell) for sign in run.signs]
    if run.made_from:
        hints.append(Hint(f"{name}{run.model} was made from {run.made_from}.", "", "", "info"))
    if run.because:
        fact = f"{name}it begins at step {run.steps[0].step}, as the {were_changed(run.because)}:"
        hints.append(Hint(fact, "earlier means do not compare.", "", "info"))
    return hints


def _row(name: str, runs: Sequence[Run]) -> RunRow:
    """Make a row of the table, of one run or with the means over several seeds."""
    first = runs[0]
    best = [run.best_step for run in runs]
    means = [step.numbers[run.main] for run, step in zip(runs, best, strict=True) if step]
    begun = [run.before.numbers[run.main] for run in runs if run.before]
    again = [run.best_mean for run in runs]
    top = max((run for run in runs if run.best_step), key=_best_mean, default=None)
    step = top.best_step if top else None
    return RunRow(
        name=name,
        before=_mean(begun),
        best=_mean(means),
        error=step.errors.get(first.main) if step and len(runs) == 1 else None,
        at=[step.step for step in best if step],
        best_name=top.best or "" if top else "",
        again=None if None in again else _mean([mean for mean in again if mean is not None]),
        options=next((step.options for step in reversed(first.steps) if step.job), {}),
        changes=[(each.step, each.option, each.before, each.after) for each in first.changes],
        tags=list(dict.fromkeys(tag for run in runs for tag in run.tags)),
        note="; ".join(dict.fromkeys(run.note for run in runs if run.note)),
    )


def _best_mean(run: Run) -> float:
    step = run.best_step
    return step.numbers[run.main] if step else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
