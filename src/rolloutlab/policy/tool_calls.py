"""Format of a policy's tool calls, inferred from its chat template, and the parser of those that are JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.api.wire.reasoning import CLOSING, OPENING, without_empty_thought, without_thought


def after_prompt(prompt: str, whole: str, reasoning: str = "", *, dropped: bool = False) -> str | None:
    """Return the answer's part of a rendered conversation; None if the template does not render it after its prompt.

    - If the prompt opens a thought that the rendered answer lacks (DeepSeek-R1), the answer begins with the reasoning
      and the end of the thought, as a model writes them.
    - If the prompt ends with an empty thought, which the rendered answer lacks or has with other white space
      (Nemotron-H), the answer is what comes after the thought.

    Args:
        prompt: The rendered prompt.
        whole: The rendered conversation, with the answer.
        reasoning: The reasoning of the answer.
        dropped: Whether the template drops all reasoning; the reasoning is then put before the answer.
    """
    if whole.startswith(prompt):
        begun = f"{OPENING}\n{reasoning}\n{CLOSING}\n\n" if dropped and reasoning else ""
        return begun + whole[len(prompt) :]
    if (before_thought := without_thought(prompt)) is not None:
        if not whole.startswith(before_thought):
            return None
        return without_empty_thought(whole[len(before_thought) :])
    opened = prompt.rstrip()
    before = opened.removesuffix(OPENING)
    if before == opened or not whole.startswith(before):
        return None
    rest = whole[len(before) :]
    if rest.startswith(OPENING):  # with other white space than the prompt's
        return rest.removeprefix(OPENING).lstrip()
    return f"{reasoning}\n{CLOSING}\n\n{rest}"


Template = Callable[[list[dict[str, Any]], bool], str]
"""Renders messages; the second argument is `add_generation_prompt`."""
NAME, ARGUMENTS = "rolloutlab_function", {"rolloutlab_argument": "value"}
_BEFORE, _AFTER = " \t\r\n,;[", " \t\r\n,;]"


@dataclass(frozen=True)
class Call:
    """A call of a function. arguments: as JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CallExample:
    """A call of the function `NAME` as a chat template writes it after its prompt.

    before_name, before_arguments: offsets of the name and of the arguments in it.
    """

    text: str
    before_name: int
    before_arguments: int

    def beginning(self, function: str | None) -> tuple[str, str]:
        """Split a call of this function (None: any) into its fixed beginning and an example of the rest."""
        if function is None:
            return self.text[: self.before_name], self.text[self.before_name :]
        name = json.dumps(function, ensure_ascii=False)[1:-1]
        return self.text[: self.before_arguments].replace(NAME, name), self.text[self.before_arguments :]


def call_example(template: Template) -> CallExample | None:
    """Render a call by a chat template; None if it does not write calls after its prompt."""
    user = [{"role": "user", "content": "?"}]
    call = {"id": "call00000", "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}
    prompt = template(user, True)
    whole = template([*user, {"role": "assistant", "content": "", "tool_calls": [call]}], False)
    text = after_prompt(prompt, whole)
    [argument] = ARGUMENTS
    if text is None or NAME not in text or argument not in text.partition(NAME)[2]:
        return None
    between = text[: text.index(argument, text.index(NAME))]
    # the arguments begin with an object, with the tag of the first argument, or with the first argument itself
    begin = next((i for mark in "{<" if (i := between.find(mark, text.index(NAME))) >= 0), len(between))
    return CallExample(text, text.index(NAME), begin)


@dataclass(frozen=True)
class ToolCallFormat:
    """JSON objects between two markers, such as `<tool_call>` and `</tool_call>`; either may be empty.

    name_key, arguments_key: the object's keys.
    """

    opening: str
    closing: str
    name_key: str
    arguments_key: str

    @classmethod
    def of(cls, example: CallExample, end: str) -> "ToolCallFormat | None":
        """Infer the format of an example; None if it is not JSON. end: the text of the end-of-turn token."""
        text = example.text
        answer = text.find(CLOSING) + len(CLOSING) if CLOSING in text else 0  # some write an empty reasoning
        for start in (i for i, character in enumerate(text) if character == "{"):
            try:
                value, call_end = json.JSONDecoder().raw_decode(text, start)
            except ValueError:
                continue
            keys = {_kind(each): name for name, each in value.items()}
            if "name" in keys and "arguments" in keys:
                closing = text[call_end:].partition(end)[0] if end else text[call_end:]
                return cls(
                    opening=text[answer:start].lstrip().rstrip(_BEFORE),
                    closing=closing.lstrip(_AFTER).rstrip(),
                    name_key=keys["name"],
                    arguments_key=keys["arguments"],
                )
        return None

    def parse(self, text: str, tools: Sequence[FunctionTool] = ()) -> tuple[str, list[Call]]:  # noqa: ARG002 - as others
        """Return the text around the calls, and the calls; the whole text and no calls if one is malformed."""
        around, calls = self.split(text)
        if around and not self.opening:  # an object with text after it is an answer that begins with one
            return text, []
        return around, calls

    def split(self, text: str) -> tuple[str, list[Call]]:
        """Split as `parse` does, but also if text follows an object that no mark has opened."""
        before, _, rest = text.partition(self.opening) if self.opening else ("", "", text)
        calls: list[Call] = []
        rest = self._skip_markers(rest)
        while rest.startswith("{"):
            call, end = self._read(rest)
            if call is None:
                return text, []
            calls.append(call)
            rest = self._skip_markers(rest[end:])
        return (before + rest, calls) if calls else (text, [])

    def _read(self, text: str) -> tuple[Call | None, int]:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text)
        except (ValueError, RecursionError):
            return None, len(text)
        return valid_call(value.get(self.name_key), value.get(self.arguments_key)), end

    def _skip_markers(self, text: str) -> str:
        """Strip leading markers and separators from a text."""
        before = None
        while before != text:
            before, text = text, text.strip()
            for marker in filter(None, (self.opening, self.closing)):
                text = text.removeprefix(marker)
            if text[:1] in {*_BEFORE, *_AFTER}:
                text = text[1:]
        return text


def valid_call(name: Any, arguments: Any) -> Call | None:
    """Return a call; None if it has no name, or if its arguments are no text or JSON, or not valid Unicode."""
    if not isinstance(name, str) or not isinstance(arguments, dict | str):
        return None
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        f"{name}{text}".encode()
    except (ValueError, RecursionError):
        return None
    return Call(name, text)


def _kind(value: Any) -> str:
    """Return which part of the example call a value is: `name`, `arguments` or `other`."""
    if value == NAME:
        return "name"
    return "arguments" if value in (ARGUMENTS, json.dumps(ARGUMENTS)) else "other"
