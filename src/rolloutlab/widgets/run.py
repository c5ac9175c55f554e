"""Runs as text and HTML: what differs, the course of each number over steps, and texts of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Values = Sequence[float | None]


@dataclass(frozen=True)
class Course:
    """The numbers of a run by step, or the means of several seeds.

    Attributes:
        name: The name of the run, or of the runs of several seeds.
        members: The names of the runs.
        steps: The numbers of the checkpoints, in order.
        hours: Hours since the first job, by step.
        numbers: By name, a value for each step; None where there is none.
        lows, highs: The least and the largest of several seeds; empty for one run.
        main: The number that it is judged by.
    """

    name: str
    members: Sequence[str]
    steps: Sequence[int]
    hours: Sequence[float]
    numbers: Mapping[str, Values]
    lows: Mapping[str, Values] = field(default_factory=dict)
    highs: Mapping[str, Values] = field(default_factory=dict)
    main: str = "reward"


@dataclass(frozen=True)
class StepText:
    """A sampled text of a step. group: what opens in the group view. change: of its reward since the first step."""

    run: str
    step: int
    group: str
    prompt: str
    answer: str
    reward: float | None
    change: float | None
    tokens: int
    cut_off: bool
    row: Mapping[str, str]
