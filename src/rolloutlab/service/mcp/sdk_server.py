"""The server of the MCP SDK, which lists and calls the tools; its import is slow, so `app` imports it late."""

import json
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

import mcp_types as types
from anyio import CapacityLimiter, to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from rolloutlab.errors import RolloutlabError
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.tools import MAX_BYTES, TOKEN_INFO, TOOLS, Tool
from rolloutlab.service.oauth.grants import TokenInfo


class McpServer:
    """Serves `TOOLS` over a lab. issuer: the allowed Origin. hosts: the allowed Host headers, without ports."""

    def __init__(self, lab: LabTools, issuer: str, hosts: Collection[str]) -> None:
        self._lab = lab
        self._limiter = CapacityLimiter(1)  # calls queue here, and not in the threads that all of the service shares
        server: Server[Any] = Server(
            "rolloutlab",
            version=version("rolloutlab"),
            title="rolloutlab",
            instructions="The memory of a lab: conversations of language models, with rewards.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        checks = TransportSecuritySettings(
            allowed_hosts=[host for name in hosts for host in (name, f"{name}:*")], allowed_origins=[issuer]
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, security_settings=checks, max_request_body_size=MAX_BYTES
        )

    def run(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which requests can be served."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.asgi_app(scope, receive, send)

    async def _list(self, _ctx: object, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_to_wire(tool) for tool in TOOLS.values()])

    async def _call(
        self, ctx: ServerRequestContext[Any, Request], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Return the result of a tool call. Errors of the lab are results too, for the model to read."""
        info: TokenInfo = ctx.request.scope[TOKEN_INFO] if ctx.request else TokenInfo("", "", ())
        tool = TOOLS.get(params.name)
        if tool is None:
            return _error_result(f"there is no tool {params.name!r}; the tools are {', '.join(TOOLS)}")
        if tool.scope not in info.scopes:  # checked again: the SDK might parse an ambiguous body differently
            return _error_result(f"{tool.name} needs the scope {tool.scope}")
        try:
            arguments = params.arguments or {}
            result = await to_thread.run_sync(tool.call, self._lab, arguments, info.client_name, limiter=self._limiter)
            text = json.dumps(result, ensure_ascii=False)
            return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=result)
        except RolloutlabError as error:
            return _error_result("\n".join([error.message, *([f"-> {error.hint}"] if error.hint else [])]))


def _to_wire(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)


def _error_result(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)
