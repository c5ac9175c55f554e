"""Gradient steps of a task on a Tinker server: the loss is computed here, the weights are changed there."""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rolloutlab.engines.engine import SlopedStep
from rolloutlab.errors import BrokenOffError, CheckpointError, ServiceError, TrainingError, UnreachableError
from rolloutlab.fsutil import remove, write_private
from rolloutlab.integrations.tinker.client import (
    Adam,
    Datum,
    LostModelError,
    TinkerClient,
    count_padding,
    divide_into_requests,
)
from rolloutlab.policy.custom_loss import CustomLoss, load_loss
from rolloutlab.policy.loss import StepLoss, step_loss
from rolloutlab.policy.metrics import metrics_of
from rolloutlab.policy.packing import trained_positions
from rolloutlab.policy.reference import sample
from rolloutlab.policy.steps import Step, StepTokens, recorded, tokens_of, whole_step, with_logprobs
from rolloutlab.policy.task import Callbacks, StepProgress, Task
from rolloutlab.policy.token_sequence import TokenSequence

_SHARE, _MONTH = 20, 30 * 24 * 3600
_ATTEMPTS, _OUTAGES = 3, 50
"""How many failures end a job: of a server that answers, and outages, without a new step between them."""
_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_CPU = torch.device("cpu")
Score = Callable[[Sequence[TokenSequence]], list[Tensor]]
"""The logprob of each trained token of sequences, under weights that are not being trained."""


@dataclass(frozen=True)
class Capabilities:
    """What a server does with a gradient.

    per_token, per_row: whether it takes the mean over the tokens of an example, and over examples, instead of sums.
    per_request: whether that mean is over the examples of each request, instead of all of a step. adds: whether a step
    has the gradients of several requests, instead of the last one's. reports_norm: whether a step reports its gradient
    norm; without, sums are assumed, as hosted servers document them.
    clips: whether it honours `grad_clip_norm`; None is unknown. leaks: whether the weight decay of a step shrinks the
    adapters of other models in its memory too, as SkyRL's JAX backend does.
    """

    per_token: bool = False
    per_row: bool = False
    per_request: bool = False
    adds: bool = True
    reports_norm: bool = False
    clips: bool | None = None
    leaks: bool = False


def measure(client: TinkerClient, create: Callable[[], Any]) -> Capabilities:
    """Measure a known gradient on models that are thrown away: doubled in length, in number, and in two requests.

    And whether it is clipped, and what else a weight decay shrinks.

    create: makes a new model.

    Raises ServiceError: it is neither a mean nor a sum, or as of `TinkerClient`.
    """
    short, long = [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]
    still = _plain_adam(0.0, eps=1e-8)
    models = [create()]
    try:
        (model,) = models
        before, longer = client.logprobs(model, [short, long])
        once, twice = (
            Datum(ids, old, [0.0, 1.0] + [0.0] * (len(old) - 2)) for ids, old in ((short, before), (long, longer))
        )
        some, heavy = [once] * 8, [replace(once, advantages=[0.0, 2.0] + [0.0] * (len(short) - 3))] * 8
        sent = [some], [[twice] * 8], [some * 2], [some, heavy]
        norm, doubled, two, apart = (_step(client, model, each, still) for each in sent)
        if not norm > 0:
            return Capabilities()
        per_token, per_row = _is_mean(doubled / norm, 0.5, 1.0), _is_mean(two / norm, 1.0, 2.0)
        # of two requests, one of twice the gradient: 1.5 is the mean over both, 2 the second alone, 3 the sum
        adds = abs(apart / norm - 2) > 0.1
        per_request = per_row and adds and not _is_mean(apart / norm, 1.5, 3.0)
        # with eps far above the gradient a step is proportional to it: unclipped, it adds 0.05 to the logprob
        eps, slope = 50 * norm, norm * (4 if per_token else 1) / (1 if per_row else 8)
        clipped = Adam(0.05 * eps / (norm * slope), 0.0, 0.0, eps, 0.0, grad_clip_norm=norm / 10)
        _step(client, model, [some], clipped)
        clips = client.logprobs(model, [short])[0][1] - before[1] < 0.02
        models.append(create())
        leaks = _leaks(client, model, models[1], some)
        return Capabilities(per_token, per_row, per_request, adds, reports_norm=True, clips=clips, leaks=leaks)
    finally:
        for each in models:
            client.unload(each)


def _step(client: TinkerClient, model: Any, sent: Iterable[Sequence[Datum]], adam: Adam) -> float:
    """Take one step on the gradients of several requests; return the norm of its gradient."""
    for examples in sent:
        client.learn(model, examples)
    return client.step(model, adam)


def _leaks(client: TinkerClient, model: Any, other: Any, data: Sequence[Datum]) -> bool:
    """Whether a step of another model, which shrinks weights by a thousandth, changes the logprobs of a model."""
    first, second = (client.logprobs(model, [data[0].ids])[0] for _ in range(2))
    _step(client, other, [data], Adam(0.01, weight_decay=0.1))
    third = client.logprobs(model, [data[0].ids])[0]
    noise, change = (max(abs(a - b) for a, b in zip(second, each, strict=True)) for each in (first, third))
    return change > 2 * noise


class SavedProgress:
    """A file with the path of a state that the server saved after steps of the job that `key` identifies.

    A file of another job is not read. least_seconds: the least time between two states. Saving takes a twentieth
    of the time at most.
    """

    def __init__(self, path: Path, key: str, least_seconds: float) -> None:
        self._path, self._key, self._least_seconds = path, key, least_seconds
        self._saved, self._took = time.monotonic(), 0.0

    def due(self) -> bool:
        return time.monotonic() - self._saved >= max(self._least_seconds, _SHARE * self._took)

    def save(self, save: Callable[[], str], reported: list[dict[str, object]]) -> None:
        """Save the state after as many steps as there are metrics. A full disk does not end the job."""
        begun = time.monotonic()
        content = {"key": self._key, "state": save(), "reported": reported}
        with suppress(OSError):
            write_private(self._path, json.dumps(content).encode())
        self._saved = time.monotonic()
        self._took = self._saved - begun

    def read(self) -> tuple[str, list[dict[str, object]]] | None:
        """Read the path of the state, and the metrics up to it; None if there are none of this job."""
        try:
            content = json.loads(self._path.read_bytes())
            return (str(content["state"]), list(content["reported"])) if content["key"] == self._key else None
        except (OSError, ValueError, KeyError, TypeError):  # never written, or cut off by a loss of power
            return None

    def remove(self) -> None:
        remove(self._path)


class Trained(NamedTuple):
    """A trained model, the path of its state, and path and client of its weights for sampling."""

    model: Any
    state: str
    path: str
    sampler: Any


class TinkerTrainer:
    """Takes the steps of a task, on a model of its own that begins with the state `start`.

    make: makes a model of a state, with its moments; raises CheckpointError if the server does not have it. scores:
    score sequences under the start, under checkpoint 0, and under the reference of the task.
    """

    def __init__(
        self,
        client: TinkerClient,
        capabilities: Capabilities,
        start: str | None,
        make: Callable[[str | None], Any],
        scores: tuple[Score, Score, Score],
        task: Task,
        callbacks: Callbacks,
    ) -> None:
        self._client, self._capabilities = client, capabilities
        self._start, self._make = start, make
        self._scores, self._task, self._callbacks = scores, task, callbacks
        self._loss: CustomLoss | None = None
        self._reported = 0
        self._left: list[Any] = []
        """Models of a server that went away, and may still have them."""

    def train(self, progress: SavedProgress) -> Trained:
        """Take the steps. After an outage, or the loss of the model, they begin again from what is saved.

        A server that is away is waited for without a limit, since the job did not cause that; `waiting` is reported
        with the reason, and `resumed`.

        Raises:
            TrainingError: the loss stopped being a number, or a custom loss fails. Cancelled: checked before each step,
            and in waits. CheckpointError: the server does not have the state. LostModelError, UnreachableError: again
            and again without a new step. Others: as of `TinkerClient`.
        """
        steps: list[Step] | None = None
        failures = outages = 0
        try:
            while True:
                reported = self._reported
                try:
                    steps = self._begin() if steps is None else steps
                    return self._take_steps(steps, progress)
                except (LostModelError, UnreachableError) as error:
                    if self._reported > reported:
                        failures = outages = 0
                    away = self._wait_for_server(error)
                    failures, outages = failures + (not away), outages + away
                    if failures == _ATTEMPTS or outages == _OUTAGES:
                        raise
        finally:
            self._free()

    def _begin(self) -> list[Step]:
        torch.manual_seed(self._task.seed)
        steps = self._prepare_steps()
        if self._task.loss_source:
            self._loss = load_loss(self._task.loss_source, self._callbacks.cancelled, self._callbacks.in_user_code)
        return steps

    def _wait_for_server(self, error: ServiceError) -> bool:
        """Wait while the server is away; return False if it was not, and only this job's request has failed."""
        if isinstance(error, LostModelError):
            return False
        pause, reason = _PAUSE, None
        while (now := self._absence()) is not None:
            if now != reason:
                self._callbacks.report("waiting", {"reason": now})
            self._client.pause(pause, self._callbacks.cancelled)
            pause, reason = min(2 * pause, _LONGEST_PAUSE), now
        if reason is not None:
            self._callbacks.report("resumed", {})
        return reason is not None or not isinstance(error, BrokenOffError)

    def _absence(self) -> str | None:
        """Return why the server cannot be asked; None if it answers."""
        try:
            self._client.check_answers(self._callbacks.cancelled)
        except ServiceError as error:
            return error.message
        return None

    def _free(self) -> None:
        while self._left:
            self._client.unload(self._left.pop())

    def _take_steps(self, steps: Sequence[Step], progress: SavedProgress) -> Trained:
        state, reported = progress.read() or (self._start, [])
        self._free()
        model = self._open(state, progress)
        try:
            for each in reported[self._reported :]:
                self._report(each)
            for i in range(len(reported), len(self._task.rates)):
                self._callbacks.raise_if_cancelled()
                reported.append(self._step(model, steps[i % len(steps)], i))
                if i >= self._reported:  # else it was reported before the model was lost
                    self._report(reported[-1])
                if progress.due():
                    progress.save(lambda: self._client.save(model, _MONTH), reported)
            if steps:
                self._logprobs(model, steps[-1].tokens[:1])
            return Trained(model, *self._client.finish(model))
        except UnreachableError:
            self._left.append(model)
            raise
        except BaseException:
            self._client.unload(model)
            raise

    def _open(self, state: str | None, progress: SavedProgress) -> Any:
        """Make a model to train. Raises LostModelError if the saved state has expired; the progress is then removed."""
        try:
            return self._make(state)
        except CheckpointError as error:
            if state == self._start:
                raise
            progress.remove()
            raise LostModelError(error.message) from error

    def _report(self, metrics: dict[str, object]) -> None:
        self._callbacks.report("gradient_step", metrics)
        self._reported += 1

    def _prepare_steps(self) -> list[Step]:
        """Return the steps with the logprobs that are known before the first step, as in `policy.trainer`."""
        options, (start, base, reference) = self._task.options, self._scores
        sequences = [s for step in self._task.steps for s in step.sequences]
        tokens = [s.tokens for s in sequences]
        penalised = options.kl_penalty_coef > 0
        against_base = penalised and self._task.reference is None
        picked = sample([i for i, s in enumerate(sequences) if s.at_one], self._task.seed)
        chosen = [i for i in range(len(sequences)) if i in picked or against_base]
        under_base = dict(zip(chosen, base([tokens[i] for i in chosen]), strict=True))
        others = dict(enumerate(reference(tokens))) if penalised and not against_base else under_base
        if options.precalculate_logprobs:
            sequences = [
                replace(s, tokens=with_logprobs(s.tokens, new_T), original_T=recorded(s.tokens))
                for s, new_T in zip(sequences, start(tokens), strict=True)
            ]
        prepared = (
            replace(s, base_T=under_base.get(i) if s.at_one else None, reference_T=others[i] if penalised else None)
            for i, s in enumerate(sequences)
        )
        return [replace(step, sequences=list(islice(prepared, len(step.sequences)))) for step in self._task.steps]

    def _step(self, model: Any, step: Step, i: int) -> dict[str, object]:
        """Take one AdamW step; return what is reported of it."""
        new_T = torch.cat(self._logprobs(model, step.tokens)).requires_grad_()
        tokens = tokens_of(step.sequences, _CPU)
        result = self._result(new_T, tokens, step.divisor)
        counts = [each.trainable for each in step.tokens]
        whole = whole_step(result, new_T, counts)
        sloped = list(zip(step.tokens, torch.split(whole.slope_T, counts), strict=True))
        loss, rate = float(result.loss.detach()), self._task.rates[i]
        if not math.isfinite(loss) or not whole.slope_T.isfinite().all():
            raise _not_finite(i)
        settings = self._task.options
        adam = Adam(rate, weight_decay=settings.weight_decay, grad_clip_norm=settings.max_grad_norm)
        within = StepProgress(self._callbacks, i, step.trained)
        for request in make_requests(sloped, torch.split(new_T.detach(), counts), self._capabilities):
            self._client.learn(model, request.examples, self._callbacks.cancelled)
            within.add(request.trained)
        norm = self._client.step(model, adam)
        if self._capabilities.reports_norm and not math.isfinite(norm):
            raise _not_finite(i)
        statistics = [tokens.old_T, torch.full_like(tokens.old_T, math.nan)]
        statistics += [result.ratio_T, result.clipped_T, result.masked_T]
        statistics += [tokens.base_T, tokens.reference_T, tokens.sampled_T]
        metrics = {"loss": loss, "grad_norm": norm, **metrics_of(new_T.detach(), *(s.float() for s in statistics))}
        return self._task.reported_of({**metrics, "learning_rate": rate})

    def _result(self, new_T: Tensor, tokens: StepTokens, divisor: float) -> StepLoss:
        if self._loss:
            return self._loss.of_step(new_T, *tokens[:4])
        options = self._task.options
        reference_T = tokens.reference_T if options.kl_penalty_coef > 0 else None
        return step_loss(new_T, *tokens[:4], options, divisor, tokens.original_T, reference_T)

    def _logprobs(self, model: Any, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        try:
            scored = self._client.logprobs(model, [list(s.ids) for s in sequences], self._callbacks.cancelled)
        except ServiceError as error:
            if type(error) is ServiceError:  # it answers, but with no numbers
                raise TrainingError("the weights are no longer finite", hint="a lower learning_rate") from error
            raise
        return [select_trained(each, tokens) for each, tokens in zip(scored, sequences, strict=True)]


class TinkerTrial:
    """See `engines.engine.TrialModel`: a model of a server, and the steps that `TinkerTrainer` takes."""

    def __init__(self, client: TinkerClient, capabilities: Capabilities, model: Any) -> None:
        self._client, self._capabilities, self._model = client, capabilities, model

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[Tensor]:
        """See `TrialModel`."""
        scored = self._client.logprobs(self._model, [list(each.ids) for each in sequences])
        return [select_trained(each, tokens) for each, tokens in zip(scored, sequences, strict=True)]

    def step(self, sloped: SlopedStep, rate: float, eps: float | None = None, max_norm: float = 0.0) -> float:
        """See `TrialModel`."""
        requested = make_requests(sloped, self.logprobs([tokens for tokens, _ in sloped]), self._capabilities)
        adam = Adam(rate) if eps is None else replace(_plain_adam(rate, eps), grad_clip_norm=max_norm)
        return _step(self._client, self._model, (each.examples for each in requested), adam)


class Request(NamedTuple):
    """Examples of one request, and how many trained tokens they have."""

    examples: list[Datum]
    trained: int


def make_requests(sloped: SlopedStep, new: Sequence[Tensor], capabilities: Capabilities) -> Iterator[Request]:
    """Yield requests whose gradients on the server add up to that of the step's loss, made as they are sent.

    new: logprobs of their trained tokens. A server that takes means divides by numbers that are only known here.

    Raises ServiceError: several requests are needed, and the server forgets the gradients of all but the last.
    """
    parts = list(divide_into_requests([len(tokens) for tokens, _ in sloped]))
    if len(parts) > 1 and not capabilities.adds:
        message = f"the server forgets the gradients of all but the last of {len(parts)} requests that the step needs"
        raise ServiceError(message, hint="a smaller groups_per_step")
    filled = [count_padding(len(tokens) for tokens, _ in sloped[part]) for part in parts]
    total = len(sloped) + sum(filled)
    for part, missed in zip(parts, filled, strict=True):
        some = sloped[part]
        of = len(some) + missed if capabilities.per_request else total
        examples = [
            _example(tokens, slope_S * (of if capabilities.per_row else 1), new_S, capabilities)
            for (tokens, slope_S), new_S in zip(some, new[part], strict=True)
        ]
        trained_tokens = sum(tokens.trainable for tokens, _ in some)
        yield Request(examples + [Datum(examples[0].ids[:2], [0.0], [0.0])] * missed, trained_tokens)


def _example(tokens: TokenSequence, slope_S: Tensor, new_S: Tensor, capabilities: Capabilities) -> Datum:
    scale = len(tokens) - 1 if capabilities.per_token else 1
    at_S, empty_L = trained_positions(tokens) - 1, torch.zeros(len(tokens) - 1)
    advantages, logprobs = empty_L.index_copy(0, at_S, -slope_S * scale), empty_L.index_copy(0, at_S, new_S)
    return Datum(list(tokens.ids), logprobs.tolist(), advantages.tolist())


def select_trained(logprobs: Sequence[float], tokens: TokenSequence) -> Tensor:
    """Select the logprobs of the trained tokens. logprobs: one for each token but the first."""
    return torch.tensor(logprobs)[trained_positions(tokens) - 1]


def _plain_adam(rate: float, eps: float) -> Adam:
    """Return settings of a step that is proportional to the gradient if eps is far above it."""
    return Adam(rate, beta1=0.0, beta2=0.0, eps=eps, weight_decay=0.0, grad_clip_norm=0.0)


def _not_finite(step: int) -> TrainingError:
    hint = "a lower learning_rate or epsilon_high"
    return TrainingError(f"the loss of step {step} is not a finite number", hint=hint)


def _is_mean(value: float, mean: float, total: float) -> bool:
    """Whether a ratio of norms is that of a mean and not of a sum. Raises ServiceError: it is neither."""
    if min(abs(value / mean - 1), abs(value / total - 1)) > 0.05:
        raise ServiceError(f"the server's gradients are neither means nor sums: a doubled one is {value:.3f} of it")
    return abs(value / mean - 1) < abs(value / total - 1)
