"""Finds sampled turns in a rendered conversation, to read their tokens instead of the rendered text.

A turn is placed where the template renders its text, but for white space. A turn with calls, which templates often
render in another form than the policy writes them (other spaces, the recipient before the channel, without the text
beside them), may be placed where the template renders its calls.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.errors import RenderingError

Tools = Sequence[FunctionTool] | None
Template = Callable[[list[dict[str, Any]], Tools, bool], str]
"""Renders messages with tools; the last argument is `add_generation_prompt`."""
Message = dict[str, Any]
_MESSAGES_TRIED = 4_000
"""Messages that one conversation may render to try which of its turns can be placed; a turn not tried is read as text.

Without a bound, a conversation of n turns whose tokens are of other texts renders n times, and training it, which
renders it up to each turn, costs n³: 200 turns in 65 kB took minutes.
"""


@dataclass(frozen=True)
class Turns:
    """Sampled turns of a conversation: their texts without the end of a turn, by index of the message.

    calls: whether turns with calls may be placed where the template renders these in another form. bodies: as rendered
    last in a conversation; kept for longer ones.
    """

    texts: Mapping[int, str]
    calls: bool = True
    bodies: dict[int, str | None] = field(default_factory=dict)


class Splicer:
    """Finds the places. ends: texts of tokens that end a turn."""

    def __init__(self, template: Template, ends: Sequence[str]) -> None:
        self._template = template
        self._ends = ends
        secret = secrets.token_hex(8)  # no message can have a mark in it
        self._mark, self._call_mark = f"sampled:{secret}:{{}};", f"called:{secret}:{{}};"
        self._marks, self._call_marks = re.compile(rf"sampled:{secret}:(\d+);"), re.compile(rf"called:{secret}:(\d+);")

    def parts(self, text: str, plain: Sequence[Message], turns: Turns, tools: Tools) -> list[str]:
        """The text of a conversation, split at its sampled turns: a text, the index of a turn, a text, and so on."""
        return self._marks.split(self._with_marks(text, plain, turns, tools) if turns.texts else text)

    def between(self, plain: Sequence[Message], turns: Sequence[int], tools: Tools) -> list[str]:
        """The texts around turns, in order, of a conversation that ends with the last; none if a turn is missing."""
        contents = {i: self._mark.format(i) for i in turns}
        marked = [{**message, "content": contents.get(i, message["content"])} for i, message in enumerate(plain)]
        texts = self._marks.split(self._template(marked, tools, False))
        return texts[::2] if texts[1::2] == [str(i) for i in turns] else []

    def to_end(self, text: str) -> str:
        """A text up to the end of a turn in it; all of it where there is none."""
        ends = [at + len(end) for end in self._ends if end and (at := text.find(end)) >= 0]
        return text[: min(ends, default=len(text))]

    def end_in(self, text: str) -> str:
        """The text of the first token in a text that ends a turn; nothing where there is none."""
        return min((end for end in self._ends if end and end in text), key=text.index, default="")

    def has_end(self, text: str) -> bool:
        """Whether a text has the text of a token that ends a turn."""
        return any(end in text for end in self._ends if end)

    def _with_marks(self, text: str, plain: Sequence[Message], turns: Turns, tools: Tools) -> str:
        """The text with marks in place of the turns that it has."""

        def rendered(placed: Sequence[int], called: Sequence[int] = ()) -> str | None:
            """With marks for some turns and in the calls of others; None if without the marks it is another text."""
            marked = [
                {"role": "assistant", "content": self._mark.format(i)}
                if i in placed
                else self._with_call_mark(message, i)
                if i in called
                else message
                for i, message in enumerate(plain)
            ]
            try:
                whole = self._template(marked, tools, True)
            except RenderingError:  # such as a result without a call before it
                return None
            unmarked = self._marks.sub(lambda match: turns.texts[int(match[1])], self._names(whole, plain))
            return whole if words(unmarked) == without_space else None

        without_space = words(text)
        if (whole := rendered([*turns.texts])) is not None:
            return whole
        tries = iter(range(max(2, _MESSAGES_TRIED // len(plain))))
        # only a turn whose text is in the conversation can be placed there
        written = {i for i, sampled in turns.texts.items() if words(sampled) in without_space}

        def placeable(some: Sequence[int]) -> list[int]:
            """Which of some turns can be placed, by halves, as long as there are tries left."""
            some = [i for i in some if i in written]
            if not some or next(tries, None) is None:
                return []
            if rendered(some) is not None:
                return some
            half = len(some) // 2
            return [*placeable(some[:half]), *placeable(some[half:])] if half else []

        calling = [i for i in turns.texts if plain[i].get("tool_calls")]
        placed = placeable([i for i in turns.texts if i not in calling])
        bodies: dict[int, str] = {}
        if calling and turns.calls and (whole := rendered(placed, calling)) is not None:
            bodies = self._bodies(whole, plain, calling, turns, tools)
        placed += placeable([i for i in calling if i not in bodies])
        if not (placed or bodies) or (whole := rendered(placed, [*bodies])) is None:
            return text
        for i, body in bodies.items():
            whole = whole.replace(body, self._mark.format(i))
        return self._names(whole, plain)

    def _bodies(
        self, whole: str, plain: Sequence[Message], calling: Sequence[int], turns: Turns, tools: Tools
    ) -> dict[int, str]:
        """What is rendered for turns with calls, where that is what would be rendered for them as the last message."""
        for i in calling:
            if i not in turns.bodies:
                turns.bodies[i] = self._body(i, plain, turns.texts[i], tools)
        return {i: body for i in calling if (body := turns.bodies[i]) and whole.count(body) == 1}

    def _body(self, i: int, plain: Sequence[Message], sampled: str, tools: Tools) -> str | None:
        """What is rendered for a turn with calls, with a mark in them, where it is last, without its end.

        None if it is not rendered after its prompt, or is not what was sampled.
        """
        try:
            prompt = self._template([*plain[:i]], tools, True)
            whole = self._template([*plain[:i], self._with_call_mark(plain[i], i)], tools, False)
        except RenderingError:
            return None
        body = whole[len(prompt) :].rstrip()
        reasoning = next((str(plain[i][name]) for name in FIELDS if plain[i].get(name)), "")
        rendered_alike = whole.startswith(prompt) and words(reasoning) in words(body)
        if not rendered_alike or not all(_has_call(each["function"], sampled) for each in _functions(plain[i])):
            return None
        end = next((end for end in self._ends if body.endswith(end)), "")
        body = body.removesuffix(end)
        return body if self._call_marks.search(body) else None

    def _with_call_mark(self, message: Message, i: int) -> Message:
        """The message with a mark as the name of its first call."""
        first, *others = message["tool_calls"]
        if "function" not in first:
            return message
        marked = {**first, "function": {**first["function"], "name": self._call_mark.format(i)}}
        return {**message, "tool_calls": [marked, *others]}

    def _names(self, text: str, plain: Sequence[Message]) -> str:
        """The text with names of functions instead of marks."""
        return self._call_marks.sub(lambda match: plain[int(match[1])]["tool_calls"][0]["function"]["name"], text)


def words(text: str) -> str:
    """Without white space."""
    return "".join(text.split())


def _functions(message: Message) -> list[Message]:
    return [call for call in message["tool_calls"] if "function" in call]


def _has_call(function: Message, sampled: str) -> bool:
    """Whether the name and all keys and values of a call are in a sampled text."""
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments, allow_inf_nan=False)
        except ValueError:
            return False
    text = words(sampled)
    return all(any(words(form) in text for form in forms) for forms in ([function["name"]], *_forms(arguments)))


def _forms(value: Any) -> Iterator[list[str]]:
    """The forms that each key and each value in a JSON value may have in a text."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _forms(key)
            yield from _forms(each)
    elif isinstance(value, list):
        for each in value:
            yield from _forms(each)
    else:
        yield [str(value), json.dumps(value).strip('"'), json.dumps(value, ensure_ascii=False).strip('"')]
