"""The numbers of a run by step, as trackers and files take them."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, SupportsIndex


@dataclass(frozen=True)
class RunTable:
    """The numbers of a run, one row per step.

    Raises ValueError if the steps do not increase, a sequence has another length than `steps`, or a number is named
    `step`, `time` or `timestamp`, which are columns beside the numbers.

    Attributes:
        project: The name of the lab or of the sweep that the run belongs to.
        name: The name of the run.
        config: Options, base model and versions of packages.
        tags: Words to find the run by.
        steps: The steps, in increasing order; there may be gaps.
        times: When each step ended, with its time zone; None if that is not known.
        numbers: The numbers by name, one per step; None if a step has no such number.
    """

    project: str
    name: str
    config: Mapping[str, Any]
    tags: Sequence[str]
    steps: Sequence[int]
    times: Sequence[datetime | None]
    numbers: Mapping[str, Sequence[float | None]]

    def __post_init__(self) -> None:
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"the steps of {self.name!r} do not increase")
        lengths = {"times": len(self.times), **{name: len(values) for name, values in self.numbers.items()}}
        wrong = [name for name, length in lengths.items() if length != len(self.steps)]
        if wrong:
            raise ValueError(f"{self.name!r} has {len(self.steps)} steps, and another number of values in {wrong}")
        if taken := self.numbers.keys() & {"step", "time", "timestamp"}:
            raise ValueError(f"a number cannot be named {taken.pop()!r}")

    def by_step(self) -> dict[int, dict[str, float]]:
        """The numbers of each step by name, as Python's own int and float; without those that are None."""
        return {
            int(step): {name: _plain(values[i]) for name, values in self.numbers.items() if values[i] is not None}
            for i, step in enumerate(self.steps)
        }


def _plain(value: Any) -> float:
    """An int or a float without a type of numpy, whose repr and JSON differ."""
    return operator.index(value) if isinstance(value, SupportsIndex) else float(value)
