"""Published algorithms by name: each stands for the options that differ from the defaults."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple

from rolloutlab.errors import InputError

ALGORITHM = "algorithm"
"""The name of the option, in a `%%train` cell and in `lab.train`, that selects an algorithm."""


@dataclass(frozen=True)
class Algorithm:
    """A published algorithm.

    paper: the number of its paper at arXiv.
    trl: the settings with which TRL's trainer computes the same, in Markdown.
    options: the options that differ from their defaults.
    longest: its `loss_scale_factor` is the length of the longest answer.
    """

    name: str
    paper: str
    trl: str
    options: Mapping[str, Any] = field(default_factory=dict)
    longest: bool = False

    def __str__(self) -> str:
        """`ppo: true, loss_aggregation: constant`."""
        return written_options({**self.options, **({"loss_scale_factor": "max_tokens"} if self.longest else {})})


_ALL = (
    Algorithm("grpo", "2402.03300", '`GRPOConfig(loss_type="grpo")`', {"ppo": True}),
    Algorithm(
        "dr_grpo",
        "2503.20783",
        '`loss_type="dr_grpo"`, `scale_rewards="none"`; its divisor is `max_completion_length`',
        {"ppo": True, "scale_rewards": False, "loss_aggregation": "constant"},
        longest=True,
    ),
    Algorithm(
        "dapo",
        "2503.14476",
        '`loss_type="dapo"`, `epsilon_high=0.28`, `mask_truncated_completions=True`',
        {"ppo": True, "epsilon_high": 0.28, "loss_aggregation": "token_mean", "mask_truncated": True},
    ),
    Algorithm(
        "gspo",
        "2507.18071",
        '`loss_type="grpo"`, `importance_sampling_level="sequence"`, `epsilon=3e-4`, `epsilon_high=4e-4`',
        {"ppo": True, "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    Algorithm(
        "cispo",
        "2506.13585",
        '`loss_type="cispo"`, `epsilon_high=5.0` (in TRL the bound itself; here it is 1 + `epsilon_high`)',
        {"loss_aggregation": "token_mean"},
    ),
    Algorithm(
        "rloo",
        "2402.14740",
        "`RLOOConfig(beta=0.0)`, on fresh samples; its `beta` is 0.05 by default",
        {"scale_rewards": False, "loss_aggregation": "constant", "loss_scale_factor": 1},
    ),
)

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({each.name: each for each in _ALL})


class Expanded(NamedTuple):
    """Options, with those that an algorithm stands for.

    options: all options, without the name of the algorithm.
    name: the name of the algorithm; empty if none was given.
    own: the options that the algorithm set.
    typed: the options that a user gave instead of the algorithm's own.
    """

    options: dict[str, Any]
    name: str = ""
    own: Mapping[str, Any] = MappingProxyType({})
    typed: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        """`algorithm dapo (arXiv 2503.14476): ppo: true, loss_aggregation: token_mean; as typed: epsilon_high: 0.3`."""
        if not self.name:
            return ""
        set_here = written_options(self.own) or "nothing"
        typed = f"; as typed: {written_options(self.typed)}" if self.typed else ""
        return f"algorithm {self.name} (arXiv {ALGORITHMS[self.name].paper}): {set_here}{typed}"


AS_TYPED = Expanded({})
"""No algorithm was given."""


def add_algorithm(options: Any, algorithm: str | None) -> Any:
    """Add the algorithm of a separate argument to options. InputError if the options name another algorithm."""
    options = {} if options is None else options
    if algorithm is None or not isinstance(options, Mapping):
        return options
    if (other := options.get(ALGORITHM, algorithm)) != algorithm:
        hint = f"algorithm={algorithm!r}, and no algorithm among the options"
        raise InputError(f"algorithm is given twice: {other} and {algorithm}", hint=hint)
    return {**options, ALGORITHM: algorithm}


def algorithm_problem(name: Any) -> tuple[str, str] | None:
    """What is wrong with the name of an algorithm, and what to type; None if it is valid. None is a valid name."""
    if name is None or (isinstance(name, str) and name in ALGORITHMS):
        return None
    close = get_close_matches(str(name).lower().replace("-", "_"), ALGORITHMS, n=1)
    return f"algorithm: {name!r} is not one of {', '.join(ALGORITHMS)}", f"algorithm: {close[0] if close else 'grpo'}"


def expand(given: Mapping[str, Any], longest: Callable[[], float | None]) -> Expanded:
    """The options, with those that the algorithm among them stands for. A given option overrides the algorithm's own.

    An option that is given as None, its default, also counts as given.

    longest: returns the most tokens of an answer. It is only called if the algorithm divides by that. If it returns
        None, `loss_scale_factor` stays open.
    """
    typed = {name: value for name, value in given.items() if name != ALGORITHM}
    if (name := given.get(ALGORITHM)) is None:
        return Expanded(typed)
    own = dict(ALGORITHMS[name].options)
    if typed.get("loss_aggregation", own.get("loss_aggregation")) != "constant":
        own.pop("loss_scale_factor", None)  # without constant it has no meaning
    elif ALGORITHMS[name].longest:
        if "loss_scale_factor" in typed:
            own["loss_scale_factor"] = None  # the given value takes its place, so `longest` is not called
        elif (most := longest()) is not None:
            own["loss_scale_factor"] = most
    replaced = {option: typed[option] for option in own if option in typed and typed[option] != own[option]}
    left = {option: value for option, value in own.items() if option not in typed}
    return Expanded({**left, **typed}, name, left, replaced)


def algorithm_lines() -> list[str]:
    """Help: a line about the word, and one for each name."""
    first = (
        f"algorithm: several options by one name, {', '.join(ALGORITHMS)}; what is typed beside it wins (default none)"
    )
    return [first, *(f"algorithm: {each.name} is {each}" for each in ALGORITHMS.values())]


def algorithm_table() -> str:
    """The table of docs/training.md and docs/reference.md."""
    head = ["| `algorithm:` | paper | stands for | the same in TRL |", "|---|---|---|---|"]
    rows = [
        f"| `{each.name}` | [{each.paper}](https://arxiv.org/abs/{each.paper})"
        f" | {', '.join(f'`{option}`' for option in str(each).split(', '))} | {each.trl} |"
        for each in ALGORITHMS.values()
    ]
    return "\n".join([*head, *rows])


def written_options(options: Mapping[str, Any]) -> str:
    """`ppo: true, epsilon: 0.2`."""
    written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return ", ".join(f"{name}: {value or 'default'}" for name, value in written.items())
