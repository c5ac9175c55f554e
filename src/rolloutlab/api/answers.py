"""Chat completions that differ in form from the specification, but whose meaning is clear.

Each completion is paid for, so a form that OpenAI's own clients accept is accepted here, too.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import ValidationError

from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.endings import ending_of
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.errors import ServiceError

W = TypeVar("W", bound=Wire)

_EMPTY = ("tool_calls", "annotations")
_REASONING = {"reasoning", "thinking", "redacted_thinking"}


def parse_answer(kind: type[W], answer: Any) -> W:
    """Validate the answer of a service, or raise ServiceError."""
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
    where = ".".join(map(str, (kind.__name__, *first["loc"])))
    # outside of the handler: an error of validation quotes the body, which may repeat the key
    raise ServiceError(f"the service answered in another form: {where}: {first['msg']}")


def tidy_completion(body: Any) -> Any:
    """Bring the body of a chat completion into the form of the specification. What has no clear meaning stays."""
    if not isinstance(body, Mapping):
        return body
    created, choices = body.get("created"), body.get("choices")
    seconds = int(created) if isinstance(created, int | float) and math.isfinite(created) else 0
    head = {name: body.get(name) or "" for name in ("id", "model")}
    head |= {"object": "chat.completion", "created": seconds}
    tidy = {
        **body,
        **head,
        "choices": [_tidy_choice(i, each) for i, each in enumerate(choices)] if isinstance(choices, list) else choices,
    }
    return {**tidy, "usage": _tidy_usage(body["usage"])} if "usage" in body else tidy


def failure_of(choice: Any) -> str | None:
    """Say why a choice has no answer; None if it has one.

    The service reported an error, or it broke the answer off before any text.
    """
    if not isinstance(choice, Mapping):
        return None
    reported, message = choice.get("finish_reason"), choice.get("message")
    ending = ending_of(reported)
    made = ("content", "refusal", "tool_calls", "function_call", "audio", "reasoning_content", "reasoning")
    empty = not (isinstance(message, Mapping) and any(message.get(name) for name in made))
    if ending.reason is None:
        error = choice.get("error")  # OpenRouter
        why = error.get("message") if isinstance(error, Mapping) else error
        return str(why or f"it gives {reported!r} as its reason")
    return f"it gives {reported!r} as its reason, and no text" if ending.broken_off and empty else None


def text_of(content: Any) -> Any:
    """Join the text parts of a content. A content of any other form is returned unchanged."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) and "text" in part for part in content):
        return content
    return "".join(str(part["text"]) for part in content)


def arguments_of(function: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as JSON text. Some services send an object, or nothing for no arguments."""
    arguments = function.get("arguments")
    if arguments is None:
        return "{}"
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, Mapping) else arguments


def reasoning_and_text(content: Any) -> tuple[str, Any]:
    """Split a content into its reasoning and its text. A content of an unknown form is returned unchanged, as the text.

    Reasoning is text, or parts of text: `thinking` of Anthropic and Mistral, `reasoning` and `summary` of others.
    """
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return "", content
    thoughts = [_thought(part) for part in content if part.get("type") in _REASONING]
    if not all(isinstance(thought, str) for thought in thoughts):
        return "", content
    return "".join(thoughts), text_of([part for part in content if part.get("type") not in _REASONING])


def _thought(part: Mapping[str, Any]) -> Any:
    if part.get("type") == "redacted_thinking":  # encrypted, for its service alone
        return ""
    return text_of(next((part[name] for name in ("thinking", "reasoning", "text", "summary") if name in part), None))


def _tidy_choice(place: int, choice: Any) -> Any:
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        return choice
    index = choice.get("index")
    index = place if index is None else int(index) if isinstance(index, str) and index.isdecimal() else index
    # vLLM sends `tool_calls: []` where there is no call; as an earlier turn that would be a turn with calls
    tidy = {name: value for name, value in message.items() if name not in _EMPTY or value != []}
    if "refusal" in message:
        tidy["refusal"] = text_of(message["refusal"])
    if "content" in message:
        reasoning, tidy["content"] = reasoning_and_text(message["content"])
        if reasoning and not any(message.get(name) for name in FIELDS):
            tidy["reasoning_content"] = reasoning
    tidy["role"] = message.get("role") or "assistant"
    if isinstance(calls := tidy.get("tool_calls"), list):
        tidy["tool_calls"] = _tidy_calls(calls)
    if isinstance(function := message.get("function_call"), Mapping):
        tidy["function_call"] = {**function, "arguments": arguments_of(function)}
    return {**choice, "index": index, "message": tidy}


def _tidy_calls(calls: list[Any]) -> list[Any]:
    """Give each call of a message a type and a unique id, by which a tool message names its call."""
    used: set[str] = set()
    tidy = []
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(function := call.get("function", {}), Mapping):
            tidy.append(call)
            continue
        own = call.get("id")
        own = own if isinstance(own, str) and own and own not in used else f"call_{uuid4().hex[:24]}"
        used.add(own)
        kind = call.get("type") or ("custom" if "custom" in call else "function")
        named = {"function": {**function, "arguments": arguments_of(function)}} if function else {}
        tidy.append({**call, "id": own, "type": kind, **named})
    return tidy


def _tidy_usage(usage: Any) -> Any:
    """Tidy the usage of a completion; None if its counts are no integers. A wrong usage must not lose a completion."""
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, Mapping) else []
    if not counts or any(type(each) is not int or each < 0 for each in counts):
        return None
    total = usage.get("total_tokens")
    return {**usage, "total_tokens": total if type(total) is int else sum(counts)}
