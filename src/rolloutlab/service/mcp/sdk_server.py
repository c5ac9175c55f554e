"""What the SDK does at /context: it speaks the protocol. It takes a while to load, and most labs are never asked."""

import json
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

from anyio import CapacityLimiter, to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ToolOnWire
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from rolloutlab.errors import RolloutlabError
from rolloutlab.service.mcp.app import ACCESS, LARGEST
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.tools import TOOLS, Tool
from rolloutlab.service.oauth.grants import TokenInfo


class McpServer:
    """The tools over a lab's memory. issuer: the origin that browsers may come from. hosts: what it is asked for as."""

    def __init__(self, memory: LabTools, issuer: str, hosts: Collection[str]) -> None:
        self._memory = memory
        self._one = CapacityLimiter(1)
        """Calls wait for their turn here and not in threads, which all of the service has to share."""
        server: Server[Any] = Server(
            "rolloutlab",
            version=version("rolloutlab"),
            title="rolloutlab",
            instructions="The memory of a lab: conversations of language models, with rewards.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        checks = TransportSecuritySettings(
            allowed_hosts=[host for name in hosts for host in (name, f"{name}:*")],
            allowed_origins=[issuer],
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, security_settings=checks, max_request_body_size=LARGEST
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """What has to be around the answers."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.asgi_app(scope, receive, send)

    async def _list(self, _ctx: ServerRequestContext[Any], _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_on_wire(tool) for tool in TOOLS.values()])

    async def _call(self, ctx: ServerRequestContext[Any, Request], params: CallToolRequestParams) -> CallToolResult:
        """The answer of a tool; what the lab refuses is an answer too, for the policy to read."""
        access: TokenInfo = ctx.request.scope[ACCESS] if ctx.request else TokenInfo("", "", ())
        tool = TOOLS.get(params.name)
        if tool is None:
            return _failed(f"there is no tool {params.name!r}; the tools are {', '.join(TOOLS)}")
        if tool.scope not in access.scopes:  # checked before, too: two readers of one body may see two things
            return _failed(f"{tool.name} needs the scope {tool.scope}")
        try:
            said = params.arguments or {}
            called = to_thread.run_sync(tool.call, self._memory, said, access.client_name, limiter=self._one)
            return _answered(await called)
        except RolloutlabError as error:
            return _failed("\n".join([error.message, *([f"-> {error.hint}"] if error.hint else [])]))


def _on_wire(tool: Tool) -> ToolOnWire:
    hints = ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False, open_world_hint=False)
    return ToolOnWire(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)


def _answered(result: dict[str, Any]) -> CallToolResult:
    text = json.dumps(result, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=result)


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)
