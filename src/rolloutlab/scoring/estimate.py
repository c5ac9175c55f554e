"""Progress of a scoring, and estimates of its time and tokens, for a dry run and while it runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from rolloutlab.api.prices import Tokens, cost, shown
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Price


@dataclass
class Tally:
    """What a run has done.

    scored: trajectories that got a reward. called, seconds: the calls that were made and their time, by function.
    reused: remembered results that were used in place of a call. failed: trajectories without a reward, by type of
    error.
    """

    scored: int = 0
    called: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    reused: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def failures(self) -> int:
        return self.failed.total()

    @property
    def done(self) -> int:
        """Trajectories with an outcome."""
        return self.scored + self.failures

    def add(self, function: str, seconds: float, calls: int = 1) -> None:
        """Count calls, which took so many seconds in all."""
        self.called[function] += calls
        self.seconds[function] = self.seconds.get(function, 0.0) + seconds

    def line(self) -> str:
        """How many were scored, and how many failed by type of error."""
        if not self.failures:
            return f"{self.scored:,} scored"
        kinds = ", ".join(f"{error} \N{MULTIPLICATION SIGN}{times:,}" for error, times in self.failed.most_common())
        return f"{self.scored:,} scored, {self.failures:,} failed: {kinds}"


@dataclass(frozen=True)
class ModelUsage:
    """Requests to a model and their tokens; None if the service did not report them for each request."""

    requests: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0

    def __add__(self, other: "ModelUsage") -> "ModelUsage":
        return ModelUsage(
            self.requests + other.requests,
            _sum(self.prompt_tokens, other.prompt_tokens),
            _sum(self.completion_tokens, other.completion_tokens),
        )


@dataclass(frozen=True)
class MeasuredCalls:
    """Calls of a function: how many were made, how many seconds these took in all, and how many scoring would make."""

    made: int
    seconds: float
    needed: int

    @property
    def mean(self) -> float:
        return self.seconds / self.made


def time_line(functions: Sequence[MeasuredCalls], at_once: int, in_threads: bool = False) -> str:
    """Estimate the time of all calls: their number times their mean seconds, divided by how many run at a time.

    It is at least the time of the slowest function alone. in_threads: whether the calls run in threads; functions that
    compute, instead of waiting, then take turns, so the line also has the time of all calls one by one.
    """
    measured = [each for each in functions if each.made]
    made, seconds = sum(each.made for each in measured), sum(each.seconds for each in measured)
    terms = " + ".join(
        f"{count(each.needed, 'call')} \N{MULTIPLICATION SIGN} {_seconds(each.mean)}" for each in measured
    )
    one_by_one = sum(each.needed * each.mean for each in measured)
    rounds = (ceil(each.needed / at_once) * each.mean for each in measured)
    head = f"{count(made, 'call')} took {_seconds(seconds)}; scoring takes {terms}"
    line = f"{head}, or {_seconds(max(one_by_one / at_once, *rounds))} with {at_once} at a time"
    computing = f" where they wait, {_seconds(one_by_one)} where they compute (--processes)"
    return line + computing if in_threads and at_once > 1 else line


def token_lines(
    usage: Mapping[str, ModelUsage], tried: int, needed: int, price_of: Callable[[str], Price | None]
) -> list[str]:
    """A line for each model that was asked: its tokens for the tried trajectories, and an estimate for all."""
    lines = []
    for model, spent in usage.items():
        if spent.prompt_tokens is None or spent.completion_tokens is None:
            lines.append(f"{model} was asked {spent.requests:,} times; the service reports no tokens")
            continue
        tokens = [spent.prompt_tokens, spent.completion_tokens]
        scaled = [ceil(each * needed / tried) for each in tokens]
        price = price_of(model)
        dollars = f", {shown(cost(price, Tokens(*scaled)))}" if price else ""
        hint = "" if price else f' -> [prices."{model}"] in the settings file, for dollars'
        head = f"{model} took {_tokens(tokens)} for {count(tried, 'trajectory')}"
        lines.append(f"{head}, or {_tokens(scaled)} for {needed:,}{dollars}{hint}")
    return lines


def used(before: Mapping[str, ModelUsage], after: Mapping[str, ModelUsage]) -> dict[str, ModelUsage]:
    """The usage since `before`; both are totals by model."""
    spent = {}
    for model, now in after.items():
        then = before.get(model, ModelUsage())
        if now.requests > then.requests:
            spent[model] = ModelUsage(
                now.requests - then.requests,
                _difference(now.prompt_tokens, then.prompt_tokens),
                _difference(now.completion_tokens, then.completion_tokens),
            )
    return spent


def pace(done: int, total: int, seconds: float) -> str:
    """Rate and time left: `3.2/s, 2 min left`."""
    if not done or seconds <= 0:
        return ""
    left = max(0, total - done) * seconds / done
    return f"{done / seconds:,.1f}/s, {_left(left)} left"


def _left(seconds: float) -> str:
    """`40 s`, `2 min` or `3.5 h`."""
    if seconds < 100:
        return f"{ceil(seconds)} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _difference(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


def _tokens(tokens: Sequence[int]) -> str:
    return f"{tokens[0]:,} + {tokens[1]:,} tokens"


def _seconds(seconds: float) -> str:
    """`0.012 s`, `5 min` or `3.5 h`."""
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
