"""A training job as gradient steps: trajectories to sequences, whole groups of sequences to optimiser steps.

All of it is known without weights, so that any engine can take the steps.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.errors import Cancelled
from rolloutlab.objective.option_docs import rate_warnings
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import Preflight, preflight
from rolloutlab.objective.steps import plan_steps, step_divisor
from rolloutlab.policy.base import Base
from rolloutlab.policy.checkpoints import identity
from rolloutlab.policy.custom_loss import load_checked_loss
from rolloutlab.policy.job_reader import Groups, ReadJob, read_job
from rolloutlab.policy.steps import Step, TrainingSequence, credit_sequence

_MAX_OPTION = 1e18
_HEARTBEAT = 1000
"""Trajectories read between two heartbeats."""
Report = Callable[[str, dict[str, object]], None]
"""Called with the type and data of each event."""


@dataclass(frozen=True)
class Callbacks:
    """What the training of a job calls.

    report: called with each event. cancelled: whether to stop. in_user_code: a context around code of the user.
    progress_seconds: the least time between two events within one step.
    """

    report: Report
    cancelled: Callable[[], bool] = lambda: False
    in_user_code: Callable[[], AbstractContextManager[None]] = nullcontext
    progress_seconds: float = 2.0

    def raise_if_cancelled(self) -> None:
        if self.cancelled():
            raise Cancelled

    def beat(self, count: int) -> None:
        """Report a heartbeat now and then; called after each trajectory that is read, with their number so far."""
        self.raise_if_cancelled()
        if count % _HEARTBEAT == 0:
            self.report("heartbeat", {"trajectories": count})


class StepProgress:
    """Reports `step_progress` while a step is computed. of: how many trained tokens the step has."""

    def __init__(self, callbacks: Callbacks, step: int, of: int) -> None:
        self._callbacks, self._step, self._of = callbacks, step, of
        self._tokens, self._reported_at = 0, time.monotonic()

    def add(self, tokens: int) -> None:
        """Count so many more tokens as done, and report if it is time."""
        self._tokens += tokens
        if self._tokens < self._of and time.monotonic() - self._reported_at >= self._callbacks.progress_seconds:
            self._reported_at = time.monotonic()
            data: dict[str, object] = {"step": self._step, "tokens": self._tokens, "of": self._of}
            self._callbacks.report("step_progress", data)


@dataclass(frozen=True)
class Task:
    """The gradient steps of a job, which are taken once in each of `options.epochs`.

    Attributes:
        steps: The steps of one epoch.
        rates: The learning rate of each step of all epochs.
        options: The options of the job.
        seed: A number from the job's content.
        constant: Numbers that every step reports.
        reported: Names of the numbers that mean something for this job; None is all.
        reference: The checkpoint of `kl_penalty_coef`; None is checkpoint 0.
        loss_source: The source of `custom_loss`.
    """

    steps: list[Step]
    rates: Sequence[float]
    options: Options
    seed: int
    constant: Mapping[str, float]
    reported: frozenset[str] | None = None
    reference: Path | None = None
    loss_source: str | None = None

    def key(self, source: Path) -> str:
        """Hash the task and the checkpoint it starts from. Tasks with other steps or another start have other keys."""
        steps = [(len(step.sequences), step.divisor, step.groups) for step in self.steps]
        digest = hashlib.sha256(repr((self.seed, self.loss_source, identity(source), list(self.rates), steps)).encode())
        for each in chain.from_iterable(step.sequences for step in self.steps):
            tokens = each.tokens
            advantage = torch.as_tensor(each.advantage, dtype=torch.double).tolist()  # one, or of each token
            digest.update(repr((len(tokens), advantage, each.weight, each.at_one)).encode())
            for values in (tokens.ids, tokens.trained, tokens.logprobs):
                digest.update(values)
        return digest.hexdigest()

    def reported_of(self, metrics: Mapping[str, float]) -> dict[str, object]:
        """Return what a step reports: metrics that mean something for this job and are finite, as JSON has no NaN."""
        every = {**self.constant, **metrics}
        shown = every if self.reported is None else {name: every[name] for name in self.reported if name in every}
        return {name: value for name, value in shown.items() if math.isfinite(value)}


def read_task(
    base: Base,
    groups: Groups,
    config: ExperimentalTrainingConfig | None,
    step: int,
    callbacks: Callbacks,
    reference: Path | None = None,
    loss_source: str | None = None,
) -> Task:
    """Read a job that starts from checkpoint `step`; reports `training_started` and `preflight`.

    The groups are read once, in order, and no trajectory is kept, so that they can be streamed from a file.

    Args:
        base: The base model.
        groups: The groups.
        config: The options; None takes the defaults.
        step: The number of the checkpoint that the job starts from.
        callbacks: Called with the events of the job, and to know whether to stop.
        reference: The checkpoint of the KL penalty; None is checkpoint 0.
        loss_source: The source text of a `custom_loss`, whose gradient is checked by finite differences first.

    Raises:
        TrainingError: a custom loss is wrong.
        Cancelled: checked even within a trajectory and in a custom loss.
    """
    options = _clamp_to_fp32(settle(config))
    if loss_source is not None:
        load_checked_loss(loss_source, callbacks.cancelled, callbacks.in_user_code)
    learning_rate = base.learning_rate if options.learning_rate is None else options.learning_rate
    renderer = base.renderer(check=callbacks.raise_if_cancelled)
    job = read_job(groups, renderer, base.context, callbacks.beat)
    check = preflight(job.members, options, warnings=[*job.warnings, *rate_warnings(learning_rate, base.learning_rate)])
    steps = list(_make_steps(check, job, options, base.groups_per_step))
    rates, seed = [learning_rate] * (len(steps) * options.epochs), seed_of(job.digest, config, step)
    report = callbacks.report
    started = {"learning_rate": learning_rate, "default_learning_rate": base.learning_rate}
    report("training_started", {"num_sequences": len(rates), **started, "step": step})
    report("preflight", {**_preflight_data(check, options), "sequences": sum(len(each.sequences) for each in steps)})
    numbers = _job_metrics(job, check)
    return Task(steps, rates, options, seed, numbers, reference=reference, loss_source=loss_source)


def _clamp_to_fp32(options: Options) -> Options:
    """Clamp the floats of options, so that products stay finite in fp32. Larger values have the same effect."""
    floats = {name: value for name, value in vars(options).items() if isinstance(value, float)}
    clamped: dict[str, Any] = {name: min(max(value, -_MAX_OPTION), _MAX_OPTION) for name, value in floats.items()}
    return replace(options, **clamped)


def _make_steps(check: Preflight, job: ReadJob, options: Options, groups_per_step: int) -> Iterator[Step]:
    """Make the steps of one epoch. groups_per_step: the policy's, for options without it."""
    most = groups_per_step if options.groups_per_step is None else options.groups_per_step
    pairs = zip(check.shares, _credit_sequences(check, job), strict=True)
    training = [(shares, sequences) for shares, sequences in pairs if sequences]
    remaining = iter(training)
    for size in plan_steps(len(training), most):
        groups = list(islice(remaining, size))
        divisor = step_divisor([shares for shares, _ in groups], check, options)
        yield Step([each for _, sequences in groups for each in sequences], divisor, size)


def _credit_sequences(check: Preflight, job: ReadJob) -> Iterator[list[TrainingSequence]]:
    """Yield the trainable sequences of each group, with their advantages."""
    remaining = iter(zip(job.sequences, job.at_one, strict=True))
    for group in check.shares:
        pairs = [pair for pair in zip(group, remaining, strict=False) if pair[0].reason is None]
        sequences = [credit_sequence(each, share, at_one=at_one) for share, (rest, at_one) in pairs for each in rest]
        yield [each for each in sequences if each]


def _job_metrics(job: ReadJob, check: Preflight) -> dict[str, float]:
    rewards = [member.reward for group in job.members for member in group]
    return {
        "reward": fmean(rewards) if rewards else math.nan,
        "reward_std_dev": pstdev(rewards) if rewards else math.nan,
        "num_groups_submitted": len(job.members),
        "num_groups_trainable": check.trainable_groups,
        "num_trajectories": check.trajectories,
        "num_trainable_tokens": check.trainable_tokens,
    }


def _preflight_data(check: Preflight, options: Options) -> dict[str, object]:
    return {
        "trajectories": check.trajectories,
        "trainable_trajectories": check.trainable_trajectories,
        "groups": len(check.shares),
        "trainable_groups": check.trainable_groups,
        "trainable_tokens": check.trainable_tokens,
        **({} if check.advantage_scale is None else {"advantage_scale": check.advantage_scale}),
        **({"turns": [turn._asdict() for turn in check.turns()]} if options.credit == "turn" else {}),
        "reasons": check.reasons(),
        "skipped": {str(reason): list(names) for reason, names in check.skipped.items()},
        "unreadable": check.unreadable(),
        "warnings": list(check.warnings),
        "unknown_options": list(options.unknown),
    }


def seed_of(content: bytes, config: Wire | None, step: int) -> int:
    """Make a seed from a job's content, not its model, so that the same job on a copy of the model has its result."""
    digest = hashlib.sha256(str(step).encode())
    digest.update(content)
    digest.update(config.to_json().encode() if config else b"")
    return int.from_bytes(digest.digest()[:8])
