"""All runs of a lab: as a list with a table, and by name."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from shlex import quote
from typing import TYPE_CHECKING, Any, overload

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.objective.preflight import count
from rolloutlab.runs.judgement import measured_steps
from rolloutlab.runs.records import RunRecord, RunStep, read_runs
from rolloutlab.runs.run import Run
from rolloutlab.store.lab import Lab
from rolloutlab.store.origins import Origin
from rolloutlab.store.run_notes import RunNote
from rolloutlab.training.measures import were_changed
from rolloutlab.trajectories.tables import data_frame, here_and_now
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.listing import Listing, terminal_width
from rolloutlab.widgets.run_list import ListedRun, run_listing

if TYPE_CHECKING:
    import pandas as pd


class RunList(Sequence[Run]):
    """Runs, the one that was trained last first."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)

    @overload
    def __getitem__(self, index: int | str) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> "RunList": ...
    def __getitem__(self, index: int | str | slice) -> "Run | RunList":
        """A run by its place or its name, or some of them."""
        if isinstance(index, str):
            return find_runs(self._runs, [index])[0]
        return RunList(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    @property
    def frame(self) -> "pd.DataFrame":
        """A DataFrame with a row per run: means before and at best, gain, steps, time, cost, model, tags and note."""
        rows = [_frame_row(run) for run in self._runs]
        columns = ["before", "best", "at", "gain", "steps", "seconds", "cost", "model", "service", "tags", "note"]
        kinds = {"before": float, "best": float, "gain": float, "cost": float, "at": "Int64"}
        return data_frame(rows, [run.name for run in self._runs], "run", columns, kinds)

    def _listing(self) -> Listing:
        differing = differing_options(self._runs)
        return run_listing([_listed(run, differing) for run in self._runs], here_and_now())

    def __repr__(self) -> str:
        return self._listing().text(terminal_width())

    def _repr_html_(self) -> str:
        return for_notebook(self._listing().html())


def load_runs(lab: Lab, models: Collection[str] | None = None) -> RunList:
    """The runs of a lab. models: only the runs of these; None stands for all."""
    notes, origins = lab.run_notes.by_job(), lab.origins.all()

    def load(record: RunRecord) -> Run:
        note = notes.get(_first_job(record.steps), RunNote())
        return Run(lab, record, note, origins.get((record.service, record.model), Origin()))

    return RunList([load(record) for record in read_runs(lab, models)])


def find_runs(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """The runs with these names, each once, in the order of the names.

    A name is that of a run, its model without the project, a pattern such as `lab/sweep*`, or a collection that one
    run alone has trained on.

    Raises:
        NotFoundError: no run has such a name, or several could be meant.
        InputError: a name is not a text.
    """
    if wrong := [name for name in names if not isinstance(name, str)]:
        hint = f"%runs {quote(runs[0].name)}" if runs else "%runs"
        raise InputError(f"the name of a run is a text, not {wrong[0]!r}", hint=hint)
    chosen: dict[str, Run] = {}
    for name in names:
        for run in _matching(runs, name):
            chosen[run.name] = run
    return list(chosen.values())


def _matching(runs: Sequence[Run], name: str) -> list[Run]:
    exact = [run for run in runs if run.name == name]
    patterned = [run for run in runs if set(name) & set("*?[") and fnmatchcase(run.name, name)]
    short = [run for run in runs if run.name.partition("/")[2] == name]
    trained = [run for run in runs if name in {each.name for step in run.steps for each in step.collections}]
    if made := exact or patterned:
        return made
    candidates = short or trained
    if len(candidates) == 1:
        return candidates
    names = [run.name for run in runs]
    if candidates:
        listed = ", ".join(run.name for run in candidates[:4])
        message = f"{name!r} may be {count(len(candidates), 'run')}: {listed}"
        raise NotFoundError(message, hint=f"%runs {quote(candidates[0].name)}")
    close = get_close_matches(name, names, n=1) or (names[:1] if names else [])
    hint = f"%runs {quote(close[0])}" if close else "%%train NAME"
    raise NotFoundError(f"there is no run {name!r}" if names else "no job of this lab has made a checkpoint", hint=hint)


def differing_options(runs: Sequence[Run]) -> list[str]:
    """The options in which the last jobs of these runs differ."""
    last = [_options(run) for run in runs]
    names = dict.fromkeys(name for each in last for name in each)
    return [name for name in names if any(each.get(name) != last[0].get(name) for each in last)]


def _options(run: Run) -> Mapping[str, Any]:
    return next((step.options for step in reversed(run.steps) if step.job), {})


def _first_job(steps: Sequence[RunStep]) -> str:
    return next(step.job.id for step in steps if step.job)


def _listed(run: Run, differing: Sequence[str]) -> ListedRun:
    before, best, name = run.before, run.best_step, run.main
    options = _options(run)
    facts = [("model", run.model), ("trained on", ", ".join(_collections(run))), ("service", run.service)]
    facts += [("its model was made from", run.made_from)] if run.made_from else []
    facts += [("another run of its model, as the", were_changed(run.because))] if run.because else []
    facts += [("what to know", "; ".join(sign.fact for sign in run.signs))] if run.signs else []
    return ListedRun(
        name=run.name,
        is_held_out=name == "held_out",
        before=before.numbers[name] if before else None,
        best=best.numbers[name] if best else None,
        error=best.errors.get(name) if best else None,
        at=best.step if best else None,
        means=[step.numbers[name] for step in measured_steps(run.record)],
        steps=len(run.steps),
        seconds=run.seconds,
        cost=run.cost,
        when=run.steps[-1].at,
        options={each: options[each] for each in differing if each in options},
        tags=run.tags,
        note=run.note,
        facts=facts,
    )


def _collections(run: Run) -> list[str]:
    return list(dict.fromkeys(each.name for step in run.steps for each in step.collections))


def _frame_row(run: Run) -> dict[str, Any]:
    before, best, name = run.before, run.best_step, run.main
    means = [step.numbers[name] if step else None for step in (before, best)]
    gain = None if means[0] is None or means[1] is None else means[1] - means[0]
    return {
        "before": means[0],
        "best": means[1],
        "at": best.step if best else None,
        "gain": gain,
        "steps": len(run.steps),
        **{name: getattr(run, name) for name in ("seconds", "cost", "model", "service", "note")},
        "tags": ", ".join(run.tags),
    }
