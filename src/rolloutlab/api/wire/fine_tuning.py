"""Supervised fine-tuning: its data, and its jobs as the serverless client of openpipe-art 0.5.18 creates them."""

import math
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AliasChoices, Field, model_validator
from pydantic_core import PydanticCustomError

from rolloutlab.api.wire.base import Integer, Items, Number, Wire
from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    FunctionDefinition,
    FunctionTool,
    MessageOrChoice,
    cut_off,
)

_Rate = Annotated[Number, Field(ge=0)]
MASKS = "weight", "train", "training", "loss"
"""Properties of an answer; see `is_context`."""
MAX_LINE_BYTES = 64_000_000
"""The limit of a line of fine-tuning data, which a service reads as a whole. Clients check it before they send."""


def is_context(item: MessageOrChoice) -> bool:
    """Whether an answer is context only and does not train: one of `MASKS` is 0 or false, as OpenAI's `"weight": 0`.

    `train` and `training` are what axolotl's data sets have (`message_field_training`), `loss` those of ms-swift.
    """
    return any((item.model_extra or {}).get(name) == 0 for name in MASKS)


class Conversation(Wire):
    """A line of fine-tuning data: OpenAI's `messages`, or `messages_and_choices` with sampled tokens.

    functions: the older form of `tools`. name: for reports. Of an assistant's message, `weight` is 0 or 1, as OpenAI
    has it: see `is_context`.
    """

    messages: Items[MessageOrChoice] = Field(
        min_length=1, validation_alias=AliasChoices("messages", "messages_and_choices")
    )
    tools: Items[FunctionTool] | None = None
    functions: Items[FunctionDefinition] | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _weights(self) -> "Conversation":
        for i, item in enumerate(self.messages):
            weight = (item.model_extra or {}).get("weight")
            if weight is not None and weight not in (0, 1):
                raise PydanticCustomError("weight", "messages.{i}.weight should be 0 or 1", {"i": i})
        return self

    def all_tools(self) -> list[FunctionTool] | None:
        """Return the tools, with those of the older form."""
        older = [FunctionTool(type="function", function=function) for function in self.functions or ()]
        return [*(self.tools or ()), *older] or None

    def answers(self) -> list[int]:
        """Return the indices of the answers that train: Choices, or else assistant messages, unless `is_context`."""
        sampled = any(isinstance(item, Choice) for item in self.messages)
        kind = Choice if sampled else AssistantMessage
        return [i for i, item in enumerate(self.messages) if isinstance(item, kind) and not is_context(item)]

    def cut_off(self, i: int) -> str | None:
        """Say why answer `i` was cut off, if it was. A `finish_reason` of the line itself is of the last answer."""
        return cut_off(self.messages[i]) or (cut_off(self) if i == len(self.messages) - 1 else None)


class SFTTrainingConfig(Wire):
    """Options of a fine-tuning job: conversations of a gradient step; a learning rate, or one for each step."""

    batch_size: Integer | None = Field(default=None, ge=1)
    learning_rate: _Rate | Annotated[list[_Rate], Field(min_length=1)] | None = None

    def steps(self, trainable: int, rows: int) -> int:
        """Count the gradient steps of a job on `trainable` conversations. Without a `batch_size` it is one per row."""
        return math.ceil(trainable / self.batch_size) if self.batch_size else rows

    def lacks_rates(self, steps: int) -> str | None:
        """Say what is wrong if there are fewer learning rates than gradient steps; None if there are not."""
        if not isinstance(self.learning_rate, list) or len(self.learning_rate) >= steps:
            return None
        number = len(self.learning_rate)
        return f"{number} learning rate{'s' * (number > 1)} for {steps} gradient steps"


class CreateSFTTrainingJob(Wire):
    """Body of `POST {base_url}/v1/preview/sft-training-jobs`; the URL is one of `POST /v1/preview/files`."""

    model_id: UUID
    training_data_url: str
    config: SFTTrainingConfig | None = None


class UploadedFile(Wire):
    """Fine-tuning data as `POST {base_url}/v1/preview/files` has read it.

    Attributes:
        url: The URL for jobs, which is valid until `expires_at`; absent if nothing was kept.
        expires_at: Seconds since the epoch.
        trainable: The number of conversations that a job would learn from.
        tokens: The number of tokens that the job would learn.
        rows: The number of its gradient steps without a `batch_size`.
        reasons: How many other conversations there are, by reason.
        skipped: Names of some of them, by reason.
        unreadable: Names of conversations, by what cannot be read.
    """

    object: Literal["file"]
    id: UUID | None = None
    url: str | None = None
    expires_at: Integer | None = None
    bytes: Integer
    conversations: Integer
    trainable: Integer
    tokens: Integer
    rows: Integer
    reasons: dict[str, Integer] = {}
    skipped: dict[str, list[str]] = {}
    unreadable: dict[str, list[str]] = {}
    warnings: Items[str] = []
