"""Prompt template: the messages of a row from the text of a cell, from a conversation in a column, or by a function."""

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.chat import Message
from rolloutlab.errors import InputError
from rolloutlab.sampling.prompt import (
    Turn,
    as_messages,
    encodable,
    filled,
    is_open,
    look_up,
    place_of,
    text_of,
    turns_of,
    validated,
    with_system,
)
from rolloutlab.store.models import NewGroup

PromptFunction = Callable[[dict[str, Any]], str | Sequence[Mapping[str, Any]]]
"""Called with a copy of each row; returns the text of a user message, or messages."""

Prompt = str | Sequence[Mapping[str, Any]] | PromptFunction
"""The text of a cell, a list of messages, or a function of a row."""

_ALONE = re.compile(r"\s*\{\{\s*([^\s{}](?:[^{}\n]*[^\s{}])?)\s*\}\}\s*")
_SHAREGPT = {"human": "user", "gpt": "assistant", "chatgpt": "assistant"}
"""Roles of ShareGPT's messages, `{"from": "human", "value": "..."}`, where they are others than on the wire."""


@dataclass(frozen=True)
class PromptTemplate:
    """How the prompt of a row is made. turns: messages before each completion, with `{{name}}` in them.

    column: the column, or variable, that holds the prompt; `turns` are then what comes before it. function: makes the
    prompt of a row; system: comes before what it returns.
    """

    turns: Sequence[Turn] = ()
    column: str | None = None
    function: PromptFunction | None = None
    system: str | None = None

    def stored(self) -> list[Turn]:
        """The turns as a collection stores them: with a name in the place of what a column holds."""
        if self.column is None:
            return list(self.turns)
        return [[*self.turns[0], {"role": "user", "content": f"{{{{{self.column}}}}}"}]]

    def group(self, row: Mapping[str, Any], variables: Mapping[str, Any]) -> NewGroup:
        """The group of one row.

        Raises:
            InputError: a `{{name}}` has no value or none that is a text, the column holds no conversation, the function
                failed, or a message is invalid; the message has the place of the row.
        """
        if self.function is None and self.column is None:
            prompt, *later = [filled(turn, row, variables) for turn in self.turns]
        else:
            prompt, *later = self._own(row, variables)
        return NewGroup(prompt, row, [[], *later])

    def has_answer(self, row: Mapping[str, Any]) -> bool:
        """Whether the conversation in a row ends with an answer, which `group` leaves out."""
        return self.column is not None and _ends_with_answer(_listed(row.get(self.column)))

    def _own(self, row: Mapping[str, Any], variables: Mapping[str, Any]) -> list[list[Message]]:
        """The messages of a row's own conversation. They are data: no `{{name}}` in them is filled in."""
        place = place_of([row])
        if self.function is not None:
            messages = with_system(_called(self.function, row), self.system, f"{place}the function's prompt")
        else:
            name = self.column or ""
            own = _conversation(look_up(name, [row, variables]), name, place)
            own = own[:-1] if _ends_with_answer(own) else own
            before = [message.to_wire() for message in filled(self.turns[0], row, variables)]
            messages = with_system(own, before[0]["content"] if before else None, f"{place}{{{{{name}}}}}")
        if not messages:
            raise InputError(f"{place}the prompt has no message", hint="[{'role': 'user', 'content': '...'}]")
        return [encodable(validated(turn, place)) for turn in turns_of(messages)]


def template_of(prompt: Prompt, system: str | None = None, column: str | None = None) -> PromptTemplate:
    """The template of a prompt. column: the column that holds it, in place of a prompt.

    Raises:
        InputError: both are given, or the prompt is wrong.
    """
    if column is not None:
        if not isinstance(prompt, str) or prompt.strip():
            hint = f"an empty cell, --system TEXT for a system message, or a cell that is only {{{{{column}}}}}"
            raise InputError(f"the prompt is in the column {column!r}: the cell has to be empty", hint=hint)
    elif callable(prompt):
        return PromptTemplate(function=prompt, system=system)
    elif isinstance(prompt, str) and (alone := _ALONE.fullmatch(prompt)):
        column = alone[1]
    if column is not None:
        return PromptTemplate([with_system([], system)], column)
    return PromptTemplate(turns_of(with_system(as_messages(prompt), system)))


def template_again(turns: Sequence[Turn], column: str | None) -> PromptTemplate:
    """The template of what `PromptTemplate.stored` gave."""
    return PromptTemplate(turns) if column is None else PromptTemplate([turns[0][:-1]], column)


def _conversation(value: Any, name: str, place: str) -> list[dict[str, Any]]:
    """The messages of a value: a list of them, or a scalar, whose text is a user message."""
    messages = _listed(value)
    if messages is None:
        return [{"role": "user", "content": text_of(value, name, place)}]
    for message in messages:
        if not isinstance(message, Mapping):
            what = f"{place}{{{{{name}}}}} is a list of {type(message).__name__}, not of messages"
            raise InputError(what, hint="[{'role': 'user', 'content': '...'}], or a text")
    return [_message(message) for message in messages]


def _listed(value: Any) -> list[Any] | None:
    """The items of a list, a tuple or an array; None for anything else."""
    is_list = isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1
    return list(value) if is_list else None


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
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
    items = _listed(value)
    return value if items is None else [_without_nulls(each) for each in items]


def _ends_with_answer(messages: Sequence[Any] | None) -> bool:
    last = messages[-1] if messages else None
    if not isinstance(last, Mapping):
        return False
    message = _message(last)
    return message.get("role") == "assistant" and not is_open(message)


def _called(function: PromptFunction, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that a function makes of a row."""
    place = place_of([row])
    name = getattr(function, "__name__", type(function).__name__)
    try:
        result: Any = function(copy.deepcopy(dict(row)))
    except Exception as error:
        what = f"{place}the prompt function {name} failed: {type(error).__name__}: {error}"
        raise InputError(what, hint=f"columns: {', '.join(row)}" if row else "over=rows") from error
    if isinstance(result, str):
        return [{"role": "user", "content": result}]
    messages = _listed(result)
    if messages is None or not all(isinstance(message, Mapping) for message in messages):
        what = f"{place}the prompt function {name} returned a {type(result).__name__}"
        raise InputError(what, hint="return a text, or [{'role': 'user', 'content': '...'}]")
    if _ends_with_answer(messages):
        what = f"{place}the messages of the prompt function {name} end with the assistant's answer"
        raise InputError(what, hint="return messages[:-1]")
    return [_message(message) for message in messages]
