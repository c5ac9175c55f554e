"""Messages as a chat template reads them.

Chat templates know some kinds of messages and leave the others out without a word. A kind that a template does not
write is given to it as the nearest one that it writes: `developer` as `system`, `function` as `tool`, `function_call`
as `tool_calls`, a refusal and the transcript of an audio as content. Where there is none, or where a template writes
only a part of a message (its calls without the content beside them, the first of several calls), the message is
refused. What a template writes is tried out on a conversation of the same shape, in which every part is a mark.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import from_json

from rolloutlab.api.wire.chat import Choice, FunctionTool, MessageOrChoice
from rolloutlab.errors import RenderingError

Tools = Sequence[FunctionTool] | None
Template = Callable[[list[dict[str, Any]], Tools], str]
"""Renders messages, with the tools that are offered; raises RenderingError where it refuses them."""

_EQUAL = {"developer": "system", "function": "tool", "function_call": "tool_calls"}
_UNCHECKED = ("user", "assistant")
_MARKS = re.compile(r"rolloutlab\d+(?:said|call\d)")
_MOST_SHAPES = 1000

_LOST = {
    "kind": (": this policy's chat template writes no message of the kind {kind}", None),
    "content": (
        ".content: this policy's chat template leaves out the content of a message of the kind {kind}",
        "leave the content out",
    ),
    "calls": (".tool_calls: this policy's chat template writes only one call of a message", "one call in a message"),
}
"""What a template can leave out of a message: the error behind the message's place, and its hint."""


class _Shape(NamedTuple):
    """What decides whether a template writes a message.

    content: whether it has some beside its calls. calls: their types, `function_call` for the older field of that name;
    several of one type are two, since a template writes all of them or only one.
    """

    role: str
    content: bool = True
    calls: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """As errors name it: the role, and for calls the field, or `custom`."""
        if not self.calls:
            return self.role
        return next((call for call in self.calls if call != "function"), "tool_calls")


_Shapes = tuple[_Shape, ...]


class Messages:
    """Gives the messages of a conversation to one chat template."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._known: dict[tuple[bool, _Shapes], tuple[_Shapes, Sequence[str]]] = {}

    def plain(self, items: Sequence[MessageOrChoice], place: str, tools: Tools = None) -> list[dict[str, Any]]:
        """The conversation as the template reads it, message by message.

        place: where the items are, for errors, such as `messages`. tools: those that the template is given with it.

        Raises:
            RenderingError: a message is of a kind that this template does not write, or not as a whole, or holds what
                is not text.
        """
        sent = [(item.message if isinstance(item, Choice) else item).to_wire() for item in items]
        for i, message in enumerate(sent):
            _simplify(message, i, f"{place}.{i}")
        shapes = tuple(map(_shape, sent))
        key = (bool(tools), shapes)
        tried = self._known.get(key)
        if tried is None:
            tried = self._tried(shapes, tools)
            if len(self._known) >= _MOST_SHAPES:
                self._known.clear()  # another thread may do so at any moment
            self._known[key] = tried
        given, lost = tried
        for i, what in enumerate(lost):
            if what:
                why, hint = _LOST[what]
                raise RenderingError(f"{place}.{i}{why.format(kind=shapes[i].kind)}", hint=hint)
        _give(sent, given)
        return sent

    def _tried(self, shapes: _Shapes, tools: Tools) -> tuple[_Shapes, Sequence[str]]:
        """As what each message of such a conversation is given to the template, and what is lost of it even so."""
        given = shapes
        for kind, equal in _EQUAL.items():
            of_kind = [i for i, shape in enumerate(given) if shape.kind == kind]
            lost = self._lost(given, tools) if of_kind else ()
            if lost is None or any(lost[i] for i in of_kind):
                given = tuple(_as(equal, shape) if shape.kind == kind else shape for shape in given)
        return given, self._lost(given, tools) or ()

    def _lost(self, shapes: _Shapes, tools: Tools) -> Sequence[str] | None:
        """What the template leaves out of each message: a key of `_LOST`, or nothing; None where it refuses them."""
        if all(shape.kind in _UNCHECKED for shape in shapes):
            return [""] * len(shapes)
        try:
            text = self._template([_example(shape, i) for i, shape in enumerate(shapes)], tools)
        except RenderingError:
            return None
        shown = set(_MARKS.findall(text))
        return [_missing(shape, i, shown) for i, shape in enumerate(shapes)]


def _shape(message: dict[str, Any]) -> _Shape:
    if message.get("function_call"):
        calls: tuple[str, ...] = ("function_call",)
    else:
        types = [call["type"] for call in message.get("tool_calls") or []]
        calls = tuple(chain.from_iterable([each] * min(types.count(each), 2) for each in ("function", "custom")))
    return _Shape(message["role"], not calls or bool(message["content"].strip()), calls)


def _as(kind: str, shape: _Shape) -> _Shape:
    """The shape of the message once it is given as another kind."""
    return shape._replace(calls=("function",)) if kind == "tool_calls" else shape._replace(role=kind)


def _example(shape: _Shape, i: int) -> dict[str, Any]:
    """A message of a shape for the i-th place, of which each part is a mark."""
    message: dict[str, Any] = {"role": shape.role, "content": _said(i) if shape.content else ""}
    if shape.role == "tool":
        message |= {"tool_call_id": _call_id(0), "name": "f"}
    elif shape.role == "function":
        message["name"] = "f"
    for j, call in enumerate(shape.calls):
        if call == "function_call":
            message["function_call"] = {"name": _called(i, j), "arguments": "{}"}
            continue
        called: dict[str, Any] = {"input": _called(i, j)} if call == "custom" else {"arguments": {}}
        written = {"id": _call_id(j), "type": call, call: {"name": _called(i, j), **called}}
        message.setdefault("tool_calls", []).append(written)
    return message


def _missing(shape: _Shape, i: int, shown: set[str]) -> str:
    """What a template left out of the example of the i-th message, whose text shows these marks; empty for nothing."""
    if not shape.calls:
        return "" if shape.kind in _UNCHECKED or _said(i) in shown else "kind"
    written = [call for j, call in enumerate(shape.calls) if _called(i, j) in shown]
    if set(written) != set(shape.calls):
        return "kind"
    if len(written) < len(shape.calls):
        return "calls"
    return "content" if shape.content and _said(i) not in shown else ""


def _said(i: int) -> str:
    """The mark of the content of the i-th message."""
    return f"rolloutlab{i}said"


def _called(i: int, j: int) -> str:
    """The mark of its j-th call."""
    return f"rolloutlab{i}call{j}"


def _simplify(message: dict[str, Any], i: int, place: str) -> None:
    """Make the content of the i-th message one text, and of calls in two fields those of one."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, f"{place}.content.{j}") for j, part in enumerate(content))
    message["content"] = content or ""
    if message["role"] != "assistant":  # whose calls would be properties that a client adds, with any content
        message.pop("tool_calls", None)
        message.pop("function_call", None)
        return
    message["content"] += message.pop("refusal", None) or ""
    if audio := message.pop("audio", None):
        if not isinstance(audio.get("transcript"), str) or not audio["transcript"]:
            raise RenderingError(f"{place}.audio: this policy reads text, and this audio has no transcript")
        message["content"] = message["content"] or audio["transcript"]
    if not (calls := message.get("tool_calls")):
        message.pop("tool_calls", None)  # an empty list is a call to templates that look for the field alone
    elif call := message.pop("function_call", None):
        written = any(each.get("function") == call for each in calls)  # by clients that fill both fields with one call
        message["tool_calls"] = calls if written else [*calls, _as_tool_call(call, i)]


def _give(messages: list[dict[str, Any]], given: _Shapes) -> None:
    """Make of each message the kind as which it is given, with the arguments of calls as objects.

    The result of a function, which names it, gets the id of its call: the nearest before it that has no result yet.
    """
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    for i, (message, shape) in enumerate(zip(messages, given, strict=True)):
        if shape.calls and shape.kind != "function_call" and (call := message.pop("function_call", None)):
            message["tool_calls"] = [_as_tool_call(call, i)]
        functions = [call for call in message.get("tool_calls") or [] if call["type"] == "function"]
        for call in reversed(functions):
            waiting[call["function"]["name"]].append(call["id"])
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])
        if message["role"] != shape.role:
            message["role"] = shape.role
            if shape.role == "tool":
                ids = waiting[message["name"]]
                message["tool_call_id"] = ids.pop() if ids else _call_id(i)


def _as_tool_call(call: dict[str, Any], i: int) -> dict[str, Any]:
    return {"id": _call_id(i), "type": "function", "function": call}


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
