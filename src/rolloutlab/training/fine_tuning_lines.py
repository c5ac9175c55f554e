"""Lines of fine-tuning files in the shapes of other tools, as lines with `messages`."""

from collections.abc import Mapping
from typing import Any

from rolloutlab.api.wire.fine_tuning import MASKS
from rolloutlab.errors import InputError
from rolloutlab.sampling.conversation import are_structs, as_tools, messages_of, parsed_json, tools_beside, tools_of

_SHOWN = 6
_KNOWN = {"messages", "messages_and_choices", "tools", "functions", "finish_reason"}
"""What of a row of Parquet is uploaded; its other columns may hold anything, such as dates and images."""


def as_line(value: Any, place: str, *, structs: bool = False) -> Any:
    """A line of messages: as it is, or from ShareGPT's `conversations`, or TRL's `prompt` and `completion`.

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
    if isinstance(functions := line.get("functions"), str):
        line["functions"] = parsed_json(functions)
    if line.get("messages") is None and line.get("messages_and_choices") is None:
        line["messages"] = _messages(line, place)
    messages: Any = line.get("messages")
    tools = tools_beside(line)
    if _are_mappings(messages) and not any("message" in each for each in messages):
        structs = structs or are_structs(messages, tools)
        line["messages"] = _with_ids(messages_of(messages, tools, structs=structs))
    described = {name: tools_of(line[name], structs=structs) for name in ("tools", "functions") if line.get(name)}
    known = {name: each for name, each in line.items() if name in _KNOWN} if structs else line
    return {**known, **described}


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
    if _are_mappings(line.get("conversations")):
        system = line.pop("system", None)
        return [*[{"role": "system", "content": system}] * bool(system), *line.pop("conversations")]
    if {"prompt", "completion"} <= line.keys():
        prompt, completion = (
            [{"role": role, "content": text}] if isinstance(text := line.pop(name), str) else text
            for name, role in (("prompt", "user"), ("completion", "assistant"))
        )
        if _are_mappings(prompt) and _are_mappings(completion):
            context = [{**each, "weight": 0} if each.get("role") == "assistant" else each for each in prompt]
            return [*context, *completion]
    names = ", ".join(map(str, list(line)[:_SHOWN])) or "nothing"
    hint = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]} in each line'
    raise InputError(f"{place}: a line has messages, conversations, or prompt and completion; here: {names}", hint=hint)


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _with_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose calls have ids, in place; a result without one is of the first call that has none yet."""
    pending: list[str] = []
    for i, message in enumerate(messages):
        for j, call in enumerate(message.get("tool_calls") or ()):
            if isinstance(call, dict) and "function" in call:
                call.setdefault("type", "function")
                pending.append(str(call.setdefault("id", f"call_{i}_{j}")))
        if message.get("role") == "tool":
            answered = message.setdefault("tool_call_id", pending[0] if pending else f"call_{i}")
            pending = [each for each in pending if each != answered]
    return messages
