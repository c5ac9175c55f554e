"""How a policy writes tool calls: learned from its own chat template, then read in what it says."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Template = Callable[[list[dict[str, Any]], bool], str]
"""Renders messages; the second argument says whether the assistant's answer is to begin behind them."""

_NAME, _ARGUMENTS = "rolloutlab_function", {"rolloutlab_argument": "value"}
_BEFORE, _AFTER = " \t\r\n,;[", " \t\r\n,;]"


@dataclass(frozen=True)
class Call:
    """A call as the policy wrote it; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallFormat:
    """JSON objects between two markers, such as `<tool_call>` and `</tool_call>`; either may be empty.

    name_key, arguments_key: the object's keys. example: a whole call of the function `_NAME`. before_name,
    before_arguments: how many characters of it come before the name, and before the arguments.
    """

    opening: str
    closing: str
    name_key: str
    arguments_key: str
    example: str
    before_name: int
    before_arguments: int

    def beginning(self, function: str | None) -> tuple[str, str]:
        """What a call of this function, or of any, begins with; and how it may go on."""
        if function is None:
            return self.example[: self.before_name], self.example[self.before_name :]
        begins = self.example[: self.before_arguments].replace(_NAME, json.dumps(function, ensure_ascii=False)[1:-1])
        return begins, self.example[self.before_arguments :]

    def parse(self, text: str) -> tuple[str, list[Call]]:
        """The text around the calls, and the calls; all of the text and no call when one is malformed."""
        said, _, rest = text.partition(self.opening) if self.opening else ("", "", text)
        calls: list[Call] = []
        rest = self._bare(rest)
        while rest.startswith("{"):
            call, end = self._read(rest)
            if call is None:
                return text, []
            calls.append(call)
            rest = self._bare(rest[end:])
        return (said + rest, calls) if calls else (text, [])

    def _read(self, text: str) -> tuple[Call | None, int]:
        try:
            found, end = json.JSONDecoder(strict=False).raw_decode(text)
        except (ValueError, RecursionError):
            return None, len(text)
        return written_call(found.get(self.name_key), found.get(self.arguments_key)), end

    def _bare(self, text: str) -> str:
        """The text without the markers and separators that it begins with."""
        before = None
        while before != text:
            before, text = text, text.strip()
            for marker in filter(None, (self.opening, self.closing)):
                text = text.removeprefix(marker)
            if text[:1] in {*_BEFORE, *_AFTER}:
                text = text[1:]
        return text


def written_call(name: Any, arguments: Any) -> Call | None:
    """The call that was written, or None: it has no name, or arguments that JSON of whole characters cannot say."""
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{name}{text}".encode()
    except (ValueError, RecursionError):
        return None
    return Call(name, text)


def learn(template: Template, end: str) -> ToolCallFormat | None:
    """The format in which a chat template writes calls, or None where that is not JSON.

    end: the text of the end-of-turn token.
    """
    asked = [{"role": "user", "content": "?"}]
    call = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
    prompt = template(asked, True)
    whole = template([*asked, {"role": "assistant", "content": "", "tool_calls": [call]}], False)
    written = whole.removeprefix(prompt)
    if written == whole:
        return None
    for start in (i for i, character in enumerate(written) if character == "{"):
        try:
            found, end_of_call = json.JSONDecoder().raw_decode(written, start)
        except ValueError:
            continue
        keys = {_key(value): name for name, value in found.items()}
        if "name" in keys and "arguments" in keys and _NAME in written:
            closing = written[end_of_call:].partition(end)[0] if end else written[end_of_call:]
            arguments = written.index("{", written.index(_NAME))
            return ToolCallFormat(
                opening=written[:start].lstrip().rstrip(_BEFORE),
                closing=closing.lstrip(_AFTER).rstrip(),
                name_key=keys["name"],
                arguments_key=keys["arguments"],
                example=written,
                before_name=written.index(_NAME),
                before_arguments=arguments,
            )
    return None


def _key(value: Any) -> str:
    """What a value of the sentinel call is."""
    if value == _NAME:
        return "name"
    return "arguments" if value in (_ARGUMENTS, json.dumps(_ARGUMENTS)) else "other"
