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
"""Tokens that end or begin a turn, which a tokenizer leaves out with `skip_special_tokens`."""


def completion_items(trajectory: StoredTrajectory) -> tuple[MessageOrChoice, ...]:
    """The items from the first completion on."""
    until = len(trajectory.items) if trajectory.given is None else trajectory.given
    first = next((i for i, item in enumerate(trajectory.items) if isinstance(item, Choice)), until)
    return trajectory.items[first:]


def decoded_text(item: MessageOrChoice) -> str:
    """The text of one message as it was sampled, without the tokens that only end the turn.

    Services split reasoning from the answer, and leave out its marks. The sampled tokens have the text as it was; where
    a service gave none, the reasoning is put between `<think>` marks again.
    """
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    answer = plain_text(message.get("content"))
    thought = next((str(message[name]) for name in FIELDS if message.get(name)), "")
    calls = message.get("tool_calls") or []
    if isinstance(item, Choice) and (thought or calls):
        sampled = _sampled_text(item, thought + answer)
        # Tokens may be those of another text: some services give them for the answer alone.
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


def decoded_conversation(trajectory: StoredTrajectory) -> str:
    """The text of all turns from the first completion on, as one sequence that was sampled and answered in turn.

    Between completions stand the other messages, each after a line with its role, as the marks of a template leave them
    when special tokens are left out.
    """
    parts: list[str] = []
    for item in completion_items(trajectory):
        is_choice = isinstance(item, Choice)
        role = "assistant" if is_choice else str(getattr(item, "role", ""))
        text = decoded_text(item) if role == "assistant" else plain_text(item.to_wire().get("content"))
        parts += [f"{role}\n{text}" if parts else text]
    return "\n".join(parts)


def decoded_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """The messages from the first completion on, those of the assistant with their decoded text as content."""
    return [_decoded_message(item) for item in completion_items(trajectory)]


def split_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """The messages from the first completion on, with reasoning, however the service called it, as
    `reasoning_content`.
    """
    return [_split_message(item) for item in completion_items(trajectory)]


def parsed_messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """The messages from the first completion on as `transformers` parses them: reasoning apart, arguments as values."""
    return [parsed_message(item) for item in completion_items(trajectory)]


def _decoded_message(item: MessageOrChoice) -> dict[str, Any]:
    message, own = _message(item)
    return {**own, "content": decoded_text(item)} if message["role"] == "assistant" else message


def _split_message(item: MessageOrChoice) -> dict[str, Any]:
    message, own = _message(item)
    thought = next((message[name] for name in FIELDS if message.get(name)), None)
    return {**own, "reasoning_content": thought} if thought else message


def parsed_message(item: MessageOrChoice) -> dict[str, Any]:
    """A message as `transformers` parses it: reasoning apart, arguments of calls as values, content a text."""
    message, own = _message(item)
    if message["role"] != "assistant":
        return message
    thought, answer = reasoning_of(message, plain_text(message.get("content")))
    parsed = {**own, "content": answer, **({"reasoning_content": thought} if thought else {})}
    if calls := message.get("tool_calls"):
        parsed["tool_calls"] = [_parsed_call(call) for call in calls]
    return parsed


def _message(item: MessageOrChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """The message, and the same without its reasoning."""
    message = (item.message if isinstance(item, Choice) else item).to_wire()
    return message, {name: value for name, value in message.items() if name not in {*FIELDS, "token_ids"}}


def _parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # not JSON: as the policy wrote it
        return text


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or call.get("custom") or {}
    named = {"name": function.get("name"), "arguments": _arguments(function.get("arguments"))}
    return f"<tool_call>\n{json.dumps(named, ensure_ascii=False)}\n</tool_call>"


def _sampled_text(choice: Choice, visible: str) -> str:
    """The text of the sampled tokens without those of `_SPECIAL` that are not part of the visible text."""
    kept = [t for t in choice.sampled_tokens() if not _SPECIAL.fullmatch(t.token) or t.token in visible]
    if all(token.bytes is not None for token in kept):
        return b"".join(bytes(token.bytes or ()) for token in kept).decode("utf-8", "replace")
    return "".join(token.token for token in kept)
