"""The report of runs: one file with curves, texts, options, rewards and versions."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path

from rolloutlab.runs.run import Run
from rolloutlab.runs.texts import Kind, pick_texts
from rolloutlab.runs.view import RunView
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection
from rolloutlab.trajectories.files import file_path
from rolloutlab.trajectories.files.jsonl import replace_file
from rolloutlab.trajectories.tables import here_and_now
from rolloutlab.widgets.run import StepText
from rolloutlab.widgets.run_report import MadeWith, RunReport, page

_PACKAGES = ("rolloutlab", "torch", "transformers", "peft")
_EMBEDDED = "embedded"
_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("the best", "best"), ("the worst", "worst"), ("changed most", "changed"), ("a random one", "random"),
)  # fmt: skip


def write_report(
    lab: Lab, view: RunView, path: str | PathLike[str], bases: Mapping[str, str], *, overwrite: bool = False
) -> Path:
    """Write the report of the runs of a view; returns where it is. bases: as of `make_report`.

    Raises:
        InputError: the file is there already, or cannot be written.
    """
    target = file_path(path)
    with replace_file(target, overwrite=overwrite) as draft:
        draft.write_text(page(make_report(lab, view, bases)), encoding="utf-8")
    return target


def make_report(lab: Lab, view: RunView, bases: Mapping[str, str]) -> RunReport:
    """What the report of the runs of a view has. bases: by name, what models of the embedded service began with."""
    runs = view.runs
    facts = [("written", f"{here_and_now():%Y-%m-%d %H:%M %Z}"), ("Python", platform.python_version())]
    facts += [(name, number) for name in _PACKAGES if (number := _version(name))]
    facts += [("machine", f"{platform.system()} {platform.machine()}")]
    facts += [(f"service of {run.name}", run.service) for run in runs]
    seconds = [(run.name, run.seconds) for run in runs]
    made = list(dict.fromkeys([*_bases(runs, bases), *_environments(runs)]))
    return RunReport(view.overlay(), list(_texts(lab, runs)), made, list(_sources(lab, runs)), facts, seconds)


def _texts(lab: Lab, runs: Sequence[Run]) -> Iterator[tuple[str, list[StepText]]]:
    """Texts of the first, the best and the last step that sampled something."""
    having = sorted({step.step for run in runs for step in run.steps if step.held_out or step.collections})
    best = [step.step for run in runs for step in [run.best_step] if step]
    for step in sorted({*having[:1], *best[:1], *having[-1:]}):
        for name, kind in _TEXTS:
            yield f"Step {step}: {name}", pick_texts(lab, runs, step, kind)


def _collections(run: Run) -> list[StoredCollection]:
    return [each for step in run.steps for each in (*step.collections, step.held_out) if each]


def _bases(runs: Sequence[Run], bases: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the model of each run began with, as far as it is known: its base, or a checkpoint of another model."""
    for run in runs:
        if run.service == _EMBEDDED and run.model in bases:
            yield f"base of {run.model}", bases[run.model]
        if run.made_from:
            yield f"checkpoint that {run.model} was made from", run.made_from


def _environments(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """The names of the environments and the programs that the collections were sampled with."""
    for run in runs:
        for collection in _collections(run):
            for what, key in (("environment", "env"), ("program", "program")):
                if name := collection.plan.get(key):
                    yield f"{what} of {collection.name}", str(name)


def _sources(lab: Lab, runs: Sequence[Run]) -> Iterator[MadeWith]:
    """The prompts and rewards of the runs, each once, as the lab has them."""
    seen = set()
    for run in runs:
        for collection in _collections(run):
            for source in _sources_of(lab, collection):
                if source.text not in seen:
                    seen.add(source.text)
                    yield source


def _sources_of(lab: Lab, collection: StoredCollection) -> Iterator[MadeWith]:
    label = f"{collection.name}:{collection.generation}"
    if template := collection.plan.get("template"):
        yield MadeWith(f"prompt of {label}", json.dumps(template, indent=2, ensure_ascii=False))
    if (scoring := lab.scorings.last(collection)) and scoring.code:
        yield MadeWith(f"{scoring.source} that scored {label}: {', '.join(scoring.names)}", scoring.code)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
