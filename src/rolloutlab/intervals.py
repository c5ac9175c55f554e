"""Between which bounds a mean lies: for one look or for many, of values with known bounds or without.

Values are arrays whose last axis is the N values of one sample, in the order in which they came; there may be many
samples at once (shape S, N). Bounds have the other axes (shape S, or none).
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values: TypeAlias = NDArray[np.float64]
    Bounds: TypeAlias = tuple[Values, Values]

FEWEST_CHANGED = 8
"""Values other than the most common one from which on Student's interval is used."""

_LARGEST = 10_000
"""Degrees of freedom beyond which the quantile is that of so many: from there on it changes by less than 0.0003."""
_EFFECT_VARIANCE = 0.5
"""Of the normal prior on mean / standard deviation. Any is valid; this one is narrow from 16 values on."""
_COCHRAN = 25.0
"""N of at least so many squared skewnesses is enough for a normal approximation (Cochran 1977, section 2.15)."""
_LARGEST_BET = 0.75
"""Of the largest bet that cannot lose everything; the paper takes 1/2 or 3/4."""
_HALVINGS = 30


def interval(values: "Values | Sequence[float]", level: float = 0.95, width: float | None = None) -> "Bounds":
    """An interval for the mean, for one look.

    Student's where the values are `near_normal` or have no known bounds, else by betting. width: the values are known
    to be within -width and +width.
    """
    import numpy as np

    student = student_interval(values, level)
    if width is None:
        return student
    trusted, betting = near_normal(values), betting_interval(values, level, width)
    return np.where(trusted, student[0], betting[0]), np.where(trusted, student[1], betting[1])


def near_normal(values: "Values | Sequence[float]") -> "NDArray[np.bool_]":
    """Whether Student's interval holds what it says for values like these, as far as they can show it.

    At least 8 differ from the most common one, and N is at least 25 squared sample skewnesses (Cochran 1977, Sampling
    Techniques, section 2.15). `tests/test_intervals.py` simulates over which cases that is enough. A rare value that
    none of them has cannot be seen.
    """
    import numpy as np

    values_SN = np.asarray(values, dtype=float)
    count = values_SN.shape[-1]
    centred_SN = values_SN - values_SN.mean(-1, keepdims=True)
    spread_S = np.sqrt((centred_SN**2).mean(-1))
    skewness_S = (centred_SN**3).mean(-1) / np.where(spread_S > 0, spread_S, 1.0) ** 3
    changed_S = count - _most_common(np.sort(values_SN.round(9), -1))
    trusted: NDArray[np.bool_] = (changed_S >= FEWEST_CHANGED) & (count >= _COCHRAN * skewness_S**2)
    return trusted


def student_interval(values: "Values | Sequence[float]", level: float = 0.95) -> "Bounds":
    """Student's interval for the mean (Student 1908), for one look at N independent, roughly normal values.

    One value bounds nothing: the interval is then everything.
    """
    import numpy as np

    count = np.shape(values)[-1]
    return _around(values, student_t((1 + level) / 2, count - 1) ** 2 if count > 1 else math.inf)


def anytime_interval(values: "Values | Sequence[float]", level: float = 0.95, width: float | None = None) -> "Bounds":
    """An interval for the mean that may be looked at after every value: all of them hold it with probability `level`.

    By betting where the values are known to be within -width and +width. Without known bounds it is where the mixture
    t-statistic is below 1 / (1 - level) (Robbins 1970; Lai 1976; for an unknown variance, Wang and Ramdas 2024, arXiv
    2310.03722, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance"): with g the
    prior variance of mean / standard deviation and k = 1 + N·g, the statistic is
    k^(-1/2) · ((1 + t²/(N-1)) / (1 + t²/(k·(N-1))))^(N/2). Exact for normal values, approximate for means of others,
    and wrong for rare or skewed ones. The first few values bound nothing.
    """
    import numpy as np

    if width is not None:
        return betting_interval(values, level, width, anytime=True)
    count = np.shape(values)[-1]
    k = 1 + count * _EFFECT_VARIANCE
    most = (math.sqrt(k) / (1 - level)) ** (2 / count)
    return _around(values, (count - 1) * (most - 1) / (1 - most / k) if most < k else math.inf)


def betting_interval(
    values: "Values | Sequence[float]", level: float = 0.95, width: float = 1.0, *, anytime: bool = False
) -> "Bounds":
    """An interval for the mean of values within -width and +width, whatever their distribution.

    The hedged capital of Waudby-Smith and Ramdas 2024 ("Estimating means of bounded random variables by betting", J. R.
    Stat. Soc. B 86, arXiv 2010.09686, theorem 3 and remark 3): it holds the means against which no gambler who bets on
    the values in their order has ever made 2 / (1 - level) of 1. Bets are predictable plug-ins, from the values before
    alone: by equation 26 with `anytime`, valid at every look, else by that for a fixed N. One value bounds nothing.
    """
    import numpy as np

    rescaled_SN = (np.asarray(values, dtype=float) / width + 1) / 2
    if rescaled_SN.shape[-1] < 2:
        nothing = np.full(rescaled_SN.shape[:-1], math.inf)
        return -nothing, nothing
    low = _lowest_mean(rescaled_SN, level, anytime)
    high = 1 - _lowest_mean(1 - rescaled_SN, level, anytime)
    return (2 * low - 1) * width, (2 * high - 1) * width


def _lowest_mean(values_SN: "Values", level: float, anytime: bool) -> "Values":
    """The lower bound, of values within 0 and 1: what was won against a mean falls as the mean rises, so by bisection.

    The bet against a mean m is on values above it, at most `_LARGEST_BET` / m, which leaves capital after a loss.
    """
    import numpy as np

    count = values_SN.shape[-1]
    places_N = np.arange(1, count + 1)
    doubt = math.log(2 / (1 - level))
    means_SN = (0.5 + values_SN.cumsum(-1)) / (places_N + 1)
    variances_SN = (0.25 + ((values_SN - means_SN) ** 2).cumsum(-1)) / (places_N + 1)
    before_SN = np.concatenate([np.full_like(values_SN[..., :1], 0.25), variances_SN[..., :-1]], -1)
    bets_SN = np.sqrt(2 * doubt / (before_SN * (places_N * np.log(places_N + 1) if anytime else count)))
    low_S, high_S = np.zeros(values_SN.shape[:-1]), np.ones(values_SN.shape[:-1])
    for _ in range(_HALVINGS):
        middle_S1 = ((low_S + high_S) / 2)[..., None]
        placed_SN = np.minimum(bets_SN, _LARGEST_BET / middle_S1)
        richest_S = np.log1p(placed_SN * (values_SN - middle_S1)).cumsum(-1).max(-1)
        refuted_S, middle_S = richest_S >= doubt, middle_S1[..., 0]
        low_S, high_S = np.where(refuted_S, middle_S, low_S), np.where(refuted_S, high_S, middle_S)
    return low_S


def _most_common(sorted_SN: "Values") -> "NDArray[np.int64]":
    """How often the most common value of each sample comes."""
    import numpy as np

    run_S = np.ones(sorted_SN.shape[:-1], dtype=np.int64)
    longest_S = run_S
    for i in range(1, sorted_SN.shape[-1]):
        run_S = np.where(sorted_SN[..., i] == sorted_SN[..., i - 1], run_S + 1, 1)
        longest_S = np.maximum(longest_S, run_S)
    return longest_S


@lru_cache(maxsize=64)
def student_t(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution with `freedom` degrees of freedom, for a probability from 0.5 on.

    By bisection of the finite sums of Abramowitz and Stegun 1964, 26.7.3 and 26.7.4.
    """
    freedom = min(freedom, _LARGEST)
    low, high = 0.0, math.pi / 2  # angles: t = sqrt(freedom)·tan(angle)
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """The probability that |t| is at most sqrt(freedom)·tan(angle)."""
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for i in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * i / (i + 1)
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


def _around(values: "Values | Sequence[float]", t_squared: float) -> "Bounds":
    """The mean, less and more sqrt(t²) standard errors."""
    import numpy as np

    values_SN = np.asarray(values, dtype=float)
    mean_S = values_SN.mean(-1)
    if math.isinf(t_squared):
        return np.full_like(mean_S, -math.inf), np.full_like(mean_S, math.inf)
    reach_S = math.sqrt(t_squared) * values_SN.std(-1, ddof=1) / math.sqrt(values_SN.shape[-1])
    return mean_S - reach_S, mean_S + reach_S
