"""Rendering of conversations to token ids: prompts for sampling, sequences for training.

Sampled token ids are trained as they are: the text of a completion is never tokenized again.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.api.wire.chat import Choice, Message, MessageOrChoice, TokenLogprob
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import ContextError, RenderingError
from rolloutlab.policy.messages import Messages, Tools

_UNCHECKED_CHARS = 100_000
"""Texts up to this length are tokenized without a check whether they can fit."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_ID_DIGITS = 18
_ITEMS = "messages_and_choices"


@dataclass(frozen=True)
class TokenSequence:
    """A tokenized history. All arrays have one entry per token, nine bytes together.

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

    vocabulary: size of the policy's, often more than its tokenizer's. context: refuse texts that cannot fit without
    tokenizing them, which takes minutes and gigabytes for a text of megabytes.
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

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Token ids of a conversation, with the generation prompt.

        Raises:
            RenderingError: a part of it is not text, or the chat template does not render or refuses it.
        """
        plain = self._messages.plain(messages, "messages", tools)
        return self._encode(self._check_length(self._template(plain, tools)))

    def answer(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Token ids of the last message, an assistant's, with its end-of-turn token.

        Raises:
            RenderingError: as for a prompt, or the template does not render an answer after its prompt.
        """
        plain = self._messages.plain(messages, "messages", tools)
        prompt, whole = self._template(plain[:-1], tools), self._check_length(self._template(plain, tools, begin=False))
        if not whole.startswith(prompt):
            raise RenderingError("the chat template does not render an answer after its prompt")
        ids = self._encode(whole[len(prompt) :])
        ends = [i + 1 for i, token_id in enumerate(ids) if token_id in self._end_ids]
        return ids[: ends[0]] if ends else ids

    def sequence(self, history: History) -> TokenSequence:
        """The history as one sequence, cut after its last sampled token.

        Raises:
            RenderingError: as for a prompt; or the template renders an earlier turn differently later, so that the
                sampler has read another text than would be trained; or a sampled token is not in the vocabulary.
        """
        tools = history.tools
        items = history.messages_and_choices
        items = items[: max((i + 1 for i, item in enumerate(items) if _trains(item)), default=0)]
        last = len(items) - 1  # its message is no context of any sampled token
        plain = [*self._messages.plain(items[:last], _ITEMS, tools), {}] if items else []
        marked = [{"role": "assistant", "content": _marker(i)} for i in range(len(items))]
        messages = [marked[i] if _trains(item) else plain[i] for i, item in enumerate(items)]
        sequence = TokenSequence()
        before = ""
        for i, item in enumerate(items):
            if not isinstance(item, Choice) or not _trains(item):
                continue
            prompt = self._template(messages[:i], tools)
            earlier = prompt, items[:i], plain[:i], tools
            if not prompt.startswith(before) or (before and not self._matches_sampling(*earlier)):
                raise RenderingError(f"{_ITEMS}.{i}: the chat template rewrites earlier turns of this conversation")
            self._splice(sequence, self._encode(prompt[len(before) :]), item.sampled_tokens(), f"{_ITEMS}.{i}")
            before = prompt + _marker(i)
        return sequence

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token(self, token_id: int) -> tuple[str, list[int]]:
        """A token's text and bytes."""
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        raw = self._tokenizer.convert_ids_to_tokens([token_id])[0] or ""
        return text, list(_raw_bytes(raw) if _REPLACEMENT in text else text.encode())

    def _template(self, messages: list[dict[str, Any]], tools: Tools, begin: bool = True) -> str:
        """The text of a conversation; begin: with the generation prompt."""
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=[tool.to_wire() for tool in tools] if tools else None,
                add_generation_prompt=begin,
                tokenize=False,
            )
        except Exception as error:  # a template is a program, and may fail in any way
            raise RenderingError(f"the chat template refuses this conversation: {error}") from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _check_length(self, text: str) -> str:
        """The text, or ContextError if it is too long even with the longest tokens."""
        if self._context is not None and len(text) > max(_UNCHECKED_CHARS, self._context * self._longest_token):
            limit = f"the policy's context of {self._context:,} tokens"
            raise ContextError(f"{len(text):,} characters do not fit into {limit}", hint="shorten it")
        return text

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token; byte-level tokens have at least as many as their text."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _splice(self, sequence: TokenSequence, context: list[int], sampled: list[TokenLogprob], path: str) -> None:
        """Append a turn: its context, without an end-of-turn token that was sampled already, and its sampled tokens."""
        if sequence.ids and context and context[0] == sequence.ids[-1] and context[0] in self._end_ids:
            context = context[1:]
        ids = self._ids(sampled, path)
        sequence.ids.extend([*context, *ids])
        sequence.trained.extend([False] * len(context) + [not entry.forced for entry in sampled])
        sequence.logprobs.extend([0.0] * len(context) + [0.0 if entry.forced else entry.logprob for entry in sampled])

    def _matches_sampling(
        self, prompt: str, items: Sequence[MessageOrChoice], plain: list[dict[str, Any]], tools: Tools
    ) -> bool:
        """Whether a prompt, with sampled texts for its markers, is the one that the sampler read, but for white space.

        plain: the items as messages for the template.
        """
        for i, item in enumerate(items):
            if isinstance(item, Choice) and _trains(item):
                ids = self._ids(item.sampled_tokens(), "an earlier turn")
                ids = ids[:-1] if ids[-1] in self._end_ids else ids
                prompt = prompt.replace(_marker(i), str(self._tokenizer.decode(ids, skip_special_tokens=False)))
        sampled_from = self._template(plain, tools)
        return "".join(sampled_from.split()) == "".join(prompt.split())

    def _ids(self, sampled: Sequence[TokenLogprob], path: str) -> list[int]:
        """The ids of the sampled tokens of a Choice at a path."""
        ids = []
        for k, entry in enumerate(sampled):
            token_id = self._id(entry)
            if token_id is None or not 0 <= token_id < self._vocabulary:
                raise RenderingError(f"{path}: the token {k}, {entry.token!r}, is not in the policy's vocabulary")
            ids.append(token_id)
        return ids

    def _id(self, entry: TokenLogprob) -> int | None:
        """The id of a sampled token: from `token_id`, `token_id:N` as its text, its bytes, or its text."""
        token_id = entry.token_id if entry.token_id is not None else _named_id(entry.token)
        if token_id is None and entry.bytes:
            token_id = self._ids_by_bytes.get(tuple(entry.bytes))
        return self._ids_by_text.get(entry.token) if token_id is None else token_id

    @cached_property
    def _ids_by_bytes(self) -> dict[tuple[int, ...], int]:
        return {tuple(self.token(i)[1]): i for i in reversed(range(len(self._tokenizer)))}

    @cached_property
    def _ids_by_text(self) -> dict[str, int]:
        texts = {self.token(i)[0]: i for i in reversed(range(len(self._tokenizer)))}
        return {text: i for text, i in texts.items() if _REPLACEMENT not in text}


def _trains(item: Any) -> bool:
    return isinstance(item, Choice) and bool(item.sampled_tokens())


def _marker(i: int) -> str:
    """A placeholder for the i-th item's sampled tokens, which no conversation contains."""
    return f"\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}sampled:{i}\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}"


def _named_id(token: str) -> int | None:
    """The N of `token_id:N`, which vLLM can return instead of a text."""
    name, _, number = token.partition(":")
    return int(number) if name == "token_id" and number.isdecimal() and len(number) <= _MAX_ID_DIGITS else None


def _raw_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token that is not valid UTF-8 by itself."""
    # the inverse of GPT-2's table of printable characters for bytes
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return bytes(table.get(character, ord("?")) for character in token)
