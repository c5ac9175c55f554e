"""One training job: trajectories to sequences, sequences to rows, one AdamW step per row."""

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.errors import Cancelled, TrainingError
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import Preflight, preflight
from rolloutlab.policy.custom_loss import CustomLoss, Running, checked_loss
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.job_reader import Groups, ReadJob, read_job
from rolloutlab.policy.loss import row_loss
from rolloutlab.policy.metrics import metrics_of
from rolloutlab.policy.model import Adapter, Policy, adapter_parameters, read_adapter, write_adapter
from rolloutlab.policy.packing import Batch, trained_positions
from rolloutlab.policy.reference import adapter_logprobs, base_logprobs, sample
from rolloutlab.policy.rows import Row, TrainingSequence, pack, recorded, tokens_of
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.policy.whole_row import WholeRow, whole_row

_MAX_OPTION = 1e18
_HEARTBEAT = 1000
"""Trajectories read between two heartbeats."""
Report = Callable[[str, dict[str, object]], None]
"""Called with the type and data of each event."""


@dataclass(frozen=True)
class State:
    """The content of a checkpoint: the adapter, and AdamW's moments and step counts under the adapter's names."""

    adapter: Adapter
    optimizer: dict[str, Tensor]


def train(
    policy: Policy,
    model: PeftModel,
    start: State,
    groups: Groups,
    config: ExperimentalTrainingConfig | None,
    step: int,
    report: Report,
    cancelled: Callable[[], bool],
    reference: Adapter | None = None,
    loss_source: str | None = None,
    loss_running: Running = nullcontext,
) -> State:
    """Train `model`, a LoRA copy of the policy, from the state of checkpoint `step`; the state after the job.

    The groups are read once, in order, and no trajectory is kept, so that they can be streamed from a file.
    The same job from the same state gives bit-identical tensors on the same machine. reference: the adapter of
    `kl_ref_step`; None is checkpoint 0. loss_source: of `custom_loss`, checked by finite differences first.
    loss_running: entered while its code runs.

    Raises:
        TrainingError: the loss stopped being a number, or a custom loss is wrong.
        Cancelled: `cancelled()` became true; checked after each trajectory, before each row, in a custom loss.
    """
    options = _in_fp32(settle(config))
    loss = checked_loss(loss_source, cancelled, loss_running) if loss_source is not None else None
    learning_rate = policy.learning_rate if options.learning_rate is None else options.learning_rate
    renderer = policy.renderer()
    job = read_job(groups, renderer, policy.context, lambda count: beat(count, report, cancelled))
    check = preflight(job.members, options, warnings=job.warnings)
    rows = list(pack(_training_sequences(check, job.sequences), policy.row_tokens))
    report("training_started", {"num_sequences": len(rows), "learning_rate": learning_rate, "step": step})
    report("preflight", {**_preflight_data(check, options), "sequences": sum(map(len, rows))})
    rates = [learning_rate] * len(rows)
    seed, constant = seed_of(job.digest, config, step), _job_metrics(job, check)
    steps = GradientSteps(rows, rates, options, seed, constant, reference, loss)
    return take_steps(policy, model, start, steps, report, cancelled)


@dataclass(frozen=True)
class GradientSteps:
    """The gradient steps of a job. rates: a learning rate per row. constant: numbers that every step reports."""

    rows: list[Row]
    rates: Sequence[float]
    options: Options
    seed: int
    constant: Mapping[str, float]
    reference: Adapter | None = None
    loss: CustomLoss | None = None


def take_steps(
    policy: Policy, model: PeftModel, start: State, steps: GradientSteps, report: Report, cancelled: Callable[[], bool]
) -> State:
    """Train `model` on rows, one AdamW step each, from a state; the state afterwards. Raises as `train`."""
    rows, options = steps.rows, steps.options
    torch.manual_seed(steps.seed)
    write_adapter(model, start.adapter)
    forward = Forward(policy, model)
    parameters = adapter_parameters(model).values()
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.99), weight_decay=0.1)
    _restore(optimizer, model, start.optimizer)
    if options.precalculate_logprobs:
        rows = [_with_new_logprobs(forward, row) for row in _until(cancelled, rows)]
    rows = list(_with_references(forward, model, rows, options, steps.reference, cancelled))
    with ThreadPoolExecutor(policy.workers, "trainer") as pool:
        for i, row in enumerate(_until(cancelled, rows)):
            optimizer.param_groups[0]["lr"] = steps.rates[i]
            metrics = _optimizer_step(forward, optimizer, row, options, pool, steps.loss)
            if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["grad_norm"]):
                hint = "a lower learning_rate or epsilon_high"
                raise TrainingError(f"the loss of row {i} is not a finite number", hint=hint)
            metrics |= {**steps.constant, "learning_rate": steps.rates[i]}
            # undefined metrics are left out: JSON has no NaN
            report("gradient_step", {k: v for k, v in metrics.items() if math.isfinite(v)})
    if rows and not forward.logprobs([rows[-1][0].tokens])[0].isfinite().all():
        raise TrainingError("the weights are no longer finite", hint="a lower learning_rate")
    return State(read_adapter(model), _moments(optimizer, model))


def beat(count: int, report: Report, cancelled: Callable[[], bool]) -> None:
    """While a long job is being read: check for cancellation, report heartbeats."""
    if cancelled():
        raise Cancelled
    if count % _HEARTBEAT == 0:
        report("heartbeat", {"trajectories": count})


def _until(cancelled: Callable[[], bool], rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        if cancelled():
            raise Cancelled
        yield row


def _in_fp32(options: Options) -> Options:
    """The options with floats clamped so that products stay finite in fp32; larger values have the same effect."""
    floats = {name: value for name, value in vars(options).items() if isinstance(value, float)}
    clamped: dict[str, Any] = {name: min(max(value, -_MAX_OPTION), _MAX_OPTION) for name, value in floats.items()}
    return replace(options, **clamped)


def _training_sequences(check: Preflight, sequences: Iterable[Sequence[TokenSequence]]) -> Iterator[Row]:
    """The trainable sequences of each group."""
    remaining = iter(sequences)
    for group in check.shares:
        pairs = [pair for pair in zip(group, remaining, strict=False) if pair[0].reason is None]
        yield [TrainingSequence(each, share.advantage, share.weight) for share, rest in pairs for each in rest]


def _with_new_logprobs(forward: Forward, row: Row) -> Row:
    """The row with logprobs under the current weights instead of the recorded ones."""
    logprobs = forward.logprobs([s.tokens for s in row])
    return [
        replace(s, tokens=_with_logprobs(s.tokens, new_T), original_T=recorded(s.tokens))
        for s, new_T in zip(row, logprobs, strict=True)
    ]


def _with_references(
    forward: Forward,
    model: PeftModel,
    rows: Sequence[Row],
    options: Options,
    reference: Adapter | None,
    cancelled: Callable[[], bool],
) -> Iterator[Row]:
    """The rows with logprobs under the reference of the penalty, and under checkpoint 0 for a sample or for all."""
    penalised = options.kl_penalty_coef > 0
    picked = set(sample([len(s.tokens) for row in rows for s in row]))
    first = 0
    for row in _until(cancelled, rows):
        tokens = [s.tokens for s in row]
        chosen = [i for i in range(len(row)) if first + i in picked or (penalised and reference is None)]
        first += len(row)
        base = dict(zip(chosen, base_logprobs(forward, model, [tokens[i] for i in chosen]), strict=True))
        others: list[Tensor] | dict[int, Tensor] = {}
        if penalised:
            others = base if reference is None else adapter_logprobs(forward, model, reference, tokens)
        yield [replace(s, base_T=base.get(i), reference_T=others[i] if penalised else None) for i, s in enumerate(row)]


def _with_logprobs(tokens: TokenSequence, new_T: Tensor) -> TokenSequence:
    logprobs_L = torch.zeros(len(tokens)).index_copy(0, trained_positions(tokens), new_T)
    return replace(tokens, logprobs=array("f", logprobs_L.tolist()))


def _optimizer_step(
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    row: Row,
    options: Options,
    pool: ThreadPoolExecutor,
    loss: CustomLoss | None = None,
) -> dict[str, float]:
    """One AdamW step on one row; its metrics. loss: in the place of the options' own.

    Batches run in parallel, and their gradients are summed in order, so that the result is deterministic.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    row_tokens = sum(s.tokens.trainable for s in row)

    whole = _whole_row(forward, row, options, loss) if loss or options.kl_penalty_coef > 0 else None

    def loss_and_gradients(batch: Batch) -> tuple[float, tuple[Tensor, ...], Tensor]:
        part = [row[i] for i in batch.order]
        new_T, entropy_T = forward(batch)
        tokens = tokens_of(part, new_T.device)
        if whole:
            result = whole.part(new_T, batch.order)
        else:
            result = row_loss(new_T, *tokens[:4], options, row_tokens, tokens.original_T)
        gradients = torch.autograd.grad(result.loss, parameters, allow_unused=True, materialize_grads=True)
        statistics = [new_T.detach(), tokens.old_T, entropy_T, result.ratio_T, result.clipped_T, result.masked_T]
        statistics += [tokens.base_T, tokens.reference_T]
        return float(result.loss.detach()), gradients, torch.stack(statistics)

    optimizer.zero_grad(set_to_none=True)
    total, statistics = 0.0, []
    batches = forward.batches([s.tokens for s in row])
    for part_loss, gradients, part_statistics in pool.map(loss_and_gradients, batches):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        total += part_loss
        statistics.append(part_statistics)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=0.1)
    if norm.isfinite():
        optimizer.step()
    total = float(whole.result.loss.detach()) if whole else total
    return {"loss": total, "grad_norm": float(norm), **metrics_of(*torch.cat(statistics, dim=1).cpu())}


def _whole_row(forward: Forward, row: Row, options: Options, loss: CustomLoss | None) -> WholeRow:
    """The loss of a row by the logprobs of all of it, under the current weights."""
    new_T = torch.cat(forward.logprobs([s.tokens for s in row])).requires_grad_()
    tokens = tokens_of(row, new_T.device)
    if loss:
        result = loss.of_row(new_T, *tokens[:4])
    else:
        result = row_loss(new_T, *tokens[:4], options, reference_T=tokens.reference_T, original_T=tokens.original_T)
    return whole_row(result, new_T, [s.tokens.trainable for s in row])


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
        "reasons": check.reasons(),
        "skipped": {str(reason): list(names) for reason, names in check.skipped.items()},
        "unreadable": check.unreadable(),
        "warnings": list(check.warnings),
        "unknown_options": list(options.unknown),
    }


def seed_of(content: bytes, config: Wire | None, step: int) -> int:
    """A seed from a job's content, not its model: the same job on a copy of the model gives the same result."""
    digest = hashlib.sha256(str(step).encode())
    digest.update(content)
    digest.update(config.to_json().encode() if config else b"")
    return int.from_bytes(digest.digest()[:8])


def _moments(optimizer: torch.optim.Optimizer, model: PeftModel) -> dict[str, Tensor]:
    states = {name: optimizer.state.get(each, {}) for name, each in adapter_parameters(model).items()}
    moments = [(f"{name}.{moment}", value) for name, state in states.items() for moment, value in state.items()]
    return {name: value.detach().to("cpu", copy=True) for name, value in moments}


def _restore(optimizer: torch.optim.Optimizer, model: PeftModel, moments: dict[str, Tensor]) -> None:
    for name, parameter in adapter_parameters(model).items():
        if f"{name}.step" in moments:
            optimizer.state[parameter] = {
                "step": moments[f"{name}.step"].clone(),
                "exp_avg": moments[f"{name}.exp_avg"].to(parameter.device, copy=True),
                "exp_avg_sq": moments[f"{name}.exp_avg_sq"].to(parameter.device, copy=True),
            }
