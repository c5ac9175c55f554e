"""A training job, against the formulas of docs/training_reference.md worked out one sequence at a time."""

import copy
import json
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from random import Random
from statistics import fmean, pstdev
from typing import Any
from uuid import UUID

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from rolloutlab.api.wire.training import CreateTrainingJob, ExperimentalTrainingConfig
from rolloutlab.api.wire.trajectories import Trajectory
from rolloutlab.errors import Cancelled, TrainingError
from rolloutlab.policy import forward
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.loss import step_loss
from rolloutlab.policy.model import (
    Adapter,
    Policy,
    adapter_parameters,
    base_of,
    load_policy,
    read_adapter,
    write_adapter,
)
from rolloutlab.policy.task import Callbacks, StepProgress, read_task
from rolloutlab.policy.trainer import take_steps
from rolloutlab.settings import ModelSettings
from tests.decoding import decode

Event = tuple[str, dict[str, Any]]
MODEL_ID = UUID(int=1)


@pytest.fixture(scope="module")
def start(policy, adapter_of) -> State:
    assert policy.tokenizer.decode(range(4, 98)) == text(range(4, 98))
    return State(adapter_of(policy), {})


@dataclass(frozen=True)
class Turn:
    """A question, the sampled ids of its answer, and the logprobs recorded with them."""

    question: str
    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Sampled:
    """A trajectory to be: its reward and its histories; `silent` has no logprobs."""

    reward: float
    histories: list[list[Turn]]
    silent: bool = False


def turn(random: Random, tokens: int = 40, question: str = "why?") -> Turn:
    """An answer of random tokens, whose recorded logprobs are near those of an untrained model."""
    ids = [random.randrange(4, 98) for _ in range(tokens - 1)] + [1]
    return Turn(question, ids, [-math.log(260) + random.gauss(0, 0.4) for _ in ids])


def text(ids: Iterable[int]) -> str:
    """What the tiny tokenizer reads in ids: 4 to 97 are the visible characters of ASCII, 1 ends a turn."""
    return "".join(chr(29 + i) for i in ids if i != 1)


def sampled(random: Random, reward: float, *tokens_H: int, **overrides: Any) -> Sampled:
    """A trajectory with one history per number: a single answer of so many tokens."""
    return Sampled(reward, [[turn(random, tokens)] for tokens in tokens_H], **overrides)


def history(turns: list[Turn], silent: bool = False) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for each in turns:
        content = [
            {"token": "??", "token_id": i, "logprob": p, "top_logprobs": []}
            for i, p in zip(each.ids, each.logprobs, strict=True)
        ]
        message = {"role": "assistant", "content": text(each.ids)}
        choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
        items += [{"role": "user", "content": each.question}, choice | ({"logprobs": None} if silent else {})]
    return items


def trajectory(each: Sampled, **overrides: Any) -> dict[str, Any]:
    first, *others = [{"messages_and_choices": history(turns, each.silent)} for turns in each.histories]
    return first | {"reward": each.reward, "additional_histories": others} | overrides


def as_job(groups: list[list[Sampled]], **options: Any) -> CreateTrainingJob:
    body = {
        "model_id": MODEL_ID,
        "trajectory_groups": [{"trajectories": [trajectory(each) for each in group]} for group in groups],
        "experimental_config": options,
    }
    return CreateTrainingJob.model_validate(body)


def train(
    policy: Policy,
    model: PeftModel,
    start: State,
    groups: Any,
    config: ExperimentalTrainingConfig | None,
    step: int,
    callbacks: Callbacks,
    reference: Adapter | None = None,
    loss_source: str | None = None,
) -> State:
    """A job from its trajectories to the state after it."""
    task = read_task(base_of(policy), groups, config, step, callbacks, loss_source=loss_source)
    return take_steps(policy, model, start, task, callbacks, reference)


def run(
    policy: Policy,
    state: State,
    job: CreateTrainingJob,
    cancelled: Callable[[], bool] = lambda: False,
    **overrides: Any,
) -> tuple[State, list[Event]]:
    events: list[Event] = overrides.pop("events", [])
    model = overrides.pop("model", None) or policy.lora_copy()
    step = overrides.pop("step", 3)
    callbacks = Callbacks(lambda kind, data: events.append((kind, data)), cancelled, progress_seconds=math.inf)
    return train(policy, model, state, *parts(job), step, callbacks, **overrides), events


def parts(job: CreateTrainingJob) -> tuple[Iterator[Iterator[Trajectory]], ExperimentalTrainingConfig | None]:
    """A job as a trainer wants it: groups that can be read once, and the options."""
    return (iter(group.trajectories) for group in job.trajectory_groups), job.experimental_config


def steps(events: list[Event]) -> list[dict[str, Any]]:
    return [data for kind, data in events if kind == "gradient_step"]


def reported(events: list[Event]) -> dict[str, Any]:
    return next(data for kind, data in events if kind == "preflight")


def reasons(events: list[Event]) -> dict[str, int]:
    return reported(events)["reasons"]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit by bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: Adapter, b: Adapter) -> float:
    return math.sqrt(sum(float((a[name] - b[name]).square().sum()) for name in a))


def small_job(seed: int = 0, **options: Any) -> CreateTrainingJob:
    """Four answers, one step."""
    random = Random(seed)
    return as_job([[sampled(random, reward, 20) for reward in (1.0, 0.0, 0.25, 0.0)]], **options)


def large_groups(seed: int = 0) -> list[list[Sampled]]:
    """Five groups that train, which are two steps, and most of what a job can hold."""
    random = Random(seed)
    talk = [turn(random, 20), turn(random, 9, "and?"), turn(random, 13, "so?")]
    long_talk = [turn(random, 60), turn(random, 60, "more?")]
    return [
        [sampled(random, reward, 30 + i) for i, reward in enumerate((1.0, 0.0, -2.0, 0.5, 0.5, 0.25))],
        [
            Sampled(0.9, [talk]),
            sampled(random, 0.1, 50, 20, 7),
            sampled(random, 0.3, 1),
            sampled(random, 0.7, 30, silent=True),
        ],
        [sampled(random, 0.4, 44) for _ in range(3)],
        [sampled(random, 1.0, 40), sampled(random, 0.5, 41), sampled(random, 0.0, 42, 90)],
        [
            Sampled(5.0, [long_talk]),
            Sampled(4.0, [long_talk, [turn(random, 12)]]),
            sampled(random, 2.0, 33),
        ],
        [sampled(random, float(i % 3 == 0), 80 + i) for i in range(14)],
    ]


@dataclass(frozen=True)
class Plain:
    """A sequence as the naive trainer wants it: positions that train, their recorded logprobs, A (or of each) and w."""

    ids: list[int]
    at: list[int]
    old: list[float]
    advantage: Any = 0.0
    weight: float = 0.0


def plain(policy: Policy, turns: list[Turn]) -> Plain:
    ids = [0]
    at: list[int] = []
    for each in turns:
        ids += policy.tokenizer(f"[ask]user {each.question}[tell]", add_special_tokens=False)["input_ids"]
        at += range(len(ids), len(ids) + len(each.ids))
        ids += each.ids
    return Plain(ids, at, [p for each in turns for p in each.logprobs])


@dataclass(frozen=True)
class PlainStep:
    """The sequences of an optimiser step, and the divisor of its loss."""

    sequences: list[Plain]
    divisor: float


def plain_steps(policy: Policy, groups: list[list[Sampled]], balance: float = 0.0, **options: Any) -> list[PlainStep]:
    """From rewards to token weights, then steps and aggregation, as docs/training_reference.md has them."""
    aggregation = options.get("loss_aggregation", "sequence_mean")
    kept: list[list[tuple[float, list[Plain]]]] = []
    members, tokens = [], []
    for group in groups:
        rewards = [each.reward for each in group]
        trained: list[tuple[float, list[Plain]]] = []
        counts = 0
        for each in group:
            advantage = each.reward - fmean(rewards)
            if options.get("scale_rewards", True):
                advantage /= pstdev(rewards) + 1e-6
            sequences = [] if each.silent else [plain(policy, turns) for turns in each.histories]
            sequences = [s for s in sequences if len(s.ids) <= policy.context]
            counts += sum(len(s.at) for s in sequences)
            if abs(advantage) > 1e-9 and sequences:
                trained.append((advantage, sequences))
        if trained:
            kept.append(trained)
            members.append(len(group))
            tokens.append(counts)
    every = [each for group in kept for each in group]
    lengths = [sum(len(s.at) for s in sequences) for _, sequences in every]
    weights = [1 / (n + 1e-6) if aggregation == "sequence_mean" else 1.0 for n in lengths]
    mean_weight = sum(w * n for w, n in zip(weights, lengths, strict=True)) / sum(lengths)
    weights = [w / mean_weight for w in weights]
    advantages = [a * (1 - balance) if a <= 0 else a for a, _ in every]
    size = sum(abs(a) * w * n for a, w, n in zip(advantages, weights, lengths, strict=True)) / sum(lengths)
    weighed = iter([(a / size, w) for a, w in zip(advantages, weights, strict=True)])
    most = options.get("groups_per_step", 4) or len(kept)
    number = math.ceil(len(kept) / most)
    made, begin = [], 0
    for i in range(number):
        end = begin + len(kept) // number + (i < len(kept) % number)
        sequences = []
        for _, each in (member for group in kept[begin:end] for member in group):
            a, w = next(weighed)
            sequences += [replace(s, advantage=a, weight=w) for s in each]
        divisor = {
            "sequence_mean": sum(members[begin:end]) * sum(lengths) / len(lengths),
            "token_mean": sum(tokens[begin:end]),
            "constant": sum(members[begin:end]) * options.get("loss_scale_factor", 1.0),
        }[aggregation]
        made.append(PlainStep(sequences, divisor))
        begin = end
    return made * options.get("epochs", 1)


def plain_loss(model: Any, step: PlainStep, ppo: bool, level: str) -> tuple[Tensor, dict[str, float]]:
    """The loss of one step, as docs/training_reference.md has it."""
    loss, tokens, ratios, entropies, divergences = torch.zeros(()), 0, [], [], []
    for s in step.sequences:
        all_TV = model(input_ids=torch.tensor([s.ids])).logits[0].log_softmax(-1)
        seen_TV = all_TV.detach()
        new_T = torch.stack([all_TV[t - 1, s.ids[t]] for t in s.at])
        entropies += [float(-(seen_TV[t - 1].exp() * seen_TV[t - 1]).sum()) for t in s.at]
        delta_T = new_T - torch.tensor(s.old)
        divergences += [math.exp(delta) - 1 - delta for delta in delta_T.tolist()]
        ratio_T = delta_T.exp() if level == "token" else delta_T.mean().exp().expand(len(s.at))
        low, high = (0.8, 1.2) if ppo else (0.0, 5.0)
        a = s.advantage
        if ppo:
            loss_T = -torch.minimum(ratio_T * a, ratio_T.clamp(low, high) * a)
        else:
            loss_T = -ratio_T.detach().clamp(low, high) * a * new_T
        loss = loss + s.weight * loss_T.sum()
        tokens += len(s.at)
        ratios += ratio_T.tolist()
    numbers = {
        "entropy": fmean(entropies),
        "ratio_mean": fmean(ratios),
        "ratio_max": max(ratios),
        "kl": fmean(divergences),
        "row_tokens": tokens,
    }
    return loss / step.divisor, numbers


def naive(
    policy: Policy,
    start: State,
    jobs: list[list[list[Sampled]]],
    ppo: bool = False,
    level: str = "token",
    balance: float = 0.0,
    **options: Any,
) -> tuple[Adapter, list[dict[str, float]]]:
    """Jobs one after the other, with one optimiser over all of them; the adapter at the end, and numbers per step."""
    made = [step for groups in jobs for step in plain_steps(policy, groups, balance, **options)]
    return naive_of_steps(policy, start, made, ppo, level, **options)


def naive_of_steps(
    policy: Policy, start: State, made: list[PlainStep], ppo: bool = False, level: str = "token", **options: Any
) -> tuple[Adapter, list[dict[str, float]]]:
    model = policy.lora_copy()
    write_adapter(model, start.adapter)
    parameters = list(adapter_parameters(model).values())
    decay, most = options.get("weight_decay", 0.1), options.get("max_grad_norm", 1.0) or math.inf
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.99), weight_decay=decay)
    seen = []
    for step in made:
        loss, numbers = plain_loss(model, step, ppo, level)
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))
        for p in parameters:
            p.grad *= min(1.0, most / (norm + 1e-6))
        optimizer.step()
        seen.append(numbers | {"loss": float(loss.detach()), "grad_norm": norm})
    return read_adapter(model), seen


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale_rewards": False},
        {"advantage_balance": 0.3},
        {"ppo": True, "importance_sampling_level": "sequence"},
        {"loss_aggregation": "token_mean"},
        {"loss_aggregation": "constant", "loss_scale_factor": 40.0, "max_grad_norm": 0},
        {"groups_per_step": 0},
        {"groups_per_step": 2, "epochs": 2, "weight_decay": 0.0, "max_grad_norm": 0.05},
    ],
    ids=str,
)
def test_a_job_of_many_kinds_is_the_maths_page_worked_out_one_sequence_at_a_time(policy, start, options):
    expected_adapter, expected = naive(
        policy,
        start,
        [large_groups()],
        level=options.get("importance_sampling_level", "token"),
        balance=options.get("advantage_balance", 0.0),
        **options,
    )
    end, events = run(policy, start, as_job(large_groups(), **options))
    number = {0: 1, 2: 3, 4: 2}[options.get("groups_per_step", 4)] * options.get("epochs", 1)
    assert len(steps(events)) == len(expected) == number
    for found, wanted in zip(steps(events), expected, strict=True):
        assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert steps(events)[0]["loss"] == pytest.approx(expected[0]["loss"], abs=1e-6)
    moved = distance(start.adapter, expected_adapter)
    assert moved > 0.1
    assert distance(end.adapter, expected_adapter) < 1e-2 * moved


def test_jobs_in_a_row_are_one_run_of_the_optimiser(policy, start):
    random = Random(0)
    groups = [[[sampled(random, reward, 20) for reward in (1.0, 0.0)]] for _ in range(3)]
    expected_adapter, _ = naive(policy, start, groups)
    state = start
    for step, group in enumerate(groups):
        state, _ = run(policy, state, as_job(group), step=step)
    assert distance(state.adapter, expected_adapter) < 1e-2 * distance(start.adapter, expected_adapter)
    assert {float(t) for name, t in state.optimizer.items() if name.endswith(".step")} == {3.0}


def test_a_state_without_the_optimisers_memory_goes_another_way(policy, start):
    first, _ = run(policy, start, small_job(0))
    after, _ = run(policy, first, small_job(1))
    forgetful, _ = run(policy, State(first.adapter, {}), small_job(1))
    assert distance(after.adapter, forgetful.adapter) > 0.05 * distance(after.adapter, first.adapter)


@pytest.mark.parametrize(("options", "norm"), [({}, 1.0), ({"max_grad_norm": 0.1}, 0.1), ({"max_grad_norm": 0}, None)])
def test_the_optimisers_memory_is_of_betas_0_9_and_0_99_and_of_the_clipped_gradient(policy, start, options, norm):
    end, events = run(policy, start, small_job(**options))
    before = steps(events)[0]["grad_norm"]
    assert before > 1.1
    means = {name: t for name, t in end.optimizer.items() if name.endswith(".exp_avg")}
    assert len(means) == len(start.adapter)
    assert math.sqrt(sum(float(t.square().sum()) for t in means.values())) == pytest.approx(
        0.1 * (norm or before), rel=1e-3
    )
    for name, mean in means.items():
        # after one step, (1 - 0.9)·gradient beside (1 - 0.99)·gradient²
        assert torch.allclose(end.optimizer[f"{name}_sq"], mean.square(), rtol=1e-3, atol=0)


def test_a_factor_of_the_loss_changes_nothing_while_gradients_are_longer_than_their_bound(policy, start, monkeypatch):
    def adapter_of_jobs(factor):
        def scaled(*given):
            found = step_loss(*given)
            return replace(found, loss=found.loss * factor)

        monkeypatch.setattr("rolloutlab.policy.trainer.step_loss", scaled)
        state, norms = start, []
        for seed in range(3):
            state, events = run(policy, state, small_job(seed, max_grad_norm=0.1))
            norms += [data["grad_norm"] for data in steps(events)]
        return state.adapter, norms

    (plain, norms), (tenfold, _), (tiny, small) = map(adapter_of_jobs, (1.0, 10.0, 1e-4))
    assert min(norms) > 0.1 > max(small)

    def apart(one, other):
        change = sum(float((other[name] - start.adapter[name]).square().sum()) for name in other)
        return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in other) / change)

    assert apart(tenfold, plain) < 1e-3
    assert apart(tiny, plain) > 1e-2  # below the bound, a gradient's own size counts beside that of other steps


def test_a_step_moves_every_weight_by_at_most_the_learning_rate_and_the_decay(policy, start):
    end, _ = run(policy, start, small_job(learning_rate=1e-4))
    for name, before in start.adapter.items():
        assert (end.adapter[name] - before * (1 - 1e-5)).abs().max() <= 1.01e-4


def test_the_same_job_from_the_same_state_gives_the_same_bits(policy, start):
    used = policy.lora_copy()
    state, _ = run(policy, start, small_job(7), model=used)
    job = as_job(large_groups())
    torch.manual_seed(1)
    first, first_events = run(policy, state, job)
    torch.manual_seed(2)
    second, second_events = run(policy, state, job, model=used)
    assert same(first.adapter, second.adapter)
    assert same(first.optimizer, second.optimizer)
    assert first_events == second_events


def test_training_leaves_the_state_it_started_from_as_it_was(policy, start):
    state, _ = run(policy, start, small_job(0))
    copied = State(
        {name: t.clone() for name, t in state.adapter.items()}, {name: t.clone() for name, t in state.optimizer.items()}
    )
    model = policy.lora_copy()
    after, _ = run(policy, state, small_job(1), model=model)
    kept = {name: t.clone() for name, t in after.adapter.items()}
    run(policy, after, small_job(2), model=model)
    assert same(state.adapter, copied.adapter)
    assert same(state.optimizer, copied.optimizer)
    assert same(after.adapter, kept)


def test_the_base_is_never_changed(policy, start):
    before = {name: t.clone() for name, t in policy.base.state_dict().items()}
    run(policy, start, as_job(large_groups()))
    assert same(dict(policy.base.state_dict()), before)
    assert not any(p.requires_grad or p.grad is not None for p in policy.base.parameters())


def test_a_rewarded_answer_becomes_more_likely_and_the_other_less(policy, start):
    random = Random(0)
    good, bad = sampled(random, 1.0, 20), sampled(random, 0.0, 20)
    end, _ = run(policy, start, as_job([[good, bad]]))
    model = policy.lora_copy()

    def logprob(state: State, each: Sampled) -> float:
        write_adapter(model, state.adapter)
        s = plain(policy, each.histories[0])
        all_TV = model(input_ids=torch.tensor([s.ids])).logits[0].log_softmax(-1)
        return sum(float(all_TV[t - 1, s.ids[t]].detach()) for t in s.at)

    assert logprob(end, good) > logprob(start, good)
    assert logprob(end, bad) < logprob(start, bad)


def test_fresh_data_has_a_ratio_of_1_at_the_first_step(policy, start):
    prompt = policy.tokenizer("<s>[ask]user why?[tell]", add_special_tokens=False)["input_ids"]
    model = policy.lora_copy()
    write_adapter(model, start.adapter)
    rows = decode(
        model, [CompletionRequest(tuple(prompt), 20 + index, index=index) for index in range(6)], policy.end_ids
    )
    group = [Sampled(i % 3, [[Turn("why?", row.tokens, row.logprobs)]]) for i, row in enumerate(rows)]
    _, events = run(policy, start, as_job([group]), model=model)
    [numbers] = steps(events)
    assert numbers["ratio_mean"] == pytest.approx(1, abs=1e-3)
    assert numbers["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert numbers["old_new_correlation"] == pytest.approx(1, abs=1e-3)
    assert (numbers["clipped"], numbers["masked"]) == (0, 0)


def test_in_bf16_fresh_data_has_a_mean_ratio_near_1_at_the_first_step(tiny_policy, adapter_of):
    policy = load_policy(str(tiny_policy), ModelSettings(dtype="bfloat16", device="cpu"))
    for weight in policy.base.parameters():
        if weight.dim() > 1:
            weight.data.mul_(4)  # as `emphatic` does
    prompt = policy.tokenizer("<s>[ask]user why?[tell]", add_special_tokens=False)["input_ids"]
    start = State(adapter_of(policy), {})
    requests = [CompletionRequest(tuple(prompt), 30, index=index) for index in range(24)]
    rows = decode(policy.with_adapter(start.adapter), requests, policy.end_ids)
    group = [Sampled(i % 3, [[Turn("why?", row.tokens, row.logprobs)]]) for i, row in enumerate(rows)]
    end, events = run(policy, start, as_job([group]))
    first = steps(events)[0]
    assert 0.98 <= first["ratio_mean"] <= 1.02
    assert {tensor.dtype for tensor in end.adapter.values()} == {torch.float32}


def test_gradient_checkpointing_computes_layers_again_and_changes_no_result(policy, start):
    plain_state, plain_events = run(policy, start, small_job(), model=policy.training_copy())
    model = replace(policy, gradient_checkpointing=True).training_copy()
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    layers = [module for name, module in model.named_modules() if name.endswith("mlp")]
    assert layers
    for layer in layers:
        layer.register_forward_pre_hook(count)
    state, events = run(policy, start, small_job(), model=model)
    with_twice, passes = passes, 0
    for layer in layers:  # without checkpointing, for the number of passes
        layer._forward_pre_hooks.clear()
    other = policy.training_copy()
    for name, module in other.named_modules():
        if name.endswith("mlp"):
            module.register_forward_pre_hook(count)
    run(policy, start, small_job(), model=other)
    assert with_twice > passes > 0
    assert same(state.adapter, plain_state.adapter)
    assert events == plain_events


def test_the_first_event_says_how_many_steps_follow_and_at_which_learning_rate(policy, start):
    _, events = run(replace(policy, learning_rate=0.25), start, as_job(large_groups()), step=5)
    assert events[0] == (
        "training_started",
        {"num_sequences": 2, "learning_rate": 0.25, "default_learning_rate": 0.25, "step": 5},
    )
    assert [kind for kind, _ in events[1:]] == ["preflight"] + 2 * ["gradient_step"]
    assert {data["learning_rate"] for data in steps(events)} == {0.25}


@pytest.mark.parametrize("learning_rate", [0.0, 0.125])
def test_the_jobs_learning_rate_goes_before_the_policys_own(policy, start, learning_rate):
    end, events = run(policy, start, small_job(learning_rate=learning_rate))
    assert events[0][1]["learning_rate"] == steps(events)[0]["learning_rate"] == learning_rate
    assert same(end.adapter, start.adapter) == (learning_rate == 0)


def test_every_gradient_step_has_the_numbers_of_the_job(policy, start):
    groups = large_groups()
    _, events = run(policy, start, as_job(groups))
    rewards = [each.reward for group in groups for each in group]
    for data in steps(events):
        assert data["reward"] == pytest.approx(fmean(rewards))
        assert data["reward_std_dev"] == pytest.approx(pstdev(rewards))
        assert (data["num_groups_submitted"], data["num_groups_trainable"]) == (6, 5)
        assert data["num_trainable_tokens"] == sum(each["row_tokens"] for each in steps(events))


@pytest.mark.parametrize("logprob", [-6.0, -5000.0, 30.0])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_every_value_of_a_gradient_step_is_a_finite_number(policy, start, tokens, logprob):
    each = Turn("why?", [7] * tokens, [logprob] * tokens)
    group = [Sampled(1.0, [[each]]), sampled(Random(0), 0.0, 4, silent=True)]
    _, events = run(policy, start, as_job([group]))
    [numbers] = steps(events)
    assert numbers["row_tokens"] == tokens
    for value in numbers.values():
        assert type(value) in (int, float)
        assert math.isfinite(value)


def test_a_correlation_of_one_token_is_left_out(policy, start):
    _, events = run(policy, start, as_job([[sampled(Random(0), 1.0, 1), sampled(Random(0), 0.0, 4, silent=True)]]))
    assert "old_new_correlation" not in steps(events)[0]


def test_events_are_json(policy, start):
    _, events = run(policy, start, as_job(large_groups(), surprise=1))
    assert json.loads(json.dumps(events, allow_nan=False)) == [list(event) for event in events]


def test_a_loss_that_is_no_number_fails_the_job_and_says_what_to_try(policy, start):
    events: list[Event] = []
    job = as_job(large_groups(), learning_rate=1e30)
    with pytest.raises(TrainingError, match="step 1 is not a finite number") as caught:
        run(policy, start, job, events=events)
    assert "learning_rate" in caught.value.hint
    assert len(steps(events)) == 1


def nothing_trains() -> list[Any]:
    random = Random(0)
    return [
        pytest.param([], {}, id="no groups"),
        pytest.param([[]], {}, id="an empty group"),
        pytest.param([[sampled(random, 1.0, 5)]], {"equal_rewards": 1}, id="one answer"),
        pytest.param([[sampled(random, 0.1, 5) for _ in range(3)]], {"equal_rewards": 3}, id="equal rewards"),
        pytest.param(
            [[sampled(random, reward, 5, silent=True) for reward in (0.0, 1.0)]],
            {"no_logprobs": 2},
            id="no logprobs",
        ),
        pytest.param([[sampled(random, reward, 200) for reward in (0.0, 1.0)]], {"too_long": 2}, id="too long"),
        pytest.param(
            [[sampled(random, 0.0, 5), sampled(random, 1.0, 5, silent=True)]],
            {"no_logprobs": 1, "balanced_away": 1},
            id="balanced away",
        ),
    ]


@pytest.mark.parametrize(("groups", "why"), nothing_trains())
def test_a_job_with_nothing_to_train_says_why_and_changes_nothing(policy, start, groups, why):
    state, _ = run(policy, start, small_job())
    end, events = run(policy, state, as_job(groups, advantage_balance=1.0))
    assert [kind for kind, _ in events] == ["training_started", "preflight"]
    assert events[0][1]["num_sequences"] == 0
    assert reasons(events) == why
    assert same(end.adapter, state.adapter)
    assert same(end.optimizer, state.optimizer)


def test_a_job_with_nothing_to_train_gives_a_new_model_no_optimiser_state(policy, start):
    end, _ = run(policy, start, as_job([]))
    assert same(end.adapter, start.adapter)
    assert end.optimizer == {}


def test_what_is_left_out_of_a_job_that_trains_is_counted_by_reason_and_named(policy, start):
    _, events = run(policy, start, as_job(large_groups()))
    data = events[1][1]
    assert data["reasons"] == {"no_logprobs": 1, "equal_rewards": 3, "mean_reward": 1, "too_long": 1}
    assert data["skipped"]["no_logprobs"] == ["group 1, trajectory 3"]
    assert data["skipped"]["mean_reward"] == ["group 3, trajectory 1"]
    assert data["skipped"]["too_long"] == ["group 4, trajectory 0"]
    assert (data["groups"], data["trainable_groups"], data["trajectories"]) == (6, 5, 33)
    assert data["trajectories"] - data["trainable_trajectories"] == 6


def test_answers_that_were_cut_off_are_left_out_where_that_is_asked_for(policy, start):
    random = Random(0)
    group = [trajectory(sampled(random, reward, 9)) for reward in (0.0, 1.0, 5.0)]
    group[2]["messages_and_choices"][-1]["finish_reason"] = "length"
    body = {"model_id": MODEL_ID, "trajectory_groups": [{"trajectories": group}]}
    job = CreateTrainingJob.model_validate(body | {"experimental_config": {"mask_truncated": True}})
    _, events = run(policy, start, job)
    assert reported(events)["skipped"] == {"truncated": ["group 0, trajectory 2"]}
    assert steps(events)[0]["num_trainable_tokens"] == 18
    assert steps(events)[0]["reward"] == pytest.approx(2.0)
    _, events = run(policy, start, CreateTrainingJob.model_validate(body))
    assert steps(events)[0]["num_trainable_tokens"] == 27


def test_the_preflight_has_the_factor_of_all_advantages(policy, start):
    random = Random(0)
    group = [sampled(random, reward, 9) for reward in (0.0, 4.0)]
    _, events = run(policy, start, as_job([group], scale_rewards=False))
    assert reported(events)["advantage_scale"] == pytest.approx(0.5)  # A are -2 and 2
    _, events = run(policy, start, as_job([]))
    assert "advantage_scale" not in reported(events)


def test_a_history_left_out_of_a_trajectory_that_trains_is_reported_too(policy, start):
    random = Random(0)
    partly = [sampled(random, 0.0, 5), sampled(random, 1.0, 5, 200)]
    _, events = run(policy, start, as_job([partly]))
    assert steps(events)[0]["num_trainable_tokens"] == 10
    assert "group 0, trajectory 1" in json.dumps(events[1])


@pytest.mark.parametrize(("context", "trains"), [(40, True), (39, False)])
def test_a_history_may_fill_the_context_and_not_more(policy, start, context, trains):
    random = Random(0)
    prompt = len(plain(policy, [turn(random, 1)]).ids) - 1
    group = [sampled(random, reward, 40 - prompt) for reward in (0.0, 1.0)]
    _, events = run(replace(policy, context=context), start, as_job([group]))
    assert bool(steps(events)) == trains


def test_what_cannot_be_rendered_is_left_out_by_the_name_of_the_trajectory(policy, start):
    random = Random(0)
    unknown = Sampled(0.0, [[turn(random, 5)], [Turn("why?", [100_000], [-1.0])]])
    job = as_job([[sampled(random, 1.0, 3)], [sampled(random, 1.0, 3), sampled(random, 0.0, 3), unknown]])
    _, events = run(policy, start, job)
    [(why, names)] = reported(events)["unreadable"].items()
    assert names == ["group 1, trajectory 2"]
    assert why.startswith("additional_histories.0.messages_and_choices.1: the token 0, ")
    assert len(steps(events)) == 1


def test_an_answer_to_nothing_at_all_is_left_out_by_the_name_of_the_trajectory(policy, start):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    group = [Sampled(reward, [[turn(Random(0), 5, question="")]]) for reward in (0.0, 1.0)]
    _, events = run(replace(policy, tokenizer=tokenizer), start, as_job([group]))
    why = "messages_and_choices: the first sampled token has no context"
    assert reported(events)["unreadable"] == {why: ["group 0, trajectory 0", "group 0, trajectory 1"]}
    assert steps(events) == []


def test_precalculated_logprobs_are_those_of_the_starting_weights_for_all_rows(policy, start):
    _, events = run(policy, start, as_job(large_groups(), precalculate_logprobs=True))
    first, *later = steps(events)
    assert (first["ratio_mean"], first["ratio_max"]) == (1.0, 1.0)
    assert all(data["ratio_max"] > 1.001 for data in later)


def test_with_precalculated_logprobs_the_recorded_ones_do_not_matter(policy, start):
    def forged(logprob: float) -> list[list[Sampled]]:
        return [
            [
                replace(
                    each, histories=[[replace(t, logprobs=[logprob] * len(t.ids)) for t in h] for h in each.histories]
                )
                for each in group
            ]
            for group in large_groups()
        ]

    ends = [run(policy, start, as_job(forged(p), precalculate_logprobs=True))[0] for p in (-1.0, -9.0)]
    assert same(ends[0].adapter, ends[1].adapter)
    recorded = [run(policy, start, as_job(forged(p)))[0] for p in (-1.0, -9.0)]
    assert not same(recorded[0].adapter, recorded[1].adapter)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_cancelled_job_stops_before_its_next_step(policy, start, number):
    events: list[Event] = []
    job = as_job(large_groups(), groups_per_step=2)
    with pytest.raises(Cancelled):
        run(policy, start, job, lambda: len(steps(events)) == number, events=events)
    assert len(steps(events)) == number


OWN_LOSS = "def loss(new, old, advantage, weight, history):\n    return -(weight * advantage * new).mean()\n"


@pytest.mark.parametrize(
    ("options", "given"),
    [({}, {}), ({"kl_penalty_coef": 0.1}, {}), ({"precalculate_logprobs": True}, {}), ({}, {"loss_source": OWN_LOSS})],
    ids=["default", "KL penalty", "new logprobs", "own loss"],
)
def test_a_step_of_any_size_is_cancelled_before_its_next_batch(policy, start, options, given, monkeypatch):
    passes, encode = [], Forward.__call__
    monkeypatch.setattr(Forward, "__call__", lambda *values: passes.append(1) or encode(*values))
    job, small = as_job(large_groups(), groups_per_step=0, **options), replace(policy, batch_tokens=64)
    run(small, start, job, **given)
    whole = len(passes)
    assert whole > 20
    for most in (1, whole // 3, whole - 8):
        passes.clear()
        events: list[Event] = []
        with pytest.raises(Cancelled):
            run(small, start, job, lambda most=most: len(passes) >= most, events=events, **given)
        assert len(passes) <= most + small.workers + 1
        assert steps(events) == []


def test_a_long_step_reports_how_far_it_is(policy, start):
    events: list[Event] = []
    callbacks = Callbacks(lambda kind, data: events.append((kind, data)), progress_seconds=0.0)
    job, small = as_job(large_groups(), groups_per_step=0), replace(policy, batch_tokens=64)
    train(small, small.lora_copy(), start, *parts(job), 3, callbacks)
    told = [data for kind, data in events if kind == "step_progress"]
    [step] = steps(events)
    assert {(data["step"], data["of"]) for data in told} == {(0, step["row_tokens"])}
    tokens = [data["tokens"] for data in told]
    assert tokens == sorted(set(tokens))
    assert 0 < tokens[0] < tokens[-1] < step["row_tokens"]
    _, events = run(small, start, job)  # which takes no two seconds a batch
    assert [kind for kind, _ in events] == ["training_started", "preflight", "gradient_step"]


@pytest.mark.parametrize("workers", [1, 3])
def test_no_more_batches_are_in_memory_than_workers_and_one(policy, start, workers, monkeypatch):
    collated, summed, held = [], [], []
    made, add = forward.collate, StepProgress.add

    def collate(*values: Any) -> Any:
        collated.append(1)
        held.append(len(collated) - len(summed))
        return made(*values)

    monkeypatch.setattr(forward, "collate", collate)
    monkeypatch.setattr(StepProgress, "add", lambda *values: summed.append(1) or add(*values))
    monkeypatch.setattr("rolloutlab.policy.trainer.sample", lambda *_: set())
    run(replace(policy, batch_tokens=64, workers=workers), start, as_job(large_groups(), groups_per_step=0))
    assert len(summed) > 20
    assert max(held) == workers + 1


def test_a_job_after_a_cancelled_one_starts_from_its_own_state(policy, start):
    used, job = policy.lora_copy(), small_job(1)
    clean, _ = run(policy, start, job)
    events: list[Event] = []
    other = as_job(large_groups())
    with pytest.raises(Cancelled):
        run(policy, start, other, lambda: len(steps(events)) == 1, model=used, events=events)
    after, _ = run(policy, start, job, model=used)
    assert same(after.adapter, clean.adapter)


def test_a_trajectory_is_let_go_once_it_was_read(policy, start):
    told_once = [trajectory(sampled(Random(0), reward, 5)) for reward in (1.0, 0.0) * 5]
    seen: list[weakref.ref[Trajectory]] = []

    def stream() -> Iterator[Trajectory]:
        for each in told_once:
            assert sum(known() is not None for known in seen) <= 1
            found = Trajectory.model_validate(each)
            seen.append(weakref.ref(found))
            yield found

    events: list[Event] = []
    train(policy, policy.lora_copy(), start, [stream()], None, 0, Callbacks(lambda *event: events.append(event)))
    assert len(seen) == 10
    assert len(steps(events)) == 1


def test_a_long_job_shows_that_it_is_being_read_before_it_starts(policy, start):
    [each] = [Trajectory.model_validate(trajectory(sampled(Random(0), 1.0, 1)))]
    events: list[Event] = []
    groups = [repeat(each, 600), repeat(each, 1500)]
    train(policy, policy.lora_copy(), start, groups, None, 0, Callbacks(lambda *event: events.append(event)))
    beats = [("heartbeat", {"trajectories": 1000}), ("heartbeat", {"trajectories": 2000})]
    assert events[:2] == beats
    assert [kind for kind, _ in events[2:]] == ["training_started", "preflight"]


def test_a_job_can_be_cancelled_while_it_is_read(policy, start):
    [each] = [Trajectory.model_validate(trajectory(sampled(Random(0), 1.0, 1)))]
    rest = repeat(each, 100)
    asked = iter([False] * 9 + [True])
    with pytest.raises(Cancelled):
        train(policy, policy.lora_copy(), start, [rest], None, 0, Callbacks(lambda *event: None, lambda: next(asked)))
    assert len(list(rest)) >= 90  # it is asked in each trajectory, and within pieces of one


@pytest.mark.parametrize("other", [{"reward": 0.5}, {"metadata": {"row": 1}}], ids=str)
def test_a_job_that_says_something_else_is_seeded_otherwise(policy, start, other, monkeypatch):
    seeds: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    answers = [sampled(Random(0), reward, 5) for reward in (1.0, 0.0)]
    for first in ({}, {}, other):
        group = [trajectory(answers[0], **first), trajectory(answers[1])]
        body = {"model_id": MODEL_ID, "trajectory_groups": [{"trajectories": group}]}
        run(policy, start, CreateTrainingJob.model_validate(body), model=policy.lora_copy())
    of_the_job = seeds[1::2]
    assert of_the_job[0] == of_the_job[1] != of_the_job[2]


def test_a_row_is_one_step_whatever_the_batches_it_is_encoded_in(policy, start):
    random = Random(0)
    ragged = [sampled(random, float(i % 2), n) for i, n in enumerate([110, 3, 5, 90, 2, 30, 4, 8])]
    expected_adapter, expected = naive(policy, start, [[ragged]])
    end, events = run(policy, start, as_job([ragged]))
    [found], [wanted] = steps(events), expected
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert distance(end.adapter, expected_adapter) < 1e-2 * distance(start.adapter, expected_adapter)


def test_options_that_this_version_does_not_know_are_named(policy, start):
    _, events = run(policy, start, small_job(surprise=1))
    assert events[1][1]["unknown_options"] == ["surprise"]
    assert any("surprise" in warning for warning in events[1][1]["warnings"])


def test_answers_sampled_at_another_temperature_are_warned_of(policy, start):
    random = Random(0)
    odd = [trajectory(sampled(random, reward, 5), metadata={"temperature": 0.5}) for reward in (0.0, 1.0)]
    job = CreateTrainingJob.model_validate({"model_id": MODEL_ID, "trajectory_groups": [{"trajectories": odd}]})
    _, events = run(policy, start, job)
    assert any("temperature 0.5" in warning for warning in events[1][1]["warnings"])


def test_many_workers_give_the_bits_of_the_run_before_and_the_result_of_one(policy, start):
    job = as_job(large_groups())
    alone, _ = run(policy, start, job)
    ends = [run(replace(policy, workers=3), start, job) for _ in range(2)]
    assert same(ends[0][0].adapter, ends[1][0].adapter)
    assert ends[0][1] == ends[1][1]
    assert distance(ends[0][0].adapter, alone.adapter) < 1e-2 * distance(start.adapter, alone.adapter)
