"""Format of a policy's tool calls, inferred from its chat template, and their parser."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.reasoning import CLOSING
from rolloutlab.policy.continuation import after_prompt

Template = Callable[[list[dict[str, Any]], bool], str]
"""Renders messages; the second argument is `add_generation_prompt`."""
_NAME, _ARGUMENTS = "rolloutlab_function", {"rolloutlab_argument": "value"}
_BEFORE, _AFTER = " \t\r\n,;[", " \t\r\n,;]"


@dataclass(frozen=True)
class Call:
    """`arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallFormat:
    """JSON objects between two markers, such as `<tool_call>` and `</tool_call>`; either may be empty.

    name_key, arguments_key: the object's keys. example: a call of the function `_NAME`. before_name, before_arguments:
    offsets of the name and of the arguments in it.
    """

    opening: str
    closing: str
    name_key: str
    arguments_key: str
    example: str
    before_name: int
    before_arguments: int

    def beginning(self, function: str | None) -> tuple[str, str]:
        """The beginning of a call of this function, or of any; and an example of the rest."""
        if function is None:
            return self.example[: self.before_name], self.example[self.before_name :]
        name = json.dumps(function, ensure_ascii=False)[1:-1]
        return self.example[: self.before_arguments].replace(_NAME, name), self.example[self.before_arguments :]

    def parse(self, text: str) -> tuple[str, list[Call]]:
        """The text around the calls, and the calls; the whole text and no calls if one is malformed."""
        before, _, rest = text.partition(self.opening) if self.opening else ("", "", text)
        calls: list[Call] = []
        rest = self._skip_markers(rest)
        while rest.startswith("{"):
            call, end = self._read(rest)
            if call is None:
                return text, []
            calls.append(call)
            rest = self._skip_markers(rest[end:])
        if not calls or (rest and not self.opening):  # an object with text after it is an answer that begins with one
            return text, []
        return before + rest, calls

    def _read(self, text: str) -> tuple[Call | None, int]:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text)
        except (ValueError, RecursionError):
            return None, len(text)
        return valid_call(value.get(self.name_key), value.get(self.arguments_key)), end

    def _skip_markers(self, text: str) -> str:
        """The text without leading markers and separators."""
        before = None
        while before != text:
            before, text = text, text.strip()
            for marker in filter(None, (self.opening, self.closing)):
                text = text.removeprefix(marker)
            if text[:1] in {*_BEFORE, *_AFTER}:
                text = text[1:]
        return text


def valid_call(name: Any, arguments: Any) -> Call | None:
    """The call, or None if it has no name, or its arguments are not valid JSON in valid Unicode."""
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{name}{text}".encode()
    except (ValueError, RecursionError):
        return None
    return Call(name, text)


def infer_format(template: Template, end: str) -> ToolCallFormat | None:
    """The format of a chat template's calls, or None if it is not JSON, from the rendering of an example.

    end: the text of the end-of-turn token.
    """
    user = [{"role": "user", "content": "?"}]
    call = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    prompt = template(user, True)
    whole = template([*user, {"role": "assistant", "content": "", "tool_calls": [call]}], False)
    rendered = after_prompt(prompt, whole)
    if rendered is None:
        return None
    answer = rendered.find(CLOSING) + len(CLOSING) if CLOSING in rendered else 0  # some write an empty reasoning
    for start in (i for i, character in enumerate(rendered) if character == "{"):
        try:
            value, call_end = json.JSONDecoder().raw_decode(rendered, start)
        except ValueError:
            continue
        keys = {_kind(each): name for name, each in value.items()}
        if "name" in keys and "arguments" in keys and _NAME in rendered:
            closing = rendered[call_end:].partition(end)[0] if end else rendered[call_end:]
            return ToolCallFormat(
                opening=rendered[answer:start].lstrip().rstrip(_BEFORE),
                closing=closing.lstrip(_AFTER).rstrip(),
                name_key=keys["name"],
                arguments_key=keys["arguments"],
                example=rendered,
                before_name=rendered.index(_NAME),
                before_arguments=rendered.index("{", rendered.index(_NAME)),
            )
    return None


def _kind(value: Any) -> str:
    """Which part of the example call a value is."""
    if value == _NAME:
        return "name"
    return "arguments" if value in (_ARGUMENTS, json.dumps(_ARGUMENTS)) else "other"
