"""Texts of messages."""

from collections.abc import Iterable, Mapping
from typing import Any


def plain_text(content: Any) -> str:
    """The text of a message's content, a string or a list of parts."""
    if isinstance(content, list):
        return "".join(_text_of(part) for part in content)
    return str(content or "")


def last_user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """The text of the last user message, if any."""
    users = [message for message in messages if message["role"] == "user"]
    return plain_text(users[-1].get("content")) if users else ""


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
    return str(text or "")
