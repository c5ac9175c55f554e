"""Jobs with `credit: turn`: what they train is what the dry run says, and what its formulas give turn by turn."""

from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.engines import naive
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import member, preflight
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.model import base_of
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task, read_task
from tests.policy.test_trainer import (
    MODEL_ID,
    PlainStep,
    Sampled,
    Turn,
    distance,
    naive_of_steps,
    parts,
    plain,
    reasons,
    reported,
    run,
    same,
    steps,
    trajectory,
    turn,
)


@dataclass(frozen=True)
class Episode:
    """Turns with their rewards, a reward at the end, and the turns of an additional history."""

    turns: list[Turn]
    rewards: list[float]
    end: float = 0.0
    more: list[Turn] = field(default_factory=list)

    @property
    def reward(self) -> float:
        return sum(self.rewards) + self.end


@pytest.fixture(scope="module")
def start(policy, adapter_of) -> State:
    return State(adapter_of(policy), {})


def episode(random: Random, *rewards: float, end: float = 0.0, more: int = 0) -> Episode:
    turns = [turn(random, random.randrange(5, 20), f"turn {k}?") for k in range(len(rewards))]
    return Episode(turns, list(rewards), end, [turn(random, more, "sub?")] if more else [])


def episodes(seed: int = 0) -> list[list[Episode]]:
    """Uneven numbers of turns; turns that all are equal; a turn that one alone has; additional histories."""
    random = Random(seed)
    return [
        [
            episode(random, 1.0, 0.0, 2.0, 0.5, end=1.0),
            episode(random, 0.0, 1.0),
            episode(random, 0.0, 0.0, 0.0, more=6),
            episode(random, end=1.0, more=9),
        ],
        [episode(random, 0.0, reward, end=1 - reward) for reward in (0.25, 0.25, 0.75)],
        [episode(random, 0.5, 0.5) for _ in range(2)],
        [episode(random, 0.0, 3.0), episode(random, 3.0, 0.0, 0.0, more=5)],
    ]


def as_job(groups: list[list[Episode]], **options: Any) -> CreateTrainingJob:
    def sent(each: Episode) -> dict[str, Any]:
        metrics = {f"turn_reward/{k}": reward for k, reward in enumerate(each.rewards)}
        return trajectory(Sampled(each.reward, [each.turns, *([each.more] if each.more else [])]), metrics=metrics)

    body = {
        "model_id": MODEL_ID,
        "trajectory_groups": [{"trajectories": [sent(each) for each in group]} for group in groups],
        "experimental_config": {"credit": "turn", **options},
    }
    return CreateTrainingJob.model_validate(body)


def advantage(group: list[Episode], i: int, k: int | None, scale_rewards: bool) -> float:
    """By the words of docs/training_reference.md; k is None for an additional history."""
    togo = [sum(e.rewards[k or 0 :]) + e.end for e in group if k is None or k < len(e.turns)]
    own = sum(group[i].rewards[k or 0 :]) + group[i].end
    if max(togo) - min(togo) < 1e-9:
        return 0.0
    return (own - fmean(togo)) / (pstdev(togo) + 1e-6 if scale_rewards else 1)


def plain_step(policy, groups: list[list[Episode]], options: dict[str, Any]) -> PlainStep:
    """Sequences with an advantage for each token; turns without one are context."""
    balance, scale_rewards = options.get("advantage_balance", 0.0), options.get("scale_rewards", True)
    by_token = options.get("loss_aggregation") == "token_mean"
    sequences, trained_members, members = [], 0, 0
    for group in groups:
        before = trained_members
        for i, each in enumerate(group):
            histories = [(each.turns, list(range(len(each.turns)))), (each.more, [None])]
            own = []
            for turns, numbers in histories:
                whole, advantages = plain(policy, turns), []
                for one, k in zip(turns, numbers, strict=False):
                    advantages += [advantage(group, i, k, scale_rewards)] * len(one.ids)
                trained = [t for t, a in enumerate(advantages) if abs(a) > 1e-9]
                if trained:
                    at, old = ([values[t] for t in trained] for values in (whole.at, whole.old))
                    ids = whole.ids[: at[-1] + 1]
                    own.append(replace(whole, ids=ids, at=at, old=old, advantage=[advantages[t] for t in trained]))
            n = sum(len(s.at) for s in own)
            sequences += [replace(s, weight=1.0 if by_token else 1 / (n + 1e-6)) for s in own]
            trained_members += bool(own)
        members += len(group) * (trained_members > before)
    tokens = sum(len(s.at) for s in sequences)
    mean_weight = sum(s.weight * len(s.at) for s in sequences) / tokens
    balanced = [[a * (1 - balance) if a <= 0 else a for a in s.advantage] for s in sequences]
    size = (
        sum(abs(a) * s.weight / mean_weight for s, row in zip(sequences, balanced, strict=True) for a in row) / tokens
    )
    done = [
        replace(s, advantage=torch.tensor([a / size for a in row]), weight=s.weight / mean_weight)
        for s, row in zip(sequences, balanced, strict=True)
    ]
    return PlainStep(done, tokens if by_token else members * tokens / trained_members)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale_rewards": False},
        {"advantage_balance": 0.3},
        {"ppo": True, "importance_sampling_level": "sequence"},
        {"loss_aggregation": "token_mean"},
    ],
    ids=str,
)
def test_a_job_is_the_formulas_worked_out_turn_by_turn(policy, start, options):
    level, made = options.get("importance_sampling_level", "token"), plain_step(policy, episodes(), options)
    expected_adapter, [expected] = naive_of_steps(policy, start, [made], options.get("ppo", False), level)
    end, events = run(policy, start, as_job(episodes(), **options))
    [found] = steps(events)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    moved = distance(start.adapter, expected_adapter)
    assert moved > 0.1
    assert distance(end.adapter, expected_adapter) < 1e-2 * moved


def task_of(policy, job: CreateTrainingJob) -> Task:
    return read_task(base_of(policy), *parts(job), 0, Callbacks(lambda *_: None))


def advantages(sequence: TrainingSequence) -> list[float]:
    """Of each trained token."""
    return torch.as_tensor(sequence.advantage, dtype=torch.double).expand(sequence.tokens.trainable).tolist()


def test_the_step_has_the_loss_and_the_gradient_of_the_second_implementation(policy, start):
    task = task_of(policy, as_job(episodes()))
    [step] = task.steps
    expected = naive.Naive(policy).step(start, step, task.options)
    _, events = run(policy, start, as_job(episodes()))
    [found] = steps(events)
    assert (found["loss"], found["grad_norm"]) == pytest.approx((expected.loss, expected.norm), rel=1e-4)


def test_the_dry_run_is_what_the_job_trains_turn_by_turn(policy, start):
    job = as_job(episodes())
    groups = [[member(str(i), t) for i, t in enumerate(group.trajectories)] for group in job.trajectory_groups]
    check = preflight(groups, settle(job.experimental_config))
    _, events = run(policy, start, job)
    data = reported(events)
    assert data["turns"] == [each._asdict() for each in check.turns()]
    assert (data["trainable_tokens"], data["reasons"]) == (check.trainable_tokens, check.reasons())
    [step] = task_of(policy, job).steps
    assert step.trained == steps(events)[0]["row_tokens"] == check.trainable_tokens
    found = [round(a, 6) for s in step.sequences for a in advantages(s)]
    shares = [share for share in check.all_shares() if share.reason is None]
    expected = [(t.advantage, t.tokens) for share in shares for t in share.by_turn() if t.advantage is not None]
    assert found == [round(a, 6) for a, n in expected for _ in range(n)]
    # turn 3 of the first has no peers, and turn 0 of the second group is 1 to go in each
    assert [(each["turn"], each["trajectories"]) for each in data["turns"]] == [
        (0, 10),
        (1, 10),
        (2, 3),
        (3, 1),
        (None, 3),
    ]
    assert data["turns"][3]["trainable_tokens"] == 0


def test_turns_that_do_not_train_are_context(policy):
    first, second = Random(1), Random(2)
    group = [episode(first, 0.0, 1.0, 0.0), episode(second, 1.0, 0.0, 0.0)]  # 1, 1, 0 and 1, 0, 0 to go: turn 1 differs
    [step] = task_of(policy, as_job([group])).steps
    assert [tokens.trainable for tokens in step.tokens] == [len(each.turns[1].ids) for each in group]
    for sequence, each in zip(step.tokens, group, strict=True):
        ids = plain(policy, each.turns[:2]).ids
        assert list(sequence.ids) == ids
        assert sequence.trained.index(1) == len(ids) - len(each.turns[1].ids)


def test_a_job_of_equal_turns_trains_nothing_and_says_why(policy, start):
    random = Random(0)
    groups = [[episode(random, 0.5, 0.5) for _ in range(3)]]
    end, events = run(policy, start, as_job(groups))
    assert (steps(events), reasons(events)) == ([], {"equal_rewards": 3})
    assert same(end.adapter, start.adapter)


def test_a_turn_without_logprobs_keeps_its_number(policy):
    random = Random(0)
    group = [episode(random, 1.0, 0.0), episode(random, 0.0, 1.0), episode(random, 0.0, 0.0)]
    body = as_job([group]).to_wire()
    for each in body["trajectory_groups"][0]["trajectories"]:
        each["messages_and_choices"][1]["logprobs"] = None
    [step] = task_of(policy, CreateTrainingJob.model_validate(body)).steps
    # 0, 1 and 0 to go at turn 1; 1, 1 and 0 at turn 0, whose tokens are not known
    signs = [{a > 0 for a in advantages(s)} for s in step.sequences]
    assert signs == [{False}, {True}, {False}]


def test_without_the_option_turn_rewards_change_nothing(policy, start):
    groups = [[replace(each, rewards=[]) for each in group] for group in episodes()]
    groups = [
        [replace(plain, end=each.reward) for plain, each in zip(*pair, strict=True)]
        for pair in zip(groups, episodes(), strict=True)
    ]
    found = [task_of(policy, as_job(each, credit="trajectory")).steps for each in (episodes(), groups)]
    assert found[0] == found[1]
    assert all(isinstance(s.advantage, float) for step in found[0] for s in step.sequences)
    _, events = run(policy, start, as_job(episodes(), credit="trajectory"))
    assert "turns" not in reported(events)


def test_a_loss_of_ones_own_gets_the_advantage_of_each_token(policy, start):
    source = "def loss(new, old, advantage, weight, history):\n    return -(weight * advantage * new).sum() / len(new)"
    [step] = task_of(policy, as_job(episodes())).steps
    assert any(len(set(advantages(s))) > 1 for s in step.sequences)
    _, own = run(policy, start, as_job(episodes()), loss_source=source)
    expected = naive.Naive(policy).step(start, step, task_of(policy, as_job(episodes())).options, source)
    assert steps(own)[0]["loss"] == pytest.approx(expected.loss, rel=1e-4)
