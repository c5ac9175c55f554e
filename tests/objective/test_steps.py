"""Steps of a job: how many there are, which groups each has, and what a person reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.objective.steps import plan_steps, short, step_words

COUNTS = st.integers(0, 300)


@pytest.mark.parametrize(
    ("groups", "groups_per_step", "steps"),
    [(16, 8, [8, 8]), (9, 8, [5, 4]), (9, 4, [3, 3, 3]), (10, 4, [4, 3, 3]), (3, 8, [3]), (16, 0, [16]), (0, 8, [])],
)
def test_groups_are_split_evenly_into_as_few_steps_as_can_be(groups, groups_per_step, steps):
    assert plan_steps(groups, groups_per_step) == steps


@given(COUNTS, COUNTS)
def test_every_group_is_in_one_step_and_none_is_larger_than_it_may_be(groups, groups_per_step):
    steps = plan_steps(groups, groups_per_step)
    assert sum(steps) == groups
    assert all(0 < size <= (groups_per_step or groups) for size in steps)
    assert not steps or max(steps) - min(steps) <= 1
    assert not (groups and groups_per_step) or (len(steps) - 1) * groups_per_step < groups


@pytest.mark.parametrize(
    ("job", "epochs", "words"),
    [
        ((16, 2, 128, 192_000), 1, "2 steps of 8 groups (each 64 completions, ≈ 96k tokens)"),
        ((9, 2, 72, 720), 1, "2 steps of 4 to 5 groups (each 36 completions, 360 tokens)"),
        ((1, 1, 2, 5), 1, "1 step of 1 group (2 completions, 5 tokens)"),
        ((1, 1, 1, 1), 1, "1 step of 1 group (1 completion, 1 token)"),
        ((16, 2, 125, 999), 2, "2 epochs of 2 steps of 8 groups (each ≈ 62 completions, ≈ 500 tokens)"),
        ((4, 1, 32, 64), 3, "3 epochs of 1 step of 4 groups (each 32 completions, 64 tokens)"),
        ((2000, 1, 16_000, 24_000_000), 1, "1 step of 2,000 groups (≈ 16k completions, ≈ 24M tokens)"),
    ],
)
def test_they_are_told_in_a_line(job, epochs, words):
    assert step_words(*job, epochs=epochs) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (9_999, "9,999"),
        (96_000, "96k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_234_567, "1.23M"),
        (999_499_999, "999M"),
        (1_234_567_890, "1.23B"),
    ],
)
def test_large_numbers_are_short(number, words):
    assert short(number) == words
