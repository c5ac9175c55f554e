"""The gradient steps of a training job on this machine: one AdamW step per step and epoch of its task."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import torch
from peft import PeftModel
from torch import Tensor, nn

from rolloutlab.errors import TrainingError
from rolloutlab.objective.options import Options
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.custom_loss import CustomLoss, load_loss
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.loss import step_loss
from rolloutlab.policy.metrics import metrics_of, report_drift
from rolloutlab.policy.model import Adapter, Policy, adapter_parameters, read_adapter, write_adapter
from rolloutlab.policy.packing import Batch
from rolloutlab.policy.progress import Progress
from rolloutlab.policy.reference import adapter_logprobs, base_logprobs, sample
from rolloutlab.policy.share import WHOLE, Share, release_memory
from rolloutlab.policy.steps import Step, WholeStep, recorded, tokens_of, whole_step, with_logprobs
from rolloutlab.policy.task import Callbacks, StepProgress, Task
from rolloutlab.policy.threads import end_helpers
from rolloutlab.policy.token_sequence import TokenSequence

Item = TypeVar("Item")
Result = TypeVar("Result")
_STATISTICS = 10
"""How many statistics a trained token has: those that `metrics_of` takes, and the divergence from checkpoint 0."""


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
    """Train `model` by the steps of a task in each of its epochs; return the state afterwards.

    The same task from the same state gives bit-identical tensors on the same machine, even if it resumes from the steps
    of `progress`.

    Args:
        policy: The policy.
        model: A LoRA copy of the policy.
        start: The state to start from.
        task: The steps, the options and the learning rate of each step.
        callbacks: Called with the metrics of each step, and to know whether to stop.
        reference: The adapter of the reference checkpoint; None is checkpoint 0.
        progress: Keeps finished steps on disk, to resume from; None keeps none.
        share: This process's part of each step in distributed training. The result equals that of one process that
            divides each step into as many parts.

    Raises:
        TrainingError: the loss stopped being a number, or a custom loss fails.
        Cancelled: checked before each batch, and in a custom loss.
    """
    steps, options = task.steps, task.options
    torch.manual_seed(task.seed)
    write_adapter(model, start.adapter)

    def between_batches() -> None:
        callbacks.raise_if_cancelled()
        share.beat()
        if not policy.small:  # for a small policy this takes longer than a batch
            release_memory()

    forward = Forward(policy, model, share=share, between_batches=between_batches)
    state, finished = (progress.read() if progress else None) or (start, [])
    if not finished:
        report_drift(forward, steps, callbacks)
    if options.precalculate_logprobs:
        steps = [_recompute_logprobs(forward, step) for step in steps]
    steps = list(_add_references(forward, model, replace(task, steps=steps), reference, callbacks))
    loss = load_loss(task.loss_source, callbacks.cancelled, callbacks.in_user_code) if task.loss_source else None
    for each in finished:
        callbacks.report("gradient_step", each)
    write_adapter(model, state.adapter)
    optimizer = torch.optim.AdamW(
        adapter_parameters(model).values(), lr=0.0, betas=(0.9, 0.99), weight_decay=options.weight_decay
    )
    _restore(optimizer, model, state.optimizer)
    threads = torch.get_num_threads()  # a new thread starts with the number that any thread has set last
    with ThreadPoolExecutor(policy.workers, "trainer", torch.set_num_threads, (threads,)) as pool:
        for i in range(len(finished), len(task.rates)):
            callbacks.raise_if_cancelled()
            optimizer.param_groups[0]["lr"] = task.rates[i]
            step = steps[i % len(steps)]
            within = StepProgress(callbacks, i, step.trained)
            metrics = _take_step(forward, optimizer, step, options, pool, policy.workers + 1, within, loss, share)
            if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["grad_norm"]):
                hint = "a lower learning_rate or epsilon_high"
                raise TrainingError(f"the loss of step {i} is not a finite number", hint=hint)
            finished.append(task.reported_of({**metrics, "learning_rate": task.rates[i]}))
            callbacks.report("gradient_step", finished[-1])
            if progress and progress.due():
                progress.write(State(read_adapter(model), _read_moments(optimizer, model)), finished)
    optimizer.zero_grad()  # the model outlives the job, and would keep its gradients
    if steps and not forward.logprobs([steps[-1].sequences[0].tokens])[0].isfinite().all():
        raise TrainingError("the weights are no longer finite", hint="a lower learning_rate")
    return State(read_adapter(model), _read_moments(optimizer, model))


def _recompute_logprobs(forward: Forward, step: Step) -> Step:
    """Replace the recorded logprobs of a step by those under the current weights."""
    sequences = [
        replace(s, tokens=with_logprobs(s.tokens, new_T), original_T=recorded(s.tokens))
        for s, new_T in zip(step.sequences, forward.logprobs(step.tokens), strict=True)
    ]
    return replace(step, sequences=sequences)


def _add_references(
    forward: Forward,
    model: PeftModel,
    task: Task,
    reference: Adapter | None,
    callbacks: Callbacks,
) -> Iterator[Step]:
    """Yield the steps with logprobs under the reference of the penalty, and with the sequences of `kl_base` marked.

    `kl_base` is estimated on some sequences, chosen at random from those sampled at temperature 1 and top_p 1. If no
    policy sampled a chosen sequence (fine-tuning data), it gets its logprobs under checkpoint 0 instead of a mark.
    """
    penalised = task.options.kl_penalty_coef > 0
    at_one = [s.at_one for step in task.steps for s in step.sequences]
    picked = sample([i for i, each in enumerate(at_one) if each], task.seed)
    first = 0
    for step in task.steps:
        callbacks.raise_if_cancelled()
        tokens = step.tokens
        measured = {i for i in range(len(tokens)) if first + i in picked}
        learned = {i for i in measured if all(map(math.isnan, _logprobs(tokens[i])))}
        chosen = [i for i in range(len(tokens)) if i in learned or (penalised and reference is None)]
        first += len(tokens)
        base = dict(zip(chosen, base_logprobs(forward, model, [tokens[i] for i in chosen]), strict=True))
        others: list[Tensor] | dict[int, Tensor] = {}
        if penalised:
            others = base if reference is None else adapter_logprobs(forward, model, reference, tokens)
        sequences = [
            replace(
                s,
                measured=i in measured - learned,
                base_T=base.get(i) if i in learned else None,
                reference_T=others[i] if penalised else None,
            )
            for i, s in enumerate(step.sequences)
        ]
        yield replace(step, sequences=sequences)


def _take_step(
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    step: Step,
    options: Options,
    pool: ThreadPoolExecutor,
    most: int,
    within: StepProgress,
    loss: CustomLoss | None = None,
    share: Share = WHOLE,
) -> dict[str, float]:
    """Take one AdamW step; return its metrics.

    Batches run in parallel, and their gradients are summed in order and in fp64, so that the result in fp32 does not
    depend on how the step is divided into batches.

    Args:
        forward: Computes logprobs and their gradients.
        optimizer: AdamW over the adapter's parameters.
        step: The sequences of the step.
        options: The options of the job.
        pool: Threads for the batches.
        most: The largest number of batches computed or waiting at a time, so that memory does not grow with the step.
        within: Told how many tokens of the step are done.
        loss: A custom loss, instead of the one of the options.
        share: This process's part of the step, the same as that of `forward`.
    """
    parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
    offsets = list(accumulate((s.tokens.trainable for s in step.sequences), initial=0))
    whole = _compute_whole_step(forward, step, options, loss) if loss or options.kl_penalty_coef > 0 else None
    end_helpers()  # those of this thread; from here on it only waits for the threads of the pool
    base = forward.states_of_base(step.tokens, [i for i, s in enumerate(step.sequences) if s.measured], pool)

    def loss_and_gradients(batch: Batch) -> tuple[float, tuple[Tensor, ...], Tensor, list[int]]:
        part = [step.sequences[i] for i in batch.order]
        new_T, entropy_T, divergence_T = forward(batch, base)
        tokens = tokens_of(part, new_T.device)
        if whole:
            result = whole.part(new_T, batch.order)
        else:
            result = step_loss(new_T, *tokens[:4], options, step.divisor, tokens.original_T)
        gradients = torch.autograd.grad(result.loss, parameters, allow_unused=True, materialize_grads=True)
        statistics = [new_T.detach(), tokens.old_T, entropy_T, result.ratio_T, result.clipped_T, result.masked_T]
        statistics += [tokens.base_T, tokens.reference_T, tokens.sampled_T, divergence_T]
        return float(result.loss.detach()), gradients, torch.stack(statistics), batch.order

    sums = [torch.zeros_like(p, dtype=_sum_dtype(p.device)) for p in parameters]
    total_1, step_ST = torch.zeros(1, dtype=torch.double), torch.zeros(_STATISTICS, step.trained)
    for part_loss, gradients, statistics_ST, order in _map_in_order(
        pool, loss_and_gradients, forward.batches(step.tokens), most
    ):
        for sum_, gradient in zip(sums, gradients, strict=True):
            sum_.add_(gradient)
        total_1 += part_loss
        step_ST[:, [t for i in order for t in range(offsets[i], offsets[i + 1])]] = statistics_ST.cpu()
        within.add(statistics_ST.shape[1] * share.size)
    *sums, total_1, step_ST = share.sums([*sums, total_1, step_ST])
    for parameter, sum_ in zip(parameters, sums, strict=True):
        parameter.grad = sum_.to(parameter.dtype)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=options.max_grad_norm or math.inf)
    if norm.isfinite():
        optimizer.step()
    loss_of_step = whole.result.loss.detach() if whole else total_1
    *of_metrics, divergence_T = step_ST
    metrics = {"loss": float(loss_of_step), "grad_norm": float(norm), **metrics_of(*of_metrics)}
    return metrics if divergence_T.isnan().all() else metrics | {"kl_base": float(divergence_T.nanmean())}


def _map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], most: int
) -> Iterator[Result]:
    """Yield the results in order; at most `most` are computed or waiting, because each holds a batch and gradients."""
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) == most:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for each in pending:
            each.cancel()


def _logprobs(tokens: TokenSequence) -> list[float]:
    """Return the recorded logprobs of the trained tokens."""
    return [p for p, trained in zip(tokens.logprobs, tokens.trained, strict=True) if trained]


def _sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which gradients are summed. Apple's GPUs have no fp64."""
    return torch.float if device.type == "mps" else torch.double


def _compute_whole_step(forward: Forward, step: Step, options: Options, loss: CustomLoss | None) -> WholeStep:
    """Compute the loss of a step at once, from all its logprobs under the current weights.

    A custom loss and the KL penalty need all of them, which batches alone do not have.
    """
    new_T = torch.cat(forward.logprobs(step.tokens)).requires_grad_()
    tokens = tokens_of(step.sequences, new_T.device)
    if loss:
        result = loss.of_step(new_T, *tokens[:4])
    else:
        result = step_loss(new_T, *tokens[:4], options, step.divisor, tokens.original_T, tokens.reference_T)
    return whole_step(result, new_T, [each.trainable for each in step.tokens])


def _read_moments(optimizer: torch.optim.Optimizer, model: PeftModel) -> dict[str, Tensor]:
    """Copy AdamW's state to the CPU, under the adapter's names."""
    states = {name: optimizer.state.get(each, {}) for name, each in adapter_parameters(model).items()}
    moments = [(f"{name}.{moment}", value) for name, state in states.items() for moment, value in state.items()]
    return {name: value.detach().to("cpu", copy=True) for name, value in moments}


def _restore(optimizer: torch.optim.Optimizer, model: PeftModel, moments: dict[str, Tensor]) -> None:
    """Load what `_read_moments` has returned into an optimizer. Parameters without a state start anew."""
    for name, parameter in adapter_parameters(model).items():
        if f"{name}.step" in moments:
            optimizer.state[parameter] = {
                "step": moments[f"{name}.step"].clone(),
                "exp_avg": moments[f"{name}.exp_avg"].to(parameter.device, copy=True),
                "exp_avg_sq": moments[f"{name}.exp_avg_sq"].to(parameter.device, copy=True),
            }
