"""Between which bounds a mean lies: once, by Student's t, or at any time, by a sequence of intervals."""

import math
from collections.abc import Sequence

Bounds = tuple[float, float]

_LARGEST = 10_000
"""Degrees of freedom beyond which the quantile is that of so many: from there on it changes by less than 0.0003."""
_EFFECT_VARIANCE = 0.5
"""Of the normal prior on mean / standard deviation. Any is valid; this one is narrow from 16 values on."""


def interval(values: Sequence[float], level: float = 0.95) -> Bounds:
    """Student's interval for the mean (Student 1908), for one look at N independent values.

    One value bounds nothing: the interval is then everything.
    """
    count = len(values)
    return _around(values, student_t((1 + level) / 2, count - 1) ** 2 if count > 1 else math.inf)


def anytime_interval(values: Sequence[float], level: float = 0.95) -> Bounds:
    """An interval for the mean that may be looked at after every value: all of them hold it with probability `level`.

    It is where the mixture t-statistic is below 1 / (1 - level) (Robbins 1970; Lai 1976; for an unknown variance, Wang
    and Ramdas 2024, arXiv 2310.03722, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
    variance"): with g the prior variance of mean / standard deviation and k = 1 + N·g, the statistic is
    k^(-1/2) · ((1 + t²/(N-1)) / (1 + t²/(k·(N-1))))^(N/2). Exact for normal values, approximate for means of others.
    The first few values bound nothing.
    """
    count = len(values)
    k = 1 + count * _EFFECT_VARIANCE
    most = (math.sqrt(k) / (1 - level)) ** (2 / count)
    return _around(values, (count - 1) * (most - 1) / (1 - most / k) if most < k else math.inf)


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


def _around(values: Sequence[float], t_squared: float) -> Bounds:
    """The mean, less and more sqrt(t²) standard errors."""
    count = len(values)
    if math.isinf(t_squared):
        return -math.inf, math.inf
    mean = math.fsum(value / count for value in values)
    error = math.hypot(*(value - mean for value in values)) / math.sqrt(count * (count - 1))
    return mean - math.sqrt(t_squared) * error, mean + math.sqrt(t_squared) * error
