"""Runs as the lab has them: for each step what was sampled, how it was scored, and what the job reported."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from rolloutlab.api.job_state import gradient_steps, last_value, last_whole, since_restart, step_figures
from rolloutlab.api.job_state import number as number_in
from rolloutlab.api.prices import DOLLAR, Amount
from rolloutlab.runs.lineage import Measured, Measures, Stretch, TrainedJob, compares, split_lineage, start_of
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection, SubmittedJob
from rolloutlab.store.step_numbers import StepNumbers
from rolloutlab.training.measures import SETTINGS, Measure, again_name, digest_texts, held_out_name

_OF_JOBS = ("entropy", "kl", "kl_base", "clipped", "loss", "grad_norm")
"""Numbers that gradient steps report. A run has one figure of each per job."""
_OF_TRAINED = ("nothing", "cut_off", "length", "tokens")
"""Numbers of what a job trained on, whichever checkpoint sampled it."""
_RATES = ("pass_rate", "held_out_pass_rate")
"""Numbers that are left out if no answer of a run has reward 1: the reward may not mean by it that an answer passed."""
_HELD_OUT = ("reward", "pass_rate", "length", "cut_off")
"""Numbers that are also read from held-out rows."""

_Checkpoint = tuple[str | None, int | None]


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
    """A run: the jobs of one model whose mean rewards can be compared.

    Attributes:
        name: The model for the run that was trained last, and `MODEL:N` for the others of this model.
        service: The service that trained it.
        model: The model.
        steps: In order; the last one may be a checkpoint that was only measured.
        because: What changed before its first job, compared with the run before it.
        failed: The jobs of the model that failed or were cancelled during the run.
        second_means: By step, the held-out mean when it was measured again, with other seeds than those by which the
            best step was chosen.
        number: Its number among the runs of its model, which stays when another one begins.
        fixed_name: The model for its first run, `MODEL:N` for later ones. It stays when another run begins.
    """

    name: str
    service: str
    model: str
    steps: tuple[RunStep, ...]
    because: tuple[str, ...] = ()
    failed: tuple[SubmittedJob, ...] = ()
    second_means: Mapping[int, float] = field(default_factory=dict)
    number: int = 1
    fixed_name: str = ""


def read_runs(lab: Lab, models: Collection[str] | None = None) -> list[RunRecord]:
    """Read the runs of a lab, the one that was trained last first. models: only the runs of these; None for all."""
    known = lab.jobs.newest_first()[::-1]
    names = {job.model for job in known}
    jobs = [job for job in known if models is None or job.model in models]
    reader = _RunReader(lab, jobs)
    records = []
    for model in dict.fromkeys(job.model for job in jobs):
        stretches = reader.read_stretches([job for job in jobs if job.model == model])
        newest = max(stretches, key=lambda each: each.last_submitted, default=None)
        for number, stretch in enumerate(stretches, 1):
            later = [each for each in stretches[number:] if _service_of(each) == _service_of(stretch)]
            until = later[0].jobs[0].job.created_at if later else None
            is_first = all(_service_of(each) != _service_of(stretch) for each in stretches[: number - 1])
            failed = reader.read_failed(stretch, is_first=is_first, until=until)
            numbered = _number_name(model, number, names)
            record = reader.read_record(model if stretch is newest else numbered, stretch, failed)
            records.append(replace(record, number=number, fixed_name=model if number == 1 else numbered))
    return sorted(records, key=lambda record: max(step.at for step in record.steps), reverse=True)


def find_run_changes(
    lab: Lab, service: str, model: str, name: str, round_measure: Measure | None, held_out_measure: Measure | None
) -> tuple[str, ...]:
    """Return what changed if the next job on a collection begins another run of its model; empty if none begins.

    Args:
        lab: the store.
        service: the service that trains.
        model: the model.
        name: the collection.
        round_measure: how its rewards will be made; None if that is not known.
        held_out_measure: the same of its held-out rows.
    """
    jobs = [job for job in lab.jobs.newest_first()[::-1] if job.model == model]
    made = [job for job in jobs if job.service == service and job.step is not None]
    if not made:
        return ()
    reader = _RunReader(lab, jobs)
    before = [reader.read_trained_job(job) for job in made]
    step = max(start_of(job) for job in made) + 1
    own = held_out_name(name)
    held_out = {} if held_out_measure is None else {own: [replace(held_out_measure, prompts=())]}
    trained_on = {} if round_measure is None or not _is_known(round_measure) else {name: round_measure}
    trained_on = {each: replace(measure, rows=(), prompts=()) for each, measure in trained_on.items()}
    planned = TrainedJob(SubmittedJob("", service, model, (), {}, "", step=step + 1), trained_on, held_out, {}, (own,))
    newest = split_lineage([*before, planned])[-1]
    return newest.because if newest.jobs == (planned,) else ()


def _number_name(model: str, number: int, models: Collection[str]) -> str:
    """Name a run by its number. Other services may have a model that is called like that: then a colon is added."""
    name = f"{model}:{number}"
    while name in models:
        name += ":"
    return name


def _service_of(stretch: Stretch) -> str:
    return stretch.jobs[0].job.service


class _RunReader:
    """Reads what the steps of runs need, each table of the lab once."""

    def __init__(self, lab: Lab, jobs: Sequence[SubmittedJob]) -> None:
        self._lab, self._jobs = lab, jobs
        self._generations = lab.generations()
        self._by_label = {f"{each.name}:{each.generation}": each for each in self._generations}
        self._plans = {each.id: read_config(each.plan) for each in self._generations}
        self._held_out = self._index_by_checkpoint(held_out_name(""))
        self._second = self._index_by_checkpoint(again_name(""))
        self._services: dict[str, list[tuple[str, str]]] = {}
        """By model, when each of its jobs was submitted, and to which service."""
        for job in sorted(jobs, key=lambda each: each.created_at):  # kernels may store them in another order
            self._services.setdefault(job.model, []).append((job.created_at, job.service))
        self._measures: dict[tuple[int, bool], Measure] = {}
        self._numbers = lab.step_numbers.of(self._find_ids())
        self._costs = dict(lab.spending.of_each())
        self._paid = list(lab.spending.trained())

    def _index_by_checkpoint(self, prefix: str) -> dict[_Checkpoint, dict[str, list[StoredCollection]]]:
        """Index the generations whose names begin so: by the checkpoint, then by name, newest first."""
        index: dict[_Checkpoint, dict[str, list[StoredCollection]]] = {}
        for each in self._generations:
            if each.name.startswith(prefix) and (plan := self._plans[each.id]):
                index.setdefault(_checkpoint_of(plan), {}).setdefault(each.name, []).append(each)
        return index

    def _find_ids(self) -> Iterator[int]:
        """Find the ids of the collections that jobs trained on, and of those with held-out rows."""
        labels = set(chain.from_iterable(job.collections for job in self._jobs))
        beside = tuple(make("") for make in (held_out_name, again_name))
        return (each.id for label, each in self._by_label.items() if label in labels or each.name.startswith(beside))

    def read_stretches(self, jobs: Sequence[SubmittedJob]) -> list[Stretch]:
        """Read the runs of the models of one name, at any service, in the order in which they began."""
        stretches: list[Stretch] = []
        for service in dict.fromkeys(job.service for job in jobs):
            made = [job for job in jobs if job.service == service and job.step is not None]
            stretches += split_lineage([self.read_trained_job(job) for job in made])
        return sorted(stretches, key=lambda stretch: min(each.job.created_at for each in stretch.jobs))

    def read_failed(self, stretch: Stretch, *, is_first: bool, until: str | None) -> tuple[SubmittedJob, ...]:
        """Find the jobs without a checkpoint between the first job of a run and that of the next run.

        is_first: the run is the first of its model, and earlier jobs count too. until: when the next run began.
        """
        first = stretch.jobs[0].job
        since = "" if is_first else first.created_at
        own = (job for job in self._jobs if (job.service, job.model) == (first.service, first.model))
        during = (job for job in own if since <= job.created_at and (until is None or job.created_at < until))
        return tuple(job for job in during if job.status in {"failed", "cancelled"})

    def read_record(self, name: str, stretch: Stretch, failed: tuple[SubmittedJob, ...]) -> RunRecord:
        """Read the record of a run. failed: its jobs that made no checkpoint."""
        first, measures = stretch.jobs[0].job, stretch.held_out
        steps = [self._read_step(each, measures) for each in stretch.jobs]
        made = {each.job.step for each in stretch.jobs if each.job.step is not None} - {each.step for each in steps}
        steps += [
            self._read_measured_step(step, held)
            for step in made
            if (held := self._find_held_out(first, step, measures))
        ]
        steps.sort(key=lambda each: each.step)
        if not any(step.numbers.get(rate) for step in steps for rate in _RATES):
            steps = [replace(step, numbers=_drop(step.numbers, _RATES)) for step in steps]
        means = {each.step: self._read_second_mean(first, each.step, measures) for each in steps}
        return RunRecord(
            name,
            first.service,
            first.model,
            tuple(steps),
            stretch.because,
            failed,
            second_means={step: mean for step, mean in means.items() if mean is not None},
        )

    def read_trained_job(self, job: SubmittedJob) -> TrainedJob:
        """Read how the means before and after a job were measured."""
        collections = () if job.options.get("sft") else self._find_trained_on(job)
        trained_on = {each.name: self._read_measure(each) for each in collections}
        known = {name: measure for name, measure in trained_on.items() if _is_known(measure)}
        before, after = (self._read_measures_at(job, step) for step in (start_of(job), start_of(job) + 1))
        return TrainedJob(job, known, before, after, self._find_own_names(job))

    def _read_measures_at(self, job: SubmittedJob, step: int) -> Measured:
        """Read how a checkpoint of a job's model was measured on held-out rows."""
        listed = self._find_candidates(job, step)
        return {name: [self._read_measure(each, rows=True) for each in some] for name, some in listed.items()}

    def _find_trained_on(self, job: SubmittedJob) -> tuple[StoredCollection, ...]:
        """Find what a job trained on, as far as the lab still has it."""
        return tuple(self._by_label[label] for label in job.collections if label in self._by_label)

    def _read_measure(self, collection: StoredCollection, *, rows: bool = False) -> Measure:
        """Read how a mean was measured. rows: with the rows, which of rounds may differ from step to step."""
        if (collection.id, rows) not in self._measures:
            digests = digest_texts(self._lab.rows(collection)) if rows else ()
            scoring, plan = self._lab.scorings.last(collection), self._plans[collection.id]
            self._measures[collection.id, rows] = Measure(scoring, plan, digests, ())
        return self._measures[collection.id, rows]

    def _find_candidates(self, job: SubmittedJob, step: int) -> dict[str, list[StoredCollection]]:
        """Find the scored held-out generations that a checkpoint of a job's model sampled, newest first, by name."""
        listed = self._held_out.get((job.model, step), {})
        scored = {name: [each for each in some if self._is_scored_at(each, job)] for name, some in listed.items()}
        return {name: some for name, some in scored.items() if some}

    def _find_own_names(self, job: SubmittedJob) -> tuple[str, ...]:
        """Find the names that the held-out rows of the collections have that a job trained on."""
        return tuple(dict.fromkeys(held_out_name(label.rpartition(":")[0]) for label in job.collections))

    def _is_scored_at(self, collection: StoredCollection, job: SubmittedJob) -> bool:
        """Whether a generation has rewards, and was sampled at the service of a job.

        The lab does not record the service of a generation. It is taken from the model's last job before the
        generation, or from its first job if there is none before.
        """
        if collection.id not in self._numbers or self._numbers[collection.id].reward is None:
            return False
        services = self._services[job.model]
        before = bisect_right(services, collection.created_at, key=lambda each: each[0])
        return services[max(0, before - 1)][1] == job.service

    def _find_held_out(self, job: SubmittedJob, step: int, measures: Measures) -> list[StoredCollection]:
        """Find the held-out generations of a checkpoint, measured as those of the run; none unless all are there.

        A loop of another name may have measured the same rows with the same reward, and counts as well.
        """
        candidates = self._find_candidates(job, step)
        chosen: list[StoredCollection] = []
        for name, measure in measures.items():
            others = chain.from_iterable(some for other, some in candidates.items() if other not in measures)
            either = chain(candidates.get(name, ()), others)
            fits = (each for each in either if compares(self._read_measure(each, rows=True), measure))
            chosen += itertools.islice((each for each in fits if each not in chosen), 1)
        return chosen if len(chosen) == len(measures) else []

    def _read_step(self, trained: TrainedJob, measures: Measures) -> RunStep:
        job, collections, step = trained.job, self._find_trained_on(trained.job), start_of(trained.job)
        held = self._find_held_out(job, step, measures)
        own = [each for each in collections if self._was_sampled_by(each, job.model, step)]
        numbers, errors = self._read_means(
            collections, held, is_own=len(own) == len(collections) and not job.options.get("sft")
        )
        numbers |= self._read_job_numbers(job)
        again = chain.from_iterable(self._second.get((job.model, step), {}).values())
        if cost := self._take_cost([*collections, *held, *again], job):
            numbers["cost"] = cost / DOLLAR
        settings = {"reward": self._find_settings(collections), "held_out": self._find_settings(held)}
        options = {**self._find_shown_settings(collections), **job.options}
        return RunStep(
            step, job.created_at, job, collections, held[0] if held else None, numbers, errors, options, settings
        )

    def _was_sampled_by(self, collection: StoredCollection, model: str, step: int) -> bool:
        """Whether a checkpoint sampled all of a generation, as far as is known."""
        plan = self._plans[collection.id]
        made = [_checkpoint_of(plan)] if plan else self._lab.results.checkpoints(collection.id)
        return bool(made) and all(name == model and number in {step, None} for name, number in made)

    def _read_measured_step(self, step: int, held: Sequence[StoredCollection]) -> RunStep:
        """Read the step of a checkpoint that was measured, and on whose answers no job has trained."""
        numbers, errors = self._read_means((), held)
        if cost := self._take_cost(held, None):
            numbers["cost"] = cost / DOLLAR
        return RunStep(
            step, held[0].created_at, None, (), held[0], numbers, errors, {}, {"held_out": self._find_settings(held)}
        )

    def _read_second_mean(self, job: SubmittedJob, step: int, measures: Measures) -> float | None:
        """Read the mean that was measured again with other seeds, if rows and reward were the same."""
        for name, measure in measures.items():
            made = self._second.get((job.model, step), {})
            for each in chain(made.get(_second_name(name), ()), *made.values()):
                if self._is_scored_at(each, job) and compares(self._read_measure(each, rows=True), measure):
                    return self._numbers[each.id].reward
        return None

    def _read_means(
        self, collections: Sequence[StoredCollection], held: Sequence[StoredCollection], *, is_own: bool = True
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Read the numbers of what was trained on and of the held-out rows, and the standard errors of their means.

        is_own: the checkpoint itself sampled what was trained on. Otherwise its mean reward is that of another
        checkpoint, and is called `other_reward`.
        """
        trained = _join([self._numbers[each.id] for each in collections if each.id in self._numbers])
        measured = _join([self._numbers[each.id] for each in held if each.id in self._numbers])
        numbers, errors = dict[str, float](), dict[str, float]()
        if trained:
            numbers |= _known_values(trained, (*(("reward", "pass_rate") if is_own else ()), *_OF_TRAINED))
            if is_own:
                numbers |= {f"reward.{part}": mean for part, mean in trained.components.items()}
                errors |= {} if trained.error is None else {"reward": trained.error}
            elif trained.reward is not None:
                numbers["other_reward"] = trained.reward
        if measured:
            numbers |= {_held_out_name_of(name): value for name, value in _known_values(measured, _HELD_OUT).items()}
            numbers |= {f"held_out.{part}": mean for part, mean in measured.components.items()}
            errors |= {} if measured.error is None else {"held_out": measured.error}
        finite = ({name: value for name, value in each.items() if math.isfinite(value)} for each in (numbers, errors))
        return next(finite), next(finite)

    def _read_job_numbers(self, job: SubmittedJob) -> dict[str, float]:
        """Read the numbers that a job reported, as far as its events are stored and can be read."""
        try:
            events = since_restart(self._lab.jobs.events(job.id))
            figures = step_figures(gradient_steps(events), _OF_JOBS)
            seconds = number_in(last_value(events, "checkpoint_saved", "seconds"))
            trained = last_whole(events, "preflight", "trainable_tokens")
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # of another service, or damaged
            return {}
        further = {"seconds": seconds, "trained_tokens": trained}
        return figures | {name: float(value) for name, value in further.items() if value is not None}

    def _take_cost(self, collections: Sequence[StoredCollection], job: SubmittedJob | None) -> Amount:
        """Add up what a step has cost, and remove it from what other steps can count.

        A generation counts at the first step that it belongs to. A job was paid for just before it was submitted.
        """
        sampled = sum(self._costs.pop(each.id, 0) for each in collections)
        if job is None:
            return sampled
        before = [each for each in self._paid if each[1] == job.model and each[0] <= job.created_at]
        self._paid = [each for each in self._paid if each not in before]
        return sampled + (before[-1][2] if before else 0)  # earlier payments were for jobs that failed

    def _find_settings(self, collections: Sequence[StoredCollection]) -> dict[str, Any]:
        """Find the sampling settings that a mean depends on and that are not the defaults."""
        plans = [plan for each in collections if (plan := self._plans[each.id])]
        values = {name: getattr(plans[0], name) for name in SETTINGS} if plans else {}
        defaults = SamplingConfig.model_fields
        return {name: value for name, value in values.items() if value != defaults[name].get_default()}

    def _find_shown_settings(self, collections: Sequence[StoredCollection]) -> dict[str, Any]:
        """Find the sampling settings that a step shows beside the options of its job; `tools` are their names."""
        plans = [plan for each in collections if (plan := self._plans[each.id])]
        settings = {**({"n": plans[0].n} if plans else {}), **self._find_settings(collections)}
        tools = {"tools": [tool.function.name for tool in plans[0].tools]} if "tools" in settings else {}
        return {**settings, **tools}


def _checkpoint_of(plan: SamplingConfig) -> _Checkpoint:
    """Find the model and the checkpoint that a plan samples. It may name both as `lab/practice@2`."""
    model, at, step = plan.model.rpartition("@")
    return (model, int(step) if step.isdecimal() else plan.step) if at else (plan.model, plan.step)


def _is_known(measure: Measure) -> bool:
    """Whether it is known how the rewards were made: by a scoring of this lab, an environment or a program."""
    return measure.scoring is not None or bool(measure.plan and (measure.plan.env or measure.plan.program))


def _second_name(held_out: str) -> str:
    """Return the name of the collection that measures held-out rows again, by that of the first measurement."""
    return again_name(held_out.removeprefix(held_out_name("")))


def _drop(numbers: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Leave out the numbers with these names."""
    return {name: value for name, value in numbers.items() if name not in names}


def _held_out_name_of(name: str) -> str:
    return "held_out" if name == "reward" else f"held_out_{name}"


def _known_values(of: StepNumbers, names: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name in names if (value := getattr(of, name)) is not None}


def _join(parts: Sequence[StepNumbers]) -> StepNumbers | None:
    """Join the numbers of several generations, each weighted by its answers, groups or scored answers."""
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
        groups=sum(each.groups for each in parts),
        answers=sum(each.answers for each in parts),
        scored=scored,
        reward=mean("reward", "scored"),
        error=None,
        pass_rate=mean("pass_rate", "scored"),
        nothing=mean("nothing", "groups"),
        cut_off=mean("cut_off", "answers") or 0.0,
        length=mean("length", "answers"),
        tokens=sum(each.tokens for each in parts),
        components=components,
    )
