"""Parsing of sampled tokens: text as a stream, stop strings, reasoning, tool calls."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from rolloutlab.api.wire.chat import AssistantMessage, FunctionTool, UserMessage
from rolloutlab.api.wire.reasoning import CLOSING, FIELDS, OPENING, is_unread_mark, split_reasoning
from rolloutlab.errors import InputError, RenderingError
from rolloutlab.policy import harmony
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.tool_calls import Call, valid_call

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
Decode = Callable[[Sequence[int]], str]


class TextStream:
    """Incremental detokenizer: emits text as soon as further tokens cannot change it.

    decode: turns token ids into text. stops: stop strings; the text ends before the first of them. held: other strings,
    such as the marker of a tool call; text that may be the beginning of one is not emitted.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), held: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = stops
        self._held = (*stops, *held)
        self._ids: list[int] = []
        self._start = self._end = 0
        self._text = ""
        self._sent = 0
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """Take a token; return the text that has become final. Sets `stopped` at a stop string."""
        self._ids.append(token_id)
        # a window over the last tokens: a token's text may depend on its neighbours, but not on those far away
        before, now = self._decode(self._ids[self._start : self._end]), self._decode(self._ids[self._start :])
        added = now[len(before) :]
        text = self._text + added.rstrip(_REPLACEMENT)  # a character whose last bytes are in the next token
        if added and not added.endswith(_REPLACEMENT):
            self._text = text
            self._start, self._end = self._end, len(self._ids)
        cut = cut_at_stop(text, self._stops)
        self.stopped = len(cut) < len(text)
        final = cut[self._sent : len(cut) if self.stopped else _final_length(cut, self._held)]
        self._sent += len(final)
        return final


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before its first stop string, if any."""
    return text[: min((index for stop in stops if (index := text.find(stop)) >= 0), default=len(text))]


def _final_length(text: str, held: Sequence[str]) -> int:
    """Return the length of the text before the first held string, or before an end of the text that may begin one.

    It is 0 if a held string is empty.
    """
    ends = [len(text)]
    for string in held:
        index = text.find(string)
        ends += [index] if index >= 0 else [len(text) - n for n in range(1, len(string)) if text.endswith(string[:n])]
    return min(ends)


class ReasoningStream:
    """Splits a stream of text into reasoning and answer, each passed on once further text cannot change it.

    begun: whether the prompt has opened the reasoning.
    """

    def __init__(self, begun: bool) -> None:
        self._begun = begun
        self._text = ""
        self._sent = "", ""

    def feed(self, added: str) -> tuple[str, str]:
        """Take text; return what has become final of the reasoning and of the answer."""
        self._text += added
        final = self._final()
        new = [text[len(sent) :] for text, sent in zip(final, self._sent, strict=True)]
        self._sent = final
        return new[0], new[1]

    def _final(self) -> tuple[str, str]:
        text = self._text.lstrip()
        if OPENING.startswith(text) and text != OPENING:  # it may become one
            return "", ""
        if not self._begun and not text.startswith(OPENING):
            return "", self._text
        reasoning, ended, answer = text.removeprefix(OPENING).partition(CLOSING)
        if not ended:
            reasoning = reasoning[: _final_length(reasoning, [CLOSING])]
        return reasoning.strip(), answer.lstrip("\n")


class HarmonyStream:
    """Splits a stream of harmony, special tokens included, into reasoning and content, as `harmony.parse` does.

    tools: whether there are functions to call. A call goes into neither the reasoning nor the content.
    """

    def __init__(self, tools: bool) -> None:
        self._tools = tools
        self._text = ""
        self._sent = 0, 0

    def feed(self, added: str) -> tuple[str, str]:
        """Take text; return what has become final of the reasoning and of the content."""
        self._text += added
        reasoning, content, _ = harmony.parse(self._text, self._tools, ended=False) or ("", "", [])
        reasoned, answered = self._sent
        self._sent = len(reasoning), len(content)
        return reasoning[reasoned:], content[answered:]


class ParsedMessage(NamedTuple):
    """The parts of a completion."""

    reasoning: str
    content: str
    calls: list[Call]


_USER = [UserMessage(role="user", content="?")]
_REASONED, _ANSWERED = "rolloutlabreasoned", "rolloutlabtold"


class CompletionParser:
    """Parses completions by the tokenizer's `response_template`, as harmony, or by its chat template's call format."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, renderer: Renderer, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._end_ids = end_ids

    def stream(self, stops: Sequence[str], tools: Sequence[FunctionTool]) -> TextStream:
        """Make a stream of a completion's text. With tools, it holds back what may be a call.

        A stream of harmony keeps its special tokens, because `reasoning_stream` needs them.
        """
        if self._harmony and not self._template:
            return TextStream(self._whole, stops)
        return TextStream(self._renderer.text, stops, [self._call_marker] if tools or self._harmony else [])

    def reasoning_stream(
        self, prompt: Sequence[int], tools: Sequence[FunctionTool] = ()
    ) -> ReasoningStream | HarmonyStream:
        """Make a stream that splits the text of a completion of this prompt."""
        if self._harmony and not self._template:
            return HarmonyStream(bool(tools))
        return ReasoningStream(self._begins_reasoning(prompt))

    def message(
        self, ids: Sequence[int], stops: Sequence[str], prompt: Sequence[int], tools: Sequence[FunctionTool]
    ) -> ParsedMessage:
        """Parse a completion, cut before the first stop string, into reasoning, answer, and the answer's calls."""
        begun = self._begins_reasoning(prompt)
        reasoning, answer = split_reasoning(cut_at_stop(self._renderer.text(ids), stops), begun)
        whole = cut_at_stop(self._whole(ids), stops)
        if self._template:
            return self._parse_by_template(whole, prompt, tools) or ParsedMessage(reasoning, answer, [])
        if self._harmony and (parsed := harmony.parse(whole, bool(tools))):
            return ParsedMessage(*parsed)
        if not tools or not self._renderer.call_form:
            return ParsedMessage(reasoning, answer, [])
        content, calls = self._renderer.call_form.parse(split_reasoning(whole, begun)[1], tools)
        return ParsedMessage(reasoning, content if calls else answer, calls)

    def check(self, tools: Sequence[FunctionTool]) -> None:
        """Check that this policy supports tools.

        Raises:
            InputError: its chat template does not render tools, or its format of calls is not supported.
        """
        if tools and not self._renderer.renders_tools:
            raise InputError("the policy's chat template does not render tools", hint="leave tools out")
        if tools and not self._template and not self._harmony and not self._renderer.call_form:
            raise InputError("the policy's format of tool calls is not supported", hint="leave tools out")

    @cached_property
    def unread_marks(self) -> tuple[str, ...]:
        """The marks with which the policy may write reasoning that is not read here, the opening one first.

        They are the marks that the chat template writes around reasoning and that are not parsed here, if any.
        Otherwise they are the end of the generation prompt and the added tokens whose text looks like such a mark.
        """
        if self._template or self._harmony:
            return ()
        if around := self._find_unread_marks():
            return around
        added = [str(token.content) for token in self._tokenizer.added_tokens_decoder.values()]
        return tuple(filter(is_unread_mark, [self._find_prompt_mark(), *added]))

    def unread_reasoning(self, ids: Sequence[int]) -> str:
        """Find the first of `unread_marks` in a completion, whose answer then contains reasoning; empty if none."""
        whole = self._whole(ids) if self.unread_marks else ""
        return next((mark for mark in self.unread_marks if mark in whole), "")

    def forced(self, function: str | None) -> tuple[int, ...]:
        """Return the tokens that every call of this function begins with; None is any function.

        Raises:
            InputError: the format of calls is not known.
        """
        if self._renderer.call_example is None:
            raise InputError("this policy does not support required calls", hint='tool_choice: "auto"')
        beginning, rest = self._renderer.call_example.beginning(function)
        whole: list[int] = self._tokenizer(beginning + rest, add_special_tokens=False)["input_ids"]
        # only tokens that lie in the beginning as a whole: one that extends into the rest is left to the model
        texts = (str(self._tokenizer.decode(whole[:n], skip_special_tokens=False)) for n in range(1, len(whole)))
        return tuple(whole[: sum(1 for _ in takewhile(beginning.startswith, texts))])

    def _parse_by_template(
        self, text: str, prompt: Sequence[int], tools: Sequence[FunctionTool]
    ) -> ParsedMessage | None:
        """Parse by the tokenizer's `response_template`; None for a completion that is malformed, or only an answer."""
        try:
            parsed = self._tokenizer.parse_response(
                text, prefix=str(self._tokenizer.decode(list(prompt))), tools=[tool.to_wire() for tool in tools]
            )
            functions = [each.get("function", each) for each in parsed.get("tool_calls") or []]
            calls = [valid_call(each.get("name"), each.get("arguments") or {}) for each in functions]
        except Exception:  # noqa: BLE001 - sampled text may be malformed in any way
            return None
        reasoning = next((str(parsed[name]) for name in FIELDS if parsed.get(name)), "")
        valid = [call for call in calls if call]
        if len(valid) < len(calls) or (valid and not tools) or not (valid or reasoning):
            return None
        return ParsedMessage(reasoning, str(parsed.get("content") or ""), valid)

    def _find_prompt_mark(self) -> str:
        """Return the end of the generation prompt, from the last character on that may begin a mark."""
        try:
            ids = self._renderer.prompt(_USER)
        except RenderingError:
            return ""
        text = str(self._tokenizer.decode(ids, skip_special_tokens=False)).rstrip()
        return text[max(map(text.rfind, "<[◁")) :]

    def _find_unread_marks(self) -> tuple[str, ...]:
        """Return what the template writes around reasoning; nothing if that is read here, or it writes none."""
        answer = AssistantMessage.model_validate(
            {"role": "assistant", "content": _ANSWERED, "reasoning_content": _REASONED}
        )
        try:
            prompt, ids = self._renderer.prompt(_USER), self._renderer.answer([*_USER, answer])
        except RenderingError:
            return ()
        parsed = self.message(ids, (), prompt, ())
        if parsed.reasoning == _REASONED and _ANSWERED in parsed.content:  # marks around the content are no reasoning
            return ()
        before, _, rest = self._whole(ids).partition(_REASONED)
        return tuple(filter(None, [before.strip(), rest.partition(_ANSWERED)[0].strip()]))

    def _whole(self, ids: Sequence[int]) -> str:
        """Decode with special tokens, but without those that end a turn."""
        without_end = [token_id for token_id in ids if token_id not in self._end_ids]
        return str(self._tokenizer.decode(without_end, skip_special_tokens=False))

    def _begins_reasoning(self, prompt: Sequence[int]) -> bool:
        """Whether the generation prompt has opened the reasoning."""
        end = self._tokenizer.decode(list(prompt[-2 * len(OPENING) :]), skip_special_tokens=False)
        return str(end).rstrip().endswith(OPENING)

    @property
    def _template(self) -> Any:
        return getattr(self._tokenizer, "response_template", None)

    @cached_property
    def _harmony(self) -> bool:
        return harmony.is_harmony(str(self._tokenizer.chat_template))

    @property
    def _call_marker(self) -> str:
        """The beginning of a call in streamed text; empty, which holds back all text, if none is visible in it."""
        parsed_whole = self._template or self._harmony
        marker = self._renderer.call_form.opening if self._renderer.call_form and not parsed_whole else ""
        visible = self._renderer.text(self._tokenizer(marker, add_special_tokens=False)["input_ids"])
        return marker if marker in visible else ""
