"""Messages as a chat template reads them.

Chat templates know some kinds of messages and leave the others out without a word. A kind that a template does not
write is given to it as the nearest one that it writes: `developer` as `system`, `function` as `tool`, `function_call`
as `tool_calls`, a refusal and the transcript of an audio as content. Where there is none, the message is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import from_json

from rolloutlab.errors import RenderingError
from rolloutlab.wire.chat import Choice, MessageOrChoice

Template = Callable[[list[dict[str, Any]]], str]
"""Renders messages; raises RenderingError where it refuses them."""

_EQUAL = {"developer": "system", "function": "tool", "function_call": "tool_calls"}
_CHECKED = ("system", "developer", "tool", "function", "function_call", "custom")
_MOST_SHAPES = 1000


class Messages:
    """Gives the messages of a conversation to one chat template."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._shapes: dict[tuple[str, ...], tuple[str, ...]] = {}

    def plain(self, items: Sequence[MessageOrChoice], place: str) -> list[dict[str, Any]]:
        """The conversation as the template reads it, message by message.

        place: where the items are, for errors, such as `messages`.

        Raises:
            RenderingError: a message is of a kind that this template does not write, or holds what is not text.
        """
        sent = [(item.message if isinstance(item, Choice) else item).to_wire() for item in items]
        shape = tuple(map(_kind, sent))
        known = self._shapes.get(shape)
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            known = self._shapes[shape] = self._written(shape)
        for i, kind in enumerate(known):
            if not kind:
                raise RenderingError(
                    f"{place}.{i}: this policy's chat template writes no message of the kind {shape[i]}"
                )
        return [_given(message, i, known, f"{place}.{i}") for i, message in enumerate(sent)]

    def _written(self, shape: tuple[str, ...]) -> tuple[str, ...]:
        """The kind as which each message of a conversation is given to the template; empty where it writes none."""
        found = shape
        for kind, equal in _EQUAL.items():
            if kind in shape and self._shows(found, kind) is not True:
                found = tuple(equal if each == kind else each for each in found)
        checked = {as_what for kind, as_what in zip(shape, found, strict=True) if kind in _CHECKED}
        dropped = {as_what for as_what in checked if self._shows(found, as_what) is False}
        return tuple(
            "" if k in _CHECKED and as_what in dropped else as_what for k, as_what in zip(shape, found, strict=True)
        )

    def _shows(self, shape: tuple[str, ...], kind: str) -> bool | None:
        """Whether all messages of a kind are in the text of a conversation like this one; None where it is refused."""
        try:
            text = self._template([_example(each, f"rolloutlab{i}probe") for i, each in enumerate(shape)])
        except RenderingError:
            return None
        return all(f"rolloutlab{i}probe" in text for i, each in enumerate(shape) if each == kind)


def _kind(message: dict[str, Any]) -> str:
    """What decides whether a template writes a message."""
    if message["role"] != "assistant":
        return str(message["role"])
    if message.get("function_call"):
        return "function_call"
    calls = message.get("tool_calls") or []
    if any(call["type"] != "function" for call in calls):
        return "custom"
    return "tool_calls" if calls else "assistant"


def _example(kind: str, mark: str) -> dict[str, Any]:
    """A message of a kind, whose mark shows that a template writes it."""
    call = {"id": _call_id(0), "type": "function", "function": {"name": mark, "arguments": {}}}
    if kind == "tool_calls":
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call":
        return {"role": "assistant", "content": "", "function_call": {"name": mark, "arguments": "{}"}}
    if kind == "custom":
        custom = {"id": _call_id(0), "type": "custom", "custom": {"name": mark, "input": mark}}
        return {"role": "assistant", "content": "", "tool_calls": [custom]}
    named = {"tool": {"tool_call_id": _call_id(0), "name": "f"}, "function": {"name": "f"}}
    return {"role": kind, "content": mark, **named.get(kind, {})}


def _given(message: dict[str, Any], i: int, kinds: Sequence[str], place: str) -> dict[str, Any]:
    """The message of this place as the template gets it: of a kind that it writes, its content one text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, f"{place}.content.{j}") for j, part in enumerate(content))
    message["content"] = content or ""
    if message["role"] == "assistant":
        _speak(message, i, kinds, place)
    elif kinds[i] != message["role"]:
        message["role"] = kinds[i]
        if kinds[i] == "tool":
            message["tool_call_id"] = _call_id(max((j for j in range(i) if kinds[j] == "tool_calls"), default=0))
    return message


def _speak(message: dict[str, Any], i: int, kinds: Sequence[str], place: str) -> None:
    """Put what an assistant said into the fields that templates read: its content, and its tool calls as objects."""
    message["content"] += message.pop("refusal", None) or ""
    if audio := message.pop("audio", None):
        if not audio.get("transcript"):
            raise RenderingError(f"{place}.audio: this policy reads text, and this audio has no transcript")
        message["content"] = message["content"] or audio["transcript"]
    if kinds[i] == "tool_calls" and (call := message.pop("function_call", None)):
        message["tool_calls"] = [{"id": _call_id(i), "type": "function", "function": call}]
    for call in message.get("tool_calls") or []:
        if call["type"] == "function":
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])


def _call_id(i: int) -> str:
    """An id for the call of the i-th message, which has none: nine letters and digits, as every template takes it."""
    return f"call{i % 100_000:05}"


def _part_text(part: dict[str, Any], place: str) -> str:
    text = part.get("text", part.get("refusal"))
    if text is None:
        raise RenderingError(f"{place}: this policy reads text, not {part['type']}")
    return str(text)


def _arguments(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
