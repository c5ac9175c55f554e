"""Confidence intervals and confidence sequences for a mean, of values with known bounds or without.

The last axis of the values is one sample of N values, in the order in which they came. An array may hold many samples
(shape S, N); the interval's ends then have the shape S.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Bounds: TypeAlias = tuple[Values, Values]

MIN_CHANGED = 8
"""The least number of values that differ from the most common one, for Student's interval."""

_MAX_FREEDOM = 10_000
"""The most degrees of freedom that are computed with. With more, the quantile changes by less than 0.0003."""
_EFFECT_VARIANCE = 0.5
"""Variance of the normal prior on mean / standard deviation. Any value is valid; this one is narrow from N = 16 on."""
_COCHRAN = 25.0
"""A normal approximation needs N of at least this times the squared skewness (Cochran 1977, section 2.15)."""
_SEEN = 0.25
"""Student's interval is trusted only if some value is at least this fraction of the largest that the bounds allow."""
_LARGEST_BET = 0.75  # fraction of the largest bet that cannot lose everything; the paper takes 1/2 or 3/4
_CONSTANT_BETS = (0.5, 0.95)
"""Fractions of the largest bet, for one look. The large one wins most if no value is a loss; the small one survives
losses."""
_HALVINGS = 30
"""Steps of a bisection between 0 and 1."""


def interval(values: Values | Sequence[float], level: float = 0.95, width: float | None = None) -> Bounds:
    """Compute an interval for the mean, valid for one look. The order of the values does not matter.

    width: the values are known to be between -width and +width. It selects the method:

    - no width: Student's interval;
    - all values are -width, 0 or +width: the sign test;
    - the values are `near_normal`: Student's interval;
    - otherwise: betting.
    """
    values_SN = np.sort(np.asarray(values, dtype=float), -1)  # a sum depends on the order, if only in its last digit
    student = student_interval(values_SN, level)
    if width is None:
        return student
    others = zip(student, betting_interval(values_SN, level, width), strict=True)
    all_or_nothing, trusted = only_extremes(values_SN, width), near_normal(values_SN, width)
    low, high = (np.where(trusted, *bounds) for bounds in others)
    if not all_or_nothing.any():
        return low, high
    exact = sign_interval(values_SN, level, width)
    return np.where(all_or_nothing, exact[0], low), np.where(all_or_nothing, exact[1], high)


def only_extremes(values: Values | Sequence[float], width: float) -> NDArray[np.bool_]:
    """Whether all of at least two values are -width, 0 or +width, as with one completion that fails or succeeds."""
    sizes_SN = np.abs(np.asarray(values, dtype=float)) / width
    extreme: NDArray[np.bool_] = (np.isclose(sizes_SN, 0) | np.isclose(sizes_SN, 1)).all(-1)
    return extreme if sizes_SN.shape[-1] > 1 else np.zeros_like(extreme)


def sign_interval(values: Values | Sequence[float], level: float = 0.95, width: float = 1.0) -> Bounds:
    """Compute an interval for the mean of values that are -width, 0 or +width, by the exact sign test.

    The mean is width · c · (2·b - 1). Here c is the share of values that are not 0, and b is the share of positive
    values among those. Both are bounded after Clopper and Pearson 1934 ("The use of confidence or fiducial limits
    illustrated in the case of the binomial", Biometrika 26).

    The interval excludes 0 if the bounds of b exclude 1/2. That is the exact sign test of pairs of successes (McNemar
    1947, Psychometrika 12): if there is no difference, it is wrong in at most 1 - level of samples. If there is one,
    the bounds of c matter too; `tests/trajectories/test_intervals.py` shows by counting that the interval then misses
    the mean no more often.

    Other values between -width and +width that did not occur in the sample do not make a verdict wrong more often,
    because none is a larger loss than -width or a larger gain than +width.
    """
    values_SN = np.asarray(values, dtype=float)
    positive_S, changed_S = (values_SN > width / 2).sum(-1), (np.abs(values_SN) > width / 2).sum(-1)
    least_S, most_S = _clopper_pearson(changed_S, np.full_like(changed_S, values_SN.shape[-1]), level)
    low_S, high_S = (2 * share_S - 1 for share_S in _clopper_pearson(positive_S, changed_S, level))
    return (
        width * low_S * np.where(low_S > 0, least_S, most_S),
        width * high_S * np.where(high_S > 0, most_S, least_S),
    )


def _clopper_pearson(successes_S: NDArray[np.int64], trials_S: NDArray[np.int64], level: float) -> Bounds:
    """Bound the chance of a success, by the numbers of successes and of trials."""
    low_S = _lowest_chance(successes_S, trials_S, (1 - level) / 2)
    return low_S, 1 - _lowest_chance(trials_S - successes_S, trials_S, (1 - level) / 2)


def _lowest_chance(successes_S: NDArray[np.int64], trials_S: NDArray[np.int64], doubt: float) -> Values:
    """Find the largest chance of a success at which this many successes, or more, have at most the probability `doubt`.

    The terms of the binomial distribution are computed by logarithms of factorials, for all samples at once.
    """
    places_N = np.arange(trials_S.max() + 1)
    factorials_N = np.concatenate([[0.0], np.log(places_N[1:]).cumsum()])
    misses_SN = trials_S[..., None] - places_N
    counted_SN = (places_N >= successes_S[..., None]) & (misses_SN >= 0)
    misses_SN = misses_SN.clip(0)
    ways_SN = factorials_N[trials_S][..., None] - factorials_N - factorials_N[misses_SN]

    def refuted(chance_S: Values) -> NDArray[np.bool_]:
        wins_S1, losses_S1 = np.log(chance_S)[..., None], np.log1p(-chance_S)[..., None]
        terms_SN = np.exp(ways_SN + places_N * wins_S1 + misses_SN * losses_S1)
        enough: NDArray[np.bool_] = np.where(counted_SN, terms_SN, 0.0).sum(-1) <= doubt
        return enough

    return _bisect(refuted, trials_S.shape)


def _bisect(refuted: Callable[[Values], NDArray[np.bool_]], shape: tuple[int, ...]) -> Values:
    """Find the largest number between 0 and 1 for which `refuted` is true. It must be true for all smaller ones too."""
    low_S, high_S = np.zeros(shape), np.ones(shape)
    for _ in range(_HALVINGS):
        middle_S = (low_S + high_S) / 2
        refuted_S = refuted(middle_S)
        low_S, high_S = np.where(refuted_S, middle_S, low_S), np.where(refuted_S, high_S, middle_S)
    return low_S


def near_normal(values: Values | Sequence[float], width: float | None = None) -> NDArray[np.bool_]:
    """Whether Student's interval keeps its coverage for values like these, as far as a sample can show it.

    At least 8 values must differ from the most common one, and N must be at least 25 times the squared sample skewness
    (Cochran 1977, Sampling Techniques, section 2.15). `tests/trajectories/test_intervals.py` simulates in which cases
    that is enough.

    A sample cannot show a rare value that it does not contain. Rewards of 0 and 1 whose bounds are 0 and 20 may hide a
    rare 20; Student's interval would then be wrong in up to 31% of samples. So if the width is known, some value must
    be at least a quarter of it, which lowers that to 7%.
    """
    values_SN = np.asarray(values, dtype=float)
    count = values_SN.shape[-1]
    centred_SN = values_SN - values_SN.mean(-1, keepdims=True)
    spread_S = np.sqrt((centred_SN**2).mean(-1))
    skewness_S = (centred_SN**3).mean(-1) / np.where(spread_S > 0, spread_S, 1.0) ** 3
    changed_S = count - _most_common(np.sort(values_SN.round(9), -1))
    seen_S = np.abs(values_SN).max(-1) >= _SEEN * (width or 0.0) - 1e-9
    trusted: NDArray[np.bool_] = (changed_S >= MIN_CHANGED) & (count >= _COCHRAN * skewness_S**2) & seen_S
    return trusted


def student_interval(values: Values | Sequence[float], level: float = 0.95) -> Bounds:
    """Compute Student's interval for the mean (Student 1908), for one look at N independent, roughly normal values.

    One value bounds nothing: the interval is then everything.
    """
    count = np.shape(values)[-1]
    return _around(values, student_t((1 + level) / 2, count - 1) ** 2 if count > 1 else math.inf)


def anytime_interval(values: Values | Sequence[float], level: float = 0.95, width: float | None = None) -> Bounds:
    """Compute the last interval of a confidence sequence: all its intervals contain the mean with probability `level`.

    If the values are known to be between -width and +width, it is found by betting. Otherwise it consists of the means
    for which the mixture t-statistic is below 1 / (1 - level) (Robbins 1970; Lai 1976; for an unknown variance, Wang
    and Ramdas 2024, arXiv 2310.03722, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
    variance"). With g the prior variance of mean / standard deviation and k = 1 + N·g, the statistic is
    k^(-1/2) · ((1 + t²/(N-1)) / (1 + t²/(k·(N-1))))^(N/2).

    Without bounds it is exact for normal values, approximate for means of other values, and wrong for rare or skewed
    values. After the first few values the interval is still infinite.
    """
    if width is not None:
        return betting_interval(values, level, width, anytime=True)
    count = np.shape(values)[-1]
    k = 1 + count * _EFFECT_VARIANCE
    most = (math.sqrt(k) / (1 - level)) ** (2 / count)
    return _around(values, (count - 1) * (most - 1) / (1 - most / k) if most < k else math.inf)


def betting_interval(
    values: Values | Sequence[float], level: float = 0.95, width: float = 1.0, *, anytime: bool = False
) -> Bounds:
    """Compute an interval for the mean of values between -width and +width, whatever their distribution.

    It is the hedged capital of Waudby-Smith and Ramdas 2024 ("Estimating means of bounded random variables by betting",
    J. R. Stat. Soc. B 86, arXiv 2010.09686, theorem 3 and remark 3). A gambler with a capital of 1 bets that the mean
    is not m. The interval has every m against which no gambler reaches 2 / (1 - level).

    - With `anytime`, the capital may reach that at any time. Bets are the paper's predictable plug-in bets (equation
      26), which depend only on earlier values, so the order of the values matters.
    - Otherwise only the final capital counts, averaged over constant bets. It is a product, so the order does not
      matter, and its mean is at most 1.

    One value alone gives an infinite interval.
    """
    rescaled_SN = (np.asarray(values, dtype=float) / width + 1) / 2
    if rescaled_SN.shape[-1] < 2:
        nothing = np.full(rescaled_SN.shape[:-1], math.inf)
        return -nothing, nothing
    low = _lowest_mean(rescaled_SN, level, anytime)
    high = 1 - _lowest_mean(1 - rescaled_SN, level, anytime)
    return (2 * low - 1) * width, (2 * high - 1) * width


def _lowest_mean(values_SN: Values, level: float, anytime: bool) -> Values:
    """Find the lower end of the interval, for values between 0 and 1.

    Bisection finds it, because the capital won against a mean falls as the mean rises.
    """
    doubt = math.log(2 / (1 - level))
    bets_SN = _plug_in_bets(values_SN, doubt) if anytime else None
    return _bisect(lambda mean_S: _log_capital(values_SN, mean_S[..., None], bets_SN) >= doubt, values_SN.shape[:-1])


def _plug_in_bets(values_SN: Values, doubt: float) -> Values:
    """Compute the paper's predictable plug-in bets (equation 26). Each depends only on the values before it."""
    places_N = np.arange(1, values_SN.shape[-1] + 1)
    means_SN = (0.5 + values_SN.cumsum(-1)) / (places_N + 1)
    variances_SN = (0.25 + ((values_SN - means_SN) ** 2).cumsum(-1)) / (places_N + 1)
    before_SN = np.concatenate([np.full_like(values_SN[..., :1], 0.25), variances_SN[..., :-1]], -1)
    bets_SN: Values = np.sqrt(2 * doubt / (before_SN * places_N * np.log(places_N + 1)))
    return bets_SN


def _log_capital(values_SN: Values, mean_S1: Values, bets_SN: Values | None) -> Values:
    """Compute the logarithm of the capital won against a mean, by bets on values above it.

    With `bets_SN` it is the largest capital at any time; without, the final capital averaged over constant bets. A bet
    is less than 1 / mean: with that bet, a value of 0 would lose everything.
    """
    if bets_SN is not None:
        placed_SN = np.minimum(bets_SN, _LARGEST_BET / mean_S1)
        richest_S: Values = np.log1p(placed_SN * (values_SN - mean_S1)).cumsum(-1).max(-1)
        return richest_S
    ends = [np.log1p(bet * (values_SN / mean_S1 - 1)).sum(-1) for bet in _CONSTANT_BETS]
    mean_S: Values = np.logaddexp.reduce(ends, 0) - math.log(len(ends))
    return mean_S


def _most_common(sorted_SN: Values) -> NDArray[np.int64]:
    """Count how often the most common value of each sample occurs."""
    places_N = np.arange(sorted_SN.shape[-1])
    is_first_SN = np.ones(sorted_SN.shape, dtype=bool)
    is_first_SN[..., 1:] = sorted_SN[..., 1:] != sorted_SN[..., :-1]
    begun_SN = np.maximum.accumulate(np.where(is_first_SN, places_N, 0), -1)  # where the run of each value began
    longest_S: NDArray[np.int64] = (places_N - begun_SN + 1).max(-1)
    return longest_S


@lru_cache(maxsize=64)
def student_t(probability: float, freedom: int) -> float:
    """Compute a quantile of Student's distribution with `freedom` degrees of freedom, for a probability from 0.5 on.

    It is found by bisection of the finite sums of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    freedom = min(freedom, _MAX_FREEDOM)
    low, high = 0.0, math.pi / 2  # angles: t = sqrt(freedom)·tan(angle)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Compute the probability that |t| is at most sqrt(freedom)·tan(angle)."""
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * i / (i + 1)
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


def _around(values: Values | Sequence[float], t_squared: float) -> Bounds:
    """Return the mean minus and plus sqrt(t²) standard errors."""
    values_SN = np.asarray(values, dtype=float)
    mean_S = values_SN.mean(-1)
    if math.isinf(t_squared):
        return np.full_like(mean_S, -math.inf), np.full_like(mean_S, math.inf)
    reach_S = math.sqrt(t_squared) * values_SN.std(-1, ddof=1) / math.sqrt(values_SN.shape[-1])
    return mean_S - reach_S, mean_S + reach_S
