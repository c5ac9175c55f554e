"""Token ids to messages: the text that a policy said, and the tool calls in it."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.api.wire.chat import FunctionTool, UserMessage
from rolloutlab.errors import InputError
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.tool_calls import Call, ToolCallFormat, learn, written_call

_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Tokens in, text out, as soon as it can no longer change.

    decode: turns token ids into text. stops: strings that end the text; it ends before the first of them.
    held: further strings in whose possible beginnings the text waits, such as the marker of a tool call.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), held: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._stops = stops
        self._held = (*stops, *held)
        self._ids: list[int] = []
        self._known = self._read = 0
        self._text = ""
        self._sent = 0
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """What can be shown on top of all that was returned before; sets `stopped` at a stop string."""
        self._ids.append(token_id)
        # a window over the last tokens: a token's text may depend on its neighbours, but not on those far away
        before, now = self._decode(self._ids[self._known : self._read]), self._decode(self._ids[self._known :])
        added = now[len(before) :]
        text = self._text + added.rstrip(_UNREADABLE)  # a character whose last bytes are yet to come
        if added and not added.endswith(_UNREADABLE):
            self._text = text
            self._known, self._read = self._read, len(self._ids)
        cut = cut_at_stop(text, self._stops)
        self.stopped = len(cut) < len(text)
        shown = cut[self._sent : len(cut) if self.stopped else _settled(cut, self._held)]
        self._sent += len(shown)
        return shown


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it; all of it when there is none."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _settled(text: str, held: Sequence[str]) -> int:
    """How much of the text is before the strings, and cannot be the beginning of one; an empty one holds everything."""
    ends = [len(text)]
    for string in held:
        at = text.find(string)
        ends += [at] if at >= 0 else [len(text) - n for n in range(1, len(string)) if text.endswith(string[:n])]
    return min(ends)


_ASKED = [UserMessage(role="user", content="?")]


class CompletionParser:
    """Reads what was sampled, as the policy's tokenizer and chat template write it.

    A tokenizer that says how its answers are parsed (its `response_template`) is believed; otherwise the form of a
    tool call is learned from the chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, renderer: Renderer, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._end_ids = end_ids

    def stream(self, stops: Sequence[str], tools: Sequence[FunctionTool]) -> TextStream:
        """A completion's text as it comes; where tools are at hand it waits at what may be a call."""
        held = [self._marker] if tools else []
        return TextStream(self._renderer.text, stops, held)

    def message(
        self, ids: Sequence[int], stops: Sequence[str], prompt: Sequence[int], tools: Sequence[FunctionTool]
    ) -> tuple[str, list[Call]]:
        """The text of a completion, cut before the first stop string, and the calls in it."""
        text = cut_at_stop(self._renderer.text(ids), stops)
        if not tools:
            return text, []
        spoken = [i for i in ids if i not in self._end_ids]
        whole = cut_at_stop(str(self._tokenizer.decode(spoken, skip_special_tokens=False)), stops)
        said, calls = self._parse(whole, prompt, tools)
        return (said, calls) if calls else (text, [])

    def check(self, tools: Sequence[FunctionTool]) -> None:
        """Whether this policy can be offered tools.

        Raises:
            InputError: its chat template does not show tools, or writes calls in a form that cannot be read back.
        """
        if tools and self._renderer.prompt(_ASKED, tools) == self._renderer.prompt(_ASKED):
            raise InputError("the policy's chat template does not write tools", hint="leave tools out")
        if tools and not self._template and not self._format:
            raise InputError("the policy writes tool calls in a form that is not read here", hint="leave tools out")

    def forced(self, function: str | None) -> tuple[int, ...]:
        """The tokens that a call of this function, or of any, begins with.

        Raises:
            InputError: the form of a call is not known.
        """
        if self._format is None:
            raise InputError("a call cannot be required of this policy", hint='tool_choice: "auto"')
        begins, goes_on = self._format.beginning(function)
        whole: list[int] = self._tokenizer(begins + goes_on, add_special_tokens=False)["input_ids"]
        # only tokens that the policy would write itself: one that reaches into what follows is left to it
        texts = (str(self._tokenizer.decode(whole[:n], skip_special_tokens=False)) for n in range(1, len(whole)))
        return tuple(whole[: sum(1 for _ in takewhile(begins.startswith, texts))])

    def _parse(self, text: str, prompt: Sequence[int], tools: Sequence[FunctionTool]) -> tuple[str, list[Call]]:
        if not self._template:
            return self._format.parse(text) if self._format else (text, [])
        try:
            parsed = self._tokenizer.parse_response(
                text, prefix=str(self._tokenizer.decode(list(prompt))), tools=[tool.to_wire() for tool in tools]
            )
            found = [_call(each.get("function", each)) for each in parsed.get("tool_calls") or []]
        except Exception:  # noqa: BLE001 - what was sampled may be malformed in any way
            return text, []
        calls = [call for call in found if call]
        return (str(parsed.get("content") or ""), calls) if len(calls) == len(found) else (text, [])

    @property
    def _template(self) -> Any:
        return getattr(self._tokenizer, "response_template", None)

    @property
    def _marker(self) -> str:
        """What a call begins with in a stream; any text may be one where there is no marker, or none in the text."""
        marker = self._format.opening if self._format and not self._template else ""
        return (
            marker
            if marker in self._renderer.text(self._tokenizer(marker, add_special_tokens=False)["input_ids"])
            else ""
        )

    @cached_property
    def _format(self) -> ToolCallFormat | None:
        def template(messages: list[dict[str, Any]], begin: bool) -> str:
            return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=begin, tokenize=False))

        try:
            return learn(template, str(self._tokenizer.eos_token or ""))
        except Exception:  # noqa: BLE001 - a template may fail in any way on a call it does not know
            return None


def _call(function: dict[str, Any]) -> Call | None:
    return written_call(function.get("name"), function.get("arguments") or {})
