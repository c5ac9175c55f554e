"""The gradient steps of a training job on this machine: one AdamW step per row."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate

import torch
from peft import PeftModel
from torch import Tensor, nn

from rolloutlab.errors import TrainingError
from rolloutlab.objective.options import Options
from rolloutlab.policy.custom_loss import CustomLoss, load_loss
from rolloutlab.policy.drift import report_drift
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.loss import row_loss
from rolloutlab.policy.metrics import metrics_of
from rolloutlab.policy.model import Adapter, Policy, adapter_parameters, read_adapter, write_adapter
from rolloutlab.policy.packing import Batch
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.reference import adapter_logprobs, base_logprobs, sample
from rolloutlab.policy.rows import Row, recorded, tokens_of, with_logprobs
from rolloutlab.policy.share import WHOLE, Share
from rolloutlab.policy.state import State
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.policy.whole_row import WholeRow, whole_row

_STATISTICS = 9
"""Numbers of each trained token that `metrics_of` takes."""


def take_steps(
    policy: Policy,
    model: PeftModel,
    start: State,
    task: Task,
    callbacks: Callbacks,
    reference: Adapter | None = None,
    progress: Progress | None = None,
    share: Share = WHOLE,
) -> State:
    """Train `model`, a LoRA copy of the policy, on the rows of a task, one AdamW step each; the state afterwards.

    The same task from the same state gives bit-identical tensors on the same machine, also where it goes on from the
    rows of its `progress`. reference: the adapter of the task's; None is checkpoint 0. share: of this process, where
    several take the steps together: they end with the tensors of one process that divides rows into as many parts.

    Raises:
        TrainingError: the loss stopped being a number, or a custom loss fails.
        Cancelled: checked before each row, and in a custom loss.
    """
    rows, options = task.rows, task.options
    torch.manual_seed(task.seed)
    write_adapter(model, start.adapter)
    forward = Forward(policy, model, share=share)
    state, reported = (progress.read() if progress else None) or (start, [])
    if not reported:
        report_drift(forward, rows, callbacks)
    if options.precalculate_logprobs:
        rows = [_with_new_logprobs(forward, row) for row in _until(callbacks, rows)]
    rows = list(_with_references(forward, model, replace(task, rows=rows), reference, callbacks))
    loss = load_loss(task.loss_source, callbacks.cancelled, callbacks.in_user_code) if task.loss_source else None
    for each in reported:
        callbacks.report("gradient_step", each)
    write_adapter(model, state.adapter)
    optimizer = torch.optim.AdamW(adapter_parameters(model).values(), lr=0.0, betas=(0.9, 0.99), weight_decay=0.1)
    _restore(optimizer, model, state.optimizer)
    with ThreadPoolExecutor(policy.workers, "trainer") as pool:
        for i, row in enumerate(_until(callbacks, rows[len(reported) :]), start=len(reported)):
            optimizer.param_groups[0]["lr"] = task.rates[i]
            metrics = _optimizer_step(forward, optimizer, row, options, pool, loss, share)
            if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["grad_norm"]):
                hint = "a lower learning_rate or epsilon_high"
                raise TrainingError(f"the loss of row {i} is not a finite number", hint=hint)
            reported.append(task.reported_of({**metrics, "learning_rate": task.rates[i]}))
            callbacks.report("gradient_step", reported[-1])
            if progress and progress.due():
                progress.write(State(read_adapter(model), _moments(optimizer, model)), reported)
    if rows and not forward.logprobs([rows[-1][0].tokens])[0].isfinite().all():
        raise TrainingError("the weights are no longer finite", hint="a lower learning_rate")
    return State(read_adapter(model), _moments(optimizer, model))


def _until(callbacks: Callbacks, rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        callbacks.raise_if_cancelled()
        yield row


def _with_new_logprobs(forward: Forward, row: Row) -> Row:
    """The row with logprobs under the current weights instead of the recorded ones."""
    logprobs = forward.logprobs([s.tokens for s in row])
    return [
        replace(s, tokens=with_logprobs(s.tokens, new_T), original_T=recorded(s.tokens))
        for s, new_T in zip(row, logprobs, strict=True)
    ]


def _with_references(
    forward: Forward,
    model: PeftModel,
    task: Task,
    reference: Adapter | None,
    callbacks: Callbacks,
) -> Iterator[Row]:
    """The rows with logprobs under the reference of the penalty, and marks at the sample for `kl_base`.

    The sample is only of what was sampled from the distribution of its logprobs. Of learned tokens, which no policy
    sampled, it has the logprobs under checkpoint 0 instead.
    """
    penalised = task.options.kl_penalty_coef > 0
    at_one = [s.at_one for row in task.rows for s in row]
    picked = sample([i for i, each in enumerate(at_one) if each], task.seed)
    first = 0
    for row in _until(callbacks, task.rows):
        tokens = [s.tokens for s in row]
        measured = {i for i in range(len(row)) if first + i in picked}
        learned = {i for i in measured if all(map(math.isnan, _logprobs(tokens[i])))}
        chosen = [i for i in range(len(row)) if i in learned or (penalised and reference is None)]
        first += len(row)
        base = dict(zip(chosen, base_logprobs(forward, model, [tokens[i] for i in chosen]), strict=True))
        others: list[Tensor] | dict[int, Tensor] = {}
        if penalised:
            others = base if reference is None else adapter_logprobs(forward, model, reference, tokens)
        yield [
            replace(
                s,
                measured=i in measured - learned,
                base_T=base.get(i) if i in learned else None,
                reference_T=others[i] if penalised else None,
            )
            for i, s in enumerate(row)
        ]


def _optimizer_step(
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    row: Row,
    options: Options,
    pool: ThreadPoolExecutor,
    loss: CustomLoss | None = None,
    share: Share = WHOLE,
) -> dict[str, float]:
    """One AdamW step on one row; its metrics. loss: in the place of the options' own. share: as of `forward`.

    Batches run in parallel, and their gradients are summed in fp64, where their order makes no difference in fp32.
    """
    parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
    row_tokens = sum(s.tokens.trainable for s in row)
    begin = list(accumulate((s.tokens.trainable for s in row), initial=0))

    divergence_T = _divergences(forward, row)
    whole = _whole_row(forward, row, options, loss) if loss or options.kl_penalty_coef > 0 else None

    def loss_and_gradients(batch: Batch) -> tuple[float, tuple[Tensor, ...], Tensor, list[int]]:
        part = [row[i] for i in batch.order]
        new_T, entropy_T = forward(batch)
        tokens = tokens_of(part, new_T.device)
        if whole:
            result = whole.part(new_T, batch.order)
        else:
            result = row_loss(new_T, *tokens[:4], options, row_tokens, tokens.original_T)
        gradients = torch.autograd.grad(result.loss, parameters, allow_unused=True, materialize_grads=True)
        statistics = [new_T.detach(), tokens.old_T, entropy_T, result.ratio_T, result.clipped_T, result.masked_T]
        statistics += [tokens.base_T, tokens.reference_T, tokens.sampled_T]
        return float(result.loss.detach()), gradients, torch.stack(statistics), batch.order

    sums = [torch.zeros_like(p, dtype=_wide(p.device)) for p in parameters]
    total_1, row_ST = torch.zeros(1, dtype=torch.double), torch.zeros(_STATISTICS, row_tokens)
    for part_loss, gradients, statistics_ST, order in pool.map(
        loss_and_gradients, forward.batches([s.tokens for s in row])
    ):
        for sum_, gradient in zip(sums, gradients, strict=True):
            sum_.add_(gradient)
        total_1 += part_loss
        row_ST[:, [t for i in order for t in range(begin[i], begin[i + 1])]] = statistics_ST.cpu()
    *sums, total_1, row_ST = share.sums([*sums, total_1, row_ST])
    for parameter, sum_ in zip(parameters, sums, strict=True):
        parameter.grad = sum_.to(parameter.dtype)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=0.1)
    if norm.isfinite():
        optimizer.step()
    loss_of_row = whole.result.loss.detach() if whole else total_1
    metrics = {"loss": float(loss_of_row), "grad_norm": float(norm), **metrics_of(*row_ST)}
    return metrics if divergence_T.isnan().all() else metrics | {"kl_base": float(divergence_T.nanmean())}


def _logprobs(tokens: TokenSequence) -> list[float]:
    """The recorded logprobs of the trained tokens."""
    return [p for p, trained in zip(tokens.logprobs, tokens.trained, strict=True) if trained]


def _divergences(forward: Forward, row: Row) -> Tensor:
    """The divergence from checkpoint 0 before each trained token of a row; NaN where it is not in the sample."""
    measured = iter(forward.divergences([s.tokens for s in row if s.measured]))
    unknown = [torch.full((s.tokens.trainable,), math.nan) for s in row]
    return torch.cat([next(measured) if s.measured else nan_T for s, nan_T in zip(row, unknown, strict=True)])


def _wide(device: torch.device) -> torch.dtype:
    """What gradients are summed in; Apple's GPUs have no fp64."""
    return torch.float if device.type == "mps" else torch.double


def _whole_row(forward: Forward, row: Row, options: Options, loss: CustomLoss | None) -> WholeRow:
    """The loss of a row by the logprobs of all of it, under the current weights."""
    new_T = torch.cat(forward.logprobs([s.tokens for s in row])).requires_grad_()
    tokens = tokens_of(row, new_T.device)
    if loss:
        result = loss.of_row(new_T, *tokens[:4])
    else:
        result = row_loss(new_T, *tokens[:4], options, reference_T=tokens.reference_T, original_T=tokens.original_T)
    return whole_row(result, new_T, [s.tokens.trainable for s in row])


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
