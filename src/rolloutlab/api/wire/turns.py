"""Sampled turns as messages of later requests, and what clients keep of them."""

import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    FunctionToolCall,
    Message,
    MessageOrChoice,
    TextPart,
    ToolMessage,
)
from rolloutlab.api.wire.reasoning import reasoning_of


def as_message(item: MessageOrChoice) -> Message:
    """Return the message of a choice with its sampled token ids, if all are known; any other item as it is."""
    if not isinstance(item, Choice):
        return item
    ids = [token.token_id for token in item.sampled_tokens()]
    sampled = {"token_ids": ids} if ids and None not in ids else {}
    message = {name: value for name, value in item.message.to_wire().items() if name != "tool_calls" or value}
    return AssistantMessage.model_validate(message | sampled)


def kept(messages: Sequence[Message]) -> Iterator[Hashable]:
    """Yield what frameworks keep of each message. They may change the ids of calls, so a result has its call's place.

    If no call, or more than one, has the id of a result, the result belongs to the call at the same place.
    """
    ids: list[str] = []
    results = 0
    for message in messages:
        if isinstance(message, AssistantMessage):
            ids, results = [call.id for call in message.tool_calls or ()], 0
        if isinstance(message, ToolMessage):
            name = message.tool_call_id
            yield kept_of(message), ids.index(name) if ids.count(name) == 1 else results
            results += 1
        else:
            yield kept_of(message)


def kept_of(message: Message) -> Hashable:
    """Return what frameworks keep of a message."""
    text = _text(message.content)
    if not isinstance(message, AssistantMessage):
        return message.role, text, getattr(message, "name", None)
    calls = tuple(
        (call.function.name, _same_json(call.function.arguments))
        if isinstance(call, FunctionToolCall)
        else (call.custom.name, call.custom.input)
        for call in message.tool_calls or ()
    )
    fields = {**(message.model_extra or {}), "reasoning_content": message.reasoning_content}
    return message.role, reasoning_of(fields, text)[1].strip(), calls


def _text(content: Any) -> str:
    """Return the text of a content, or the JSON of one that has other parts."""
    if not isinstance(content, list):
        return content or ""
    if all(isinstance(part, TextPart) for part in content):
        return "".join(part.text for part in content)
    return json.dumps([part.to_wire() for part in content], sort_keys=True)


def _same_json(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
