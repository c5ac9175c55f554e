"""Lines of fine-tuning files in the shapes of other tools, as lines with `messages`."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from rolloutlab.api.wire.fine_tuning import MASKS
from rolloutlab.errors import InputError
from rolloutlab.sampling.conversation import (
    are_structs,
    as_message,
    as_tools,
    listed,
    messages_of,
    parsed_json,
    read_json,
    tools_beside,
    tools_of,
)

_SHOWN = 6
_OF_MESSAGES = ("messages", "conversations", "prompt", "completion", "chosen")
_KNOWN = {"messages", "messages_and_choices", "tools", "functions", "finish_reason"}
"""What of a row of Parquet is uploaded; its other columns may hold anything, such as dates and images."""


def as_line(value: Any, place: str, *, structs: bool = False) -> Any:
    """A line of messages: as it is, or from ShareGPT's `conversations`, or TRL's `prompt` and `completion`.

    Of a pair, `chosen` is the completion: of `prompt` or `conversations`, or with its own beginning.

    Calls without an id get one, as in TRL's data; `tools` may be JSON text. An answer in a prompt is context. structs:
    whether the line is of Parquet, whose nulls `messages_of` and `tools_of` leave out.

    Raises:
        InputError: it has another shape.
    """
    if not isinstance(value, Mapping):
        return value
    line = dict(value)
    if line.get("tools") is not None:
        line["tools"] = as_tools(line["tools"])
    for name in ("functions", "messages", "conversations"):
        if isinstance(line.get(name), str):
            line[name] = parsed_json(line[name])
    if line.get("messages") is None and line.get("messages_and_choices") is None:
        line["messages"] = _messages(line, place)
    messages: Any = line.get("messages")
    if messages is not None:
        messages = line["messages"] = _with_system(line.pop("system", None), messages, place)
    tools = tools_beside(line)
    if _are_mappings(messages) and not any("message" in each for each in messages):
        structs = structs or are_structs(messages, tools)
        line["messages"] = messages_of(messages, tools, structs=structs)
    described = {name: tools_of(line[name], structs=structs) for name in ("tools", "functions") if line.get(name)}
    known = {name: each for name, each in line.items() if name in _KNOWN} if structs else line
    return {**known, **described}


def is_rejected(line: Any) -> bool:
    """Whether a line is a completion that was rejected: `label` of TRL, or `kto_tag` of LLaMA-Factory, is false."""
    return isinstance(line, Mapping) and any(line.get(name) is False for name in ("label", "kto_tag"))


def remarks(line: Any) -> list[str]:
    """What to say of a line of which something is not learned."""
    if not isinstance(line, Mapping):
        return []
    messages = [message for name in _OF_MESSAGES for message in listed(line.get(name)) or ()]
    details = [listed(each.get("reasoning_details")) or () for each in messages if isinstance(each, Mapping)]
    kinds = {each.get("type") for some in details for each in some if isinstance(each, Mapping)}
    pair = line.get("chosen") is not None and line.get("rejected") is not None
    return [*["with chosen and rejected: rejected is not learned"] * pair,
            *["with encrypted reasoning: learned without it"] * ("reasoning.encrypted" in kinds)]  # fmt: skip


def begins_with_answer(line: Any) -> bool:
    """Whether a conversation begins with the model, as some of ShareGPT do; that message is then made context.

    It answers nothing, so that a policy would learn to speak unasked.
    """
    messages: Any = line.get("messages") if isinstance(line, Mapping) else None
    if not _are_mappings(messages) or messages[0].get("role") != "assistant":
        return False
    if len(messages) == 1 or any(name in messages[0] for name in MASKS):
        return False
    messages[0]["weight"] = 0
    return True


def _messages(line: dict[str, Any], place: str) -> list[Any]:
    """The messages of a line without any, whose properties are taken out of it."""
    chosen, rejected = line.get("chosen"), line.get("rejected")
    if _are_mappings(line.get("conversations")):
        messages = line.pop("conversations")
        return messages if chosen is None else [*_as_context(messages), *_completion(line.pop("chosen"))]
    if chosen is not None and rejected is not None:
        pair = _completion(chosen), _completion(rejected)
        own = [one for one, other in takewhile(lambda each: each[0] == each[1], zip(*pair, strict=False))]
        prompt = own or _texts("user", line.get("prompt"))
        if _are_mappings(prompt) and _are_mappings(pair[0]):
            for name in ("prompt", "chosen", "rejected"):
                line.pop(name, None)
            return [*_as_context(prompt), *pair[0][len(own) :]]
    if {"prompt", "completion"} <= line.keys():
        prompt, completion = _texts("user", line.pop("prompt")), _completion(line.pop("completion"))
        if _are_mappings(prompt) and _are_mappings(completion):
            return [*_as_context(prompt), *completion]
    names = ", ".join(map(str, list(line)[:_SHOWN])) or "nothing"
    hint = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]} in each line'
    raise InputError(f"{place}: a line has messages, conversations, or prompt and completion; here: {names}", hint=hint)


def _with_system(system: Any, messages: Any, place: str) -> Any:
    """The messages with the system's text that stands beside them, as in Bedrock's form: a text, or a list of them."""
    parts: list[Any] = [each.get("text") if isinstance(each, Mapping) else each for each in listed(system) or [system]]
    if not any(parts) or not _are_mappings(messages):
        return messages
    if not all(isinstance(each, str) for each in parts):
        raise InputError(f"{place}: system is no text", hint='"system": "..." or a message with the role system')
    text, own = "\n".join(parts), as_message(messages[0])
    if own.get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    if own.get("content") != text:
        both = "system is beside the messages and among them, with other words"
        raise InputError(f"{place}: {both}", hint="leave one of them out")
    return messages


def _texts(role: str, value: Any) -> Any:
    """A text as one message, a message as a list of it, and JSON text of messages as these."""
    value = read_json(value) or value
    value = {"role": role, "content": value} if isinstance(value, str) else value
    return [value] if isinstance(value, Mapping) else value


def _completion(value: Any) -> Any:
    return _texts("assistant", value)


def _as_context(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages whose answers are not learned."""
    return [{**each, "weight": 0} if as_message(each).get("role") == "assistant" else each for each in messages]


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)
