"""Runs as the lab has them: for each step what was sampled, how it was scored, and what the job reported."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rolloutlab.api.job_state import gradient_steps, last_value, last_whole, number, since_restart, step_figures
from rolloutlab.api.prices import DOLLAR, Amount
from rolloutlab.runs.lineage import Measures, Stretch, TrainedJob, find_differences, split_lineage
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection, SubmittedJob
from rolloutlab.store.step_numbers import StepNumbers
from rolloutlab.training.measures import Measure, again_name, digest_texts, held_out_name

_OF_JOBS = ("entropy", "kl", "kl_base", "clipped", "loss", "grad_norm")
"""Numbers of gradient steps that a run has, one figure per job."""
_SAMPLING = ("temperature", "top_p", "max_tokens", "stop", "max_turns")
"""Settings of the sampling that are listed with the options of a job where they are not the defaults."""
_HELD_OUT = ("reward", "pass_rate", "length", "cut_off")
"""Numbers that a run also has of held-out rows."""


@dataclass(frozen=True)
class RunStep:
    """A checkpoint of a run: what it sampled, and the job that trained on that.

    Attributes:
        step: The number of the checkpoint that the job starts from.
        at: When the job was submitted; of a last measurement, when it was sampled. UTC, ISO 8601.
        job: The job; None for a checkpoint on whose answers no job has trained.
        collections: The generations that the job trained on.
        held_out: The generation of the held-out rows that this checkpoint sampled, if they were measured.
        numbers: By name; a number that is not known is missing.
        errors: The standard errors of `reward` and `held_out`.
        options: The options of the job, and settings of the sampling that are not the defaults.
        settings: The settings of the sampling behind `reward` and `held_out`. Means compare only if they are equal.
    """

    step: int
    at: str
    job: SubmittedJob | None = None
    collections: tuple[StoredCollection, ...] = ()
    held_out: StoredCollection | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """A run: the jobs of one model whose means compare.

    Attributes:
        name: The model, or `MODEL:N` for a run that a later one of the model follows.
        service: The service that trained it.
        model: The model.
        steps: In order; the last one may be a checkpoint that was only measured.
        because: What changed before its first job, compared with the run before it.
        failed: The jobs of the model that failed or were cancelled during the run.
        again: By step, the mean on the held-out rows with other seeds than those that the best step was chosen by.
    """

    name: str
    service: str
    model: str
    steps: tuple[RunStep, ...]
    because: tuple[str, ...] = ()
    failed: tuple[SubmittedJob, ...] = ()
    again: Mapping[int, float] = field(default_factory=dict)


def read_runs(lab: Lab, models: Collection[str] | None = None) -> list[RunRecord]:
    """The runs of a lab, the one that was trained last first. models: only the runs of these; None stands for all."""
    jobs = [job for job in lab.jobs.newest_first()[::-1] if models is None or job.model in models]
    reader = _RunReader(lab, jobs)
    records = []
    for model in dict.fromkeys(job.model for job in jobs):
        of_model = [job for job in jobs if job.model == model]
        stretches = _stretches(reader, of_model)
        begins = [stretch.jobs[0].job.created_at for stretch in stretches]
        for i, stretch in enumerate(stretches):
            name = model if i + 1 == len(stretches) else f"{model}:{i + 1}"
            since, until = begins[i] if i else "", begins[i + 1] if i + 1 < len(begins) else None
            during = (job for job in of_model if since <= job.created_at and (until is None or job.created_at < until))
            failed = tuple(job for job in during if job.status in {"failed", "cancelled"})
            records.append(reader.read_record(name, stretch, failed))
    return sorted(records, key=lambda record: record.steps[-1].at, reverse=True)


def _stretches(reader: "_RunReader", jobs: Sequence[SubmittedJob]) -> list[Stretch]:
    """The runs of one model, in the order in which they began. Services of one name have models of their own."""
    stretches: list[Stretch] = []
    for service in dict.fromkeys(job.service for job in jobs):
        made = [job for job in jobs if job.service == service and job.step is not None]
        stretches += split_lineage([reader.read_measures(job) for job in made])
    return sorted(stretches, key=lambda stretch: stretch.jobs[0].job.created_at)


class _RunReader:
    """Reads what the steps of runs need, each table of the lab once."""

    def __init__(self, lab: Lab, jobs: Sequence[SubmittedJob]) -> None:
        self._lab = lab
        generations = lab.generations()
        self._by_label = {f"{each.name}:{each.generation}": each for each in generations}
        self._plans = {each.id: read_config(each.plan) for each in generations}
        self._sampled: dict[tuple[str, str | None, int | None], list[StoredCollection]] = {}
        """By name, model and checkpoint, newest first."""
        for each in generations:
            if plan := self._plans[each.id]:
                model, step = _checkpoint(plan)
                self._sampled.setdefault((each.name, model, step), []).append(each)
        self._measures: dict[tuple[int, bool], Measure] = {}
        self._numbers = lab.step_numbers.of(self._of_runs(jobs))
        self._costs = lab.spending.of_each()
        self._paid = list(lab.spending.trained())

    def _of_runs(self, jobs: Sequence[SubmittedJob]) -> Iterator[int]:
        """The ids of the collections that jobs trained on, and of their held-out rows."""
        labels = set(chain.from_iterable(job.collections for job in jobs))
        names = {label.rpartition(":")[0] for label in labels}
        beside = {make(name) for name in names for make in (held_out_name, again_name)}
        return (each.id for label, each in self._by_label.items() if label in labels or each.name in beside)

    def read_measures(self, job: SubmittedJob) -> TrainedJob:
        """A job with how the means around it were measured."""
        trained_on = {each.name: self._measure(each) for each in self._trained_on(job)}
        held = self._held_out(job.model, trained_on, _start(job))
        return TrainedJob(job, trained_on, {each.name: self._measure(each, rows=True) for each in held})

    def read_record(self, name: str, stretch: Stretch, failed: tuple[SubmittedJob, ...]) -> RunRecord:
        """The record of a run. failed: its jobs that made no checkpoint."""
        first, steps = stretch.jobs[0].job, [self._step(each) for each in stretch.jobs]
        newest = stretch.jobs[-1]
        measures = next((each.held_out for each in reversed(stretch.jobs) if each.held_out), {})
        steps += self._measured_last(newest, measures)
        means = {each.step: self._again(first.model, newest.trained_on, each.step, measures) for each in steps}
        again = {step: mean for step, mean in means.items() if mean is not None}
        return RunRecord(name, first.service, first.model, tuple(steps), stretch.because, failed, again)

    def _trained_on(self, job: SubmittedJob) -> tuple[StoredCollection, ...]:
        """What a job trained on, as far as the lab still has it."""
        return tuple(self._by_label[label] for label in job.collections if label in self._by_label)

    def _measure(self, collection: StoredCollection, *, rows: bool = False) -> Measure:
        """How a mean was measured. Rows that are trained on may change from step to step, so they do not count."""
        if (collection.id, rows) not in self._measures:
            digests = digest_texts(self._lab.rows(collection)) if rows else ()
            scoring, plan = self._lab.scorings.last(collection), self._plans[collection.id]
            self._measures[collection.id, rows] = Measure(scoring, plan, digests, ())
        return self._measures[collection.id, rows]

    def _held_out(
        self, model: str, trained_on: Measures, step: int, measures: Measures | None = None
    ) -> list[StoredCollection]:
        """The newest generation of the held-out rows of each collection that a checkpoint sampled.

        measures: only generations whose means compare with these.
        """
        made = [self._sampled.get((held_out_name(name), model, step), []) for name in trained_on]
        comparable = [[each for each in some if not measures or not self._differs([each], measures)] for some in made]
        return [generations[0] for generations in comparable if generations]

    def _step(self, trained: TrainedJob) -> RunStep:
        job, collections, step = trained.job, self._trained_on(trained.job), _start(trained.job)
        held = self._held_out(job.model, trained.trained_on, step)
        numbers, errors = self._means(collections, held)
        numbers |= self._of_job(job)
        if cost := self._cost([*collections, *held], job):
            numbers["cost"] = cost / DOLLAR
        settings = {"reward": self._settings(collections), "held_out": self._settings(held)}
        plan = self._plans[collections[0].id] if collections else None
        options = {**({"n": plan.n} if plan else {}), **settings["reward"], **job.options}
        first = held[0] if held else None
        return RunStep(step, job.created_at, job, collections, first, numbers, errors, options, settings)

    def _measured_last(self, newest: TrainedJob, measures: Measures) -> list[RunStep]:
        """The checkpoint that the last job made, if it was measured as those before it."""
        step = newest.job.step
        held = self._held_out(newest.job.model, newest.trained_on, step, measures) if step is not None else []
        if step is None or not held:
            return []
        numbers, errors = self._means((), held)
        settings = {"held_out": self._settings(held)}
        return [RunStep(step, held[0].created_at, None, (), held[0], numbers, errors, {}, settings)]

    def _again(self, model: str, trained_on: Measures, step: int, measures: Measures) -> float | None:
        """The mean of a checkpoint with other seeds, if it was measured on the same rows with the same reward."""
        made = [self._sampled.get((again_name(name), model, step), [])[:1] for name in trained_on]
        measured = [each for some in made for each in some if each.id in self._numbers]
        comparable = measured and not self._differs(measured, measures)
        return self._numbers[measured[0].id].reward if comparable else None

    def _differs(self, collections: Sequence[StoredCollection], measures: Measures) -> bool:
        """Whether means do not compare with those of a run. measures: of its held-out rows, by collection."""
        own = {"held out": self._measure(collections[0], rows=True)}
        of_run = {"held out": next(iter(measures.values()))} if measures else {}
        return bool(find_differences(of_run, own))

    def _means(
        self, collections: Sequence[StoredCollection], held: Sequence[StoredCollection]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Numbers of what was trained on and of the held-out rows, and the standard errors of their means."""
        trained = _joined([self._numbers[each.id] for each in collections if each.id in self._numbers])
        measured = _joined([self._numbers[each.id] for each in held if each.id in self._numbers])
        numbers, errors = dict[str, float](), dict[str, float]()
        if trained:
            numbers |= _known(trained, ("reward", "pass_rate", "nothing", "cut_off", "length", "tokens"))
            numbers |= {f"reward.{part}": mean for part, mean in trained.components.items()}
            errors |= {} if trained.error is None else {"reward": trained.error}
        if measured:
            numbers |= {_of_held_out(name): value for name, value in _known(measured, _HELD_OUT).items()}
            numbers |= {f"held_out.{part}": mean for part, mean in measured.components.items()}
            errors |= {} if measured.error is None else {"held_out": measured.error}
        return numbers, errors

    def _of_job(self, job: SubmittedJob) -> dict[str, float]:
        """What a job reported, as far as its events are stored and can be read."""
        events = since_restart(self._lab.jobs.events(job.id))
        try:
            figures = step_figures(gradient_steps(events), _OF_JOBS)
            seconds = number(last_value(events, "checkpoint_saved", "seconds"))
            trained = last_whole(events, "preflight", "trainable_tokens")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # of another service, or damaged
            return {}
        further = {"seconds": seconds, "trained_tokens": trained}
        return figures | {name: float(value) for name, value in further.items() if value is not None}

    def _cost(self, collections: Sequence[StoredCollection], job: SubmittedJob) -> Amount:
        """What a step has cost: sampling, judging, and the job, which is paid just before it is submitted."""
        before = [each for each in self._paid if each[1] == job.model and each[0] <= job.created_at]
        paid = before[-1] if before else None  # earlier ones are of jobs that failed
        self._paid = [each for each in self._paid if each not in before]
        return sum(self._costs.get(each.id, 0) for each in collections) + (paid[2] if paid else 0)

    def _settings(self, collections: Sequence[StoredCollection]) -> dict[str, Any]:
        """How the completions were sampled, where that is not the default."""
        plans = [plan for each in collections if (plan := self._plans[each.id])]
        values = {name: getattr(plans[0], name) for name in _SAMPLING} if plans else {}
        defaults = SamplingConfig.model_fields
        return {name: value for name, value in values.items() if value != defaults[name].get_default()}


def _checkpoint(plan: SamplingConfig) -> tuple[str, int | None]:
    """The model and the checkpoint that sampled a generation. A plan may name both as `lab/practice@2`."""
    model, at, step = plan.model.rpartition("@")
    return (model, int(step)) if at and step.isdecimal() else (plan.model, plan.step)


def _start(job: SubmittedJob) -> int:
    """The checkpoint that a job starts from. Services number them without gaps."""
    return (job.step or 1) - 1


def _of_held_out(name: str) -> str:
    return "held_out" if name == "reward" else f"held_out_{name}"


def _known(of: StepNumbers, names: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name in names if (value := getattr(of, name)) is not None}


def _joined(parts: Sequence[StepNumbers]) -> StepNumbers | None:
    """The numbers of several generations together, each weighted by its answers."""
    if len(parts) < 2:
        return parts[0] if parts else None
    scored = sum(each.scored for each in parts)

    def mean(name: str, weight: str) -> float | None:
        values = [(getattr(each, name), getattr(each, weight)) for each in parts if getattr(each, name) is not None]
        total = sum(n for _, n in values)
        return sum(value * n for value, n in values) / total if total else None

    names = dict.fromkeys(name for each in parts for name in each.components)
    components = {}
    for name in names:
        having = [each for each in parts if name in each.components and each.scored]
        components[name] = sum(each.components[name] * each.scored for each in having) / sum(e.scored for e in having)
    return StepNumbers(
        answers=sum(each.answers for each in parts),
        scored=scored,
        reward=mean("reward", "scored"),
        error=None,
        pass_rate=mean("pass_rate", "scored"),
        nothing=mean("nothing", "answers"),
        cut_off=mean("cut_off", "answers") or 0.0,
        length=mean("length", "answers"),
        tokens=sum(each.tokens for each in parts),
        components=components,
    )
