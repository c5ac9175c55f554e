"""Asking what a checkpoint thinks of conversations that exist already; an addition of the embedded service."""

from typing import Literal

from rolloutlab.wire.base import Integer, Wire
from rolloutlab.wire.chat import ChoiceLogprobs
from rolloutlab.wire.trajectories import History


class LogprobsRequest(Wire):
    """Body of `POST /v1/preview/logprobs`; `model` is a name as in chat completions."""

    model: str
    histories: list[History]


class ScoredTurn(Wire):
    """The tokens of one assistant turn; `index` is its place in `messages_and_choices`."""

    index: Integer
    logprobs: ChoiceLogprobs


class ScoredHistory(Wire):
    turns: list[ScoredTurn]


class ScoredHistories(Wire):
    """`data` has one entry per history, in order; `model` names the checkpoint that was asked."""

    object: Literal["list"]
    model: str
    data: list[ScoredHistory]
