"""A completion that comes in chunks: its text so far, and the whole of it at the end."""

import json
from collections.abc import Mapping
from typing import Any

from rolloutlab.errors import ServiceError


class StreamedCompletion:
    """Folds the chunks of one streamed completion, read leniently: services differ in what they repeat."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._whole: dict[str, Any] | None = None
        self.text = ""

    def add(self, data: str) -> bool:
        """Take the `data:` of one event, or a completion that came in one piece; whether there is more text now.

        Raises:
            ServiceError: it is no chunk, or the service reports an error in the middle.
        """
        before = len(self.text)
        try:
            chunk = json.loads(data)
            if chunk.get("object") == "chat.completion":
                self._whole = chunk
                return False
            if chunk.get("error"):
                raise ServiceError(f"the answer broke off: {_told(chunk['error'])}")
            self._head |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
            for choice in chunk.get("choices") or []:
                self._fold(self._choices.setdefault(choice.get("index", 0), {"tool_calls": {}, "logprobs": {}}), choice)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ServiceError("the answer has a chunk that cannot be read") from error
        return len(self.text) > before

    def whole(self) -> dict[str, Any]:
        """The completion as it would have come in one piece; ServiceError when its end is missing."""
        if self._whole:
            return self._whole
        if not self._choices or any("finish_reason" not in choice for choice in self._choices.values()):
            raise ServiceError("the answer broke off before its end")
        choices = [_choice(index, parts) for index, parts in sorted(self._choices.items())]
        return {"created": 0, **self._head, "object": "chat.completion", "choices": choices}

    def _fold(self, parts: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        for name in ("content", "refusal"):
            if delta.get(name):
                parts[name] = parts.get(name, "") + delta[name]
                self.text += delta[name]
        for call in delta.get("tool_calls") or []:
            _fold_call(parts["tool_calls"].setdefault(call.get("index", 0), {}), call)
        for name, tokens in (choice.get("logprobs") or {}).items():
            parts["logprobs"].setdefault(name, []).extend(tokens or [])
        others = {"index", "delta", "logprobs"}
        parts |= {name: value for name, value in choice.items() if name not in others and value is not None}


def _told(error: Any) -> str:
    """What an error in the middle says."""
    words = error.get("message") if isinstance(error, Mapping) else error
    return str(words or "it does not say why")


def _fold_call(parts: dict[str, Any], call: Mapping[str, Any]) -> None:
    """A call comes whole, or its arguments come in pieces."""
    function = call.get("function") or {}
    told = parts.setdefault("function", {"arguments": ""})
    told["arguments"] += function.get("arguments") or ""
    told |= {"name": function["name"]} if function.get("name") else {}
    parts |= {name: call[name] for name in ("id", "type") if call.get(name)}


def _choice(index: int, parts: dict[str, Any]) -> dict[str, Any]:
    calls = [{"type": "function", **call} for _, call in sorted(parts.pop("tool_calls").items())]
    message = {"role": "assistant", "content": parts.pop("content", None), "refusal": parts.pop("refusal", None)}
    said = {name: value for name, value in message.items() if value is not None}
    return {"index": index, **parts, "message": {**said, **({"tool_calls": calls} if calls else {})}}
