"""Texts of messages."""

from collections.abc import Iterable, Mapping
from typing import Any


def plain_text(content: Any) -> str:
    """Return the text of a message's content, which is a text or a list of parts."""
    if isinstance(content, list):
        return "".join(_text_of(part) for part in content)
    return str(content or "")


def shown_text(message: Mapping[str, Any]) -> str:
    """Return what a reader sees of a message's content. Other parts than text are named; audio has its transcript."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(map(_shown_part, content))
    return str(content or (message.get("audio") or {}).get("transcript") or "")


def last_user_text(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of the last user message; "" if there is none."""
    users = [message for message in messages if message["role"] == "user"]
    return plain_text(users[-1].get("content")) if users else ""


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
    return str(text or "")


def _shown_part(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if kind in {"text", "refusal"}:
        return str(part.get(kind) or "")
    where = (part.get("image_url") or part.get("file") or {}) if kind in {"image_url", "file"} else {}
    source = str(where.get("url") or where.get("filename") or "")
    return f"[{kind}{f': {source[:80]}' if source else ''}]"
