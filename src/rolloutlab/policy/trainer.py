"""One training job, top to bottom: trajectories become sequences, sequences rows, and each row one optimiser step."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import pad

from rolloutlab.errors import Cancelled, RenderingError, TrainingError
from rolloutlab.objective.advantages import Member
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import Preflight, preflight, sampling_warnings
from rolloutlab.policy.loss import RowLoss, row_loss
from rolloutlab.policy.model import Adapter, Policy, adapter_parameters, read_adapter, write_adapter
from rolloutlab.policy.rendering import Renderer, TokenSequence
from rolloutlab.wire.training import CreateTrainingJob
from rolloutlab.wire.trajectories import Trajectory, TrajectoryGroup

ROW_TOKENS = 1024
"""A row holds whole sequences up to this many tokens; a longer sequence is a row by itself."""

_LARGEST = 1e18

Report = Callable[[str, dict[str, object]], None]
"""Called with the type and the data of each event as it happens."""


@dataclass(frozen=True)
class State:
    """All that a checkpoint holds: the adapter, and AdamW's moments and step counts under the adapter's names."""

    adapter: Adapter
    optimizer: dict[str, Tensor]


@dataclass(frozen=True)
class Weighted:
    """A sequence that trains, with the advantage and the weight of its trajectory."""

    tokens: TokenSequence
    advantage: float
    weight: float


Row = list[Weighted]


def train(
    policy: Policy,
    model: PeftModel,
    start: State,
    job: CreateTrainingJob,
    step: int,
    report: Report,
    cancelled: Callable[[], bool],
) -> State:
    """Train `model`, a carrier of the policy, from the state of checkpoint `step`; return the state after the job.

    The same job from the same state gives bit-identical tensors on the same machine.

    Raises:
        TrainingError: a trajectory cannot be rendered as it was sampled, or the loss stopped being a number.
        Cancelled: `cancelled()` became true; checked before each row.
    """
    options = _in_fp32(settle(job.experimental_config))
    learning_rate = policy.learning_rate if options.learning_rate is None else options.learning_rate
    sequences = _render(job.trajectory_groups, Renderer(policy.tokenizer, policy.end_ids, policy.vocabulary))
    check = _check(job.trajectory_groups, sequences, policy.context, options)
    rows = list(pack(_weighted(check, sequences, policy.context)))
    report("training_started", {"num_sequences": len(rows), "learning_rate": learning_rate, "step": step})
    report("preflight", _preflight_data(check, options))

    torch.manual_seed(_seed(job, step))
    write_adapter(model, start.adapter)
    optimizer = torch.optim.AdamW(
        adapter_parameters(model).values(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1
    )
    _restore(optimizer, model, start.optimizer)
    recorded = [_old_logprobs(model, row) for row in rows] if options.precalculate_logprobs else [None] * len(rows)
    constant = _job_numbers(job.trajectory_groups, check)
    for i, (row, old_T) in enumerate(zip(rows, recorded, strict=True)):
        if cancelled():
            raise Cancelled
        numbers = _optimise(model, optimizer, row, old_T, options)
        if not math.isfinite(numbers["loss"]) or not math.isfinite(numbers["grad_norm"]):
            raise TrainingError(
                f"the loss of row {i} is not a finite number", hint="a lower learning_rate or epsilon_high"
            )
        report("gradient_step", _finite({**numbers, "learning_rate": learning_rate, **constant}))
    if rows and not _old_logprobs(model, rows[-1]).isfinite().all():
        raise TrainingError("the weights stopped being finite numbers", hint="a lower learning_rate")
    return State(read_adapter(model), _moments(optimizer, model))


def _in_fp32(options: Options) -> Options:
    """The options with numbers whose products stay finite in fp32; beyond these bounds more makes no difference."""
    bounded: dict[str, Any] = {
        name: min(max(value, -_LARGEST), _LARGEST) for name, value in vars(options).items() if isinstance(value, float)
    }
    return replace(options, **bounded)


def pack(sequences: Sequence[Weighted], budget: int = ROW_TOKENS) -> Iterator[Row]:
    """Rows of whole sequences, in order, each of at most `budget` tokens or of one sequence."""
    row: Row = []
    for sequence in sequences:
        if row and sum(len(s.tokens) for s in row) + len(sequence.tokens) > budget:
            yield row
            row = []
        row.append(sequence)
    if row:
        yield row


def _render(groups: Sequence[TrajectoryGroup], renderer: Renderer) -> list[list[list[TokenSequence]]]:
    """The histories of each trajectory of each group as token sequences."""
    return [
        [_render_one(trajectory, _name(g, i), renderer) for i, trajectory in enumerate(group.trajectories)]
        for g, group in enumerate(groups)
    ]


def _render_one(trajectory: Trajectory, name: str, renderer: Renderer) -> list[TokenSequence]:
    try:
        return [renderer.sequence(history) for history in trajectory.histories()]
    except RenderingError as error:
        raise TrainingError(f"{name}: {error}") from error


def _name(group: int, trajectory: int) -> str:
    return f"group {group}, trajectory {trajectory}"


def _check(
    groups: Sequence[TrajectoryGroup], sequences: list[list[list[TokenSequence]]], context: int, options: Options
) -> Preflight:
    members = [
        [
            Member(
                _name(g, i),
                trajectory.reward,
                tuple(s.trainable for s in histories if len(s) <= context),
                too_long=any(len(s) > context for s in histories),
            )
            for i, (trajectory, histories) in enumerate(zip(group.trajectories, trajectories, strict=True))
        ]
        for g, (group, trajectories) in enumerate(zip(groups, sequences, strict=True))
    ]
    warnings = sampling_warnings(t for group in groups for t in group.trajectories)
    warnings += [
        f"{m.name}: a history longer than the policy's context is left out"
        for group in members
        for m in group
        if m.too_long and m.tokens
    ]
    return preflight(members, options, warnings=warnings)


def _weighted(check: Preflight, sequences: list[list[list[TokenSequence]]], context: int) -> list[Weighted]:
    histories_of = (histories for group in sequences for histories in group)
    return [
        Weighted(history, share.advantage, share.weight)
        for share, histories in zip(check.all_shares(), histories_of, strict=True)
        if share.reason is None
        for history in histories
        if history.trainable and len(history) <= context
    ]


def _optimise(
    model: PeftModel, optimizer: torch.optim.Optimizer, row: Row, old_T: Tensor | None, options: Options
) -> dict[str, float]:
    """One step of AdamW on one row; what was seen, as numbers."""
    new_T, entropy_T = _logprobs(model, row)
    if old_T is None:
        old_T = _recorded(row).to(new_T.device)
    outcome = row_loss(new_T, old_T, *_per_token(row, new_T.device), options)
    optimizer.zero_grad(set_to_none=True)
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm=0.1)
    if norm.isfinite():
        optimizer.step()
    return _numbers(outcome, new_T.detach(), old_T, entropy_T, float(norm))


def _logprobs(model: PeftModel, row: Row) -> tuple[Tensor, Tensor]:
    """Logprob of each trained token of the row, with gradients, and entropy of its distribution, without; in fp32."""
    longest = max(len(s.tokens) for s in row)
    ids_BT = torch.stack([pad(torch.tensor(s.tokens.ids), (0, longest - len(s.tokens))) for s in row])
    mask_BT = torch.stack([pad(torch.ones(len(s.tokens), dtype=torch.long), (0, longest - len(s.tokens))) for s in row])
    trained_BT = torch.stack([pad(torch.tensor(s.tokens.trained), (0, longest - len(s.tokens))) for s in row])
    ids_BT, mask_BT, trained_BT = (t.to(model.device) for t in (ids_BT, mask_BT, trained_BT))
    logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    all_TV = logits_BTV[:, :-1][trained_BT[:, 1:]].float().log_softmax(-1)
    with torch.no_grad():
        entropy_T = -(all_TV.exp() * all_TV).sum(-1)
    return all_TV.gather(1, ids_BT[trained_BT][:, None])[:, 0], entropy_T


@torch.no_grad()
def _old_logprobs(model: PeftModel, row: Row) -> Tensor:
    return _logprobs(model, row)[0]


def _recorded(row: Row) -> Tensor:
    """The logprobs that the sampler recorded for the row's trained tokens."""
    return torch.tensor([p for s in row for p, t in zip(s.tokens.logprobs, s.tokens.trained, strict=True) if t])


def _per_token(row: Row, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Advantage, weight and index of the history of each trained token of the row."""
    count_H = torch.tensor([s.tokens.trainable for s in row])
    advantage_H = torch.tensor([s.advantage for s in row], dtype=torch.float32)
    weight_H = torch.tensor([s.weight for s in row], dtype=torch.float32)
    history_H = torch.arange(len(row))
    advantage_T, weight_T, history_T = (
        x.repeat_interleave(count_H).to(device) for x in (advantage_H, weight_H, history_H)
    )
    return advantage_T, weight_T, history_T


def _numbers(outcome: RowLoss, new_T: Tensor, old_T: Tensor, entropy_T: Tensor, norm: float) -> dict[str, float]:
    probabilities = torch.stack([old_T.exp(), new_T.exp()]).double()
    return {
        "loss": float(outcome.loss.detach()),
        "grad_norm": norm,
        "entropy": float(entropy_T.mean()),
        "ratio_mean": float(outcome.ratio_T.mean()),
        "ratio_max": float(outcome.ratio_T.max()),
        "clipped": float(outcome.clipped_T.float().mean()),
        "masked": float(outcome.masked_T.float().mean()),
        "old_new_correlation": _correlation(*probabilities),
        "row_tokens": float(len(new_T)),
    }


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else math.nan


def _job_numbers(groups: Sequence[TrajectoryGroup], check: Preflight) -> dict[str, float]:
    rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
    return {
        "reward": fmean(rewards) if rewards else math.nan,
        "reward_std": pstdev(rewards) if rewards else math.nan,
        "groups_submitted": len(groups),
        "groups_trainable": check.trainable_groups,
        "trainable_tokens": check.trainable_tokens,
    }


def _finite(numbers: dict[str, float]) -> dict[str, object]:
    """A statistic that is undefined is left out: JSON has no NaN."""
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def _preflight_data(check: Preflight, options: Options) -> dict[str, object]:
    return {
        "trajectories": check.trajectories,
        "trainable_trajectories": check.trainable_trajectories,
        "groups": len(check.shares),
        "trainable_groups": check.trainable_groups,
        "trainable_tokens": check.trainable_tokens,
        "reasons": check.reasons(),
        "skipped": {str(reason): list(names) for reason, names in check.skipped.items()},
        "warnings": list(check.warnings),
        "unknown_options": list(options.unknown),
    }


def _seed(job: CreateTrainingJob, step: int) -> int:
    """From what the job asks, not from which model it is for: the same job on a copy of the model gives the same."""
    digest = hashlib.sha256(str(step).encode())
    for group in job.trajectory_groups:
        digest.update(group.to_json().encode())
    digest.update(job.experimental_config.to_json().encode() if job.experimental_config else b"")
    return int.from_bytes(digest.digest()[:8])


def _moments(optimizer: torch.optim.Optimizer, model: PeftModel) -> dict[str, Tensor]:
    return {
        f"{name}.{moment}": value.detach().to("cpu", copy=True)
        for name, parameter in adapter_parameters(model).items()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def _restore(optimizer: torch.optim.Optimizer, model: PeftModel, moments: dict[str, Tensor]) -> None:
    for name, parameter in adapter_parameters(model).items():
        if f"{name}.step" in moments:
            optimizer.state[parameter] = {
                "step": moments[f"{name}.step"].clone(),
                "exp_avg": moments[f"{name}.exp_avg"].to(parameter.device, copy=True),
                "exp_avg_sq": moments[f"{name}.exp_avg_sq"].to(parameter.device, copy=True),
            }
