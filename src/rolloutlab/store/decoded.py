"""Texts and messages of completions as a trainer decodes them from tokens, with reasoning before the answer."""

import json
import re
from collections.abc import Mapping
from typing import Any

from rolloutlab.api.wire.chat import Choice, MessageOrChoice
from rolloutlab.api.wire.reasoning import CLOSING, FIELDS, OPENING, reasoning_of
from rolloutlab.store.models import StoredTrajectory
from rolloutlab.store.texts import plain_text

_SPECIAL = re.compile(
    r"<[|\uff5c][^<>]*[|\uff5c]>|<\|turn>|<turn\|>|</?s>|<(?:bos|eos|pad|start_of_turn|end_of_turn)>|\[EOS\]"
)
"""Matches tokens that end or begin a turn. A tokenizer leaves them out with `skip_special_tokens`."""


def completion_items(trajectory: StoredTrajectory) -> tuple[MessageOrChoice, ...]:
    """Return the items from the first completion on."""
    until = len(trajectory.items) if trajectory.given is None else trajectory.given
    first = next((i for i, item in enumerate(trajectory.items) if isinstance(item, Choice)), until)
    return trajectory.items[first:]


def decode_text(item: MessageOrChoice) -> str:
    """Return the text of one message as it was sampled, without the tokens that only end the turn.

    Services split reasoning from the answer, and leave out its marks. The sampled tokens have the text as it was. If a
    service gave none, the reasoning is put between `<think>` marks again.
    """
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    answer = plain_text(message.get("content"))
    thought = next((str(message[name]) for name in FIELDS if message.get(name)), "")
    calls = message.get("tool_calls") or []
    if isinstance(item, Choice) and (thought or calls):
        sampled = _sampled_text(item, thought + answer)
        # some services give tokens for the answer alone: the text must have reasoning, answer and calls
        thought_at = sampled.find(thought.strip())
        answer_at = sampled.rfind(answer.strip())
        names = [str((call.get("function") or {}).get("name")) for call in calls]
        if 0 <= thought_at <= thought_at + len(thought.strip()) <= answer_at and all(map(sampled.count, names)):
            return sampled[: answer_at + len(answer.strip())] if answer.strip() and not calls else sampled
    if thought:
        cut = isinstance(item, Choice) and item.finish_reason == "length"
        closing = "" if cut and not answer and not calls else f"\n{CLOSING}\n\n"
        answer = f"{OPENING}\n{thought.strip()}{closing}{answer}"
    return "\n".join([answer, *map(_call_text, calls)]) if calls else answer


def decode_conversation(trajectory: StoredTrajectory) -> str:
    """Return the text of all turns from the first completion on, as one sequence.

    Each message after the first begins with a line with its role. That is what remains of the marks of a chat template
    when special tokens are left out.
    """
    parts: list[str] = []
    for item in completion_items(trajectory):
        is_choice = isinstance(item, Choice)
        role = "assistant" if is_choice else str(getattr(item, "role", ""))
        text = decode_text(item) if role == "assistant" else plain_text(item.to_wire().get("content"))
        parts += [f"{role}\n{text}" if parts else text]
    return "\n".join(parts)


def decode_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """Return the messages from the first completion on. The assistant's have their decoded text as content."""
    return [_decode_message(item) for item in completion_items(trajectory)]


def split_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """Return the messages from the first completion on. Reasoning is called `reasoning_content`, for any service."""
    return [_split_message(item) for item in completion_items(trajectory)]


def parse_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """Return the messages from the first completion on, each as `parse_message` does."""
    return [parse_message(item) for item in completion_items(trajectory)]


def _decode_message(item: MessageOrChoice) -> dict[str, Any]:
    message, own = _message(item)
    return {**own, "content": decode_text(item)} if message["role"] == "assistant" else message


def _split_message(item: MessageOrChoice) -> dict[str, Any]:
    message, own = _message(item)
    thought = next((message[name] for name in FIELDS if message.get(name)), None)
    return {**own, "reasoning_content": thought} if thought else message


def parse_message(item: MessageOrChoice) -> dict[str, Any]:
    """Return a message as `transformers` parses it: reasoning apart, arguments as values, content as a text."""
    message, own = _message(item)
    if message["role"] != "assistant":
        return message
    thought, answer = reasoning_of(message, plain_text(message.get("content")))
    parsed = {**own, "content": answer, **({"reasoning_content": thought} if thought else {})}
    if calls := message.get("tool_calls"):
        parsed["tool_calls"] = [_parse_call(call) for call in calls]
    return parsed


def _message(item: MessageOrChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message, and the same without its reasoning and token ids."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    return message, {name: value for name, value in message.items() if name not in {*FIELDS, "token_ids"}}


def _parse_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _parse_arguments(function.get("arguments"))}}


def _parse_arguments(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # not JSON: the text stays as the policy wrote it
        return text


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call.get("custom") or {}
    named = {"name": function.get("name"), "arguments": _parse_arguments(function.get("arguments"))}
    return f"<tool_call>\n{json.dumps(named, ensure_ascii=False)}\n</tool_call>"


def _sampled_text(choice: Choice, visible: str) -> str:
    """Return the text of the sampled tokens, without special tokens that the visible text does not have."""
    kept = [t for t in choice.sampled_tokens() if not _SPECIAL.fullmatch(t.token) or t.token in visible]
    if all(token.bytes is not None for token in kept):
        return b"".join(bytes(token.bytes or ()) for token in kept).decode("utf-8", "replace")
    return "".join(token.token for token in kept)
