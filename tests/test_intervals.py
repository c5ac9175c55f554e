"""Intervals for a mean: as wide as they say, by tables and by simulation; the tolerances are binomial errors."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rolloutlab.intervals import anytime_interval, interval, student_t

LOOKS = (8, 16, 32, 64, 128, 256)


def at_most(share: float, times: int) -> float:
    """What a share that is truly no larger hardly ever exceeds in so many trials: 3.5 standard errors above."""
    return share + 3.5 * math.sqrt(share * (1 - share) / times)


def differences(random: np.random.Generator, prompts: int, gain: float) -> list[float]:
    """Paired differences of the mean of four 0/1 rewards, on prompts from hard to easy; `gain` is of what is left."""
    before = 0.1 + 0.6 * random.beta(0.5, 0.5, prompts)
    after = before + gain * (1 - before)
    return list((random.binomial(4, after) - random.binomial(4, before)) / 4)


def misses(bounds: Callable, prompts: int, gain: float, times: int) -> float:
    """How often the interval does not hold the true difference."""
    random = np.random.default_rng(prompts)
    true = gain * (1 - 0.1 - 0.6 / 2)
    found = [bounds(differences(random, prompts, gain)) for _ in range(times)]
    return sum(not low <= true <= high for low, high in found) / times


def resampled(values: list[float]) -> tuple[float, float]:
    """The percentile interval of the bootstrap, which is too narrow for few values."""
    draws = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    low, high = np.quantile(np.asarray(values)[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 10, 2.228),
        (0.975, 15, 2.131),
        (0.975, 30, 2.042),
        (0.975, 100, 1.984),
        (0.995, 7, 3.499),
        (0.95, 3, 2.353),
        (0.9, 8, 1.397),
        (0.975, 1_000_000, 1.960),
    ],
)
def test_the_quantiles_of_student_are_those_of_the_tables(probability, freedom, quantile):
    assert student_t(probability, freedom) == pytest.approx(quantile, abs=6e-4)


@pytest.mark.parametrize("bounds", [interval, anytime_interval])
@pytest.mark.parametrize("gain", [0.0, 0.2])
@pytest.mark.parametrize("prompts", [8, 16, 32])
def test_the_interval_misses_the_truth_no_more_often_than_it_says(bounds, gain, prompts):
    assert misses(bounds, prompts, gain, 2000) <= at_most(0.05, 2000)


@pytest.mark.parametrize("prompts", [8, 10])
def test_the_same_test_fails_for_an_interval_that_is_too_narrow(prompts):
    assert misses(resampled, prompts, 0.2, 1000) > at_most(0.05, 1000)


def looks(random: np.random.Generator, every: bool) -> Iterator[list[float]]:
    values = differences(random, LOOKS[-1], 0.0)
    for count in range(2, 129) if every else LOOKS:
        yield values[:count]


def ever_wrong(bounds: Callable, times: int, *, every: bool = False) -> float:
    """How often at least one of several looks at a growing comparison without difference says that there is one."""
    random = np.random.default_rng(7)
    wrong = [any(not low <= 0 <= high for low, high in map(bounds, looks(random, every))) for _ in range(times)]
    return sum(wrong) / times


def test_many_looks_are_wrong_no_more_often_than_one_with_the_interval_for_many():
    assert ever_wrong(anytime_interval, 1000) <= at_most(0.05, 1000)
    assert ever_wrong(anytime_interval, 200, every=True) <= at_most(0.05, 200)


def test_the_interval_for_one_look_is_wrong_too_often_in_six():
    assert ever_wrong(interval, 400) > at_most(0.05, 400)


def test_equal_values_leave_no_doubt():
    assert interval([0.25] * 20) == anytime_interval([0.25] * 20) == (0.25, 0.25)


@pytest.mark.parametrize("bounds", [interval, anytime_interval])
def test_one_value_bounds_nothing(bounds):
    assert bounds([0.5]) == (-math.inf, math.inf)


@pytest.mark.parametrize("bounds", [interval, anytime_interval])
def test_a_wider_level_gives_a_wider_interval(bounds):
    values = list(np.random.default_rng(1).normal(size=30))
    (low, high), (lower, higher) = bounds(values, 0.5), bounds(values, 0.99)
    assert lower < low < high < higher


def test_with_many_values_the_interval_is_that_of_the_normal_distribution():
    values = np.random.default_rng(3).normal(0.1, 0.5, size=5000)
    low, high = interval(list(values))
    error = values.std() / math.sqrt(len(values))
    assert (low, high) == (
        pytest.approx(values.mean() - 1.96 * error, abs=0.01 * error),
        pytest.approx(values.mean() + 1.96 * error, abs=0.01 * error),
    )
