"""From scored collections and options to a training job, with everything checked before it is sent."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from rolloutlab.collection import Collection, members_of, unscored_names
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import Preflight, count, preflight, sampling_warnings
from rolloutlab.wire.training import CreateTrainingJob, ExperimentalTrainingConfig
from rolloutlab.wire.trajectories import TrajectoryGroup

OPTIONS = tuple(ExperimentalTrainingConfig.model_fields)


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be sent, and what its check found."""

    collections: tuple[str, ...]
    config: ExperimentalTrainingConfig
    groups: list[TrajectoryGroup]
    check: Preflight

    def to_job(self, model_id: str) -> CreateTrainingJob:
        return CreateTrainingJob(
            model_id=UUID(model_id), trajectory_groups=self.groups, experimental_config=self.config
        )


def checked_config(options: Mapping[str, Any]) -> ExperimentalTrainingConfig:
    """The options of a job.

    Raises:
        InputError: an option is unknown or its value out of range; the message names it and the closest known one.
    """
    if not isinstance(options, Mapping):
        raise InputError(f"options are a dict, not a {type(options).__name__}", hint='{"learning_rate": 2e-3}')
    for name in options:
        if name not in (*OPTIONS, "kimi_k2_tau"):
            close = get_close_matches(name, OPTIONS, n=1)
            raise InputError(f"unknown option {name!r}", hint=close[0] if close else "one of " + ", ".join(OPTIONS))
    try:
        return ExperimentalTrainingConfig.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InputError(f"{name}: {first['msg']}, not {first['input']!r}", hint=f"{name}: {_example(name)}") from error


def prepare(collections: Sequence[Collection], options: Mapping[str, Any], model: str) -> Submission:
    """Check the options and the trajectories for training `model`. Those without a reward are left out.

    Raises:
        InputError: an option is wrong. NothingTrainsError: no trajectory would train; the message gives every reason.
    """
    config = checked_config(options)
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
    check = preflight(members_of(stored), settle(config), unscored_names(stored), warnings)
    if not collections:
        raise NothingTrainsError("no collection is given: nothing would train", hint="%%train NAME")
    names = tuple(collection.name for collection in collections)
    if not check.trainable_trajectories:
        reasons = [line.partition(" -> ") for line in check.words(names[0])[1:]]
        why = "; ".join(reason for reason, _, _ in reasons) or "it holds no trajectories"
        hint = reasons[0][2] if reasons else f"%%chat {names[0]}"
        raise NothingTrainsError(f"nothing in {', '.join(names)} would train: {why}", hint=hint)
    return Submission(tuple(c.label for c in collections), config, groups, check)


def _example(name: str) -> str:
    examples = {
        "advantage_balance": "0.0 (-1 to 1)",
        "epsilon": "0.2",
        "epsilon_high": "0.28",
        "importance_sampling_level": "token, sequence, average or geometric_average",
        "vendor_k2_tau": "0.01",
        "kimi_k2_tau": "0.01",
        "learning_rate": "2e-3",
        "max_negative_advantage_importance_sampling_weight": "10.0",
    }
    return examples.get(name, "true or false")
