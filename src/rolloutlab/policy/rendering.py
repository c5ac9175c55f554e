"""Conversations to token ids: the prompt that is sampled from, and the sequences that train.

What trains is what was sampled, id by id: a text is never tokenised again to find the tokens of a completion.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.errors import RenderingError
from rolloutlab.wire.chat import Choice, FunctionTool, Message, TokenLogprob
from rolloutlab.wire.trajectories import History


@dataclass(frozen=True)
class TokenSequence:
    """One history as it trains. All lists have one entry per token.

    trained: whether the token was sampled and carries a logprob. logprobs: as sampled, in nats; 0 where not trained.
    """

    ids: list[int]
    trained: list[bool]
    logprobs: list[float]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def trainable(self) -> int:
        return sum(self.trained)


class Renderer:
    """Renders conversations with a tokenizer's own chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids

    def prompt(self, messages: Sequence[Message], tools: Sequence[FunctionTool] | None = None) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins."""
        return self._encode(self._template([_plain(m) for m in messages], tools))

    def sequence(self, history: History) -> TokenSequence:
        """The history as one sequence, cut after its last sampled token.

        Raises:
            RenderingError: the template writes an earlier turn differently once it is past, so that the sampler cannot
                have seen what would be trained; or a sampled token is not of this vocabulary.
        """
        items, tools = history.messages_and_choices, history.tools
        marked = [_mark(i) if _trains(item) else None for i, item in enumerate(items)]
        messages = [
            {"role": "assistant", "content": mark} if mark else _plain(item)
            for item, mark in zip(items, marked, strict=True)
        ]
        sequence = TokenSequence([], [], [])
        before = ""
        for i, (mark, item) in enumerate(zip(marked, items, strict=True)):
            if mark is None or not isinstance(item, Choice):
                continue
            prompt = self._template(messages[:i], tools)
            self._check_earlier_turns(prompt, messages[:i], items[:i], tools)
            if not prompt.startswith(before):
                raise RenderingError("the chat template rewrites earlier turns of this conversation")
            self._splice(sequence, self._encode(prompt[len(before) :]), item.sampled_tokens())
            before = prompt + mark
        return sequence

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def token(self, token_id: int) -> tuple[str, list[int]]:
        """A token's own text, and its bytes."""
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        raw = self._tokenizer.convert_ids_to_tokens([token_id])[0]
        return text, list(_raw_bytes(raw) if "�" in text else text.encode())

    def _template(self, messages: list[dict[str, Any]], tools: Sequence[FunctionTool] | None) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages,
                tools=[tool.to_wire() for tool in tools] if tools else None,
                add_generation_prompt=True,
                tokenize=False,
            )
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _splice(self, sequence: TokenSequence, context: list[int], sampled: list[TokenLogprob]) -> None:
        if sequence.ids and context[:1] == sequence.ids[-1:] and context[0] in self._end_ids:
            context = context[1:]
        ids = [self._id(entry) for entry in sampled]
        sequence.ids.extend([*context, *ids])
        sequence.trained.extend([False] * len(context) + [True] * len(ids))
        sequence.logprobs.extend([0.0] * len(context) + [entry.logprob for entry in sampled])

    def _check_earlier_turns(
        self, prompt: str, messages: list[dict[str, Any]], items: Sequence[Any], tools: Sequence[FunctionTool] | None
    ) -> None:
        """The prompt that the sampler saw holds the earlier answers themselves, unaltered."""
        spoken = {
            message["content"]: item.message.content
            for message, item in zip(messages, items, strict=True)
            if _trains(item) and item.message.content and not item.message.tool_calls
        }
        if not spoken:
            return
        actual = [
            {**message, "content": spoken.get(message["content"], message["content"])}
            if isinstance(message.get("content"), str)
            else message
            for message in messages
        ]
        expected = prompt
        for mark, content in spoken.items():
            expected = expected.replace(mark, content)
        if self._template(actual, tools).split() != expected.split():
            raise RenderingError("the chat template rewrites earlier turns of this conversation")

    def _id(self, entry: TokenLogprob) -> int:
        for found in (
            entry.token_id,
            _named_id(entry.token),
            self._id_of_bytes(entry),
            self._ids_by_text.get(entry.token),
        ):
            if found is not None and 0 <= found < len(self._tokenizer):
                return found
        raise RenderingError(f"the token {entry.token!r} is not in the policy's vocabulary")

    def _id_of_bytes(self, entry: TokenLogprob) -> int | None:
        return self._ids_by_bytes.get(bytes(entry.bytes)) if entry.bytes else None

    @cached_property
    def _ids_by_bytes(self) -> dict[bytes, int]:
        return {bytes(self.token(i)[1]): i for i in reversed(range(len(self._tokenizer)))}

    @cached_property
    def _ids_by_text(self) -> dict[str, int]:
        return {self.token(i)[0]: i for i in reversed(range(len(self._tokenizer)))}


def _trains(item: Any) -> bool:
    return isinstance(item, Choice) and bool(item.sampled_tokens())


def _mark(i: int) -> str:
    """A text that no conversation contains, in the place of the i-th item's sampled tokens."""
    return f"\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}sampled:{i}\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}"


def _named_id(token: str) -> int | None:
    """The N of `token_id:N`, which some servers write instead of a text."""
    name, _, number = token.partition(":")
    return int(number) if name == "token_id" and number.isdecimal() else None


def _plain(item: Any) -> dict[str, Any]:
    """A message as chat templates read it: tool call arguments as objects, text parts joined."""
    message: dict[str, Any] = (item.message if isinstance(item, Choice) else item).to_wire()
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "".join(_part_text(part) for part in content)
    elif content is None:
        message["content"] = ""
    for call in message.get("tool_calls") or []:
        if call["type"] == "function":
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    return message


def _part_text(part: dict[str, Any]) -> str:
    text = part.get("text", part.get("refusal"))
    if text is None:
        raise RenderingError(f"this policy reads text, not {part['type']}")
    return str(text)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _raw_bytes(token: str) -> bytes:
    """The bytes of a byte-level BPE token that is not whole UTF-8 by itself."""
    table = _byte_of_character()
    return bytes(table.get(character, ord("?")) for character in token)


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
