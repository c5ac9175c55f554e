"""What is said about the course of a run is true of it, and rarely said by chance."""

import random
from statistics import mean, stdev

import pytest

from rolloutlab.runs.judgement import find_signs
from rolloutlab.runs.records import RunRecord, RunStep
from rolloutlab.store.models import SubmittedJob

JOB = SubmittedJob("a", "embedded", "lab/practice", (), {}, "2026-01-01T00:00:00+00:00", "succeeded", 1)


def record(*steps):
    """A run with these numbers and standard errors of its steps."""
    made = [RunStep(i, "", JOB, numbers=numbers, errors=errors) for i, (numbers, errors) in enumerate(steps)]
    return RunRecord("lab/practice", "embedded", "lab/practice", tuple(made))


def facts(*steps):
    return [(sign.step, sign.fact) for sign in find_signs(record(*steps))]


def test_a_fall_names_the_best_step_and_the_last():
    means = [(0.4, 0.02), (0.69, 0.02), (0.5, 0.02), (0.37, 0.02)]
    assert facts(*(({"reward": m}, {"reward": e}) for m, e in means)) == [
        (1, "the mean reward falls from 0.69 at step 1 to 0.37 at step 3")
    ]


@pytest.mark.parametrize("steps", [3, 10, 25, 100])
def test_chance_is_called_a_fall_in_at_most_5_percent_of_runs(steps):
    draw, groups, wrong, runs = random.Random(steps), 32, 0, 1000
    for _ in range(runs):
        course = []
        for _ in range(steps):
            values = [sum(draw.random() < 0.4 for _ in range(8)) / 8 for _ in range(groups)]
            course.append(({"reward": mean(values)}, {"reward": stdev(values) / groups**0.5}))
        wrong += bool(facts(*course))
    assert wrong / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


def test_cut_offs_are_named_with_the_step_since_which_there_are_many():
    steps = [({"cut_off": share}, {}) for share in (0.3, 0.1, 0.25, 0.38)]
    assert facts(*steps) == [(2, "38% of the answers are cut off by the token limit since step 2")]


def test_cut_offs_that_are_over_are_not_named():
    assert facts(*(({"cut_off": share}, {}) for share in (0.3, 0.1, 0.1))) == []


def test_answers_that_become_long_are_named():
    steps = [({"length": tokens}, {}) for tokens in (100.0, 150.0, 220.0, 310.0)]
    assert facts(*steps) == [(2, "answers are 3.1 times as long as at step 0 since step 2")]


def test_groups_with_nothing_to_learn_are_named():
    steps = [({"nothing": share}, {}) for share in (0.2, 0.6, 0.75)]
    assert facts(*steps) == [(1, "75% of the groups have nothing to learn since step 1")]
