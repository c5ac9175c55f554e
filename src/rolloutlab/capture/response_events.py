"""Events of a streamed response, from the chunks of a chat completion."""

from collections.abc import Callable, Mapping
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.capture.responses import Item, begun, message_item, output, reasoning_item, response, text_part


class ResponseEvents:
    """Makes the events of one response: text as it comes, everything else at its end. emit: gets each event."""

    def __init__(self, body: Mapping[str, Any], emit: Callable[[Item], None]) -> None:
        self._body = body
        self._emit = emit
        self._number = 0
        self._name = ""
        self._reasoning = ""
        self._place: int | None = None
        """Of the message among the items, once it has begun."""

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk of the completion."""
        if not self._name:
            self._begin(chunk["id"], chunk["model"], chunk.get("created", 0))
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            self._reasoning += delta.get("reasoning_content") or ""
            if text := delta.get("content"):
                place = self._begin_message()
                logprobs = (choice.get("logprobs") or {}).get("content") or []
                self._send("response.output_text.delta", place, delta=text, content_index=0, logprobs=logprobs)

    def end(self, completion: ChatCompletion) -> None:
        """Send the rest, once the completion is whole."""
        if not self._name:
            self._begin(completion.id, completion.model, completion.created)
        whole = response(self._body, completion)
        whole |= {"id": f"resp_{self._name}"}
        for place, item in enumerate(output(completion.model_copy(update={"id": self._name}))):
            whole["output"][place] = item
            if item["type"] == "message":
                self._end_message(place, item)
            elif item["type"] == "function_call":
                self._call(place, item)
            elif self._place is None:  # reasoning without a message after it
                self._item(place, item)
        self._send(f"response.{whole['status']}", response=whole)

    def _begin(self, name: str, model: str, created: int) -> None:
        self._name = name
        started = begun(self._body, name, model, created)
        self._send("response.created", response=started)
        self._send("response.in_progress", response=started)

    def _begin_message(self) -> int:
        if self._place is None:
            if self._reasoning:
                self._item(0, reasoning_item(self._name, self._reasoning))
            self._place = 1 if self._reasoning else 0
            self._send("response.output_item.added", self._place, item=message_item(self._name, "in_progress"))
            self._send("response.content_part.added", self._place, part=text_part(""), content_index=0)
        return self._place

    def _end_message(self, place: int, item: Item) -> None:
        part = item["content"][0]
        if self._place is None:  # a text that is empty, or came with the end alone
            self._begin_message()
            if part["text"]:
                self._send("response.output_text.delta", place, delta=part["text"], content_index=0, logprobs=[])
        done = {"text": part["text"], "logprobs": part["logprobs"], "content_index": 0}
        self._send("response.output_text.done", place, **done)
        self._send("response.content_part.done", place, part=part, content_index=0)
        self._send("response.output_item.done", place, item=item)

    def _call(self, place: int, item: Item) -> None:
        self._send("response.output_item.added", place, item={**item, "arguments": "", "status": "in_progress"})
        named = {"item_id": item["id"]}
        self._send("response.function_call_arguments.delta", place, delta=item["arguments"], **named)
        named["name"] = item["name"]
        self._send("response.function_call_arguments.done", place, arguments=item["arguments"], **named)
        self._send("response.output_item.done", place, item=item)

    def _item(self, place: int, item: Item) -> None:
        self._send("response.output_item.added", place, item=item)
        self._send("response.output_item.done", place, item=item)

    def _send(self, kind: str, place: int | None = None, **fields: Any) -> None:
        where = {} if place is None else {"output_index": place}
        if "content_index" in fields:
            where["item_id"] = f"msg_{self._name}"  # type: ignore[assignment]
        self._emit({"type": kind, "sequence_number": self._number, **where, **fields})
        self._number += 1
