"""Finds sampled turns in a rendered conversation, to read their tokens instead of the rendered text.

A turn is placed where the template renders its text, not counting white space. Templates often render calls in another
form than the policy writes them: with other spaces, with the recipient before the channel, or without the text beside
them. So a turn with calls may also be placed where the template renders its calls.
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
"""The most messages that are rendered to try which turns of one conversation can be placed.

A turn that is not tried is read as text. Without a bound, a conversation of n turns whose tokens are of other texts
would be rendered n times, and training, which renders it up to each turn, would cost n³: 200 turns in 65 kB took
minutes.
"""


@dataclass(frozen=True)
class Turns:
    """Sampled turns of a conversation: their texts without the end of a turn, by index of the message.

    calls: whether turns with calls may be placed where the template renders the calls in another form. bodies: turns
    with calls as they are rendered as the last message, by index of the message; kept for longer conversations.
    """

    texts: Mapping[int, str]
    calls: bool = True
    bodies: dict[int, str | None] = field(default_factory=dict)


class Splicer:
    """Finds the places of sampled turns. ends: texts of tokens that end a turn."""

    def __init__(self, template: Template, ends: Sequence[str]) -> None:
        self._template = template
        self._ends = ends
        secret = secrets.token_hex(8)  # no message can have a mark in it
        self._mark, self._call_mark = f"sampled:{secret}:{{}};", f"called:{secret}:{{}};"
        self._marks, self._call_marks = re.compile(rf"sampled:{secret}:(\d+);"), re.compile(rf"called:{secret}:(\d+);")

    def parts(self, text: str, plain: Sequence[Message], turns: Turns, tools: Tools) -> list[str]:
        """Split the text of a conversation at its sampled turns: a text, the index of a turn, a text, and so on."""
        return self._marks.split(self._with_marks(text, plain, turns, tools) if turns.texts else text)

    def texts_between(self, plain: Sequence[Message], turns: Sequence[int], tools: Tools) -> list[str]:
        """Return the texts around turns, in order; none if the template does not render each of these turns once."""
        contents = {i: self._mark.format(i) for i in turns}
        marked = [{**message, "content": contents.get(i, message["content"])} for i, message in enumerate(plain)]
        texts = self._marks.split(self._template(marked, tools, False))
        return texts[::2] if texts[1::2] == [str(i) for i in turns] else []

    def cut_at_end(self, text: str) -> str:
        """Cut a text behind the first end of a turn in it; return all of it if there is none."""
        ends = [at + len(end) for end in self._ends if end and (at := text.find(end)) >= 0]
        return text[: min(ends, default=len(text))]

    def end_in(self, text: str) -> str:
        """Return the text of the first token in a text that ends a turn; nothing if there is none."""
        return min((end for end in self._ends if end and end in text), key=text.index, default="")

    def has_end(self, text: str) -> bool:
        """Whether a text has the text of a token that ends a turn."""
        return any(end in text for end in self._ends if end)

    def _with_marks(self, text: str, plain: Sequence[Message], turns: Turns, tools: Tools) -> str:
        """Return the text of a conversation with marks in place of the sampled turns that are found in it."""

        def rendered(placed: Sequence[int], called: Sequence[int] = ()) -> str | None:
            """Render with marks for some turns and in the calls of others; None if the rest becomes another text."""
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
            unmarked = self._marks.sub(lambda match: turns.texts[int(match[1])], self._restore_names(whole, plain))
            return whole if without_space(unmarked) == expected else None

        expected = without_space(text)
        if (whole := rendered([*turns.texts])) is not None:
            return whole
        tries = iter(range(max(2, _MESSAGES_TRIED // len(plain))))
        # only a turn whose text is in the conversation can be placed there
        written = {i for i, sampled in turns.texts.items() if without_space(sampled) in expected}

        def placeable(some: Sequence[int]) -> list[int]:
            """Find which of some turns can be placed, by halves, as long as there are tries left."""
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
            bodies = self._find_bodies(whole, plain, calling, turns, tools)
        placed += placeable([i for i in calling if i not in bodies])
        if not (placed or bodies) or (whole := rendered(placed, [*bodies])) is None:
            return text
        for i, body in bodies.items():
            whole = whole.replace(body, self._mark.format(i))
        return self._restore_names(whole, plain)

    def _find_bodies(
        self, whole: str, plain: Sequence[Message], calling: Sequence[int], turns: Turns, tools: Tools
    ) -> dict[int, str]:
        """Find what is rendered for turns with calls, if that is there once, as for the turn as the last message."""
        for i in calling:
            if i not in turns.bodies:
                turns.bodies[i] = self._find_body(i, plain, turns.texts[i], tools)
        return {i: body for i in calling if (body := turns.bodies[i]) and whole.count(body) == 1}

    def _find_body(self, i: int, plain: Sequence[Message], sampled: str, tools: Tools) -> str | None:
        """Render a turn with calls as the last message, with a mark in its first call, and cut off its end.

        None if it is not rendered after its prompt, or is not what was sampled.
        """
        try:
            prompt = self._template([*plain[:i]], tools, True)
            whole = self._template([*plain[:i], self._with_call_mark(plain[i], i)], tools, False)
        except RenderingError:
            return None
        body = whole[len(prompt) :].rstrip()
        reasoning = next((str(plain[i][name]) for name in FIELDS if plain[i].get(name)), "")
        rendered_alike = whole.startswith(prompt) and without_space(reasoning) in without_space(body)
        if not rendered_alike or not all(_has_call(each["function"], sampled) for each in _functions(plain[i])):
            return None
        end = next((end for end in self._ends if body.endswith(end)), "")
        body = body.removesuffix(end)
        return body if self._call_marks.search(body) else None

    def _with_call_mark(self, message: Message, i: int) -> Message:
        """Return the message with a mark as the name of its first call."""
        first, *others = message["tool_calls"]
        if "function" not in first:
            return message
        marked = {**first, "function": {**first["function"], "name": self._call_mark.format(i)}}
        return {**message, "tool_calls": [marked, *others]}

    def _restore_names(self, text: str, plain: Sequence[Message]) -> str:
        """Replace the marks in calls by the names of the functions."""
        return self._call_marks.sub(lambda match: plain[int(match[1])]["tool_calls"][0]["function"]["name"], text)


def without_space(text: str) -> str:
    """Remove all white space."""
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
    text = without_space(sampled)
    return all(any(without_space(form) in text for form in forms) for forms in ([function["name"]], *_forms(arguments)))


def _forms(value: Any) -> Iterator[list[str]]:
    """Yield the forms that each key and each value in a JSON value may have in a text."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _forms(key)
            yield from _forms(each)
    elif isinstance(value, list):
        for each in value:
            yield from _forms(each)
    else:
        yield [str(value), json.dumps(value).strip('"'), json.dumps(value, ensure_ascii=False).strip('"')]
