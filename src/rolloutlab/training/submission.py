"""From scored collections and options to a training job, with everything checked before it is sent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from rolloutlab.collection import Collection, members_of, unscored_names
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.glossary import problems
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import Preflight, count, lag_warnings, no_text, preflight, sampling_warnings
from rolloutlab.store.records import Group
from rolloutlab.wire.training import CreateTrainingJob, ExperimentalTrainingConfig
from rolloutlab.wire.trajectories import TrajectoryGroup


@dataclass(frozen=True)
class Submission:
    """Collections and options put together for a job of `model`, and what its check found.

    names: what the collections are called now; `collections` are their labels, which no newer generation takes.
    stored: their groups as the lab has them; `groups` are what is sent of them. members: what is scored of them.
    warnings: about how they were sampled. begins: the step that the job would start from, where that is known.
    """

    model: str
    names: tuple[str, ...]
    collections: tuple[str, ...]
    config: ExperimentalTrainingConfig
    stored: list[Group]
    groups: list[TrajectoryGroup]
    members: list[list[Member]]
    warnings: tuple[str, ...]
    check: Preflight
    begins: int | None = None

    def report(self) -> list[str]:
        """What would train and why the rest would not, line by line."""
        return self.check.words(self.names[0])

    def under(self, options: Mapping[str, Any]) -> "Submission":
        """The same trajectories with other options, as they were when they were gathered.

        Raises:
            InputError: an option is wrong.
        """
        return self._checked(checked_config(options), self.begins)

    def beginning(self, step: int | None) -> "Submission":
        """The same for a job that starts from this checkpoint; None where it is not known."""
        return self._checked(self.config, step)

    def _checked(self, config: ExperimentalTrainingConfig, begins: int | None) -> "Submission":
        settled, warnings = settle(config), list(self.warnings)
        if begins is not None:
            recomputes = settled.precalculate_logprobs
            warnings += lag_warnings(self._sampled(), begins, self.names[0], recomputes=recomputes)
        check = preflight(self.members, settled, self.check.unscored, warnings)
        return replace(self, config=config, check=check, begins=begins)

    def _sampled(self) -> Counter[int]:
        """How many scored trajectories of this model have their oldest answer from each of its checkpoints."""
        own = [t for g in self.stored for t in g.trajectories if t.model.partition("@")[0] == self.model]
        return Counter(min(t.steps) for t in own if t.reward is not None and t.steps)

    def to_job(self, model_id: str) -> CreateTrainingJob:
        return CreateTrainingJob(
            model_id=UUID(model_id), trajectory_groups=self.groups, experimental_config=self.config
        )


def checked_config(options: Mapping[str, Any]) -> ExperimentalTrainingConfig:
    """The options of a job.

    Raises:
        InputError: options are unknown or out of range; the message names every one of them.
    """
    if not isinstance(options, Mapping):
        raise InputError(f"options are a dict, not a {type(options).__name__}", hint='{"learning_rate": 2e-3}')
    if wrong := problems(options):
        said, typed = zip(*wrong, strict=True)
        raise InputError("; ".join(said), hint="; ".join(dict.fromkeys(typed)))
    return ExperimentalTrainingConfig.model_validate(dict(options))


def prepare(
    collections: Sequence[Collection], options: Mapping[str, Any], model: str, text_only: bool = False
) -> Submission:
    """A job that is ready to be sent. Trajectories without a reward are left out.

    text_only: the service's policies are known to read nothing but text.

    Raises:
        InputError: an option is wrong. NothingTrainsError: no trajectory would train; the message gives every reason.
    """
    submission = gather(collections, options, model, text_only)
    if not submission.check.trainable_trajectories:
        reasons = [line.partition(" -> ") for line in submission.report()[1:]]
        why = "; ".join(reason for reason, _, _ in reasons) or "it holds no trajectories"
        hint = reasons[0][2] if reasons else f"%%chat {submission.names[0]}"
        raise NothingTrainsError(f"nothing in {', '.join(submission.names)} would train: {why}", hint=hint)
    return submission


def gather(
    collections: Sequence[Collection], options: Mapping[str, Any], model: str, text_only: bool = False
) -> Submission:
    """Check the options and the trajectories for training `model`, whatever comes of it.

    Raises:
        InputError: an option is wrong. NothingTrainsError: there is no collection.
    """
    config = checked_config(options)
    if not collections:
        raise NothingTrainsError("no collection is given: nothing would train", hint="%%train NAME")
    stored = [group for collection in collections for group in collection.groups]
    groups = [
        TrajectoryGroup(trajectories=[t.to_wire() for t in group.trajectories if t.reward is not None])
        for group in stored
    ]
    warnings = sampling_warnings(t for group in groups for t in group.trajectories)
    sources = Counter(t.model.partition("@")[0] for group in stored for t in group.trajectories)
    warnings += [
        f"{count(sources[n], 'trajectory')} sampled from {n}, not {model} -> %model {n}"
        for n in sources
        if n not in {model, ""}
    ]
    warnings += [
        f"{count(missing, 'trajectory')} of {c.name} not sampled yet -> %%chat {c.name} --resume"
        for c in collections
        if (missing := c.missing)
    ]
    odd = [] if text_only else [t.name for group in stored for t in group.trajectories if no_text(t.histories())]
    if odd:
        what = f"{count(len(odd), 'trajectory')} with what is no text ({odd[0]})"
        warnings.append(f"{what}: a policy that reads text alone leaves it out")
    members = members_of(stored, text_only)
    check = preflight(members, settle(config), unscored_names(stored), warnings)
    names, labels = tuple(c.name for c in collections), tuple(c.label for c in collections)
    return Submission(model, names, labels, config, stored, groups, members, tuple(warnings), check)
