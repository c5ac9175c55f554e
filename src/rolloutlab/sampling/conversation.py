"""Conversation in a column: its messages as the wire has them, from a list, JSON text, or the forms of other tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.sampling.prompt import is_open, text_of

_SHAREGPT = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}
"""Roles of ShareGPT's messages, `{"from": "human", "value": "..."}`, where they are others than on the wire."""
_CONTENTS = ("content", "tool_calls", "function_call", "refusal")


def conversation(value: Any, name: str, place: str) -> list[dict[str, Any]]:
    """The messages of a value: a list of them, or JSON of one, or a scalar, whose text is a user message.

    Raises:
        InputError: the value is none of that.
    """
    messages = listed(value)
    if messages is None:
        messages = read_json(value)
    if messages is None:
        return [{"role": "user", "content": text_of(value, name, place)}]
    for message in messages:
        if not isinstance(message, Mapping):
            what = f"{place}{{{{{name}}}}} is a list of {type(message).__name__}, not of messages"
            raise InputError(what, hint="[{'role': 'user', 'content': '...'}], or a text")
    return [as_message(message) for message in messages]


def listed(value: Any) -> list[Any] | None:
    """The items of a list, a tuple or an array; None for anything else."""
    is_list = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
    return list(value) if is_list else None


def read_json(value: Any) -> list[Any] | None:
    """The messages of a text that is the JSON of a list of messages; None for anything else."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return None
    try:
        items = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return items if are_messages(items) else None


def are_messages(items: Any) -> bool:
    """Whether a value is a list of messages, and of nothing else."""
    return isinstance(items, list) and bool(items) and all(map(_is_message, items))


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    own = isinstance(value.get("role"), str) and any(name in value for name in _CONTENTS)
    return own or {"from", "value"} <= value.keys()


def as_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the wire has it.

    Parquet and Arrow give each message all properties of any message, most of them null; ShareGPT calls role and
    content `from` and `value`; arguments of tool calls may be objects, which the wire has as JSON.
    """
    known = dict(_without_nulls(message))
    if "role" not in known and {"from", "value"} <= known.keys():
        role = known.pop("from")
        known = {"role": _SHAREGPT.get(role, role), "content": known.pop("value"), **known}
    if not known.get("tool_calls", True):
        del known["tool_calls"]
    for call in known.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return known


def _without_nulls(value: Any) -> Any:
    """A copy without the properties that are null, at any depth but in arguments, where null is a value."""
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each is not None}
        return {name: each if name == "arguments" else _without_nulls(each) for name, each in known.items()}
    items = listed(value)
    return value if items is None else [_without_nulls(each) for each in items]


def ends_with_answer(messages: Sequence[Any] | None) -> bool:
    """Whether the last message is an answer of the assistant."""
    last = messages[-1] if messages else None
    if not isinstance(last, Mapping):
        return False
    message = as_message(last)
    return message.get("role") == "assistant" and not is_open(message)
