"""Requests of training jobs, made from scored collections and options: checked, recorded in the lab, submitted."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, TypedDict
from uuid import UUID

from rolloutlab.api.budget import Budget
from rolloutlab.api.training import deliver, never_arrived
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.training import CreateTrainingJob, ExperimentalTrainingConfig
from rolloutlab.api.wire.trajectories import TrajectoryGroup
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NothingTrainsError, RolloutlabError
from rolloutlab.hints import Hint
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.algorithms import ALGORITHM, AS_TYPED, Expanded, expand
from rolloutlab.objective.credit import ENVIRONMENT, misses_turns, turn_rewards
from rolloutlab.objective.option_docs import OPTIONS, beyond_specification, contradictions, problems, rate_warnings
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import (
    Preflight,
    Report,
    Seat,
    count,
    first_non_text_part,
    lag_warnings,
    length_warnings,
    odd_settings,
    preflight,
    setting_warnings,
)
from rolloutlab.objective.splits import sequences_of, split_note, split_warnings
from rolloutlab.objective.steps import DEFAULT_GROUPS, plan_steps, step_words
from rolloutlab.sampling.split import HELD_OUT
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.models import Group, StoredTrajectory, SubmittedJob, now
from rolloutlab.training.custom_loss import Loss
from rolloutlab.training.models import Models, Start
from rolloutlab.training.refusals import check_honoured, refusal_lines
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.members import members_of, unscored_names
from rolloutlab.trajectories.top_up import top_up_cell

Counted = Callable[[int], None]
"""A progress callback: called repeatedly with the number of trajectories read or sent so far."""
_INCLUDED = "credit: trajectory, or %rewards --undo, or %%reward without --weight env"


class TrajectoryOrigin(NamedTuple):
    """Where a trajectory is in the lab, and the checkpoint of its oldest answer."""

    collection: Collection
    group: int
    step: int


@dataclass(frozen=True)
class Submission:
    """A job that could be submitted: its collections and options, and its preflight check.

    model: the model that the job trains.
    names: the present names of the collections.
    collections: the labels `name:N` of the collections, which stay the same when there is a newer generation.
    config: the options of the job.
    seats: all trajectories, one list per group.
    groups: what is sent: the scored trajectories, read from the lab while they are sent.
    members: the scored trajectories in the form of the objective, one list per group.
    warnings: warnings about how the trajectories were sampled and scored.
    sources: the number of trajectories by model and checkpoint. The checkpoint is None if their answers have several,
        or none is known.
    sampled: the number of scored trajectories of `model` by the checkpoint of their oldest answer.
    check: the preflight check.
    origins: by the name of a trajectory that `sampled` counts, where it is in the lab.
    turn_rewards: the number of `members` with turn rewards.
    turns_missed: the number of `members` whose reward does not contain their turn rewards with weight 1.
    begins: the checkpoint that the job would start from, if known.
    embedded: whether the embedded service is in use.
    engine: the engine of the service, if known.
    trains: whether the service in use trains, as far as is known.
    default_rate: the policy's learning rate, if known.
    expanded: the options as given, with those that an algorithm stands for.
    top_ups: see `Preflight.outcome`.
    """

    model: str
    names: tuple[str, ...]
    collections: tuple[str, ...]
    config: ExperimentalTrainingConfig
    seats: list[list[Seat]]
    groups: "ScoredTrajectories"
    members: list[list[Member]]
    warnings: tuple[str, ...]
    sources: Counter[tuple[str, int | None]]
    sampled: Counter[int]
    check: Preflight
    origins: Mapping[str, TrajectoryOrigin]
    turn_rewards: int
    turns_missed: int
    begins: Start | None = None
    embedded: bool = False
    engine: EngineStatus | None = None
    trains: bool = True
    default_rate: float | None = None
    expanded: Expanded = AS_TYPED
    top_ups: Mapping[str, str] = field(default_factory=dict)

    def report(self) -> list[str]:
        """Say what would train, in which steps, and why the rest would not, line by line."""
        return self.outcome().lines()

    def outcome(self) -> Report:
        """Report what would train, in which steps, and why the rest would not."""
        report, algorithm = self.report_without_steps(), str(self.expanded)
        headline, *facts = report.facts
        facts = [headline, *([algorithm] if algorithm else []), *facts]
        return report._replace(facts=facts, steps=self._steps())

    def report_without_steps(self) -> Report:
        """Report what would train and why the rest would not."""
        ends = {seat.name: seat.end for group in self.seats for seat in group if seat.end}
        return self.check.outcome(self.names[0], trains=self.trains, ends=ends, top_ups=self.top_ups)

    def plans(self) -> list[list[int]]:
        """Plan how many groups each step has; return all plans that are possible.

        There are several plans if the size of the policy is not known, and none if the service divides the job or
        nothing trains.
        """
        groups = self.check.trainable_groups
        size = self.engine.groups_per_step if self.engine else None
        if not (self.trains and groups) or (size is None and (self.engine or not self.embedded)):
            return []
        given = settle(self.config).groups_per_step
        size = size if given is None else given
        plans = [plan_steps(groups, each) for each in (DEFAULT_GROUPS if size is None else (size,))]
        return [plan for i, plan in enumerate(plans) if plan not in plans[:i]]

    def _steps(self) -> str:
        """Say how the job is divided into steps; empty if nothing trains."""
        check, plans = self.check, self.plans()
        if not (self.trains and check.trainable_groups):
            return ""
        if not plans:
            return "steps: as the service divides"
        if len(plans) > 1:  # the embedded service does not run: the size of its policy is not known
            small, large = map(len, plans)
            return f"{small} steps of a policy under 20M parameters, {large} above; known once the service runs"
        of_all = check.trainable_trajectories, check.trainable_tokens
        return step_words(check.trainable_groups, len(plans[0]), *of_all, epochs=settle(self.config).epochs)

    def with_options(self, options: Mapping[str, Any]) -> "Submission":
        """Return the job with other options, on the same trajectories. Raises InputError if one is wrong."""
        return replace(self, expanded=Expanded(dict(options)))._check_again(check_config(options), self.begins)

    def with_start(self, start: Start | None) -> "Submission":
        """Return the job with the checkpoint that it starts from; None if that is not known."""
        return self._check_again(self.config, start)

    def with_engine(self, engine: EngineStatus | None, default_rate: float | None = None) -> "Submission":
        """Return the job for a service with this engine, and a policy with this learning rate; None if not known."""
        return replace(self, engine=engine, default_rate=default_rate)._check_again(self.config, self.begins)

    def with_loss(self, digest: str) -> "Submission":
        """Return the job with a loss of the user's own.

        digest: the hash of its source.

        Raises:
            InputError: an option was given that a loss of one's own replaces.
        """
        config = self.config.model_copy(update={"custom_loss": digest})
        wrong = [name for name, _, _ in contradictions(config.to_wire())]
        if own := ", ".join(name for name in wrong if name in self.expanded.own):
            why = f"algorithm: {self.expanded.name} sets {own}, which a loss of one's own replaces"
            raise InputError(why, hint="leave out algorithm")
        _check_together(config.to_wire())
        return self._check_again(config, self.begins)

    def _check_again(self, config: ExperimentalTrainingConfig, begins: Start | None) -> "Submission":
        """Return the job with these options and this start, after a preflight check of what was gathered."""
        settled = settle(config)
        warnings = [*_source_warnings(self.sources, self.model, begins), *self.warnings]
        warnings += [
            *honour_lines(config, self.engine, embedded=self.embedded),
            *refusal_lines(config, self.engine, self.expanded),
        ]
        warnings += rate_warnings(settled.learning_rate or 0.0, self.default_rate)
        warnings += _turn_warnings(config, self.members, self.turn_rewards, self.turns_missed, self.names[0])
        if begins is not None:
            recomputes = settled.precalculate_logprobs and not settled.truncated_importance_sampling
            warnings += lag_warnings(self.sampled, begins.step, self.names[0], recomputes=recomputes)
        check = preflight(self.members, settled, self.check.unscored, warnings)
        check = replace(check, warnings=(*check.warnings, *self._length_warnings(check, settled)))
        return replace(self, config=config, check=check, begins=begins)

    def _length_warnings(self, check: Preflight, options: Options) -> list[str]:
        """Return the `length_warnings`, without their advice if the engine would refuse it."""
        lines = length_warnings(check.shares, options)
        refused = self.engine is not None and "loss_aggregation" in self.engine.unsupported
        return [line.partition(" -> ")[0] for line in lines] if refused else lines

    def stale_names(self) -> list[str]:
        """Return the names of training trajectories sampled from an older checkpoint than the job starts from."""
        trained = (share.member.name for share in self.check.all_shares() if share.reason is None)
        return [name for name in trained if name in self.origins and self.origins[name].step < self.first_step]

    @property
    def truncated(self) -> int:
        """How many scored trajectories end with an answer that was cut off at the token limit."""
        return sum(member.truncated for group in self.members for member in group)

    @property
    def checkpoint(self) -> str:
        """The checkpoint that the job would start from, `lab/practice@3`; the model alone if that is not known."""
        return f"{self.model}@{self.begins.step}" if self.begins else self.model

    @property
    def first_step(self) -> int:
        """The step of the checkpoint that the job would start from; 0 if it is not known."""
        return self.begins.step if self.begins else 0

    def read(self, names: Iterable[str]) -> list[StoredTrajectory]:
        """Read trajectories by name from the lab. Raises NotFoundError if one was deleted."""
        chosen = set(names)
        groups = dict.fromkeys((self.origins[name].collection, self.origins[name].group) for name in names)
        stored = [t for collection, position in groups for t in collection.group(position).trajectories]
        return [t for t in stored if t.name in chosen]

    def with_warnings(self, lines: Iterable[str]) -> "Submission":
        """Return the job with further warnings in its report. They are lost when its options change."""
        return replace(self, check=replace(self.check, warnings=(*self.check.warnings, *lines)))

    def to_job(self, model_id: str) -> CreateTrainingJob:
        """Make the request without the groups, which may not fit into memory, and are sent from `groups`.

        An option that other services do not know is sent only if it differs from its default.
        """
        sent = {n: v for n, v in self.config.to_wire().items() if n not in OPTIONS or not _can_be_omitted(n, v)}
        config = ExperimentalTrainingConfig.model_validate(sent)
        return CreateTrainingJob(model_id=UUID(model_id), trajectory_groups=[], experimental_config=config)


@dataclass(frozen=True, repr=False, eq=False)
class ScoredTrajectories:
    """The scored trajectories of collections as a job sends them, read some groups at a time; it can be iterated again.

    Trajectories are sent with the rewards that they had at the check. Those that got their first reward later are left
    out.
    """

    collections: Sequence[Collection]
    rewards: Mapping[int, tuple[float, Mapping[str, float]]]
    """By the id of a trajectory, its reward and the components."""

    @cached_property
    def hints(self) -> list[Hint]:
        """Hints about the answers, with the name of the collection if there are several."""
        several = len(self.collections) > 1
        named = [(f"{each.name}: " if several else "", hint) for each in self.collections for hint in each.warnings()]
        return [replace(hint, fact=f"{name}{hint.fact}") for name, hint in named]

    def __iter__(self) -> Iterator[TrajectoryGroup]:
        for collection in self.collections:
            for group in collection.each_group():
                scored = ((t, *self.rewards[t.id]) for t in group.trajectories if t.id in self.rewards)
                sent = [replace(t, reward=reward, components=parts).to_wire() for t, reward, parts in scored]
                yield TrajectoryGroup(trajectories=sent)


@dataclass
class SentGroups:
    """Groups as a job sends them. sent: the number of trajectories sent so far; 0 when sending starts again."""

    groups: Iterable[TrajectoryGroup]
    sent: int = 0

    def __iter__(self) -> Iterator[TrajectoryGroup]:
        self.sent = 0
        for group in self.groups:
            yield group
            self.sent += len(group.trajectories)


@dataclass
class _ReadCollections:
    """What the check needs to know of the collections, which are read some groups at a time.

    Fields that `Submission` has too are described there.

    unscored: the names of trajectories without a reward.
    rewards: as of `ScoredTrajectories`.
    settings: the number of scored trajectories by each of their `odd_settings`.
    odd: the names of trajectories with parts other than text; empty with `text_only`.
    """

    seats: list[list[Seat]] = field(default_factory=list)
    members: list[list[Member]] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)
    rewards: dict[int, tuple[float, Mapping[str, float]]] = field(default_factory=dict)
    settings: Counter[str] = field(default_factory=Counter)
    sources: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    sampled: Counter[int] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    origins: dict[str, TrajectoryOrigin] = field(default_factory=dict)
    turn_rewards: int = 0
    turns_missed: int = 0

    def add(
        self, collection: Collection, group: Group, weights: Mapping[int, float], model: str, *, text_only: bool
    ) -> None:
        """Add a group.

        Args:
            collection: of the group.
            group: stored trajectories.
            weights: by the id of a trajectory, the weight of the environment's reward, if known.
            model: the model that the job trains.
            text_only: the service's policies read text alone.
        """
        self.seats.append([_seat(t) for t in group.trajectories])
        self.members += members_of([group], text_only)
        self.unscored += unscored_names([group])
        for t in group.trajectories:
            source = t.model.partition("@")[0]
            self.sources[source, steps[0] if len(steps := [*set(t.steps)]) == 1 else None] += 1
            if not text_only and first_non_text_part(t.histories()):
                self.odd.append(t.name)
            if t.reward is not None:
                self.rewards[t.id] = t.reward, t.components
                self.turn_rewards += bool(turn_rewards(t.metrics))
                given, weight = t.extra.get("metrics") or {}, weights.get(t.id)
                self.turns_missed += misses_turns(t.reward, given, t.components, weight)
                self.settings.update(odd_settings(t.to_wire()))
                if source == model and (steps := t.steps):
                    self.sampled.update([min(steps)])
                    self.origins[t.name] = TrajectoryOrigin(collection, group.position, min(steps))


def _source_warnings(sources: Mapping[tuple[str, int | None], int], model: str, begins: Start | None) -> list[str]:
    """Warn about trajectories of other models, except those of a checkpoint with the weights of the start."""
    others: Counter[str] = Counter()
    for (source, step), number in sources.items():
        if source not in {model, ""} and not (begins and begins.equals(source, step)):
            others[source] += number
    return [
        f"{count(number, 'trajectory')} sampled from {n}, not {model} -> %model {n}" for n, number in others.items()
    ]


def _turn_warnings(
    config: ExperimentalTrainingConfig, members: Sequence[Sequence[Member]], turn_rewards: int, missed: int, name: str
) -> list[str]:
    """Warn about scored trajectories without the turn rewards that `credit: turn` needs.

    Args:
        config: the options of the job.
        members: the scored trajectories.
        turn_rewards: how many of them have turn rewards.
        missed: how many have a reward that does not contain their turn rewards with weight 1.
        name: the collection that texts name.

    Raises:
        InputError: none has turn rewards, or `missed` is not 0.
    """
    if config.credit != "turn":
        return []
    if missed:
        what = f"the reward of {count(missed, 'trajectory')} of {name} leaves them out or weights them"
        raise InputError(f"credit: turn needs rewards that contain the turn rewards: {what}", hint=_INCLUDED)
    lacking = sum(map(len, members)) - turn_rewards
    if not lacking:
        return []
    if not turn_rewards:
        why = f"credit: no trajectory of {name} has turn rewards, the metrics turn_reward/0, turn_reward/1 and so on"
        raise InputError(why, hint="credit: trajectory, or %%chat NAME --env ENVIRONMENT, which gives turn rewards")
    return [f"{count(lacking, 'trajectory')} without turn rewards: each of the turns gets the whole reward"]


def _can_be_omitted(name: str, value: Any) -> bool:
    """Whether an option has its default, and other services may not know it."""
    return not OPTIONS[name].specified and OPTIONS[name].is_default(value)


def _seat(trajectory: StoredTrajectory) -> Seat:
    histories = trajectory.histories()
    sequences, split = sequences_of(histories), split_note(histories)
    return Seat(trajectory.name, trajectory.reward, trajectory.tokens, sequences, split, _end(trajectory))


def _end(trajectory: StoredTrajectory) -> str:
    """Say how a trajectory ended, as `Seat.end`. An answer that the service broke off did not reach a token limit."""
    if trajectory.sampling.get("temperature") == 0:
        return "greedy"
    broken_off = trajectory.choices and trajectory.choices[-1].ending_note
    return trajectory.episode_end or ("" if broken_off else trajectory.finish_reason) or ""


def check_options(options: Mapping[str, Any], *, names_only: bool = False) -> None:
    """Raise InputError, which names all wrong options, if an option or the algorithm is unknown or out of range.

    Whether the options contradict each other is left to `check_config`, which is also given those that an algorithm
    stands for.

    names_only: do not check the values.
    """
    if not isinstance(options, Mapping):
        raise InputError(f"options are a dict, not a {type(options).__name__}", hint='{"learning_rate": 2e-3}')
    if names_only:
        options = {name: value if name == ALGORITHM else None for name, value in options.items()}
    if wrong := problems(options):
        messages, hints = zip(*wrong, strict=True)
        raise InputError("; ".join(messages), hint="; ".join(dict.fromkeys(hints)))


def _check_together(options: Mapping[str, Any]) -> None:
    """Raise InputError for the first contradiction among options."""
    for name, why, hint in contradictions(options):
        raise InputError(f"{name}: {why}", hint=hint)


def honour_lines(
    config: ExperimentalTrainingConfig, engine: EngineStatus | None = None, *, embedded: bool = False
) -> list[str]:
    """Write a line on the options beyond the specification of the hosted service, and on whether they are honoured.

    Options that the engine refuses are not named here; they have a line of their own.
    """
    refused = engine.unsupported if engine else {}
    if not (names := ", ".join(name for name in beyond_specification(config.to_wire()) if name not in refused)):
        return []
    if embedded:
        return [f"{names}: honoured by the embedded service, not in the specification of a hosted one"]
    if engine and engine.groups_per_step is not None:
        return [f"{names}: honoured by this service, as it is rolloutlab's, not in the specification of a hosted one"]
    return [f"{names}: not in the specification, so this service may ignore it -> %connect embedded honours it"]


def expand_options(options: Mapping[str, Any], bounds: Mapping[str, int | None]) -> Expanded:
    """Check options, and add those that the name of an algorithm among them stands for.

    bounds: `max_tokens` by the name of the collection; None if it had no limit, or the limit is not known.

    Raises:
        InputError: as `check_options` does, or the algorithm divides by `max_tokens`, and the collections do not have
            the same one.
    """
    check_options(options)
    return expand(options, lambda: one_bound(bounds) or _refuse_bounds(options, bounds))


def bounds_of(collections: Iterable[Collection]) -> dict[str, int | None]:
    """Return the `max_tokens` that each collection was sampled with, by its name."""
    return {each.name: (each.stored.plan or {}).get("max_tokens") for each in collections}


def one_bound(bounds: Mapping[str, int | None]) -> int | None:
    """Return the bound that all collections have; None if they have none, or different ones."""
    return next(iter(bounds.values())) if len(set(bounds.values())) == 1 else None


def _refuse_bounds(options: Mapping[str, Any], bounds: Mapping[str, int | None]) -> NoReturn:
    have = ", ".join(f"{name} has {most or 'none'}" for name, most in bounds.items())
    why = f"algorithm: {options[ALGORITHM]} divides by the max_tokens of what was sampled, and {have}"
    raise InputError(why, hint=f"loss_scale_factor: {max((most for most in bounds.values() if most), default=512)}")


def check_config(options: Mapping[str, Any]) -> ExperimentalTrainingConfig:
    """Check the options of a job, and return them. Raises InputError if one is wrong, or two contradict each other."""
    check_options(options)
    _check_together(options)
    return ExperimentalTrainingConfig.model_validate(dict(options))


class JobOptions(TypedDict, total=False):
    """Arguments of a job beside its training options.

    algorithm: a name of `rolloutlab.objective.algorithms`, which stands for several options. `options` may contain it
        too, and overrides what it stands for.
    sft: supervised fine-tuning on the assistant's tokens of all trajectories, or of those that meet `where`.
    where: with `sft`, which trajectories; a condition as of `search`.
    loss: a function `fn(new, old, advantage, weight, history) -> loss` in torch, instead of the loss of the options.
        Only with the embedded service; see docs/training.md, "A loss of your own".
    budget: the most dollars that the job may cost; otherwise it is not submitted.
    """

    algorithm: str | None
    sft: bool
    where: Any
    loss: Loss | None
    budget: Budget | float | None


def prepare(
    collections: Sequence[Collection],
    options: Mapping[str, Any],
    model: str,
    text_only: bool = False,
    counted: Counted = lambda _: None,
) -> Submission:
    """Prepare a job that is ready to be sent. Trajectories without a reward are left out.

    Args:
        collections: to train on.
        options: training options.
        model: the model that the job trains.
        text_only: the service's policies read text alone.
        counted: called while the lab is read.

    Raises:
        InputError: an option is wrong. NothingTrainsError: no trajectory would train; the message has every reason.
    """
    submission = gather(collections, options, model, text_only, counted)
    if not submission.check.trainable_trajectories:
        reasons = [line.partition(" -> ") for line in submission.report_without_steps().lines()[1:]]
        why = "; ".join(reason for reason, _, _ in reasons) or "it holds no trajectories"
        hint = reasons[0][2] if reasons else f"%%chat {submission.names[0]}"
        raise NothingTrainsError(f"nothing in {', '.join(submission.names)} would train: {why}", hint=hint)
    return submission


def gather(
    collections: Sequence[Collection],
    options: Mapping[str, Any],
    model: str,
    text_only: bool = False,
    counted: Counted = lambda _: None,
) -> Submission:
    """Check the options, read the collections, and make the job that they would be, even if nothing would train.

    Args:
        collections: to train on.
        options: training options.
        model: the model that the job trains.
        text_only: the service's policies read text alone.
        counted: called while the lab is read.

    Raises:
        InputError: an option is wrong. NothingTrainsError: there is no collection.
    """
    check_options(options)
    if not collections:
        raise NothingTrainsError("no collection is given: nothing would train", hint="%%train NAME")
    given = expand_options(options, bounds_of(collections))
    config = check_config(given.options)
    read = _read_collections(collections, model, counted, text_only=text_only)
    warnings = _warnings_of(collections, read)
    names = tuple(c.name for c in collections)
    warned = [*_source_warnings(read.sources, model, None), *warnings, *honour_lines(config, embedded=text_only)]
    warned += _turn_warnings(config, read.members, read.turn_rewards, read.turns_missed, names[0])
    return Submission(
        model=model,
        names=names,
        collections=tuple(c.label for c in collections),
        config=config,
        seats=read.seats,
        groups=ScoredTrajectories(collections, read.rewards),
        members=read.members,
        warnings=tuple(warnings),
        sources=read.sources,
        sampled=read.sampled,
        check=preflight(read.members, settle(config), read.unscored, warned),
        origins=read.origins,
        turn_rewards=read.turn_rewards,
        turns_missed=read.turns_missed,
        embedded=text_only,
        expanded=given,
        top_ups={c.stored.label: top_up_cell(c.stored) for c in collections},
    )


def _read_collections(
    collections: Sequence[Collection], model: str, counted: Counted, *, text_only: bool
) -> _ReadCollections:
    """Read the collections from the lab, group by group."""
    read = _ReadCollections()
    counted(done := 0)
    for collection in collections:
        weights = collection.weights_of(ENVIRONMENT)
        for group in collection.each_group():
            read.add(collection, group, weights, model, text_only=text_only)
            counted(done := done + len(group.trajectories))
    return read


def _warnings_of(collections: Sequence[Collection], read: _ReadCollections) -> list[str]:
    """Return the warnings about how the trajectories were sampled and scored."""
    warnings = setting_warnings(read.settings)
    warnings += [
        f"{count(missing, 'trajectory')} of {c.name} not sampled yet"
        f" -> {'%%rollout' if c.captured else '%%chat'} {c.name} --resume"
        for c in collections
        if (missing := c.missing)
    ]
    warnings += [
        f"{count(held, 'prompt')} of {c.name} held out by a split would be trained on"
        f" -> sample {c.name} --over split.train"
        for c in collections
        if (held := len(c.part(HELD_OUT)))
    ]
    warnings += split_warnings(seat for group in read.seats for seat in group if seat.reward is not None)
    warnings += [note for c in collections for note in c.scoring_notes()]
    if read.odd:
        what = f"{count(len(read.odd), 'trajectory')} with parts other than text ({read.odd[0]})"
        warnings.append(f"{what}: a policy that reads text alone leaves it out")
    return warnings


def gather_for(
    models: Models,
    collections: Sequence[Collection],
    options: Mapping[str, Any],
    counted: Counted = lambda _: None,
) -> Submission:
    """Gather a job of the selected model that starts from its newest checkpoint; no service is started."""
    gathered = gather(collections, options, models.selected, models.text_only, counted)
    gathered = replace(gathered, trains=models.may_train)
    return gathered.with_start(models.start()).with_engine(models.engine(), models.default_rate())


def submit(
    submission: Submission,
    jobs: SubmittedJobs,
    connector: Connector,
    address: Address,
    model_id: str,
    counted: Counted = lambda _: None,
) -> str:
    """Send a job, record it in `jobs`, and return its id once the service has accepted it.

    Args:
        submission: the job.
        jobs: the jobs of the lab.
        connector: the connection to the service.
        address: of the service.
        model_id: the id of the model at the service.
        counted: called while the job is sent.

    Raises:
        BrokenOffError: the response was lost, and the job may train; it stays in `jobs`.
        InputError: the engine of the service does not honour an option.
        RolloutlabError: the errors of `deliver`.
    """
    check_honoured(submission.config, connector, address, submission.expanded)
    http, options = connector.http, submission.config.to_wire()
    job, groups = submission.to_job(model_id), SentGroups(submission.groups)
    return record_and_send(
        jobs,
        SubmittedJob(str(uuid.uuid4()), connector.name, submission.model, submission.collections, options, now()),
        lambda key: http.run(deliver(http, address, job, key, groups), lambda: counted(groups.sent)),
    )


def record_and_send(jobs: SubmittedJobs, job: SubmittedJob, send: Callable[[str], str]) -> str:
    """Record a job, send it with `send(key)`, store the id that the service gives it, and return that id.

    The key is the id that `job` has before the service has accepted it. Raises as `submit`.
    """
    # recorded first: if the kernel dies before the response, the lab still knows of the job that may train
    jobs.add(job)
    try:
        job_id = send(job.id)
    except RolloutlabError as error:
        if never_arrived(error):
            jobs.forget(job.id)
        raise
    jobs.rename(job.id, job_id)
    jobs.set_status(job_id, "queued")
    return job_id
