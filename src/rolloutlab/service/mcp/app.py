"""MCP server at /context over stateless Streamable HTTP, behind OAuth bearer tokens.

Sessions are not kept, so that a renewed token continues where the old one was; each response is one JSON document. The
scope of a tool call is in the body, which is therefore read before the SDK gets it: a token without the scope gets the
challenge by which a client steps up.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import Any

import mcp_types as types
from anyio import CapacityLimiter, to_thread
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from rolloutlab.errors import RolloutlabError
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.tools import MAX_BYTES, TOKEN_INFO, TOOLS, Tool
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.grants import TokenInfo
from rolloutlab.service.oauth.metadata import READ
from rolloutlab.service.oauth.params import read_limited


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
        """Context in which requests can be served."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.asgi_app(scope, receive, send)

    async def _list(self, _ctx: object, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_to_wire(tool) for tool in TOOLS.values()])

    async def _call(
        self, ctx: ServerRequestContext[Any, Request], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """The result of a tool call; errors of the lab are results too, for the model to read."""
        info: TokenInfo = ctx.request.scope[TOKEN_INFO] if ctx.request else TokenInfo("", "", ())
        tool = TOOLS.get(params.name)
        if tool is None:
            return _failed(f"there is no tool {params.name!r}; the tools are {', '.join(TOOLS)}")
        if tool.scope not in info.scopes:  # checked again: the SDK might parse an ambiguous body differently
            return _failed(f"{tool.name} needs the scope {tool.scope}")
        try:
            arguments = params.arguments or {}
            result = await to_thread.run_sync(tool.call, self._lab, arguments, info.client_name, limiter=self._limiter)
            text = json.dumps(result, ensure_ascii=False)
            return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=result)
        except RolloutlabError as error:
            return _failed("\n".join([error.message, *([f"-> {error.hint}"] if error.hint else [])]))


def _to_wire(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)


def _failed(message: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)


PATH = "/context"


class McpApp:
    """Checks tokens and scopes. issuer: the allowed Origin. hosts: the allowed Host headers, without ports."""

    def __init__(self, lab: LabTools, guard: Guard, issuer: str, hosts: Collection[str]) -> None:
        self._lab = lab
        self._guard = guard
        self._issuer = issuer
        self._hosts = hosts
        self._requested = asyncio.Event()

    def route(self) -> Route:
        return Route(PATH, self)

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        self._server: asyncio.Future[McpServer] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(self._run_server())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the SDK if its token allows it."""
        request = Request(scope, receive)
        try:
            scope[TOKEN_INFO] = info = await self._guard.authenticate(request)
            body = await _post_body(request)
            self._guard.require(info, required_scopes(body))
        except HTTPException as error:
            response = JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
            return await response(scope, receive, send)
        self._requested.set()
        return await (await asyncio.shield(self._server))(scope, _replay(body, receive), send)

    async def _run_server(self) -> None:
        """Import and start the SDK at the first request: the import is slow, and most labs never need it."""
        await self._requested.wait()
        try:
            server = (await asyncio.to_thread(_import_server))(self._lab, self._issuer, self._hosts)
            async with server.run():
                self._server.set_result(server)
                await asyncio.Event().wait()
        except Exception as error:
            if self._server.done():
                raise
            self._server.set_exception(error)


def _import_server() -> "type[McpServer]":

    return McpServer


def required_scopes(body: bytes) -> set[str]:
    """The scopes that the messages of a body need; everything but the call of a writing tool needs `lab:read`."""
    try:
        messages = from_json(body)
    except ValueError:
        return {READ}
    return {_scope_of(message) for message in (messages if isinstance(messages, list) else [messages])} or {READ}


def _scope_of(message: Any) -> str:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return READ
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    return TOOLS[name].scope if isinstance(name, str) and name in TOOLS else READ


async def _post_body(request: Request) -> bytes:
    if request.method != "POST":  # GET and DELETE belong to sessions, which are not kept
        raise HTTPException(405, "only POST is supported", headers={"Allow": "POST"})
    try:
        return await read_limited(request, MAX_BYTES)
    except ValueError as error:
        raise HTTPException(413, str(error)) from error


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that delivers a body which has been read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
