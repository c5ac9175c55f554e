"""Prompts: chat messages from the text of a cell, and values for `{{name}}` in them."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from rolloutlab.api.wire.chat import Message
from rolloutlab.errors import InputError

ROLES = ("system", "developer", "user", "assistant")

_START = re.compile(r"(?P<role>[A-Za-z]+):(?P<space>[ \t]+|$)?(?P<text>.*)", re.DOTALL)
_UNESCAPED_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')
_NAME = re.compile(r"\{\{\s*([^\s{}](?:[^{}\n]*[^\s{}])?)\s*\}\}")
_NUMBERS: Mapping[type, Callable[[Any], str]] = {
    bool: bool.__repr__,
    int: int.__repr__,
    float: float.__repr__,
    Decimal: Decimal.__str__,
    Fraction: Fraction.__str__,
}
"""How to write a number, by its type. `str` of a subclass may be its representation."""
_SCALARS = (date, time, UUID, PurePath)
"""Other types whose `str` is the text to fill in."""
_OPENING = re.compile(r"\s*(?:\w+\()?[\[({]\s*[\[({'\"\w]")
"""The beginning of a container as Python, NumPy and JSON write it: `[{'`, `({"`, `array([{`, `[Message(`."""
_ROLE, _CONTENT, _FROM, _VALUE = (
    re.compile(rf"""(?:['"]{name}['"]\s*:|\b{name}=)""") for name in ("role", "content", "from", "value")
)
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


PRESENT = "[row for row in rows if row[{}] is not None]"
"""What to type for the rows of a list that have a value in a column."""


class Row(dict[str, Any]):
    """A row that prompts are filled with.

    number: the index of the row.
    columns: the columns of all rows.
    place: where the row is from, such as `data.jsonl, line 7`.
    kinds: the original types of values that JSON stores as text, by column.
    part: the part of a split that the row belongs to, if any.
    within: the parts that this part was split from, the largest first.
    structs: whether its objects are structs of Arrow. These have all names that any row has, with null for the names
        that the row lacks.
    present: what to type for the rows of this source that have a value in a column. `{}` stands for the representation
        of the column's name.
    unusable: why values of the row were left out, by column.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        number: int = 0,
        columns: frozenset[str] = frozenset(),
        place: str = "",
        kinds: Mapping[str, str] | None = None,
        part: str = "",
        within: Sequence[str] = (),
        structs: bool = False,
        present: str = PRESENT,
        unusable: Mapping[str, InputError] | None = None,
    ) -> None:
        super().__init__(values or {})
        self.number = number
        self.columns = columns
        self.place = place or f"row {number}"
        self.kinds = dict(kinds or {})
        self.part = part
        self.within = tuple(within)
        self.structs = structs
        self.present = present
        self.unusable = dict(unusable or {})


def parse_chat(text: str) -> list[dict[str, Any]]:
    """Parse the messages of a text: a line that begins with `role:` begins a message, other lines continue it.

    A text without a role at its beginning is a user message. An empty `assistant:` is a place for a completion.

    Raises:
        InputError: the text is empty, a role is unknown or misspelt, or a message is empty.
    """
    if not text.strip():
        raise InputError("the cell is empty: there is nothing to ask", hint="user: What is the capital of France?")
    messages: list[dict[str, Any]] = []
    for number, line in enumerate(re.split(r"\r?\n", text), start=1):
        start = _START.fullmatch(line)
        if start and start["role"].lower() in ROLES:
            messages.append({"role": start["role"].lower(), "content": start["text"]})
        else:
            if start and start["space"] is not None:
                _check_role(start["role"], number, first=not messages)
            if not messages and line.strip():
                messages.append({"role": "user", "content": line})
            elif messages:
                messages[-1]["content"] += f"\n{line}"
    for message in messages:
        message["content"] = message["content"].strip()
        if not message["content"] and message["role"] != "assistant":
            raise InputError(f"the {message['role']} message is empty", hint=f"{message['role']}: some text")
    return messages


def _check_role(word: str, number: int, *, first: bool) -> None:
    """Raise InputError for an unknown role at the beginning of the cell, or for one that is close to a known role."""
    close = get_close_matches(word.lower(), ROLES, n=1, cutoff=0.8)
    if first or close:
        hint = (
            f"{close[0]}: ..." if close else f"one of {', '.join(f'{role}:' for role in ROLES)} - or a space before it"
        )
        raise InputError(f"unknown role {word!r} in line {number}", hint=hint)


def as_messages(prompt: object) -> list[dict[str, Any]]:
    """Return the messages of a prompt: the text of a cell, or a list of messages."""
    if isinstance(prompt, str):
        return parse_chat(prompt)
    if not isinstance(prompt, list | tuple) or not all(isinstance(message, Mapping) for message in prompt):
        raise InputError("a prompt is a text or a list of messages", hint="[{'role': 'user', 'content': '...'}]")
    return [dict(message) for message in prompt]


def fill(messages: Sequence[Mapping[str, Any]], *scopes: Mapping[str, Any]) -> list[Message]:
    """Replace each `{{name}}` in messages by its value in the first scope that has it.

    Raises:
        InputError: no scope has the name, a row lacks a column of other rows, its value is not a scalar, or a message
            is invalid.
    """
    return validate_messages([{name: _fill_field(name, m[name], scopes) for name in m} for m in messages])


def validate_messages(messages: Sequence[Mapping[str, Any]], place: str = "") -> list[Message]:
    """Parse messages of the wire; raise InputError with the place of an invalid one."""
    try:
        return _MESSAGES.validate_python(messages)
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{place}message {first['loc'][0]}: {first['msg']}"
        raise InputError(message, hint="{'role': 'user', 'content': '...'}") from error


def fill_text(text: str, *scopes: Mapping[str, Any]) -> str:
    """Replace each `{{name}}` in a text. Single braces are left alone."""
    return _NAME.sub(_make_lookup(scopes), text)


def _fill_field(name: str, value: Any, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Fill a field of a message: the texts of its content, or the arguments of its calls."""
    if name in {"tool_calls", "function_call"}:
        return _fill_call(value, scopes)
    return _fill_content(value, scopes) if name == "content" else value


def _fill_call(part: Any, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Fill the arguments in a call of a tool, or in a part of one."""
    if isinstance(part, Mapping):
        return {
            name: _fill_arguments(value, scopes) if name == "arguments" else _fill_call(value, scopes)
            for name, value in part.items()
        }
    return [_fill_call(each, scopes) for each in part] if isinstance(part, list) else part


def _fill_arguments(arguments: Any, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Fill the JSON text of arguments. A value inside of a JSON string is escaped."""
    if not isinstance(arguments, str):
        return _fill_content(arguments, scopes)
    value = _make_lookup(scopes)

    def quoted(match: re.Match[str]) -> str:
        text = value(match)
        quotes = _UNESCAPED_QUOTE.findall(arguments, 0, match.start())
        return json.dumps(text, ensure_ascii=False)[1:-1] if len(quotes) % 2 and text != match[0] else text

    return _NAME.sub(quoted, arguments)


def _fill_content(content: Any, scopes: Sequence[Mapping[str, Any]]) -> Any:
    if isinstance(content, str):
        return fill_text(content, *scopes)
    if isinstance(content, list):
        return [_fill_part(part, scopes) for part in content]
    return content


def _fill_part(part: Any, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Fill the texts of a part of a content at any depth: the URL of an image, the data of a file."""
    if isinstance(part, str):
        return fill_text(part, *scopes)
    if isinstance(part, Mapping):
        return {name: _fill_part(value, scopes) for name, value in part.items()}
    return [_fill_part(value, scopes) for value in part] if isinstance(part, list) else part


def _make_lookup(scopes: Sequence[Mapping[str, Any]]) -> Callable[[re.Match[str]], str]:
    """Make the function that returns the text to replace a match of `_NAME` by."""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if not re.fullmatch(r"\w+", name) and not any(map(partial(_has, name), scopes)):
            return match[0]  # braces of JSON or LaTeX, not a name
        return text_of(look_up(name, scopes), name, scopes[0] if scopes else {})

    return value


def _has(name: str, scope: Mapping[str, Any]) -> bool:
    """Whether a scope has a value of this name, or is a row that could not keep it."""
    return name in scope or (isinstance(scope, Row) and name in scope.unusable)


def look_up(name: str, scopes: Sequence[Mapping[str, Any]]) -> Any:
    """Find the value of a name in the first scope that has it.

    Raises:
        InputError: no scope has it, or a row lacks a column of other rows, or has a value there that cannot be kept.
    """
    for scope in scopes:
        if name in scope:
            return scope[name]
        if isinstance(scope, Row) and name in scope.unusable:
            raise scope.unusable[name]
        if isinstance(scope, Row) and name in scope.columns:
            raise InputError(f"{scope.place} has no column {name!r}", hint=f"{{'{name}': ...}}")
    columns = ", ".join(map(str, scopes[0])) if scopes and scopes[0] else ""
    raise InputError(
        f"{{{{{name}}}}} is neither a column nor a variable",
        hint=f"columns: {columns}" if columns else f"{name} = ... in a cell before this one",
    )


def place_of(scopes: Sequence[Mapping[str, Any]]) -> str:
    """Return the beginning of an error about a value: the place of its row, or "" if it has none."""
    row = scopes[0] if scopes else None
    return f"{row.place}: " if isinstance(row, Row) and row else ""


def text_of(value: Any, name: str, row: Mapping[str, Any]) -> str:
    """Return the text of a scalar: a text as it is, `True`, `0.5`, `2026-01-31`.

    Other values have no text, because it would be Python code.

    value: the value, of a row or of a variable. name: its column or variable. row: the row, for messages.

    Raises:
        InputError: the value is missing (None, NaN, NaT), or is a list, a dict, an array, a function or any object, or
            the representation of messages as a text, which `pandas.to_csv` makes of a list of messages.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # a scalar of NumPy
    if isinstance(value, Enum):
        value = value.value
    missing = value is None or type(value).__name__ in {"NaTType", "NAType"}
    is_nan = value.is_nan() if isinstance(value, Decimal) else isinstance(value, float) and math.isnan(value)
    place = place_of([row])
    if missing or is_nan:
        known = row.present if isinstance(row, Row) and name in row else PRESENT
        raise InputError(f"{place}{{{{{name}}}}} has no value", hint=known.format(repr(name)))
    if isinstance(value, str):
        _check_not_messages(value, name, place)
        return str.__str__(value)  # `str` of a subclass may be its representation
    for base, text in _NUMBERS.items():
        if isinstance(value, base):
            return text(value)
    if isinstance(value, _SCALARS):
        return str(value)
    hints: dict[Any, str] = {
        list: f"a cell that is only {{{{{name}}}}} for messages, or a text: ', '.join({name})",
        dict: f"a text, such as json.dumps({name})",
    }
    what = f"{place}{{{{{name}}}}} is a {type(value).__name__}, which has no text of its own"
    raise InputError(what, hint=hints.get(type(value), f"a text, such as str({name})"))


def _check_not_messages(text: str, name: str, place: str) -> None:
    """Raise InputError for a text that is the representation of messages in Python, or their JSON cut short."""
    pairs = ((_ROLE, _CONTENT), (_FROM, _VALUE))
    if not _OPENING.match(text) or not any(all(each.search(text) for each in pair) for pair in pairs):
        return
    try:
        json.loads(text)
    except RecursionError:
        return
    except ValueError as error:
        if str(error).startswith("Extra data"):  # JSON, and then a text about it
            return
        what = f"{place}{{{{{name}}}}} is a text of messages as Python writes them, or cut short, and no JSON"
        hint = f"frame[{name!r}] = frame[{name!r}].map(ast.literal_eval), or .map(json.dumps) before to_csv"
        raise InputError(what, hint=hint) from None


Turn = Sequence[Mapping[str, Any]]


def turns_of(messages: Turn) -> list[list[Mapping[str, Any]]]:
    """Split messages into those before each completion, which are at each empty assistant message and at the end.

    Raise InputError if a completion has no message before it.
    """
    turns: list[list[Mapping[str, Any]]] = [[]]
    for message in messages:
        if is_open(message):
            turns.append([])
        else:
            turns[-1].append(message)
    if len(turns) > 1 and not turns[-1]:
        turns.pop()  # a place at the end is implied
    if not all(turns):
        raise InputError("a completion has no message before it", hint="user: ... before assistant:")
    return turns


def with_system(messages: Turn, system: str | None, where: str = "the cell") -> list[Mapping[str, Any]]:
    """Put a system message before messages, if there is one; raise InputError if they begin with one of their own.

    where: what has the messages, for the error.
    """
    if system is None:
        return list(messages)
    if messages and messages[0].get("role") in {"system", "developer"}:
        raise InputError(f"{where} has a system message of its own", hint="leave --system or the message out")
    return [{"role": "system", "content": system}, *messages]


def fill_turn(turn: Turn, row: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Message]:
    """Fill the messages of a turn as `fill` does; raise InputError also for a lone surrogate."""
    return check_encodable(fill(turn, row, variables), place_of([row]))


def check_encodable(messages: list[Message], place: str = "") -> list[Message]:
    """Return the messages; raise InputError with the place if one has a lone surrogate."""
    try:
        for message in messages:
            message.to_json()
    except PydanticSerializationError as error:
        wrong = f"{place}the prompt contains a lone surrogate, which UTF-8 cannot encode"
        raise InputError(wrong, hint="text.encode('utf-8', 'replace').decode()") from error
    return messages


def is_open(message: Mapping[str, Any]) -> bool:
    """Whether a message is a place for a completion: an assistant message without any content."""
    contents = (message.get(name) for name in ("content", "tool_calls", "refusal", "function_call"))
    return message.get("role") == "assistant" and not any(contents)
