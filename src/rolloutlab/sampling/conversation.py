"""Conversation in a column: its messages as the wire has them, from a list, JSON text, or the forms of other tools."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.errors import InputError
from rolloutlab.sampling.prompt import Row, is_open, place_of, text_of

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation"), "tool"),
    "system": "system",
}
"""Roles by their names in small letters: of ShareGPT's messages, `{"from": "human", "value": "..."}`, of Gemini's
`model`, and of LLaMA-Factory, whose `function_call` has calls as JSON in place of the text, and `observation` a result.
"""
_TOOLS = "tools", "functions"
"""Columns of descriptions of tools; the second is the older form, of functions without a type."""
_OPEN = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref")
"""Keywords by which a schema allows properties of an object that it does not name."""
_CONTENTS = ("content", "tool_calls", "function_call", "refusal")


def conversation(value: Any, name: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages in a value of a row: a list of messages, the JSON of such a list, or a scalar as a user message.

    Raises:
        InputError: the value is none of these.
    """
    place, structs = place_of([row]), isinstance(row, Row) and row.structs
    messages = listed(value)
    if messages is None:
        messages, structs = read_json(value), False  # JSON in a text is plain in any source
    if messages is None:
        return [{"role": "user", "content": text_of(value, name, row)}]
    for message in messages:
        if not isinstance(message, Mapping):
            what = f"{place}{{{{{name}}}}} is a list of {type(message).__name__}, not of messages"
            raise InputError(what, hint="[{'role': 'user', 'content': '...'}], or a text")
    return messages_of(messages, tools_beside(row), structs=structs)


def tools_beside(row: Mapping[str, Any]) -> Any:
    """The tools that a row describes beside a conversation, by which its calls are read; None without any."""
    return next((value for name in _TOOLS if (value := as_tools(row.get(name)))), None)


def as_tools(value: Any) -> Any:
    """Descriptions of tools as the wire has them: also of JSON texts, whole or each, and of functions without a type.

    Any other value is returned unchanged; for an empty text, None.
    """
    value = parsed_json(value)
    items = listed(value)
    return value if items is None else [_as_tool(parsed_json(each)) for each in items]


def parsed_json(value: Any) -> Any:
    """The value of a JSON text. None for an empty text. A text that is not JSON is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False) if value.strip() else None
    except ValueError:
        return value


def _as_tool(value: Any) -> Any:
    if not isinstance(value, Mapping) or "function" in value or "name" not in value:
        return value
    return {"type": "function", "function": {name: each for name, each in value.items() if name != "type"}}


def messages_of(
    messages: Sequence[Mapping[str, Any]], tools: Any = None, *, structs: bool = False
) -> list[dict[str, Any]]:
    """Messages as the wire has them, each as `as_message`, without the nulls that Arrow has put into their tool calls.

    tools: those that the messages call, if known: null as an argument that a tool does not have is none in any source.
    structs: whether the messages are of a source whose structs all have the same names; messages of other sources may
    have gone through one, as `are_structs` tells.
    """
    schemas, structs = _schemas(tools), structs or are_structs(messages, tools)
    return _with_ids([as_message(message, schemas, structs=structs) for message in messages])


def are_structs(messages: Sequence[Any], tools: Any = None) -> bool:
    """Whether messages have gone through Arrow, Parquet or polars, which give a struct the names of all others there.

    By hand, messages have the names that they need, none has `tool_calls: null` in a message of the user, and no schema
    of a parameter is null.
    """
    mappings = [message for message in messages if isinstance(message, Mapping)]
    alike = len(mappings) > 1 and all(message.keys() == mappings[0].keys() for message in mappings)
    empty = (message for message in mappings if message.get("role") != "assistant" and "tool_calls" in message)
    return (alike and any(message["tool_calls"] is None for message in empty)) or any(
        None in (schema.get("properties") or {}).values() for schema in _schemas(tools).values()
    )


def tools_of(tools: Any, *, structs: bool = False) -> Any:
    """Descriptions of tools without the nulls of structs. Null as the schema of a property is none in any source."""
    return _without_nulls(tools, but="") if structs else _without_null_schemas(tools)


def _without_null_schemas(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _without_null_schemas(
                {key: schema for key, schema in each.items() if schema is not None}
                if name == "properties" and isinstance(each, Mapping)
                else each
            )
            for name, each in value.items()
        }
    items = listed(value)
    return value if items is None else [_without_null_schemas(each) for each in items]


def _schemas(tools: Any) -> dict[str, Mapping[str, Any]]:
    """The schemas of the parameters of tools, by name."""
    functions = (tool.get("function", tool) for tool in listed(tools) or () if isinstance(tool, Mapping))
    known = ((f.get("name"), f.get("parameters")) for f in functions if isinstance(f, Mapping))
    return {name: schema for name, schema in known if isinstance(name, str) and isinstance(schema, Mapping)}


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


def as_message(
    message: Mapping[str, Any],
    schemas: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    structs: bool = False,
) -> dict[str, Any]:
    """A message as the wire has it.

    Parquet and Arrow give each message all properties of any message, most of them null; ShareGPT calls role and
    content `from` and `value`; arguments of tool calls may be objects, which the wire has as JSON. schemas: of the
    known tools' parameters by name. structs: whether the message was a struct.
    """
    known = dict(_without_nulls(message))
    if "role" not in known and {"from", "value"} <= known.keys():
        known = {"role": known.pop("from"), "content": known.pop("value"), **known}
    role = str(known.get("role")).lower()
    if role == "function_call" and (calls := _calls_in(known.get("content"))):
        known |= {"content": "", "tool_calls": calls}
    if role != "function_call" or known.get("tool_calls"):  # without calls it stays what it is, which an error names
        known |= {"role": _ROLES[role]} if role in _ROLES else {}
    if not known.get("tool_calls", True):
        del known["tool_calls"]
    if (reasoning := _told_otherwise(known)) and not any(known.get(name) for name in FIELDS):
        known["reasoning_content"] = reasoning
    if isinstance(known.get("tool_calls"), list):
        known["tool_calls"] = [_as_call(call) for call in known["tool_calls"]]
    calls = [call.get("function") for call in known.get("tool_calls") or () if isinstance(call, dict)]
    for function in (*calls, known.get("function_call")):
        if isinstance(function, dict) and isinstance(function.get("arguments"), Mapping):
            arguments = _written(function["arguments"], schemas.get(str(function.get("name"))), structs=structs)
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return known


def _as_call(call: Any) -> Any:
    """A call as the wire has it, also of one with name and arguments of its own, `{"name": ..., "arguments": ...}`."""
    if not isinstance(call, Mapping) or "function" in call or not {"name", "arguments"} <= call.keys():
        return call
    rest = {name: each for name, each in call.items() if name not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {"name": call["name"], "arguments": call["arguments"]}}


def _calls_in(content: Any) -> list[Any]:
    """The calls of a text that is the JSON of one, or of a list of them; none of anything else."""
    value = parsed_json(content)
    calls = [_as_call(call) for call in listed(value) or [value]]
    return calls if all(isinstance(call, Mapping) and "function" in call for call in calls) else []


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


def _told_otherwise(message: Mapping[str, Any]) -> str:
    """The reasoning of a message that is in `thought`, or in OpenRouter's `reasoning_details`."""
    thought, details = message.get("thought"), listed(message.get("reasoning_details")) or ()
    texts = (each.get("text") or each.get("summary") for each in details if isinstance(each, Mapping))
    return thought if isinstance(thought, str) else "".join(text for text in texts if isinstance(text, str))


def _written(value: Any, schema: Any, *, structs: bool) -> Any:
    """A value as it was written: without the nulls of what its JSON schema does not have.

    A struct has null for what only other rows have, and for null itself; which of both it was is not kept. So of one,
    only those nulls stay that the schema requires, with or without a schema.
    """
    known = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = known.get("properties")
        of = properties if isinstance(properties, Mapping) else {}
        kept = (listed(known.get("required")) or ()) if structs else of if _is_closed(known) else value
        return {
            name: _written(each, of.get(name), structs=structs)
            for name, each in value.items()
            if each is not None or name in kept
        }
    items = listed(value)
    return value if items is None else [_written(each, known.get("items"), structs=structs) for each in items]


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names all properties of an object, and leaves none to another schema."""
    return isinstance(schema.get("properties"), Mapping) and not any(schema.get(name) for name in _OPEN)


def _without_nulls(value: Any, but: str = "arguments") -> Any:
    """A copy without the properties that are null, at any depth but in arguments, where null is a value."""
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each is not None}
        return {name: each if name == but else _without_nulls(each, but) for name, each in known.items()}
    items = listed(value)
    return value if items is None else [_without_nulls(each, but) for each in items]


def ends_with_answer(messages: Sequence[Any] | None) -> bool:
    """Whether the last message is an answer of the assistant."""
    last = messages[-1] if messages else None
    if not isinstance(last, Mapping):
        return False
    message = as_message(last)
    return message.get("role") == "assistant" and not is_open(message)
