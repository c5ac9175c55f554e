"""Gradients of published algorithms are those of TRL's own loss, by tools/trl_vectors.py; only numbers are stored."""

import json
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
import torch

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.policy.loss import step_loss
from rolloutlab.policy.model import base_of
from rolloutlab.policy.steps import Step, tokens_of
from rolloutlab.policy.task import Callbacks, Task, read_task
from tests.policy.test_trainer import Sampled, Turn, parts, trajectory

STORED = json.loads(Path(__file__).with_name("trl_vectors.json").read_text())
JOB, TURNS, BATCHES = STORED["job"], STORED["turns"], STORED["job"]["batches"]
OPTIONS: dict[str, dict[str, Any]] = {
    "grpo": {"ppo": True},
    "dr_grpo": {
        "ppo": True,
        "scale_rewards": False,
        "loss_aggregation": "constant",
        "loss_scale_factor": JOB["longest"],
    },
    "dapo": {"ppo": True, "epsilon_high": 0.28, "loss_aggregation": "token_mean"},
    "gspo": {"ppo": True, "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_aggregation": "token_mean"},
    "rloo": {"scale_rewards": False, "loss_aggregation": "constant", "loss_scale_factor": 1},
}
"""Of each algorithm, but for `mask_truncated`, which has cases of its own."""
CASES = [
    pytest.param(vector, id=f"{vector['algorithm']}-{vector['batch']}{'-masked' * vector['masked']}")
    for vector in STORED["vectors"]
]


def job_of(vector: dict[str, Any]) -> CreateTrainingJob:
    """The job that TRL had, as trajectories."""
    random, fresh = Random(0), vector["algorithm"] == "rloo"
    stored = TURNS if vector["batch"] == "turns" else JOB
    groups = []
    for g, rewards in enumerate(stored["rewards"]):
        members = []
        for i, reward in enumerate(rewards):
            lengths, given = stored["lengths"][g][i], stored["logprobs"][g][i]
            logprobs = iter([new if fresh else old for new, old in given])
            turns = []
            for length in lengths if isinstance(lengths, list) else [lengths]:
                ids = [random.randrange(4, 98) for _ in range(length)]
                turns.append(Turn("why?", ids, [next(logprobs) for _ in ids]))
            by_turn = isinstance(reward, list)
            metrics = {f"turn_reward/{k}": each for k, each in enumerate(reward)} if by_turn else {}
            made = trajectory(Sampled(sum(reward) if by_turn else reward, [turns]), metrics=metrics)
            if [g, i] in JOB["truncated"] and not by_turn:
                made["messages_and_choices"][-1]["finish_reason"] = "length"
            members.append(made)
        groups.append({"trajectories": members})
    config = {**OPTIONS[vector["algorithm"]], "mask_truncated": vector["masked"]}
    config |= {"groups_per_step": 2} if vector["batch"] in {"first", "second"} else {"groups_per_step": 0}
    config |= {"credit": "turn"} if vector["batch"] == "turns" else {}
    body = {"model_id": UUID(int=1), "trajectory_groups": groups, "experimental_config": config}
    return CreateTrainingJob.model_validate(body)


def read(policy: Any, vector: dict[str, Any]) -> tuple[Task, float]:
    """The task of the job, and the factor of its advantages."""
    events: dict[str, Any] = {}
    report = events.__setitem__
    task = read_task(base_of(policy), *parts(job_of(vector)), 0, Callbacks(report))
    return task, events["preflight"]["advantage_scale"]


def counted(vector: dict[str, Any]) -> float:
    """The divisor of TRL's loss of the whole job over ours: it counts the group that trains nothing."""
    if vector["batch"] != "job":
        return 1.0
    lengths = {
        (g, i): length
        for g, group in enumerate(JOB["lengths"])
        for i, length in enumerate(group)
        if not (vector["masked"] and [g, i] in JOB["truncated"])
    }
    if OPTIONS[vector["algorithm"]].get("loss_aggregation") == "token_mean":
        return sum(lengths.values()) / sum(n for (g, _), n in lengths.items() if g in BATCHES["trains"])
    return len(BATCHES["job"]) / len(BATCHES["trains"])


def gradient(task: Task, step: Step, new: list[float]) -> list[float]:
    """The gradient of a step's loss by the logprobs of its trained tokens, in double precision."""
    new_T = torch.tensor(new, dtype=torch.float64, requires_grad=True)
    tokens = tokens_of(step.sequences, torch.device("cpu"))
    old_T, advantage_T, weight_T = (each.double() for each in tokens[:3])
    step_loss(new_T, old_T, advantage_T, weight_T, tokens.history_T, task.options, step.divisor).loss.backward()
    assert new_T.grad is not None
    return new_T.grad.tolist()


@pytest.mark.parametrize("vector", CASES)
def test_the_gradient_of_a_step_is_that_of_trl(policy, vector):
    task, scale = read(policy, vector)
    places = range(len(TURNS["rewards"])) if vector["batch"] == "turns" else BATCHES[vector["batch"]]
    rows = [member for g in places for member in (TURNS if vector["batch"] == "turns" else JOB)["logprobs"][g]]
    tokens = [
        (new, slope)
        for row, slopes, trains in zip(rows, vector["gradient"], vector["trains"], strict=True)
        for (new, _), slope, on in zip(row, slopes, trains, strict=True)
        if on
    ]
    assert len(task.steps) == (2 if vector["batch"] in {"first", "second"} else 1)
    step = task.steps[vector["batch"] == "second"]
    assert step.trained == len(tokens)
    found = gradient(task, step, [new for new, _ in tokens])
    expected = [slope * scale * counted(vector) for _, slope in tokens]
    largest = max(map(abs, expected))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * largest)


def test_what_does_not_train_has_no_gradient_in_trl_either():
    for vector in STORED["vectors"]:
        for slopes, trains in zip(vector["gradient"], vector["trains"], strict=True):
            assert [slope for slope, on in zip(slopes, trains, strict=True) if not on] == [0.0] * trains.count(0)
    assert {case["algorithm"] for case in STORED["vectors"]} == OPTIONS.keys()
