"""Prompt template: the messages of a row from the text of a cell, from a conversation in a column, or by a function."""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.chat import Message
from rolloutlab.errors import InputError
from rolloutlab.sampling.conversation import (
    are_messages,
    as_list,
    ends_with_answer,
    messages_of,
    read_conversation,
    read_json_messages,
    tools_beside,
)
from rolloutlab.sampling.prompt import (
    Row,
    Turn,
    as_messages,
    check_encodable,
    fill_text,
    fill_turn,
    look_up,
    place_of,
    turns_of,
    validate_messages,
    with_system,
)
from rolloutlab.store.models import NewGroup

PromptFunction = Callable[[dict[str, Any]], str | Sequence[Mapping[str, Any]]]
"""A function that is called with a copy of each row; it returns the text of a user message, or messages."""

Prompt = str | Sequence[Mapping[str, Any]] | PromptFunction
"""The text of a cell, a list of messages, or a function of a row."""

_SHORT = 8
"""The most characters of a representation that may be in any text by chance."""
_ALONE = re.compile(r"\s*\{\{\s*([^\s{}](?:[^{}\n]*[^\s{}])?)\s*\}\}\s*")
"""Matches a cell that is only `{{name}}`."""


@dataclass(frozen=True)
class PromptTemplate:
    """How to make the prompt of a row.

    turns: the messages before each completion, with `{{name}}` in them.
    column: the column or variable that holds the prompt. `turns` are then the messages before it.
    function: makes the prompt of a row.
    system: a system message before the prompt of `function`.
    """

    turns: Sequence[Turn] = ()
    column: str | None = None
    function: PromptFunction | None = None
    system: str | None = None

    def to_store(self) -> list[Turn]:
        """Return the turns as a collection stores them: `{{column}}` stands for the prompt of a column."""
        if self.column is None:
            return list(self.turns)
        return [[*self.turns[0], {"role": "user", "content": f"{{{{{self.column}}}}}"}]]

    def make_group(self, row: Mapping[str, Any], variables: Mapping[str, Any]) -> NewGroup:
        """Make the group of one row.

        Raises:
            InputError: a `{{name}}` has no value or none that is a text, the column holds no conversation, the function
                failed, or a message is invalid. The error has the place of the row.
        """
        if self.function is None and self.column is None:
            prompt, *later = [fill_turn(turn, row, variables) for turn in self.turns]
        else:
            prompt, *later = self._fill_own(row, variables)
        return NewGroup(prompt, row, [[], *later])

    def has_answer(self, row: Mapping[str, Any]) -> bool:
        """Whether the conversation in a row ends with an answer, which `make_group` leaves out."""
        value = None if self.column is None else row.get(self.column)
        return ends_with_answer(as_list(value) or read_json_messages(value))

    def begins_with_answer(self, row: Mapping[str, Any]) -> bool:
        """Whether the conversation in a row begins with the model, which some chat templates refuse."""
        value = None if self.column is None else row.get(self.column)
        messages = as_list(value) or read_json_messages(value) or []
        return len(messages) > 1 and ends_with_answer(messages[:1])

    def has_json(self, row: Mapping[str, Any]) -> bool:
        """Whether the conversation in a row is JSON text, of which `make_group` makes messages."""
        return self.column is not None and read_json_messages(row.get(self.column)) is not None

    def _fill_own(self, row: Mapping[str, Any], variables: Mapping[str, Any]) -> list[list[Message]]:
        """Make the turns of a row's own conversation. Its messages are data: no `{{name}}` in them is filled in."""
        place = place_of([row])
        if self.function is not None:
            system = None if self.system is None else fill_text(self.system, row, variables)
            messages = with_system(_call_function(self.function, row), system, f"{place}the function's prompt")
        else:
            name = self.column or ""
            own = read_conversation(look_up(name, [row, variables]), name, row)
            own = own[:-1] if ends_with_answer(own) else own
            before = [message.to_wire() for message in fill_turn(self.turns[0], row, variables)]
            messages = with_system(own, before[0]["content"] if before else None, f"{place}{{{{{name}}}}}")
        if not messages:
            raise InputError(f"{place}the prompt has no message", hint="[{'role': 'user', 'content': '...'}]")
        return [check_encodable(validate_messages(turn, place), place) for turn in turns_of(messages)]


def template_of(prompt: Prompt, system: str | None = None, column: str | None = None) -> PromptTemplate:
    """Make the template of a prompt. column: the column that holds the prompts; `prompt` is then empty.

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


def template_before(prompt: Prompt, system: str | None = None, column: str | None = None) -> PromptTemplate:
    """Make the template of the messages before the first observation of an environment, if any.

    Raises:
        InputError: the prompt is wrong, or has a place for an answer.
    """
    if column is not None:
        raise InputError("the first observation of the environment is the prompt", hint="leave --prompt-column out")
    if isinstance(prompt, str) and not prompt.strip():
        return PromptTemplate([with_system([], system)])
    template = template_of(prompt, system)
    if len(template.turns) > 1:
        hint = "a system message alone, or an empty cell"
        raise InputError("the environment answers each turn: the cell has no place for another", hint=hint)
    return template


def read_template(turns: Sequence[Turn], column: str | None) -> PromptTemplate:
    """Read a template that `PromptTemplate.to_store` returned."""
    return PromptTemplate(turns) if column is None else PromptTemplate([turns[0][:-1]], column)


def _call_function(function: PromptFunction, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Call the prompt function for a row, and check the messages that it returns."""
    place = place_of([row])
    name = getattr(function, "__name__", type(function).__name__)
    try:
        result: Any = function(copy.deepcopy(dict(row)))
    except Exception as error:
        if isinstance(error, KeyError) and isinstance(row, Row) and error.args[:1] and error.args[0] in row.unusable:
            raise row.unusable[error.args[0]] from error
        what = f"{place}the prompt function {name} failed: {type(error).__name__}: {error}"
        raise InputError(what, hint=f"columns: {', '.join(row)}" if row else "over=rows") from error
    for text in _texts(result):
        _check_no_representation(text, row, f"{place}the prompt function {name}")
    if isinstance(result, str):
        return [{"role": "user", "content": result}]
    messages = as_list(result)
    if messages is None or not all(isinstance(message, Mapping) for message in messages):
        what = f"{place}the prompt function {name} returned a {type(result).__name__}"
        raise InputError(what, hint="return a text, or [{'role': 'user', 'content': '...'}]")
    if ends_with_answer(messages):
        what = f"{place}the messages of the prompt function {name} end with the assistant's answer"
        raise InputError(what, hint="return messages[:-1]")
    return messages_of(messages, tools_beside(row), structs=isinstance(row, Row) and row.structs)


def _texts(value: Any) -> Iterator[str]:
    """Find the texts in a value at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _containers(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Find the lists and dicts in a value at any depth, the outer ones first, with what to type for each."""
    if isinstance(value, Mapping | list):
        yield path, value
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _containers(each, f"{path}[{key!r}]")


def _check_no_representation(text: str, row: Mapping[str, Any], function: str) -> None:
    """Raise InputError if a text contains a list or dict of the row as Python writes it: `[{'role': 'user', ...}]`.

    Three cases are allowed: JSON writes it in the same way (`[2, 1]`), a text of the row contains it too, or it is
    short and only a part of the text (`['a']`).
    """
    opening = min((place for mark in "[{" if (place := text.find(mark)) >= 0), default=len(text))
    if max(text.rfind("]"), text.rfind("}")) < opening:
        return
    for path, value in _containers(dict(row), "row"):
        written = repr(value)
        is_there = written in text if len(written) > _SHORT else written == text.strip()
        if is_there and written != json.dumps(value) and not any(written in own for own in _texts(row)):
            what = f"{function} put the Python representation of {path} into its text"
            own = f"return {path}, or " if are_messages(value) else ""
            raise InputError(what, hint=f"{own}json.dumps({path}) in the text")
