"""OpenAI's fine-tuning JSONL: `{"messages": [...], "tools": [...]}` per line.

An assistant message with `weight` 0 (or `train` false) is context and not from the policy. The prompt ends before the
first message of the policy. Lines with the same prompt are one group. Reasoning is in `reasoning_content`, which is not
part of OpenAI's format.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from rolloutlab.api.wire.base import Number, Wire
from rolloutlab.api.wire.chat import AssistantMessage, Choice, FunctionTool, Message, MessageOrChoice
from rolloutlab.api.wire.fine_tuning import is_context
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.sampling.conversation import tools_of
from rolloutlab.store.models import Group, Recorded, StoredCollection, StoredTrajectory
from rolloutlab.trajectories.files.columns import checked, needed, prompt_length, shared_by
from rolloutlab.trajectories.files.jsonl import Document, dumped, write_lines

_ASSISTANT_FIELDS = ("role", "content", "refusal", "name", "tool_calls", "function_call", "weight", *FIELDS)


class Example(Wire):
    """A line. Its other properties become the row that a reward function gets."""

    messages: list[Message] = Field(min_length=1)
    tools: list[FunctionTool] | None = None
    reward: Number | None = None


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool) -> None:
    """Write the conversations of groups, with reasoning. The format cannot hold logprobs, rewards and rows."""
    lines = (dumped(_example(group, each)) for _, group in groups for each in group.trajectories)
    write_lines(path, lines, gzipped=gzipped)


def read(documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
    """The conversations of lines for the collection `name`; InputError with the place of a wrong one."""
    for place, value in documents:
        example = checked(Example, value, place)
        items: list[MessageOrChoice] = list(example.messages)
        prompt = prompt_length(items, _is_sampled)
        row = dict(example.model_extra or {})
        metadata = {key: value for key, value in row.items() if isinstance(value, str | int | float | bool | None)}
        tools = {"tools": tools_of(value["tools"])} if example.tools else {}
        yield Recorded(
            place,
            name or needed(place),
            shared_by(items[:prompt]),
            example.messages[:prompt],
            items[prompt:],
            row=row,
            reward=example.reward,
            extra={**tools, **({"metadata": metadata} if metadata else {})},
        )


def _is_sampled(item: MessageOrChoice) -> bool:
    return isinstance(item, AssistantMessage) and not is_context(item)


def _example(group: Group, trajectory: StoredTrajectory) -> dict[str, Any]:
    messages = [_message(item, given=i < len(group.prompt)) for i, item in enumerate(trajectory.items)]
    while len(messages) > len(group.prompt) and messages[-1]["role"] != "assistant":
        messages.pop()  # the last observation of an environment: OpenAI refuses examples that end with it
    tools = trajectory.extra.get("tools")
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _message(item: MessageOrChoice, *, given: bool) -> Mapping[str, Any]:
    """The message in this format. An assistant message that is context, such as one of the prompt, has weight 0."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    if message["role"] != "assistant":
        return message
    fields = {key: value for key, value in message.items() if key in _ASSISTANT_FIELDS}
    return {**fields, "weight": 0} if given or is_context(item) else fields
