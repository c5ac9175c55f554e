"""Training form: the options of a job in a notebook, with the preflight check of what would train."""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from threading import Lock
from typing import Any

from rolloutlab.errors import NotFoundError, RolloutlabError
from rolloutlab.objective.algorithms import ALGORITHM, ALGORITHMS, expand
from rolloutlab.objective.option_docs import OPTIONS, contradictions, effects, proper_name, read, written
from rolloutlab.settings import Price
from rolloutlab.training.dry_run import DryRun, plan_of
from rolloutlab.training.job import Job
from rolloutlab.training.refusals import refusals
from rolloutlab.training.submission import Counted, Submission, bounds_of, check_options, one_bound
from rolloutlab.trajectories.collection import Collection
from rolloutlab.widgets import form as render
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.dry_run import LastJob
from rolloutlab.widgets.form import Outlook
from rolloutlab.widgets.html import for_notebook

Listen = Callable[[Callable[[Set[int]], None]], None]
"""Registers a method, which is called with the ids of trajectories with new rewards as long as its object lives."""


class TrainingForm(NotebookView):
    """The options for training on some collections. In a notebook it is a form.

    It can be submitted once. The job is then shown below the form.

    Args:
        collections: The collections to train on.
        given: The options that the form begins with.
        gather: Reads the collections and returns the job that they would make.
        version: Returns a value that changes when `gather` must be called again.
        submit: Submits a job with these options.
        listen: `Rewards.listen` of the lab.
        price: Returns the price of the model's tokens, if known.
        last: Returns the last job of the model; the form shows which options differ from it.
        budget: The most dollars that the job may cost, for the cell that does what the form does.
    """

    module = "form"

    def __init__(
        self,
        collections: Sequence[Collection],
        given: Mapping[str, Any],
        gather: Callable[[Counted], Submission],
        version: Callable[[], object],
        submit: Callable[[Mapping[str, Any]], Job],
        listen: Listen,
        price: Callable[[], Price | None],
        last: Callable[[], LastJob | None] = lambda: None,
        budget: float | None = None,
    ) -> None:
        self._collections = tuple(collections)
        self._names = tuple(collection.name for collection in collections)
        self._gather = gather
        self._version = version
        self._gathered: tuple[object, Submission] | None = None
        self._submit = submit
        self._price = price
        self._find_last = last
        self._last: LastJob | None = None
        self._texts = self._expand_texts(given)
        self._paid = "" if budget is None else f" --budget {budget:g}"
        self._job: Job | None = None
        self._submitting = Lock()
        listen(self._on_rewards)

    @property
    def names(self) -> tuple[str, ...]:
        """The present names of its collections; once one of them is deleted, their last names."""
        with suppress(NotFoundError):
            self._names = tuple(collection.name for collection in self._collections)
        return self._names

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, as `lab.train` takes them."""
        values = {name: read(text) for name, text in self._texts.items()}
        return {name: value for name, value in values.items() if not OPTIONS[name].is_default(value)}

    @property
    def cell(self) -> str:
        """The cell that does what the form does; options with a problem are left out."""
        valid = [name for name, value in self.options.items() if OPTIONS[name].problem(value) is None]
        return "\n".join(
            [f"%%train {' '.join(self.names)}{self._paid}", *(f"{name}: {self._texts[name]}" for name in valid)]
        )

    @property
    def job(self) -> Job | None:
        """The submitted job, if any."""
        return self._job

    def read(self, counted: Counted) -> None:
        """Read the collections, which may take long. If that fails, the form shows the error."""
        with suppress(RolloutlabError):
            self._gathered = self._version(), self._gather(counted)

    def check(self) -> DryRun:
        """Check what would train, and why not the rest.

        Raises:
            InputError: an option is wrong. NotFoundError: a collection was deleted.
        """
        return DryRun(self._check(self.options), self._price(), self._last_job())

    def submit(self) -> Job:
        """Submit the job, after a check of what there is now. A second call returns the same job.

        Raises:
            As `lab.train`; then nothing was submitted, and it can be called again.
        """
        with self._submitting:
            if self._job is None:
                self._last = self._find_last()
                job = self._submit(self.options)
                job.listen(self.push)
                self._job = job
                job.follow()
                self.push("submitted", job=job.state())
            return self._job

    def look(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Take the texts of a browser's fields; return what would happen with these options."""
        self._take_texts(texts)
        return self._outlook_json()

    def state(self) -> Mapping[str, Any]:
        job = self._job
        return {
            "options": render.controls(),
            "algorithms": {name: self._expand_texts({ALGORITHM: name}) for name in ALGORITHMS},
            "texts": dict(self._texts),
            "outlook": self._outlook_json(),
            "job": job.state() if job else None,
        }

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        own: dict[str, Callable[..., Any]] = {"look": self.look, "submit": self._submit_texts}
        return {**own, **(self._job.calls() if self._job else {})}

    def _submit_texts(self, texts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Submit the options in a browser's fields; return the state of the job."""
        self._take_texts(texts)
        return self.submit().state()

    def _expand_texts(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of the fields for some options, including those that an algorithm stands for.

        If the algorithm divides by `max_tokens`, and the collections have no common one, that field stays empty.

        Raises:
            InputError: an option or the algorithm is unknown.
        """
        check_options(given, names_only=True)
        return _texts(expand(given, lambda: one_bound(bounds_of(self._collections))).options)

    def _take_texts(self, texts: Mapping[str, Any]) -> None:
        """Set the texts of the fields; once the job is submitted they stay as they are."""
        if self._job is None:
            self._texts = _texts(texts)

    def _outlook_json(self) -> dict[str, Any]:
        return self._outlook().to_json()

    def _on_rewards(self, _ids: Set[int]) -> None:
        """Have the browser call `look` again. Called on any thread when rewards were changed in this process."""
        if self._job is None:
            self.push("changed")

    def _check(self, options: Mapping[str, Any]) -> Submission:
        """Return the job that would be submitted with these options at this moment."""
        version = self._version()
        if self._gathered is None or self._gathered[0] != version:
            self._gathered = version, self._gather(lambda _: None)
        return self._gathered[1].with_options(options)

    def _last_job(self) -> LastJob | None:
        """Return the last job of the model, not counting the form's own."""
        return self._last if self._job else self._find_last()

    def _outlook(self) -> Outlook:
        """Collect what the form shows: what would happen with its options, and what is wrong with them."""
        wrong = {name: problem for name, value in self.options.items() if (problem := OPTIONS[name].problem(value))}
        valid = {name: value for name, value in self.options.items() if name not in wrong}
        wrong |= {name: why for name, why, _ in contradictions(valid)}
        valid = {name: read(text) for name, text in self._texts.items() if name not in wrong}
        blocked = [f"{name}: {problem}" for name, problem in wrong.items()]
        last = self._last_job()
        same: dict[str, Any] = {"last": last, "changes": render.find_changes(self._texts, last)}
        try:
            submission = self._check(valid)
        except RolloutlabError as error:
            why = f"{error.message} -> {error.hint}" if error.hint else error.message
            blocked += ["nothing would train"]
            notes = _group_effects(valid)
            return Outlook(self.cell, self.names, None, why, wrong, notes, "; ".join(blocked), **same)
        blocked += [] if submission.check.trainable_trajectories else ["nothing would train"]
        wrong |= (refused := refusals(submission.config, submission.engine))
        blocked += [f"{name}: {why}" for name, why in refused.items()]
        plan, notes = plan_of(submission, self._price(), last), _group_effects(valid, submission)
        return Outlook(self.cell, self.names, plan, "", wrong, notes, "; ".join(blocked), **same)

    def __repr__(self) -> str:
        job = f"\n\n{self._job!r}" if self._job else ""
        return render.text(self._outlook()) + job

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self._outlook(), self._texts)) + (self._job._repr_html_() if self._job else "")


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the fields for options, by their proper names. Raises InputError if an option is unknown."""
    check_options(given, names_only=True)
    texts = {proper_name(name): written(value).strip() for name, value in given.items()}
    return {name: texts[name] for name in OPTIONS if texts.get(name)}


def _group_effects(given: Mapping[str, Any], submission: Submission | None = None) -> dict[str, list[str]]:
    """Return sentences about what options do, by option."""
    notes: dict[str, list[str]] = {}
    known = (submission.check.trainable_groups, submission.truncated) if submission else ()
    for name, sentence in effects(given, *known):
        notes.setdefault(name, []).append(sentence)
    return notes
