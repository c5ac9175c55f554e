"""The options of a training job as a form, with what would come of them while they change."""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from threading import Lock
from typing import Any

from rolloutlab.errors import InputError, NotFoundError, RolloutlabError
from rolloutlab.objective.option_docs import OPTIONS, effects, problems, proper_name, read, written
from rolloutlab.training.dry_run import DryRun
from rolloutlab.training.job import Job
from rolloutlab.training.submission import Submission
from rolloutlab.trajectories.collection import Collection
from rolloutlab.widgets import form as render
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.form import Outlook
from rolloutlab.widgets.html import for_notebook

Listen = Callable[[Callable[[Set[int]], None]], None]
"""Has a method told, while its object lives, which trajectories got other rewards."""


class TrainingForm(NotebookView):
    """The eleven options for training on some collections; in a notebook, to be filled in.

    It can be submitted once; the job is then shown below. collections: what is to train. given: options to begin with.
    gather: what a job of them would be now; asked again when `version` is another. submit: makes options a job.
    listen: `Rewards.listen` of their lab.
    """

    module = "form"

    def __init__(
        self,
        collections: Sequence[Collection],
        given: Mapping[str, Any],
        gather: Callable[[], Submission],
        version: Callable[[], object],
        submit: Callable[[Mapping[str, Any]], Job],
        listen: Listen,
    ) -> None:
        self._collections = tuple(collections)
        self._names = tuple(collection.name for collection in collections)
        self._gather = gather
        self._version = version
        self._gathered: tuple[object, Submission] | None = None
        self._submit = submit
        self._texts = _texts(given)
        self._job: Job | None = None
        self._submitting = Lock()
        listen(self._edited)

    @property
    def names(self) -> tuple[str, ...]:
        """What its collections are called now; once one of them is deleted, what they were called last."""
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
        """The cell that does what the form does; what is wrong is left out."""
        lines = [f"{name}: {self._texts[name]}" for name in self._right()]
        return "\n".join([f"%%train {' '.join(self.names)}", *lines])

    @property
    def job(self) -> Job | None:
        """What was submitted, once it was."""
        return self._job

    def check(self) -> DryRun:
        """What would train with these options, and why the rest would not.

        Raises:
            InputError: an option is wrong. NotFoundError: a collection is gone.
        """
        return DryRun(self._check(self.options))

    def submit(self) -> Job:
        """Submit the job, after a check of what there is now. Asked again, it is the same job.

        Raises:
            As `lab.train`; then nothing was submitted, and it can be asked again.
        """
        with self._submitting:
            if self._job is None:
                job = self._submit(self.options)
                job.listen(self.push)
                self._job = job
                job.follow()
                self.push("submitted", job=job.state())
            return self._job

    def look(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Take what is in the fields of a browser; what would come of it."""
        self._fill(texts)
        return self._told()

    def state(self) -> Mapping[str, Any]:
        job = self._job
        return {
            "options": render.controls(),
            "texts": dict(self._texts),
            "outlook": self._told(),
            "job": job.state() if job else None,
        }

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        own: dict[str, Callable[..., Any]] = {"look": self.look, "submit": self._submitted}
        return {**own, **(self._job.calls() if self._job else {})}

    def _submitted(self, texts: Mapping[str, Any]) -> Mapping[str, Any]:
        """Submit what is in the fields of a browser: the job's state."""
        self._fill(texts)
        return self.submit().state()

    def _fill(self, texts: Mapping[str, Any]) -> None:
        if self._job is None:
            self._texts = _texts(texts)

    def _told(self) -> dict[str, Any]:
        return {"names": list(self.names), **self._outlook().to_json()}

    def _edited(self, _ids: Set[int]) -> None:
        """Rewards were changed in this process, on any thread: the browser looks again at what would train."""
        if self._job is None:
            self.push("changed")

    def _right(self) -> dict[str, Any]:
        """The options that differ from their defaults and have nothing wrong about them."""
        return {name: value for name, value in self.options.items() if OPTIONS[name].problem(value) is None}

    def _check(self, options: Mapping[str, Any]) -> Submission:
        """What a job with these options would be at this moment."""
        version = self._version()
        if self._gathered is None or self._gathered[0] != version:
            self._gathered = version, self._gather()
        return self._gathered[1].under(options)

    def _outlook(self) -> Outlook:
        wrong = {name: found for name, value in self.options.items() if (found := OPTIONS[name].problem(value))}
        asked = {name: read(text) for name, text in self._texts.items() if name not in wrong}
        blocked = [f"{name}: {problem}" for name, problem in wrong.items()]
        try:
            submission = self._check(asked)
        except RolloutlabError as error:
            why = f"{error.message} -> {error.hint}" if error.hint else error.message
            blocked += ["nothing would train"]
            return Outlook(
                self.cell, report=(why,), problems=wrong, notes=_by_option(asked), blocked="; ".join(blocked)
            )
        check = submission.check
        blocked += [] if check.trainable_trajectories else ["nothing would train"]
        return Outlook(
            self.cell,
            submission.model,
            tuple(submission.report()),
            render.spread(check),
            wrong,
            _by_option(asked, check.trainable_groups),
            "; ".join(blocked),
        )

    def __repr__(self) -> str:
        job = f"\n\n{self._job!r}" if self._job else ""
        return render.text(self._outlook()) + job

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self._outlook(), self._texts)) + (self._job._repr_html_() if self._job else "")


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    """What is in the fields for some options, by their proper names.

    Raises:
        InputError: one of them is unknown; its value may well be wrong.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"options are a dict, not a {type(given).__name__}", hint='{"learning_rate": 2e-3}')
    if unknown := problems(dict.fromkeys(given)):
        said, typed = zip(*unknown, strict=True)
        raise InputError("; ".join(said), hint="; ".join(dict.fromkeys(typed)))
    found = {proper_name(name): written(value).strip() for name, value in given.items()}
    return {name: found[name] for name in OPTIONS if found.get(name)}


def _by_option(given: Mapping[str, Any], groups: int | None = None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, sentence in effects(given, groups):
        found.setdefault(name, []).append(sentence)
    return found
