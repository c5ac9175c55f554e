"""Recorded conversations with a reward (specification: "Trajectory", "History", "TrajectoryGroup")."""

from typing import Literal

from rolloutlab.api.wire.base import Boolean, DateTime, Integer, Items, Number, Wire
from rolloutlab.api.wire.chat import ChoiceLogprobs, FunctionTool, MessageOrChoice


class History(Wire):
    """A further conversation that belongs to a trajectory and shares its reward."""

    messages_and_choices: Items[MessageOrChoice]
    tools: Items[FunctionTool] | None = None


class Trajectory(History):
    """One recorded conversation with a reward; its Choices with logprobs are what trains."""

    additional_histories: Items[History] = []
    reward: Number
    initial_policy_version: Integer | None = None
    final_policy_version: Integer | None = None
    metrics: dict[str, Boolean | Integer | Number] = {}
    auto_metrics: dict[str, Boolean | Integer | Number] = {}
    metadata: dict[str, Boolean | Integer | Number | str | None] = {}
    logs: Items[str] = []
    start_time: DateTime | None = None

    def histories(self) -> list[History]:
        """Return the main history, then the additional ones."""
        return [self, *self.additional_histories]


class TrajectoryGroup(Wire):
    """Trajectories of the same prompt; advantages are computed inside a group and never cross it."""

    trajectories: Items[Trajectory]


class LogprobsRequest(Wire):
    """Body of `POST /v1/preview/logprobs`; `model` is a name as in chat completions."""

    model: str
    histories: Items[History]


class ScoredTurn(Wire):
    """The tokens of one assistant turn; `index` is its place in `messages_and_choices`."""

    index: Integer
    logprobs: ChoiceLogprobs


class ScoredHistory(Wire):
    turns: Items[ScoredTurn]


class ScoredHistories(Wire):
    """`data` has one entry per history, in order; `model` names the checkpoint that was asked."""

    object: Literal["list"]
    model: str
    data: Items[ScoredHistory]
