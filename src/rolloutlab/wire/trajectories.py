"""Recorded conversations with a reward (specification: "Trajectory", "History", "TrajectoryGroup")."""

from rolloutlab.wire.base import Boolean, DateTime, Integer, Number, Wire
from rolloutlab.wire.chat import FunctionTool, MessageOrChoice


class History(Wire):
    """A further conversation that belongs to a trajectory and shares its reward."""

    messages_and_choices: list[MessageOrChoice]
    tools: list[FunctionTool] | None = None


class Trajectory(History):
    """One recorded conversation with a reward; its Choices with logprobs are what trains."""

    additional_histories: list[History] = []
    reward: Number
    initial_policy_version: Integer | None = None
    final_policy_version: Integer | None = None
    metrics: dict[str, Boolean | Integer | Number] = {}
    auto_metrics: dict[str, Boolean | Integer | Number] = {}
    metadata: dict[str, Boolean | Integer | Number | str | None] = {}
    logs: list[str] = []
    start_time: DateTime | None = None

    def histories(self) -> list[History]:
        """The main history, then the additional ones."""
        return [self, *self.additional_histories]


class TrajectoryGroup(Wire):
    """Trajectories of the same prompt; advantages are computed inside a group and never cross it."""

    trajectories: list[Trajectory]
