"""Conversation in a column: messages in the form of the wire, from a list, from JSON, or from the forms of other tools.

A row may have gone through Arrow, Parquet or polars. These store an object as a struct, which has every name that any
object in its place has in any row, with null for the names that it lacks. Such nulls have to go, but null may also be
a value that was written, such as an argument of a tool call. Most functions here decide which of both a null is.
"""

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
"""The role on the wire, by its name elsewhere in small letters.

ShareGPT writes `{"from": "human", "value": "..."}`, Gemini `model`. In LLaMA-Factory, a `function_call` has calls as
JSON in place of the text, and an `observation` has a result."""
_TOOLS = "tools", "functions"
"""Columns that describe tools. The second is the older form: functions without a type."""
_OPEN = ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref")
"""Keywords by which a schema allows properties of an object that it does not name."""
_CONTENTS = ("content", "tool_calls", "function_call", "refusal")
"""Fields of which a message has at least one."""


def read_conversation(value: Any, name: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the messages in a value of a row: a list of messages, its JSON, or a scalar, which is a user message.

    name: the column or variable of the value.

    Raises:
        InputError: the value is none of these.
    """
    place, structs = place_of([row]), isinstance(row, Row) and row.structs
    messages = as_list(value)
    if messages is None:
        messages, structs = read_json_messages(value), False  # inside of a text, Arrow adds no nulls
    if messages is None:
        return [{"role": "user", "content": text_of(value, name, row)}]
    for message in messages:
        if not isinstance(message, Mapping):
            what = f"{place}{{{{{name}}}}} is a list of {type(message).__name__}, not of messages"
            raise InputError(what, hint="[{'role': 'user', 'content': '...'}], or a text")
    return messages_of(messages, tools_beside(row), structs=structs)


def tools_beside(row: Mapping[str, Any]) -> Any:
    """Find the tools that a row describes beside a conversation; None if there are none."""
    return next((value for name in _TOOLS if (value := as_tools(row.get(name)))), None)


def as_tools(value: Any) -> Any:
    """Convert descriptions of tools to the form of the wire.

    A list, or the JSON of a list, is converted; its items may be JSON texts, or functions without a type. For an empty
    text, None. Any other value is returned unchanged.
    """
    value = parse_json(value)
    items = as_list(value)
    return value if items is None else [_as_tool(parse_json(each)) for each in items]


def parse_json(value: Any) -> Any:
    """Parse a JSON text; None for an empty text. A text that is not JSON, or any other value, is returned unchanged."""
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
    """Convert messages to the form of the wire, each as `as_message`, without the nulls of structs.

    tools: descriptions of the tools that the messages call, if known. A null as an argument that the tool does not
    have is left out in any case.
    structs: whether the messages come from a source of structs. Messages of other sources may have gone through one
    before: `are_structs` finds out.
    """
    schemas, structs = _schemas(tools), structs or are_structs(messages, tools)
    return _fill_in_ids([as_message(message, schemas, structs=structs) for message in messages])


def are_structs(messages: Sequence[Any], tools: Any = None) -> bool:
    """Whether messages have gone through Arrow, Parquet or polars, which give all structs the same names.

    It shows in two ways, which do not come from hand-written data: all messages have the same names, with
    `tool_calls: null` in one that is not the assistant's; or the schema of a tool's parameter is null.
    """
    mappings = [message for message in messages if isinstance(message, Mapping)]
    alike = len(mappings) > 1 and all(message.keys() == mappings[0].keys() for message in mappings)
    empty = (message for message in mappings if message.get("role") != "assistant" and "tool_calls" in message)
    return (alike and any(message["tool_calls"] is None for message in empty)) or any(
        None in (schema.get("properties") or {}).values() for schema in _schemas(tools).values()
    )


def tools_of(tools: Any, *, structs: bool = False) -> Any:
    """Drop the nulls of structs from descriptions of tools. A null as the schema of a property is dropped anyway."""
    return _drop_nulls(tools, but="") if structs else _drop_null_schemas(tools)


def _drop_null_schemas(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _drop_null_schemas(
                {key: schema for key, schema in each.items() if schema is not None}
                if name == "properties" and isinstance(each, Mapping)
                else each
            )
            for name, each in value.items()
        }
    items = as_list(value)
    return value if items is None else [_drop_null_schemas(each) for each in items]


def _schemas(tools: Any) -> dict[str, Mapping[str, Any]]:
    """Return the schemas of the parameters of tools, by the name of the tool."""
    functions = (tool.get("function", tool) for tool in as_list(tools) or () if isinstance(tool, Mapping))
    known = ((f.get("name"), f.get("parameters")) for f in functions if isinstance(f, Mapping))
    return {name: schema for name, schema in known if isinstance(name, str) and isinstance(schema, Mapping)}


def as_list(value: Any) -> list[Any] | None:
    """Return the items of a list, a tuple or an array; None for any other value."""
    is_list = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
    return list(value) if is_list else None


def read_json_messages(value: Any) -> list[Any] | None:
    """Parse a text that is the JSON of a list of messages; None for any other value."""
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
    """Convert a message to the form of the wire.

    - Nulls go: Parquet and Arrow give each message all properties of any message.
    - `from` and `value`, as ShareGPT writes them, become role and content.
    - Arguments of tool calls that are objects become JSON.

    schemas: the schemas of the parameters of the known tools, by the name of the tool. structs: whether the message
    was a struct.
    """
    known = dict(_drop_nulls(message))
    if "role" not in known and {"from", "value"} <= known.keys():
        known = {"role": known.pop("from"), "content": known.pop("value"), **known}
    role = str(known.get("role")).lower()
    if role == "function_call" and (calls := _calls_in(known.get("content"))):
        known |= {"content": "", "tool_calls": calls}
    # a `function_call` without calls keeps its role, which no message may have: the error names it
    if role != "function_call" or known.get("tool_calls"):
        known |= {"role": _ROLES[role]} if role in _ROLES else {}
    if not known.get("tool_calls", True):
        del known["tool_calls"]
    if (reasoning := _find_other_reasoning(known)) and not any(known.get(name) for name in FIELDS):
        known["reasoning_content"] = reasoning
    if isinstance(known.get("tool_calls"), list):
        known["tool_calls"] = [_as_call(call) for call in known["tool_calls"]]
    calls = [call.get("function") for call in known.get("tool_calls") or () if isinstance(call, dict)]
    for function in (*calls, known.get("function_call")):
        if isinstance(function, dict) and isinstance(function.get("arguments"), Mapping):
            arguments = _drop_unwritten_nulls(
                function["arguments"], schemas.get(str(function.get("name"))), structs=structs
            )
            function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return known


def _as_call(call: Any) -> Any:
    """Convert a call `{"name": ..., "arguments": ...}` to the form of the wire. Other calls are returned unchanged."""
    if not isinstance(call, Mapping) or "function" in call or not {"name", "arguments"} <= call.keys():
        return call
    rest = {name: each for name, each in call.items() if name not in ("name", "arguments")}
    return {"type": "function", **rest, "function": {"name": call["name"], "arguments": call["arguments"]}}


def _calls_in(content: Any) -> list[Any]:
    """Parse a text that is the JSON of a call, or of a list of calls; empty for any other value."""
    value = parse_json(content)
    calls = [_as_call(call) for call in as_list(value) or [value]]
    return calls if all(isinstance(call, Mapping) and "function" in call for call in calls) else []


def _fill_in_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give ids to calls and results that have none, in place. A result belongs to the first call without a result."""
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


def _find_other_reasoning(message: Mapping[str, Any]) -> str:
    """Find the reasoning of a message in `thought`, or in OpenRouter's `reasoning_details`; "" if there is none."""
    thought, details = message.get("thought"), as_list(message.get("reasoning_details")) or ()
    texts = (each.get("text") or each.get("summary") for each in details if isinstance(each, Mapping))
    return thought if isinstance(thought, str) else "".join(text for text in texts if isinstance(text, str))


def _drop_unwritten_nulls(value: Any, schema: Any, *, structs: bool) -> Any:
    """Drop the nulls in a value that were not written.

    - In a struct, it is not known whether a null was written. It stays only if the schema requires the property.
    - Elsewhere it stays, unless a schema that names all properties does not have this one.
    """
    known = schema if isinstance(schema, Mapping) else {}
    if isinstance(value, Mapping):
        properties = known.get("properties")
        of = properties if isinstance(properties, Mapping) else {}
        kept = (as_list(known.get("required")) or ()) if structs else of if _is_closed(known) else value
        return {
            name: _drop_unwritten_nulls(each, of.get(name), structs=structs)
            for name, each in value.items()
            if each is not None or name in kept
        }
    items = as_list(value)
    return (
        value if items is None else [_drop_unwritten_nulls(each, known.get("items"), structs=structs) for each in items]
    )


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names all properties of an object, and leaves none to another schema."""
    return isinstance(schema.get("properties"), Mapping) and not any(schema.get(name) for name in _OPEN)


def _drop_nulls(value: Any, but: str = "arguments") -> Any:
    """Copy a value without the properties that are null, at any depth. but: a property that is copied unchanged."""
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each is not None}
        return {name: each if name == but else _drop_nulls(each, but) for name, each in known.items()}
    items = as_list(value)
    return value if items is None else [_drop_nulls(each, but) for each in items]


def ends_with_answer(messages: Sequence[Any] | None) -> bool:
    """Whether the last message is an answer of the assistant."""
    last = messages[-1] if messages else None
    if not isinstance(last, Mapping):
        return False
    message = as_message(last)
    return message.get("role") == "assistant" and not is_open(message)
