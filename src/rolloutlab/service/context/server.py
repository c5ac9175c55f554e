"""Streamable HTTP at /context: the SDK speaks the protocol, and before it each request is checked.

Requests stand alone: no session is kept, so a token that was renewed goes on where the old one was, and an answer is
one JSON document. The scope that a call needs is in its body, which is therefore read before it is passed on: a token
without it gets the challenge by which a client steps up.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

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
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutlab.errors import RolloutlabError
from rolloutlab.service.context.memory import Memory
from rolloutlab.service.context.tools import TOOLS, Tool
from rolloutlab.service.oauth.form import whole
from rolloutlab.service.oauth.grants import Access
from rolloutlab.service.oauth.guard import Guard
from rolloutlab.service.oauth.resources import READ

PATH = "/context"

_LARGEST = 4 * 1024 * 1024
_ACCESS = "rolloutlab.access"
"""Where an ASGI scope holds who calls."""


class ContextServer:
    """The tools over a lab's memory. issuer: the origin that browsers may come from."""

    def __init__(self, memory: Memory, guard: Guard, issuer: str) -> None:
        self._memory = memory
        self._guard = guard
        server: Server[Any] = Server(
            "rolloutlab",
            version=version("rolloutlab"),
            title="rolloutlab",
            instructions="The memory of a lab: conversations of language models, with rewards.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        checks = TransportSecuritySettings(
            allowed_hosts=[host for name in ("127.0.0.1", "localhost", "[::1]") for host in (name, f"{name}:*")],
            allowed_origins=[issuer],
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, security_settings=checks, max_request_body_size=_LARGEST
        )

    def route(self) -> Route:
        """Where it is served."""
        return Route(PATH, _Guarded(self._manager.asgi_app, self._guard))

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """What has to be around the application while it serves."""
        async with self._manager.run():
            yield

    async def _list(self, _ctx: ServerRequestContext[Any], _params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_on_wire(tool) for tool in TOOLS.values()])

    async def _call(self, ctx: ServerRequestContext[Any, Request], params: CallToolRequestParams) -> CallToolResult:
        """The answer of a tool; what the lab refuses is an answer too, for the policy to read."""
        access: Access = ctx.request.scope[_ACCESS] if ctx.request else Access("", "", ())
        tool = TOOLS.get(params.name)
        if tool is None:
            return _failed(f"there is no tool {params.name!r}; the tools are {', '.join(TOOLS)}")
        if tool.scope not in access.scopes:  # checked before, too: two readers of one body may see two things
            return _failed(f"{tool.name} needs the scope {tool.scope}")
        try:
            return _answered(await run_in_threadpool(self._done, tool, params.arguments or {}, access.client_name))
        except RolloutlabError as error:
            return _failed("\n".join([error.message, *([f"-> {error.hint}"] if error.hint else [])]))

    def _done(self, tool: Tool, said: dict[str, Any], caller: str) -> dict[str, Any]:
        with self._memory.in_turn():
            return tool.call(self._memory, said, caller)


class _Guarded:
    """Lets a request through whose token allows what it asks for."""

    def __init__(self, inner: ASGIApp, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            scope[_ACCESS] = access = await self._guard.access(request)
            body = await _posted(request)
            self._guard.demand(access, needed(body))
        except HTTPException as refused:
            said = {"error": refused.detail}
            return await JSONResponse(said, refused.status_code, headers=refused.headers)(scope, receive, send)
        return await self._inner(scope, _again(body, receive), send)


def needed(body: bytes) -> set[str]:
    """The scopes that the messages of a body need; reading is what every one needs that is no call of a tool."""
    try:
        said = from_json(body)
    except ValueError:
        return {READ}
    return {_scope_of(message) for message in (said if isinstance(said, list) else [said])} or {READ}


def _scope_of(message: Any) -> str:
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return READ
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    return TOOLS[name].scope if isinstance(name, str) and name in TOOLS else READ


async def _posted(request: Request) -> bytes:
    if request.method != "POST":  # there is no session to listen to or to end
        raise HTTPException(405, "only POST is served here", headers={"Allow": "POST"})
    try:
        return await whole(request, _LARGEST)
    except ValueError as error:
        raise HTTPException(413, str(error)) from error


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for the next reader."""
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return rest.pop() if rest else await receive()

    return replay


def _on_wire(tool: Tool) -> ToolOnWire:
    hints = ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=False, open_world_hint=False)
    return ToolOnWire(name=tool.name, description=tool.description, input_schema=dict(tool.schema), annotations=hints)


def _answered(result: dict[str, Any]) -> CallToolResult:
    text = json.dumps(result, ensure_ascii=False)
    return CallToolResult(content=[TextContent(text=text)], structured_content=result)


def _failed(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)
