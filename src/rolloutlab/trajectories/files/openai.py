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
from rolloutlab.trajectories.files.columns import group_key_of, prompt_length, raise_without_name, validate
from rolloutlab.trajectories.files.jsonl import Document, dump_line, write_lines

_ASSISTANT_FIELDS = ("role", "content", "refusal", "name", "tool_calls", "function_call", "weight", *FIELDS)


class Example(Wire):
    """A line. Its other properties become the row that a reward function gets."""

    messages: list[Message] = Field(min_length=1)
    tools: list[FunctionTool] | None = None
    reward: Number | None = None


def write(path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool) -> None:
    """Write the conversations of groups, with reasoning. The format cannot hold logprobs, rewards and rows."""
    lines = (dump_line(_make_example(group, each)) for _, group in groups for each in group.trajectories)
    write_lines(path, lines, gzipped=gzipped)


def read(documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
    """Read the conversations of lines for the collection `name`; raise InputError with the place of a wrong line."""
    for place, value in documents:
        example = validate(Example, value, place)
        items: list[MessageOrChoice] = list(example.messages)
        prompt = prompt_length(items, _is_sampled)
        row = dict(example.model_extra or {})
        metadata = {key: value for key, value in row.items() if isinstance(value, str | int | float | bool | None)}
        tools = {"tools": tools_of(value["tools"])} if example.tools else {}
        yield Recorded(
            place,
            name or raise_without_name(place),
            group_key_of(items[:prompt]),
            example.messages[:prompt],
            items[prompt:],
            row=row,
            reward=example.reward,
            extra={**tools, **({"metadata": metadata} if metadata else {})},
        )


def _is_sampled(item: MessageOrChoice) -> bool:
    return isinstance(item, AssistantMessage) and not is_context(item)


def _make_example(group: Group, trajectory: StoredTrajectory) -> dict[str, Any]:
    messages = [_make_message(item, given=i < len(group.prompt)) for i, item in enumerate(trajectory.items)]
    while len(messages) > len(group.prompt) and messages[-1]["role"] != "assistant":
        messages.pop()  # the last observation of an environment: OpenAI refuses examples that end with one
    tools = trajectory.extra.get("tools")
    return {"messages": messages, **({"tools": tools} if tools else {})}


def _make_message(item: MessageOrChoice, *, given: bool) -> Mapping[str, Any]:
    """Convert a message to this format. An assistant message that is context, as in the prompt, gets weight 0."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    if message["role"] != "assistant":
        return message
    fields = {key: value for key, value in message.items() if key in _ASSISTANT_FIELDS}
    return {**fields, "weight": 0} if given or is_context(item) else fields
