"""OpenAI's Responses API, answered by chat completions: its requests with text and functions, and its responses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion, FunctionToolCall
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.errors import InputError

Item = dict[str, Any]


class ResponseEvents:
    """Makes the events of one streamed response: for text as it comes, for everything else at the end.

    body: the body of the request. emit: called with each event.
    """

    def __init__(self, body: Mapping[str, Any], emit: Callable[[Item], None]) -> None:
        self._body = body
        self._emit = emit
        self._number = 0
        self._name = ""
        self._has_begun = False
        self._reasoning = ""
        self._has_reasoned = False
        self._place: int | None = None
        """The index of the message among the items; None before it has begun."""

    def take_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk of the completion, and send the events of its text."""
        if not self._has_begun:  # with what the chunk has: some services send chunks without an id or a model
            self._begin(chunk.get("id") or "", chunk.get("model") or "", chunk.get("created") or 0)
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            self._reasoning += next((delta[name] for name in FIELDS if delta.get(name)), "")
            if text := delta.get("content"):
                place = self._begin_message()
                logprobs = (choice.get("logprobs") or {}).get("content") or []
                self._send("response.output_text.delta", place, delta=text, content_index=0, logprobs=logprobs)

    def end(self, completion: ChatCompletion) -> None:
        """Send the remaining events. completion: the whole completion."""
        if not self._has_begun:
            self._begin(completion.id, completion.model, completion.created)
        items = output_items(completion.model_copy(update={"id": self._name}))
        # reasoning goes before the message, but no chunk had any, and the message was sent as the first item
        if self._place == 0:
            items = [item for item in items if item["type"] != "reasoning"]
        for place, item in enumerate(items):
            if item["type"] == "message":
                self._end_message(place, item)
            elif item["type"] == "function_call":
                self._send_call(place, item)
            else:
                self._send_reasoning(item)
        whole = {**make_response(self._body, completion), "id": f"resp_{self._name}", "output": items}
        self._send(f"response.{whole['status']}", response=whole)

    def _begin(self, name: str, model: str, created: int) -> None:
        self._name, self._has_begun = name, True
        started = begin_response(self._body, name, model, created)
        self._send("response.created", response=started)
        self._send("response.in_progress", response=started)

    def _begin_message(self) -> int:
        if self._place is None:
            if self._reasoning:
                self._send_reasoning(reasoning_item(self._name, self._reasoning))
            self._place = 1 if self._has_reasoned else 0
            self._send("response.output_item.added", self._place, item=message_item(self._name, "in_progress"))
            self._send("response.content_part.added", self._place, part=text_part(""), content_index=0)
        return self._place

    def _end_message(self, place: int, item: Item) -> None:
        part = item["content"][0]
        if self._place is None:  # no chunk had text: the message is empty, or the text comes only now
            self._begin_message()
            if part["text"]:
                self._send("response.output_text.delta", place, delta=part["text"], content_index=0, logprobs=[])
        done = {"text": part["text"], "logprobs": part["logprobs"], "content_index": 0}
        self._send("response.output_text.done", place, **done)
        self._send("response.content_part.done", place, part=part, content_index=0)
        self._send("response.output_item.done", place, item=item)

    def _send_call(self, place: int, item: Item) -> None:
        self._send("response.output_item.added", place, item={**item, "arguments": "", "status": "in_progress"})
        named = {"item_id": item["id"]}
        self._send("response.function_call_arguments.delta", place, delta=item["arguments"], **named)
        named["name"] = item["name"]
        self._send("response.function_call_arguments.done", place, arguments=item["arguments"], **named)
        self._send("response.output_item.done", place, item=item)

    def _send_reasoning(self, item: Item) -> None:
        """Send the reasoning, which is the first item, once."""
        if not self._has_reasoned:
            self._has_reasoned = True
            self._send("response.output_item.added", 0, item=item)
            self._send("response.output_item.done", 0, item=item)

    def _send(self, kind: str, place: int | None = None, **fields: Any) -> None:
        where = {} if place is None else {"output_index": place}
        if "content_index" in fields:
            where["item_id"] = f"msg_{self._name}"  # type: ignore[assignment]
        self._emit({"type": kind, "sequence_number": self._number, **where, **fields})
        self._number += 1


_STATEFUL = {
    "previous_response_id": "send the whole input; in openai-agents without auto_previous_response_id",
    "conversation": "send the whole input",
    "prompt": "send instructions and input",
    "background": "background: false",
}
"""Fields that need a server that keeps responses, and what to send instead."""
_SAME = ("temperature", "top_p", "top_logprobs", "seed", "n", "stop", "parallel_tool_calls", "stream", "model")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_TEXTS = {"input_text", "output_text", "text", "summary_text", "reasoning_text"}


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a request body of the Responses API to one of chat completions.

    Raises:
        InputError: it refers to an earlier response, or has tools other than functions, or input other than text.
    """
    for name, instead in _STATEFUL.items():
        if body.get(name):
            raise InputError(f"{name} is not offered: the gateway keeps no responses", hint=instead)
    fields = {name: body[name] for name in _SAME if body.get(name) is not None}
    fields["messages"] = [*_system_messages(body.get("instructions")), *messages_of(body.get("input"))]
    if body.get("max_output_tokens") is not None:
        fields["max_tokens"] = body["max_output_tokens"]
    if tools := [_convert_tool(tool) for tool in _read_list(body, "tools")]:
        fields["tools"] = tools
        fields |= _convert_tool_choice(body.get("tool_choice"))
    kind = _check_object(_check_object(body.get("text") or {}, "text").get("format") or {}, "text.format")
    if kind.get("type") not in {None, "text"}:
        fields["response_format"] = {"type": kind["type"]}
    fields["logprobs"] = "message.output_text.logprobs" in _read_list(body, "include")
    return fields


def messages_of(given: Any) -> list[Item]:
    """Convert an input to chat messages. The reasoning, text and calls of one response become one message again.

    Raises:
        InputError: an item is neither a message, a call of a function, its result, nor reasoning.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise InputError("input must be a text or a list")
    messages: list[Item] = []
    for i, item in enumerate(given):
        kind = _check_object(item, f"input.{i}").get("type") or "message"
        if kind == "function_call_output":
            content = _read_text(item.get("output"), f"input.{i}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "function_call":
            turn = _last_turn(messages, "content", "tool_calls", "reasoning_content")
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            messages.append({"role": "assistant", "reasoning_content": _read_text(parts, f"input.{i}")})
        elif kind == "message" and item.get("role") == "assistant":
            _last_turn(messages, "reasoning_content")["content"] = _read_text(item.get("content"), f"input.{i}.content")
        elif kind == "message":
            messages.append(
                {"role": item.get("role"), "content": _read_text(item.get("content"), f"input.{i}.content")}
            )
        else:
            message = f"input.{i} of type {kind!r} is not offered: the policy reads text and calls of functions"
            raise InputError(message, hint="the whole conversation as messages, calls and results")
    return messages


def make_response(body: Mapping[str, Any], completion: ChatCompletion) -> Item:
    """Make the response to a request body from its completion."""
    choice, usage = completion.choices[0], completion.usage
    reason = _INCOMPLETE.get(choice.finish_reason)
    made = {
        **begin_response(body, completion.id, completion.model, completion.created),
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": output_items(completion),
    }
    if usage:
        made["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }
    return made


def begin_response(body: Mapping[str, Any], name: str, model: str, created: int) -> Item:
    """Make a response that has no output yet.

    body: the body of the request. name: the id of the completion. model, created: the model and time of the completion.
    """
    kept = ("instructions", "max_output_tokens", "metadata", "temperature", "top_p", "tool_choice", "tools", "text")
    defaults: Item = {"tool_choice": "auto", "tools": [], "metadata": {}}
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "usage": None,
        **{key: defaults.get(key) if body.get(key) is None else body[key] for key in kept},
    }


def output_items(completion: ChatCompletion) -> list[Item]:
    """Make the items of a response: reasoning, message, calls."""
    choice = completion.choices[0]
    message, name = choice.message, completion.id
    items = [reasoning_item(name, message.reasoning_content)] if message.reasoning_content else []
    if message.content or not message.tool_calls:
        status = "incomplete" if choice.finish_reason in _INCOMPLETE else "completed"
        logprobs = [each.to_wire() for each in choice.sampled_tokens()]
        items.append({**message_item(name, status), "content": [text_part(message.content or "", logprobs)]})
    calls = [call for call in message.tool_calls or () if isinstance(call, FunctionToolCall)]
    return items + [
        {
            "type": "function_call",
            "id": f"fc_{name}_{i}",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
            "status": "completed",
        }
        for i, call in enumerate(calls)
    ]


def reasoning_item(name: str, text: str) -> Item:
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": text}]}


def message_item(name: str, status: str) -> Item:
    return {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": []}


def text_part(text: str, logprobs: Sequence[Item] = ()) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _system_messages(text: Any) -> Iterator[Item]:
    if text:
        yield {"role": "system", "content": text}


def _last_turn(messages: list[Item], *may_have: str) -> Item:
    """Return the last message if it is the assistant's and has no other fields than these; else add a new one."""
    if not (messages and messages[-1]["role"] == "assistant" and messages[-1].keys() <= {"role", *may_have}):
        messages.append({"role": "assistant"})
    return messages[-1]


def _read_text(content: Any, where: str) -> str:
    """Read the text of a content; raise InputError if it has parts other than text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InputError(f"{where} must be a text or a list of parts")
    texts = []
    for i, part in enumerate(content):
        kind = _check_object(part, f"{where}.{i}").get("type")
        if kind == "refusal":
            texts.append(str(part.get("refusal") or ""))
        elif kind in _TEXTS:
            texts.append(str(part.get("text") or ""))
        else:
            raise InputError(f"{where}.{i} of type {kind!r} is not offered: the policy reads text", hint="input_text")
    return "".join(texts)


def _check_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be an object")
    return value


def _read_list(body: Mapping[str, Any], field: str) -> list[Any]:
    value = body.get(field) or []
    if not isinstance(value, list):
        raise InputError(f"{field} must be a list")
    return value


def _convert_tool(tool: Any) -> Item:
    kind = _check_object(tool, "tools").get("type")
    if kind != "function":
        message = f"a tool of type {kind!r} is not offered: the policy calls functions"
        raise InputError(message, hint="function tools, which the program runs itself")
    named = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {key: tool[key] for key in named if tool.get(key) is not None}}


def _convert_tool_choice(choice: Any) -> Item:
    if isinstance(choice, Mapping):
        if (kind := choice.get("type")) != "function":
            message = f"tool_choice of type {kind!r} is not offered: the policy calls functions"
            raise InputError(message, hint="auto, none, required, or {'type': 'function', 'name': ...}")
        return {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    return {"tool_choice": choice} if choice else {}
