"""The eleven options of a training job as a person meets them: what each does, its range, its default, an example.

Help, errors, tab completion and the table of docs/training.md are all made from `OPTIONS`.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, get_args

from rolloutlab.objective.typed import read
from rolloutlab.wire.levels import ImportanceSamplingLevel

_BOOLEAN = ("true", "false")


@dataclass(frozen=True)
class Option:
    """One option. It is a number in [low, high] unless `values` lists what it can be, as it is typed in a cell."""

    name: str
    does: str
    default: str
    example: str
    low: float = -math.inf
    high: float = math.inf
    values: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """What it can be, in words."""
        if self.values:
            return " or ".join([", ".join(self.values[:-1]), self.values[-1]])
        if math.isfinite(self.high):
            return f"{self.low:g} to {self.high:g}"
        return f"{self.low:g} or more" if math.isfinite(self.low) else "any number"

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, in words; None when nothing is. None itself is the default."""
        if value is None:
            return None
        if self.values == _BOOLEAN:
            return None if isinstance(value, bool) else f"{value!r} is neither true nor false"
        if self.values:
            known = isinstance(value, str) and value in self.values
            return None if known else f"{value!r} is none of {', '.join(self.values)}"
        return self._number_problem(value)

    def is_default(self, value: Any) -> bool:
        """Whether a value changes nothing, whatever the other options are."""
        return value is None or value == {"off": 0}.get(self.default, read(self.default))

    def _number_problem(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{value!r} is no number"
        if not abs(value) <= sys.float_info.max:
            return f"{value!r} is not finite"
        if self.low <= value <= self.high:
            return None
        return f"{value} is outside {self.range}" if math.isfinite(self.high) else f"{value} is below {self.low:g}"


_ALL = (
    Option(
        "advantage_balance",
        "above 0 shrinks what teaches to avoid, below 0 what teaches to repeat; 1 and -1 remove it",
        default="0",
        example="0.5",
        low=-1,
        high=1,
    ),
    Option(
        "epsilon",
        "importance ratios are clipped from below at 1 - epsilon",
        default="1.0; 0.2 with ppo",
        example="0.2",
        low=0,
    ),
    Option(
        "epsilon_high",
        "importance ratios are clipped from above at 1 + epsilon_high",
        default="4.0; epsilon with ppo",
        example="0.28",
        low=0,
    ),
    Option(
        "importance_sampling_level",
        "whether the importance ratio is of a token, of its whole history (a mean over its tokens, far nearer to 1:"
        " epsilon 3e-4 and epsilon_high 4e-4 with ppo, as GSPO has them), or a mean of both",
        default="token",
        example="sequence",
        values=get_args(ImportanceSamplingLevel),
    ),
    Option(
        "vendor_k2_tau",
        "strength of the penalty on the change of a token's logprob; 0 is off",
        default="off",
        example="0.01",
    ),
    Option(
        "learning_rate",
        "the optimiser's step size; nearly every gradient is cut to norm 0.1, so this alone sets how far a step goes",
        default="the policy's own: 2e-3 under 20M parameters, 5e-6 above",
        example="2e-3",
        low=0,
    ),
    Option(
        "mask_prob_ratio",
        "a ratio outside the clip range becomes 0 instead of the bound",
        default="false",
        example="true",
        values=_BOOLEAN,
    ),
    Option(
        "max_negative_advantage_importance_sampling_weight",
        "upper bound of every importance ratio; 0 is off",
        default="off",
        example="10.0",
        low=0,
    ),
    Option(
        "ppo",
        "the clipped surrogate of PPO instead of clipped importance-weighted REINFORCE",
        default="false",
        example="true",
        values=_BOOLEAN,
    ),
    Option(
        "precalculate_logprobs",
        "old logprobs are recomputed under the job's starting weights: for imported ones, or another engine's numerics",
        default="false",
        example="true",
        values=_BOOLEAN,
    ),
    Option(
        "scale_rewards",
        "an advantage is divided by the standard deviation of its group",
        default="true",
        example="false",
        values=_BOOLEAN,
    ),
)

OPTIONS: Mapping[str, Option] = MappingProxyType({option.name: option for option in _ALL})

_ALIASES = {"kimi_k2_tau": "vendor_k2_tau"}


def proper_name(name: str) -> str:
    """The name of an option in `OPTIONS`, for one that goes by several."""
    return _ALIASES.get(name, name)


def problems(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that is wrong with the options of a job: what, and what to type instead. Empty when nothing is."""
    found = []
    for name, value in options.items():
        option = OPTIONS.get(proper_name(name))
        if option is None:
            close = get_close_matches(name, OPTIONS, n=1)
            typed = f"{close[0]}: {OPTIONS[close[0]].example}" if close else f"one of {', '.join(OPTIONS)}"
            found.append((f"unknown option {name!r}", typed))
        elif wrong := option.problem(value):
            found.append((f"{name}: {wrong}", f"{name}: {option.example}"))
    return found


def help_lines() -> list[str]:
    """The options for a terminal: one line each, with what it does, its range and its default."""
    return [f"{o.name}: {o.does} ({o.range}; default {o.default})" for o in OPTIONS.values()]


def markdown_table() -> str:
    """The options for a page."""
    head = ["| option | does | range | default | example |", "|---|---|---|---|---|"]
    rows = [f"| `{o.name}` | {o.does} | {o.range} | {o.default} | `{o.name}: {o.example}` |" for o in OPTIONS.values()]
    return "\n".join([*head, *rows])
