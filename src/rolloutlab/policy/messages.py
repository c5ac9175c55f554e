"""Adaptation of messages to a chat template.

Chat templates silently drop kinds of messages that they do not know. Such a kind is converted to the nearest one that
the template renders: `developer` to `system`, `function` to `tool`, `function_call` to `tool_calls`, a refusal and the
transcript of audio to content. A message is refused if there is no such kind, or if the template renders only the first
of its calls. A template that renders a message's calls or its content, but not both, gets the calls alone.

What a template renders is tested with a conversation of the same shape, in which every part is a marker.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, product
from typing import Any, NamedTuple

from pydantic_core import from_json

from rolloutlab.api.wire.chat import AssistantMessage, Choice, CompletionMessage, FunctionTool, MessageOrChoice
from rolloutlab.api.wire.reasoning import CLOSING, FIELDS, OPENING, split_content
from rolloutlab.errors import RenderingError

Tools = Sequence[FunctionTool] | None
Template = Callable[[list[dict[str, Any]], Tools], str]
"""Renders messages with tools; raises RenderingError when it refuses them."""
Place = Callable[[str, str], dict[str, Any]]
"""The fields of a message with this reasoning and this content."""
_EQUIVALENTS = {"developer": "system", "function": "tool", "function_call": "tool_calls"}
_TALKERS = ("user", "assistant")
_MARKERS = re.compile(r"rolloutlab\d+(?:content|call\d)")
_MAX_SHAPES = 1000

_LOST = {
    "kind": (": this policy's chat template does not render messages of the kind {kind}", None),
    "content": (
        ".content: this policy's chat template drops the content of messages of the kind {kind}",
        "leave the content or the calls out",
    ),
    "calls": (".tool_calls: this policy's chat template renders only one call per message", "one call in a message"),
}
"""By what a template can drop of a message: the error, which follows the message's path, and its hint."""


class _Shape(NamedTuple):
    """The properties of a message on which its rendering depends.

    content: whether it has content; True also for a message without calls. calls: the types of its calls,
    `function_call` for the older field of that name; more than two of one type count as two, because a template renders
    all of them or only one. reasoning: whether it has both calls and reasoning in a field that the template reads.
    """

    role: str
    content: bool = True
    calls: tuple[str, ...] = ()
    reasoning: bool = False

    @property
    def kind(self) -> str:
        """The name in errors: the role, or for a message with calls their field, or `custom`."""
        if not self.calls:
            return self.role
        return next((call for call in self.calls if call != "function"), "tool_calls")


_Shapes = tuple[_Shape, ...]


class _CallStyle(NamedTuple):
    """How a template reads messages with calls.

    as_text: arguments are JSON text instead of an object (DeepSeek-V3). short: ids are nine letters and digits
    (Mistral).
    """

    as_text: bool = False
    short: bool = False

    def apply(self, messages: Sequence[dict[str, Any]]) -> None:
        """Rewrite messages in place."""
        for message in messages:
            if self.short and message.get("tool_call_id"):
                message["tool_call_id"] = _short_id(message["tool_call_id"])
            for call in message.get("tool_calls") or []:
                function = call.get("function", {})
                if self.as_text and not isinstance(function.get("arguments", ""), str):
                    function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
                if self.short:
                    call["id"] = _short_id(call["id"])


_STYLES = [_CallStyle(*flags) for flags in product((False, True), repeat=2)]


class Messages:
    """Adapts conversations to one chat template."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._cache: dict[tuple[bool, _Shapes], tuple[_Shapes, Sequence[str]]] = {}

    def adapt(
        self, items: Sequence[MessageOrChoice], path: str, tools: Tools = None, *, whole: bool = False
    ) -> list[dict[str, Any]]:
        """Convert messages to kinds that the template renders.

        Args:
            items: The messages.
            path: The path of the items in errors, such as `messages`.
            tools: The tools that the template renders with them.
            whole: Refuse the last message if the template drops content beside its calls.

        Raises:
            RenderingError: the template does not render a message, or a message has content other than text.
        """
        messages, shapes, (targets, lost) = self._adapt(items, path, tools)
        parts = dict(enumerate(lost))
        if whole and shapes[-1].content > targets[-1].content:
            parts[len(shapes) - 1] = "content"
        for i, part in parts.items():
            if part:
                error, hint = _LOST[part]
                raise RenderingError(f"{path}.{i}{error.format(kind=shapes[i].kind)}", hint=hint)
        _convert(messages, targets)
        if any(shape.calls or shape.role == "tool" for shape in targets):
            self._call_style.apply(messages)
        return messages

    def find_unread(self, items: Sequence[MessageOrChoice], tools: Tools = None) -> list[int]:
        """Return the indices of messages with content beside their calls that the template drops."""
        _, shapes, (targets, _) = self._adapt(items, "messages", tools)
        return [i for i, shape in enumerate(shapes) if shape.content > targets[i].content]

    def _adapt(
        self, items: Sequence[MessageOrChoice], path: str, tools: Tools
    ) -> tuple[list[dict[str, Any]], _Shapes, tuple[_Shapes, Sequence[str]]]:
        """Return the messages with content as one string, their shapes, and the result of `_find_targets` for these."""
        messages = [(item.message if isinstance(item, Choice) else item).to_wire() for item in items]
        for i, message in enumerate(messages):
            _simplify(message, i, f"{path}.{i}")
            self._place_reasoning(message)
        shapes = tuple(map(_shape_of, messages))
        key = (bool(tools), shapes)
        if (result := self._cache.get(key)) is None:
            result = self._find_targets(shapes, tools)
            if len(self._cache) >= _MAX_SHAPES:
                self._cache.clear()  # other threads may clear it at any moment: it is read by `get` alone
            self._cache[key] = result
        return messages, shapes, result

    @cached_property
    def _call_style(self) -> _CallStyle:
        """The first style in which the template renders a call and its result; the plain one if in none."""
        call, result, long_id = _call_marker(1, 0), _content_marker(2), f"call_{0:024}"
        function = {"name": call, "arguments": {"a": 1}}
        for style in _STYLES:
            messages: list[dict[str, Any]] = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "", "tool_calls": [_as_tool_call(dict(function), long_id)]},
                {"role": "tool", "tool_call_id": long_id, "name": "f", "content": result},
            ]
            style.apply(messages)
            with suppress(RenderingError):
                if {call, result} <= set(_MARKERS.findall(self._template(messages, None))):
                    return style
        return _CallStyle()

    def _place_reasoning(self, message: dict[str, Any]) -> None:
        """Put the reasoning where the template reads it: in a field, or in the content as it was sampled.

        Marks of reasoning in the content stay if that is the place. Otherwise they are taken out with the reasoning,
        because the template would cut the content at them.
        """
        given = [message.pop(name, None) for name in FIELDS]
        reasoning = next((text for text in given if text and isinstance(text, str)), "")
        if message["role"] != "assistant":
            return
        if not reasoning and CLOSING in message["content"] and not self.keeps_marks:
            reasoning, message["content"] = split_content(message["content"])
        if reasoning and self._reasoning_place:
            message |= self._reasoning_place(reasoning, message["content"])

    @property
    def keeps_marks(self) -> bool:
        """Whether `<think>…</think>` in the content is text for the template, as any other."""
        return self._reasoning_place is _in_content

    @property
    def drops_reasoning(self) -> bool:
        """Whether the template renders no reasoning, and drops what is before `</think>` in the content."""
        return self._reasoning_place is None

    @cached_property
    def _reasoning_place(self) -> Place | None:
        """What makes the fields of a message with reasoning and content; None if the template drops all reasoning."""
        places: list[Place] = [*(partial(_in_field, name) for name in FIELDS), _in_content]
        for place in places:
            user = {"role": "user", "content": "?"}
            answer = {"role": "assistant", **place(_call_marker(1, 0), _content_marker(1))}
            calling = _make_example(_Shape("assistant", content=False, calls=("function",)), 2)
            calling |= place(_call_marker(1, 0), "")
            result = {"role": "tool", "tool_call_id": _call_id(0), "name": "f", "content": "?"}
            talks = [[answer], [answer, result], [calling, result]]  # some keep it up to the next question
            for after in talks[:2] if place is _in_content else talks:  # content beside calls may be cut nowhere
                messages = [user, *map(dict, after)]
                self._call_style.apply(messages)
                with suppress(RenderingError):
                    before, mark, _ = self._template(messages, None).partition(_call_marker(1, 0))
                    second = before.rstrip().removesuffix(OPENING).rstrip().endswith(CLOSING)
                    if mark and not (place is _in_content and second):
                        return place
        return None

    def _find_targets(self, shapes: _Shapes, tools: Tools) -> tuple[_Shapes, Sequence[str]]:
        """Find the shape that each message of these shapes is converted to, and what the template still drops of it."""
        targets = shapes
        for kind, equivalent in _EQUIVALENTS.items():
            of_kind = [i for i, shape in enumerate(targets) if shape.kind == kind]
            lost = self._find_lost(targets, tools) if of_kind else ()
            if lost is None or any(lost[i] for i in of_kind):
                new: dict[str, Any] = {"calls": ("function",)} if equivalent == "tool_calls" else {"role": equivalent}
                targets = tuple(shape._replace(**new) if shape.kind == kind else shape for shape in targets)
        lost = self._find_lost(targets, tools)
        both = [i for i, shape in enumerate(targets) if shape.calls and shape.content and (lost is None or lost[i])]
        alone = tuple(shape._replace(content=False) if i in both else shape for i, shape in enumerate(targets))
        without = self._find_lost(alone, tools) if both else None
        if without is not None and not any(without[i] for i in both):
            return alone, without
        return targets, lost or ()

    def _find_lost(self, shapes: _Shapes, tools: Tools) -> Sequence[str] | None:
        """Find what the template drops of each message (a key of `_LOST`, or nothing); None if it refuses them."""
        if all(shape.kind in _TALKERS for shape in shapes):
            return ["kind" if shape.kind in self._dropped else "" for shape in shapes]
        examples = [_make_example(shape, i) for i, shape in enumerate(shapes)]
        for example, shape in zip(examples, shapes, strict=True):
            if shape.reasoning and self._reasoning_place:
                example |= self._reasoning_place("?", example["content"])
        if any(shape.calls for shape in shapes):
            self._call_style.apply(examples)
        try:
            text = self._template(examples, tools)
        except RenderingError:
            return None
        rendered = set(_MARKERS.findall(text))
        return [
            ("kind" if shape.kind in self._dropped else "")
            if shape.kind in _TALKERS
            else _find_missing(shape, i, rendered)
            for i, shape in enumerate(shapes)
        ]

    @cached_property
    def _dropped(self) -> list[str]:
        """The roles, of user and assistant, whose message is not rendered even as the last one.

        An earlier message that is dropped does not count: some templates keep only the end of a conversation.
        """
        talk = [_make_example(_Shape(role), i) for i, role in enumerate(_TALKERS)]
        dropped = []
        for i, role in enumerate(_TALKERS):
            with suppress(RenderingError):
                if _content_marker(i) not in self._template([dict(each) for each in talk[: i + 1]], None):
                    dropped.append(role)
        return dropped


def content_of(message: AssistantMessage | CompletionMessage) -> str:
    """Return the content of a message, a refusal included, as one string."""
    plain = message.to_wire()
    _simplify(plain, 0, "message")
    return str(plain["content"])


def _in_field(name: str, reasoning: str, content: str) -> dict[str, Any]:
    return {name: reasoning, "content": content}


def _in_content(reasoning: str, content: str) -> dict[str, Any]:
    return {"content": f"{OPENING}\n{reasoning}\n{CLOSING}\n\n{content}"}


def _shape_of(message: dict[str, Any]) -> _Shape:
    if message.get("function_call"):
        calls: tuple[str, ...] = ("function_call",)
    else:
        types = [call["type"] for call in message.get("tool_calls") or []]
        calls = tuple(chain.from_iterable([each] * min(types.count(each), 2) for each in ("function", "custom")))
    reasoning = bool(calls) and any(name in message for name in FIELDS)
    return _Shape(message["role"], not calls or bool(message["content"].strip()), calls, reasoning)


def _make_example(shape: _Shape, i: int) -> dict[str, Any]:
    """Make the i-th message of a test, of which each part is a marker."""
    message: dict[str, Any] = {"role": shape.role, "content": _content_marker(i) if shape.content else ""}
    if shape.role == "tool":
        message |= {"tool_call_id": _call_id(0), "name": "f"}
    elif shape.role == "function":
        message["name"] = "f"
    for j, call in enumerate(shape.calls):
        if call == "function_call":
            message["function_call"] = {"name": _call_marker(i, j), "arguments": "{}"}
            continue
        arguments: dict[str, Any] = {"input": _call_marker(i, j)} if call == "custom" else {"arguments": {}}
        tool_call = {"id": _call_id(j), "type": call, call: {"name": _call_marker(i, j), **arguments}}
        message.setdefault("tool_calls", []).append(tool_call)
    return message


def _find_missing(shape: _Shape, i: int, rendered: set[str]) -> str:
    """Find what a template dropped of the i-th message of a test: a key of `_LOST`, or nothing."""
    if not shape.calls:
        return "" if _content_marker(i) in rendered else "kind"
    calls = [call for j, call in enumerate(shape.calls) if _call_marker(i, j) in rendered]
    if set(calls) != set(shape.calls):
        return "kind"
    if len(calls) < len(shape.calls):
        return "calls"
    return "content" if shape.content and _content_marker(i) not in rendered else ""


def _content_marker(i: int) -> str:
    return f"rolloutlab{i}content"


def _call_marker(i: int, j: int) -> str:
    return f"rolloutlab{i}call{j}"


def _simplify(message: dict[str, Any], i: int, path: str) -> None:
    """Make the content of the i-th message one string, and merge its two fields of calls into one."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part_text(part, f"{path}.content.{j}") for j, part in enumerate(content))
    message["content"] = content or ""
    if message["role"] != "assistant":  # in other roles these fields are unknown properties, with values of any type
        message.pop("tool_calls", None)
        message.pop("function_call", None)
        return
    message.pop("token_ids", None)
    message["content"] += message.pop("refusal", None) or ""
    if audio := message.pop("audio", None):
        if not isinstance(audio.get("transcript"), str) or not audio["transcript"]:
            raise RenderingError(f"{path}.audio: this policy reads text, and this audio has no transcript")
        message["content"] = message["content"] or audio["transcript"]
    if not (calls := message.get("tool_calls")):
        message.pop("tool_calls", None)  # templates that only test for the field take an empty list for a call
    elif call := message.pop("function_call", None):
        duplicate = any(each.get("function") == call for each in calls)  # some clients fill both fields with one call
        message["tool_calls"] = calls if duplicate else [*calls, _as_tool_call(call, _call_id(i))]


def _convert(messages: list[dict[str, Any]], targets: _Shapes) -> None:
    """Convert each message to its target, in place, with the arguments of calls as objects.

    Content that a target does not have is dropped. The result of a function gets the id of its call, which is the
    nearest earlier call of that name without a result.
    """
    pending: defaultdict[str, list[str]] = defaultdict(list)
    for i, (message, shape) in enumerate(zip(messages, targets, strict=True)):
        if shape.calls and shape.kind != "function_call" and (call := message.pop("function_call", None)):
            message["tool_calls"] = [_as_tool_call(call, _call_id(i))]
        if not shape.content and message["content"].strip():
            message["content"] = ""
        functions = [call for call in message.get("tool_calls") or [] if call["type"] == "function"]
        for call in reversed(functions):
            pending[call["function"]["name"]].append(call["id"])
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])
        if message["role"] != shape.role:
            message["role"] = shape.role
            if shape.role == "tool":
                ids = pending[message["name"]]
                message["tool_call_id"] = ids.pop() if ids else _call_id(i)


def _as_tool_call(call: dict[str, Any], call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": call}


def _short_id(call_id: str) -> str:
    """Return the id if it has nine letters and digits, else the beginning of its hash."""
    return call_id if re.fullmatch(r"[A-Za-z0-9]{9}", call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _call_id(i: int) -> str:
    """Make an id for a call without one: nine letters and digits, as the strictest templates require."""
    return f"call{i % 100_000:05}"


def _part_text(part: dict[str, Any], path: str) -> str:
    if (text := part.get("text", part.get("refusal"))) is None:
        raise RenderingError(f"{path}: this policy reads text, not {part['type']}")
    return str(text)


def _arguments(text: str) -> Any:
    """Parse the arguments of a call; return the text if it is no JSON."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
