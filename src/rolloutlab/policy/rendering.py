"""Conversations to token ids: the prompt that is sampled from, and the sequences that train.

What trains is what was sampled, id by id: a text is never tokenised again to find the tokens of a completion.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.api.wire.chat import Choice, FunctionTool, Message, MessageOrChoice, TokenLogprob
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import ContextError, RenderingError
from rolloutlab.policy.messages import Messages

_QUICK = 100_000
"""Characters that are tokenised in a moment."""

_UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_LONGEST_ID = 18
"""Digits of a token's id."""
_ITEMS = "messages_and_choices"


@dataclass(frozen=True)
class TokenSequence:
    """One history as it trains. All arrays have one entry per token: nine bytes together.

    trained: 1 where the token was sampled and carries a logprob, else 0. logprobs: as sampled, in nats and rounded to
    fp32; 0 where not trained.
    """

    ids: "array[int]" = field(default_factory=lambda: array("i"))
    trained: bytearray = field(default_factory=bytearray)
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trainable(self) -> int:
        return sum(self.trained)


class Renderer:
    """Renders conversations with a tokenizer's own chat template.

    vocabulary: how many tokens the policy can sample; often more than its tokenizer knows. context: refuse prompts and
    answers that cannot fit without tokenising them, which takes minutes and gigabytes for a text of megabytes.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: frozenset[int],
        vocabulary: int | None = None,
        context: int | None = None,
    ) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._vocabulary = len(tokenizer) if vocabulary is None else vocabulary
        self._messages = Messages(self._template)

    def prompt(self, messages: Sequence[Message], tools: Sequence[FunctionTool] | None = None) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        Raises:
            RenderingError: a part of it is not text, or of a kind that the chat template does not write, or the
                template refuses it.
        """
        plain = self._messages.plain(messages, "messages", tools)
        return self._encode(self._fitting(self._template(plain, tools)))

    def answer(self, messages: Sequence[Message], tools: Sequence[FunctionTool] | None = None) -> list[int]:
        """Token ids of the last message, an assistant's, as the template writes it, its end-of-turn token included.

        Raises:
            RenderingError: as for a prompt, or the template writes an answer elsewhere than behind its prompt.
        """
        plain = self._messages.plain(messages, "messages", tools)
        prompt, whole = self._template(plain[:-1], tools), self._fitting(self._template(plain, tools, begin=False))
        if not whole.startswith(prompt):
            raise RenderingError("the chat template does not write an answer behind its prompt")
        ids = self._encode(whole[len(prompt) :])
        ends = [i + 1 for i, token_id in enumerate(ids) if token_id in self._end_ids]
        return ids[: ends[0]] if ends else ids

    def sequence(self, history: History) -> TokenSequence:
        """The history as one sequence, cut after its last sampled token.

        Raises:
            RenderingError: as for a prompt; or the template writes an earlier turn differently once it is past, so that
                the sampler cannot have seen what would be trained; or a sampled token is not of this vocabulary.
        """
        tools = history.tools
        items = _until_last_sampled(history.messages_and_choices)
        last = len(items) - 1  # nothing that was sampled read it
        plain = [*self._messages.plain(items[:last], _ITEMS, tools), {}] if items else []
        messages = [_marked(i) if _trains(item) else plain[i] for i, item in enumerate(items)]
        sequence = TokenSequence()
        before = ""
        for i, item in enumerate(items):
            if not isinstance(item, Choice) or not _trains(item):
                continue
            prompt = self._template(messages[:i], tools)
            if not prompt.startswith(before) or (
                before and not self._is_what_was_read(prompt, items[:i], plain[:i], tools)
            ):
                raise RenderingError(f"{_ITEMS}.{i}: the chat template rewrites earlier turns of this conversation")
            self._splice(sequence, self._encode(prompt[len(before) :]), item.sampled_tokens(), f"{_ITEMS}.{i}")
            before = prompt + _mark(i)
        return sequence

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token(self, token_id: int) -> tuple[str, list[int]]:
        """A token's own text, and its bytes."""
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        raw = self._tokenizer.convert_ids_to_tokens([token_id])[0] or ""
        return text, list(_raw_bytes(raw) if _UNREADABLE in text else text.encode())

    def _template(
        self, messages: list[dict[str, Any]], tools: Sequence[FunctionTool] | None, begin: bool = True
    ) -> str:
        """The text of a conversation; `begin` adds what an assistant's answer begins behind."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=[tool.to_wire() for tool in tools] if tools else None,
                add_generation_prompt=begin,
                tokenize=False,
            )
        except Exception as error:  # a template is a program: what it meets in a message it may not be made for
            raise RenderingError(f"the chat template refuses this conversation: {error}") from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _fitting(self, text: str) -> str:
        """The text, or ContextError where even the longest tokens could not hold it."""
        if self._context is not None and len(text) > max(_QUICK, self._context * self._longest_token):
            raise ContextError(
                f"{len(text):,} characters are more than the policy's context of {self._context:,} tokens can hold",
                hint="shorten it",
            )
        return text

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token; a byte-level token has at least as many as its text."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _splice(self, sequence: TokenSequence, context: list[int], sampled: list[TokenLogprob], place: str) -> None:
        if sequence.ids and context and context[0] == sequence.ids[-1] and context[0] in self._end_ids:
            context = context[1:]
        ids = self._ids(sampled, place)
        sequence.ids.extend([*context, *ids])
        sequence.trained.extend([False] * len(context) + [not entry.forced for entry in sampled])
        sequence.logprobs.extend([0.0] * len(context) + [0.0 if entry.forced else entry.logprob for entry in sampled])

    def _is_what_was_read(
        self,
        prompt: str,
        items: Sequence[MessageOrChoice],
        plain: list[dict[str, Any]],
        tools: Sequence[FunctionTool] | None,
    ) -> bool:
        """Whether the prompt that the sampler read, but for white space, is this one with the sampled texts put in.

        plain: the items as the template reads them.
        """
        for i, item in enumerate(items):
            if isinstance(item, Choice) and _trains(item):
                prompt = prompt.replace(_mark(i), self._said(item))
        read = self._template(plain, tools)
        return "".join(read.split()) == "".join(prompt.split())

    def _said(self, choice: Choice) -> str:
        ids = self._ids(choice.sampled_tokens(), "an earlier turn")
        ids = ids[:-1] if ids[-1] in self._end_ids else ids
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _ids(self, sampled: Sequence[TokenLogprob], place: str) -> list[int]:
        """The vocabulary indices of the sampled tokens of a Choice, which is at this place."""
        ids = []
        for k, entry in enumerate(sampled):
            token_id = self._id(entry)
            if token_id is None or not 0 <= token_id < self._vocabulary:
                raise RenderingError(f"{place}: the token {k}, {entry.token!r}, is not in the policy's vocabulary")
            ids.append(token_id)
        return ids

    def _id(self, entry: TokenLogprob) -> int | None:
        """The vocabulary index of a sampled token: as given, else named, else by its bytes, else by its text."""
        found = entry.token_id if entry.token_id is not None else _named_id(entry.token)
        if found is None and entry.bytes:
            found = self._ids_by_bytes.get(tuple(entry.bytes))
        if found is None:
            found = self._ids_by_text.get(entry.token)
        return found

    @cached_property
    def _ids_by_bytes(self) -> dict[tuple[int, ...], int]:
        return {tuple(self.token(i)[1]): i for i in reversed(range(len(self._tokenizer)))}

    @cached_property
    def _ids_by_text(self) -> dict[str, int]:
        texts = {self.token(i)[0]: i for i in reversed(range(len(self._tokenizer)))}
        return {text: i for text, i in texts.items() if _UNREADABLE not in text}


def _trains(item: Any) -> bool:
    return isinstance(item, Choice) and bool(item.sampled_tokens())


def _until_last_sampled(items: Sequence[MessageOrChoice]) -> Sequence[MessageOrChoice]:
    """The items up to the last that trains; what follows it is nobody's context."""
    return items[: max((i + 1 for i, item in enumerate(items) if _trains(item)), default=0)]


def _marked(i: int) -> dict[str, Any]:
    return {"role": "assistant", "content": _mark(i)}


def _mark(i: int) -> str:
    """A text that no conversation contains, in the place of the i-th item's sampled tokens."""
    return f"\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}sampled:{i}\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}"


def _named_id(token: str) -> int | None:
    """The N of `token_id:N`, which some servers write instead of a text."""
    name, _, number = token.partition(":")
    return int(number) if name == "token_id" and number.isdecimal() and len(number) <= _LONGEST_ID else None


def _raw_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token that is not whole UTF-8 by itself."""
    table = _byte_of_character()
    return bytes(table.get(character, ord("?")) for character in token)


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
