"""Several processes take the steps of one task: here threads, each with a model of its own."""

import math
import random
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.engines.sampling_check import step_of
from rolloutlab.objective.options import settle
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.model import read_adapter
from rolloutlab.policy.share import Share
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.policy.trainer import take_steps

PATIENCE = 240.0
LOSS = "def loss(new, old, advantage, weight, history):\n    return -(weight * advantage * new).mean()\n"
CASES = [({}, None), ({"precalculate_logprobs": True}, None), ({"kl_penalty_coef": 0.1}, None), ({}, LOSS)]


class Sum:
    """The sum over threads of one tensor of each, all in the same order."""

    def __init__(self, size):
        self._met = threading.Barrier(size, timeout=PATIENCE)
        self._flats = [None] * size

    def add(self, rank, flat):
        self._flats[rank] = flat.clone()
        self._met.wait()
        total = sum(self._flats)
        self._met.wait()
        flat.copy_(total)


def task_of(config, source, counts, longest=12):
    """Of answers of 12 tokens, or of one to the longest."""
    chance = random.Random(1)

    def size():
        return 12 if longest == 12 else chance.randint(1, longest)

    def sequence():
        context, answer = [chance.randrange(4, 98) for _ in range(6)], [chance.randrange(4, 98) for _ in range(size())]
        logprobs = [0.0] * 6 + [chance.gauss(-5.5, 0.3) for _ in answer]
        tokens = TokenSequence(
            array("i", context + answer), bytearray([0] * 6 + [1] * len(answer)), array("f", logprobs)
        )
        return TrainingSequence(tokens, chance.uniform(-1, 1), 1.0)

    steps = [step_of([sequence() for _ in range(count)]) for count in counts]
    options = settle(ExperimentalTrainingConfig.model_validate(config))
    return Task(steps, [1e-3] * len(steps) * options.epochs, options, 5, {}, loss_source=source)


def run(policy, task, share, model=None):
    model, reported = model or policy.lora_copy(), []
    start = State(read_adapter(model), {})
    callbacks = Callbacks(lambda _, data: reported.append(data), progress_seconds=math.inf)
    return take_steps(policy, model, start, task, callbacks, share=share), reported


def alone(policy, task, parts):
    with ThreadPoolExecutor(1) as pool:  # torch keeps its number of threads by thread
        return pool.submit(run, policy, task, Share(parts=parts), policy.lora_copy()).result()


def together(policy, task, size, parts):
    total = Sum(size)
    shares = [Share(rank, size, parts, partial(total.add, rank)) for rank in range(size)]
    models = [policy.lora_copy() for _ in shares]  # before the threads: torch's generator is of the whole process
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(partial(run, policy, task), shares, models))


def same(first, second):
    (state, reported), (other, others) = first, second
    tensors = [(state.adapter, other.adapter), (state.optimizer, other.optimizer)]
    return reported == others and all(ours[name].equal(theirs[name]) for ours, theirs in tensors for name in ours)


@pytest.mark.parametrize(("config", "source"), CASES, ids=["default", "new logprobs", "KL penalty", "own loss"])
def test_together_they_take_the_steps_of_one_to_the_last_bit(policy, config, source):
    task = task_of(config, source, [8, 8, 8])
    expected = alone(policy, task, 2)
    assert len(expected[1]) == 3
    assert all(same(each, expected) for each in together(policy, task, 2, 2))


@pytest.mark.parametrize(("size", "parts"), [(2, 3), (2, 4), (3, 4)])
def test_how_many_they_are_makes_no_difference(policy, size, parts):
    task = task_of({}, None, [7, 2, 5])
    expected = alone(policy, task, parts)
    assert all(same(each, expected) for each in together(policy, task, size, parts))


def test_what_is_measured_of_answers_of_many_lengths_has_the_bits_of_one_process(policy):
    task = task_of({}, None, [60, 50], longest=80)
    expected = alone(policy, task, 2)
    assert all("kl_base" in each for each in expected[1])
    assert all(same(each, expected) for each in together(policy, task, 2, 2))


def test_other_parts_are_the_same_but_for_rounding(policy):
    task = task_of({}, None, [8, 8])
    (_, two), (_, three) = alone(policy, task, 2), alone(policy, task, 3)
    assert three == [pytest.approx(each, rel=1e-3, abs=1e-4) for each in two]


def test_a_step_of_fewer_sequences_than_processes_is_trained_by_some_of_them(policy):
    task = task_of({}, None, [1])
    expected = alone(policy, task, 3)
    assert all(same(each, expected) for each in together(policy, task, 3, 3))
