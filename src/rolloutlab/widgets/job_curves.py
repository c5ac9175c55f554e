"""Training curves: the numbers of each, what is healthy, and what is odd about the present ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.training import Event

Numbers = Mapping[str, Sequence[float | None]]
"""By name, one per gradient step; None where a step does not report it."""

_DIGITS = 6


@dataclass(frozen=True)
class Curve:
    """Numbers of the gradient steps that are drawn together.

    healthy: what to expect, in a sentence. odd: from the first and the last of the first number to what is not as
    expected, with ` -> ` and what to type before the second part; None where all is well.
    """

    title: str
    names: tuple[str, ...]
    healthy: str
    odd: Callable[[float, float], str | None] = lambda _first, _last: None


_STALE = "they are of an older checkpoint, or their logprobs of another engine -> %%chat again"
"""What a first step far from the policy that sampled means. The mean ratio is no sign of it: its expectation is 1 for
any two policies."""


def _entropy(_first: float, last: float) -> str | None:
    return "nearly 0: answers are all alike, so groups stop differing -> learning_rate: lower" if last < 0.01 else None


def _kl(first: float, last: float) -> str | None:
    if first > 0.05:
        return f"{first:.2g} on the first step, where fresh completions have 0: {_STALE}"
    return f"{last:.2g}: the policy has left the one that sampled -> fewer groups in a job" if last > 1 else None


def _clipped(_first: float, last: float) -> str | None:
    return f"{last:.0%} of the tokens are cut back -> learning_rate: lower, or fresh %%chat" if last > 0.2 else None


def _correlation(first: float, _last: float) -> str | None:
    return f"{first:.3f} on the first step, where fresh completions have 1: {_STALE}" if first < 0.98 else None


CURVES = (
    Curve("reward", ("reward",), "the number to watch: it should rise from job to job"),
    Curve("loss", ("loss",), "near 0 is normal: advantages have mean 0 within a group; look at the reward"),
    Curve("entropy", ("entropy",), "may fall slowly; near 0 all answers are alike and nothing differs", _entropy),
    Curve(
        "distance (kl)",
        ("kl",),
        "from the policy that sampled: 0 on the first step when fresh, grows slowly, stays well below 1",
        _kl,
    ),
    Curve(
        "old/new correlation",
        ("old_new_correlation",),
        "1 on the first step when fresh; falls as the policy leaves the one that sampled",
        _correlation,
    ),
    Curve("importance ratio", ("ratio_mean",), "its mean is near 1 for old completions too: see distance, correlation"),
    Curve(
        "largest ratio", ("ratio_max",), "a token became so many times as likely since it was sampled: a few is fine"
    ),
    Curve(
        "clipped tokens", ("clipped", "masked"), "share whose gradient a bound changes: a few percent at most", _clipped
    ),
    Curve("gradient norm", ("grad_norm",), "before clipping: a single spike matters, its size alone does not"),
)


def numbers_of(events: Sequence[Event], first: int = 0) -> dict[str, list[float | None]]:
    """The numbers of all curves over the gradient steps of these events, from the step `first` on."""
    steps = [event.data for event in events if event.type == "gradient_step"][first:]
    names = [name for curve in CURVES for name in curve.names if any(name in step for step in steps)]
    return {name: [_short(step.get(name)) for step in steps] for name in names}


def curves_with_numbers(numbers: Numbers) -> list[Curve]:
    """The curves that have numbers. A reward that is the whole job's, so always the same, is not drawn."""
    there = [curve for curve in CURVES if any(name in numbers for name in curve.names)]
    return [curve for curve in there if curve.names != ("reward",) or len(set(numbers["reward"])) > 1]


def oddities(numbers: Numbers) -> dict[str, str]:
    """By title, what is not as expected about curves."""
    odd = {}
    for curve in curves_with_numbers(numbers):
        values = [value for value in numbers.get(curve.names[0], ()) if value is not None]
        if values and (sentence := curve.odd(values[0], values[-1])):
            odd[curve.title] = sentence
    return odd


def _short(value: Any) -> float | None:
    """A number with as many digits as a picture needs."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(f"{value:.{_DIGITS}g}")
