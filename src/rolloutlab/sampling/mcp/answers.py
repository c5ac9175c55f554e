"""Answers of MCP servers, read part by part: a part that cannot be read does not hide the others."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from mcp.shared.message import SessionMessage
from mcp.types import BlobResourceContents, ContentBlock, JSONRPCResponse
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

_BLOCK: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)


class _Schema(BaseModel):
    """What the SDK requires of the schema of a tool. If one tool lacks it, the SDK reads none of them."""

    dialect: str | None = Field(default=None, alias="$schema")
    type: Literal["object"]
    properties: dict[str, dict[str, Any] | bool] | None = None
    required: list[str] | None = None


class ReadStream:
    """The messages of a server, in a form that the SDK reads.

    left_out: gets the names of tools that cannot be brought into such a form.
    """

    def __init__(self, stream: Any, left_out: list[str]) -> None:
        self._stream = stream
        self._left_out = left_out

    async def receive(self) -> Any:
        return self._read(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> "ReadStream":
        return self

    async def __anext__(self) -> Any:
        return self._read(await self._stream.__anext__())

    async def __aenter__(self) -> "ReadStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    @property
    def last_context(self) -> Any:
        """The context of the sender of the last message, which the SDK asks for."""
        return getattr(self._stream, "last_context", None)

    def _read(self, message: Any) -> Any:
        answer = message.message if isinstance(message, SessionMessage) else None
        if isinstance(answer, JSONRPCResponse):
            if isinstance(answer.result.get("tools"), list):
                answer.result["tools"] = list(self._tools(answer.result["tools"]))
            elif "structuredContent" in answer.result or isinstance(answer.result.get("content"), list):
                answer.result = _as_text(answer.result)
        return message

    def _tools(self, listed: list[Any]) -> Iterator[dict[str, Any]]:
        """Read the tools of a list, with the properties that are used. A tool without a schema has no arguments."""
        for tool in listed:
            name = tool.get("name") if isinstance(tool, Mapping) else None
            schema = (tool.get("inputSchema") or {}) if isinstance(tool, Mapping) else None
            try:
                schema = {"type": "object", **schema} if isinstance(schema, Mapping) else schema
                _Schema.model_validate(schema)
            except ValidationError:
                schema = None
            if not isinstance(name, str) or not name or schema is None:
                self._left_out.append(str(name or "one without a name"))
                continue
            about = tool.get("description")
            yield {"name": name, "inputSchema": schema, **({"description": about} if isinstance(about, str) else {})}


def _as_text(result: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a result to one text.

    Structured content is added as JSON if there is no text. A part that a policy cannot read is named in brackets.
    """
    blocks, structure = result.get("content"), result.get("structuredContent")
    blocks = blocks if isinstance(blocks, list) else [] if structure is not None and blocks is None else [blocks]
    read = list(map(_block_text, blocks))
    texts = [
        f"[the result cannot be read: {_kind(block)}]" if text is None else text
        for block, text in zip(blocks, read, strict=True)
    ]
    if structure is not None and not any(_kind(block) == "text" for block in blocks):
        texts.insert(0, json.dumps(structure, ensure_ascii=False))
    unread = bool(texts) and len(texts) == read.count(None)
    others = {name: value for name, value in result.items() if name != "structuredContent"}
    content = [{"type": "text", "text": "\n".join(texts)}]
    return {**others, "content": content, "isError": result.get("isError") is True or unread}


def _kind(block: Any) -> str:
    return str(block.get("type"))[:40] if isinstance(block, Mapping) else type(block).__name__


def _block_text(sent: Any) -> str | None:
    """Return the text of a part of a result; None if its kind is unknown."""
    if isinstance(sent, Mapping) and sent.get("type") == "text" and isinstance(sent.get("text"), str):
        return str(sent["text"])
    try:
        block = _BLOCK.validate_python(sent)
    except ValidationError:
        return None
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        about = " - ".join(filter(None, [block.title or block.name, block.description]))
        return f"[{about}]({block.uri})"
    if block.type != "resource":
        return f"[{block.type} of type {block.mime_type} left out: the policy reads text]"
    if isinstance(block.resource, BlobResourceContents):
        kind = f" of type {block.resource.mime_type}" if block.resource.mime_type else ""
        return f"[binary resource {block.resource.uri}{kind} left out: the policy reads text]"
    return f"{block.resource.uri}:\n{block.resource.text}"
