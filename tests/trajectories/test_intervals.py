"""Intervals for a mean: as wide as they say, by tables and by simulation; the tolerances are binomial errors."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np
import pytest

from rolloutlab.trajectories.intervals import (
    anytime_interval,
    betting_interval,
    interval,
    near_normal,
    sign_interval,
    student_interval,
    student_t,
)

LOOKS = (8, 16, 32, 64, 128, 256)
TIMES = 2000

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, float]]
"""Draws TIMES samples of so many paired differences within -1 and 1 (S, N); and their true mean."""


def at_most(share: float, times: int) -> float:
    """What a share that is truly no larger hardly ever exceeds in so many trials: 3.5 standard errors above."""
    return share + 3.5 * math.sqrt(share * (1 - share) / times)


def binary(before: float, after: float, completions: int) -> Draw:
    """Success or failure, with the same two probabilities for every prompt."""

    def draw(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
        old, new = (random.binomial(completions, p, (TIMES, prompts)) for p in (before, after))
        return (new - old) / completions, after - before

    return draw


def varied(gain: float, completions: int = 4) -> Draw:
    """Success or failure on prompts from hard to easy; `gain` is of what is left."""

    def draw(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
        before = 0.1 + 0.6 * random.beta(0.5, 0.5, (TIMES, prompts))
        after = before + gain * (1 - before)
        old, new = (random.binomial(completions, p) for p in (before, after))
        return (new - old) / completions, gain * (1 - 0.1 - 0.6 / 2)

    return draw


def solved(gain: float, completions: int) -> Draw:
    """One prompt in ten changes, the others never do."""

    def draw(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
        changes = random.random((TIMES, prompts)) < 0.1
        old, new = (random.binomial(completions, p, (TIMES, prompts)) for p in (0.2, 0.2 + gain))
        return changes * (new - old) / completions, 0.1 * gain

    return draw


def graded(before: float, after: float, concentration: float, completions: int) -> Draw:
    """Rewards between 0 and 1, from a beta distribution."""

    def draw(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
        shape = (TIMES, prompts, completions)
        old, new = (random.beta(p * concentration, (1 - p) * concentration, shape).mean(-1) for p in (before, after))
        return new - old, after - before

    return draw


def unseen(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
    """A gain of 1 for two losses of a half, which a sample may happen not to have: then all it has are gains."""
    return random.choice([1.0, -0.5, 0.0], (TIMES, prompts), p=[0.25, 0.5, 0.25]), 0.0


RARE: dict[str, Draw] = {
    "0 to 0.02": binary(0, 0.02, 1),
    "0 to 0.05": binary(0, 0.05, 1),
    "0 to 0.1": binary(0, 0.1, 1),
    "0.02 to 0.1": binary(0.02, 0.1, 1),
    "1 to 0.9": binary(1, 0.9, 1),
    "0 to 0.05 of four": binary(0, 0.05, 4),
    "one in ten": solved(0.6, 1),
    "one in ten of eight": solved(0.6, 8),
    "skewed grades": graded(0.01, 0.05, 0.5, 1),
    "losses of a half": unseen,
}
ORDINARY: dict[str, Draw] = {
    "0.05 to 0.05": binary(0.05, 0.05, 1),
    "0.3 to 0.3": binary(0.3, 0.3, 1),
    "0.5 to 0.5 of eight": binary(0.5, 0.5, 8),
    "0.3 to 0.6 of four": binary(0.3, 0.6, 4),
    "0.05 to 0.2 of four": binary(0.05, 0.2, 4),
    "0.5 to 0.95": binary(0.5, 0.95, 1),
    "no change in one in ten": solved(0.0, 8),
    "varied": varied(0.0),
    "varied, better": varied(0.2),
    "grades": graded(0.5, 0.7, 5, 4),
    "extreme grades": graded(0.05, 0.05, 1, 1),
}
CASES = RARE | ORDINARY
CORNERS = ["0 to 0.02", "1 to 0.9", "one in ten", "skewed grades", "losses of a half"]
CORNERS += ["0.5 to 0.5 of eight", "varied", "varied, better", "extreme grades"]
"""One of each kind of rewards, for what is dear to simulate."""


def wrong(bounds: Callable, draw: Draw, prompts: int) -> float:
    """How often the interval does not hold the true mean."""
    values, true = draw(np.random.default_rng(prompts), prompts)
    low, high = bounds(values)
    return 1 - np.mean((low <= true + 1e-12) & (true - 1e-12 <= high))


def verdicts(bounds: Callable, draw: Draw, prompts: int) -> float:
    """How often the interval says that there is a difference."""
    low, high = bounds(draw(np.random.default_rng(prompts), prompts)[0])
    return np.mean((low > 0) | (high < 0))


def ever_wrong(bounds: Callable, draw: Draw, looks: tuple[int, ...] = LOOKS) -> float:
    """How often at least one of several looks at a growing comparison does not hold the true mean."""
    values, true = draw(np.random.default_rng(7), max(looks))
    result = [bounds(values[:, :count]) for count in looks]
    return 1 - np.mean(np.all([(low <= true + 1e-12) & (true - 1e-12 <= high) for low, high in result], axis=0))


once, always = partial(interval, width=1.0), partial(anytime_interval, width=1.0)


def resampled(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The percentile interval of the bootstrap, which is too narrow for few values."""
    draws = np.random.default_rng(0).integers(0, values.shape[-1], (200, values.shape[-1]))
    low, high = np.quantile(values[:, draws].mean(-1), [0.025, 0.975], axis=-1)
    return low, high


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


@pytest.mark.parametrize(("case", "prompts"), [*product(CASES, [16]), *product(CORNERS, [8, 64])])
def test_the_interval_misses_the_truth_no_more_often_than_it_says(case, prompts):
    assert wrong(once, CASES[case], prompts) <= at_most(0.05, TIMES)


@pytest.mark.parametrize("case", ["0 to 0.05", "0 to 0.1", "one in ten", "skewed grades"])
def test_the_same_test_fails_for_an_interval_that_takes_rare_rewards_for_normal(case):
    assert wrong(student_interval, CASES[case], 16) > 2 * at_most(0.05, TIMES)


def test_the_same_test_fails_for_an_interval_that_is_too_narrow():
    assert wrong(resampled, varied(0.2), 8) > at_most(0.05, TIMES)


@pytest.mark.parametrize("case", CORNERS)
def test_the_interval_for_many_looks_is_wrong_at_any_no_more_often_than_it_says(case):
    assert wrong(always, CASES[case], LOOKS[-1]) <= at_most(0.05, TIMES)  # it holds no more than at any look before


def test_what_one_look_ruled_out_stays_ruled_out_at_every_later_one():
    values = varied(0.2)(np.random.default_rng(2), 64)[0][:20]
    lows, highs = zip(*(always(values[:, :count]) for count in range(2, 65)), strict=True)
    assert np.all(np.diff(lows, axis=0) > -1e-8)
    assert np.all(np.diff(highs, axis=0) < 1e-8)


@pytest.mark.parametrize("case", ["0 to 0.05", "one in ten"])
def test_without_bounds_an_interval_for_many_looks_is_wrong_about_rare_rewards(case):
    assert ever_wrong(anytime_interval, CASES[case]) > 0.15


def test_the_interval_for_one_look_is_wrong_too_often_in_six():
    assert ever_wrong(once, varied(0.0)) > at_most(0.05, TIMES)


@pytest.mark.parametrize(
    ("draw", "prompts"),
    [(varied(0.5), 16), (varied(0.2), 64), (binary(0.3, 0.6, 4), 16), (binary(0.5, 0.7, 8), 32)],
)
def test_in_ordinary_cases_verdicts_are_nearly_as_frequent_as_with_student(draw, prompts):
    assert verdicts(student_interval, draw, prompts) > 0.6
    assert verdicts(once, draw, prompts) > 0.85 * verdicts(student_interval, draw, prompts)


def paired(better: int, worse: int, prompts: int) -> np.ndarray:
    """The differences of one completion per prompt that fails or succeeds."""
    return np.array([1.0] * better + [-1.0] * worse + [0.0] * (prompts - better - worse))


def tables(prompts: int) -> list[tuple[int, int]]:
    """How many prompts can be better, and how many worse."""
    return [(better, worse) for better in range(prompts + 1) for worse in range(prompts + 1 - better)]


def sign_test(better: int, worse: int) -> float:
    """The two-sided p-value of the exact sign test: as uneven a count of heads in as many throws of a fair coin."""
    changed = better + worse
    ways = sum(math.comb(changed, count) for count in range(max(better, worse), changed + 1))
    return min(1.0, 2 * ways / 2**changed)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("prompts", [16, 50])
def test_with_one_success_or_failure_per_prompt_verdicts_are_those_of_the_exact_sign_test(prompts, level):
    low, high = interval(np.array([paired(*table, prompts) for table in tables(prompts)]), level, 1.0)
    exact = [np.sign(u - w) * (sign_test(u, w) <= 1 - level) for u, w in tables(prompts)]
    assert (np.sign(low) * (low * high > 0) == exact).all()


def test_a_rare_gain_without_any_loss_is_a_verdict_of_whatever_number_of_prompts():
    for prompts in (16, 50, 1000):
        assert once(paired(6, 0, prompts))[0] > 0 > once(paired(5, 0, prompts))[0]


def test_more_better_and_no_more_worse_never_lose_a_verdict():
    prompts = 40
    low, _ = once(np.array([paired(*table, prompts) for table in tables(prompts)]))
    verdict = dict(zip(tables(prompts), low > 0, strict=True))
    assert verdict[7, 0]
    assert not verdict[7, 1]
    for (better, worse), given in verdict.items():
        for table in ((better + 1, worse), (better, worse - 1), (better + 1, worse - 1)):
            assert verdict.get(table, True) >= given


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("prompts", [16, 30, 60])
def test_counted_out_over_all_tables_the_sign_interval_misses_no_more_often_than_it_says(prompts, level):
    low, high = sign_interval(np.array([paired(*table, prompts) for table in tables(prompts)]), level)
    counts = np.array([(u, w, prompts - u - w) for u, w in tables(prompts)])
    ways = np.array([math.lgamma(prompts + 1) - sum(math.lgamma(n + 1) for n in table) for table in counts])
    for changed in (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.9, 0.98):
        for share in (0.5, 0.501, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 0.95, 0.99):
            chances = np.array([changed * share, changed * (1 - share), 1 - changed])
            true = chances[0] - chances[1]
            missed = (low > true + 1e-12) | (high < true - 1e-12)
            assert np.exp(ways + counts @ np.log(chances))[missed].sum() <= 1 - level


def test_the_order_of_the_values_does_not_count_in_one_look():
    random = np.random.default_rng(6)
    rare, normal = random.choice([0.0, 0.25, 1.0], 60, p=[0.9, 0.07, 0.03]), varied(0.2)(random, 60)[0][0]
    assert (near_normal(rare), near_normal(normal)) == (False, True)
    for values in (paired(7, 0, 60), rare, normal):
        assert len({tuple(map(float, once(random.permutation(values)))) for _ in range(20)}) == 1


def test_by_betting_a_larger_gain_never_loses_a_verdict():
    values = np.array([0.75] * 8 + [0.0] * 30 + [-0.25])
    lows = [betting_interval([*values, more])[0] for more in np.linspace(-1, 1, 21)]
    assert np.all(np.diff(lows) >= 0)


@pytest.mark.parametrize(("after", "prompts", "power"), [(0.2, 30, 0.57), (0.14, 50, 0.71), (0.07, 100, 0.69)])
def test_rare_successes_get_the_verdicts_that_the_exact_test_gives(after, prompts, power):
    assert verdicts(once, binary(0, after, 1), prompts) == pytest.approx(power, abs=0.04)


@pytest.mark.parametrize(("draw", "prompts", "power"), [(solved(0.6, 8), 128, 0.75), (solved(0.4, 4), 200, 0.75)])
def test_rare_changes_of_several_completions_get_a_verdict_by_betting(draw, prompts, power):
    assert not near_normal(draw(np.random.default_rng(0), prompts)[0]).all()
    assert verdicts(betting_interval, draw, prompts) > power


@pytest.mark.parametrize("case", CASES)
def test_betting_misses_the_truth_no_more_often_than_it_says(case):
    assert wrong(betting_interval, CASES[case], 32) <= at_most(0.05, TIMES)


def test_an_interval_for_many_looks_comes_to_a_verdict_on_rare_rewards():
    assert verdicts(always, binary(0, 0.05, 1), 256) > 0.9
    assert verdicts(always, varied(0.2), 128) > 0.8


@pytest.mark.parametrize("prompts", [8, 16])
def test_without_bounds_it_is_good_for_differences_that_are_normal(prompts):
    def normal(random: np.random.Generator, prompts: int) -> tuple[np.ndarray, float]:
        return random.normal(0.3, 1, (TIMES, prompts)), 0.3

    assert wrong(interval, normal, prompts) <= at_most(0.05, TIMES)
    assert ever_wrong(anytime_interval, normal) <= at_most(0.05, TIMES)


def test_what_student_cannot_be_trusted_with_is_seen():
    assert not near_normal([0.0] * 200 + [1.0] * 7)
    assert near_normal([0.0, 0.25] * 8)
    assert not near_normal([0.0, 0.1] * 10 + [5.0])
    assert not near_normal([0.25] * 20)


def test_heavy_tails_are_wrong_no_more_often_where_a_verdict_is_given():
    random = np.random.default_rng(5)
    for values, true in [
        (random.standard_t(2, (TIMES, 32)), 0.0),
        (random.exponential(1.0, (TIMES, 32)), 1.0),
        (random.lognormal(0.0, 1.0, (TIMES, 32)), math.exp(0.5)),
    ]:
        low, high = interval(values)
        assert np.mean(near_normal(values) & ((true < low) | (high < true))) <= at_most(0.05, TIMES)


def test_equal_values_leave_the_doubt_that_so_few_leave():
    few, many = (betting_interval([0.0] * count) for count in (16, 256))
    assert few[0] < -0.2 < -0.05 < many[0] < 0 < many[1] < 0.05 < 0.2 < few[1]


def test_the_interval_scales_with_the_bounds():
    values = np.array([0.0] * 12 + [1.0] * 4)
    assert np.allclose(np.multiply(betting_interval(values), 5), betting_interval(values * 5, width=5.0))


@pytest.mark.parametrize("bounds", [interval, anytime_interval, betting_interval, once, always])
def test_one_value_bounds_nothing(bounds):
    assert bounds([0.5]) == (-math.inf, math.inf)


@pytest.mark.parametrize("bounds", [interval, anytime_interval, betting_interval])
def test_a_wider_level_gives_a_wider_interval(bounds):
    values = np.random.default_rng(1).normal(size=30).clip(-0.5, 1)
    (low, high), (lower, higher) = bounds(values, 0.5), bounds(values, 0.99)
    assert lower < low < high < higher


def test_with_many_values_the_interval_is_that_of_the_normal_distribution():
    values = np.random.default_rng(3).normal(0.1, 0.5, size=5000)
    low, high = interval(values)
    error = values.std() / math.sqrt(len(values))
    assert (low, high) == (
        pytest.approx(values.mean() - 1.96 * error, abs=0.01 * error),
        pytest.approx(values.mean() + 1.96 * error, abs=0.01 * error),
    )
