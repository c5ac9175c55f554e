"""MCP server at /context over stateless Streamable HTTP, behind OAuth bearer tokens.

Sessions are not kept, so that a renewed token continues where the old one was; each response is one JSON document. The
scope of a tool call is in the body, which is therefore read before the SDK gets it: a token without the scope gets the
challenge by which a client steps up.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.tools import MAX_BYTES, TOKEN_INFO, TOOLS
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.metadata import READ
from rolloutlab.service.oauth.params import read_limited

if TYPE_CHECKING:
    from rolloutlab.service.mcp.sdk_server import McpServer

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
    from rolloutlab.service.mcp.sdk_server import McpServer

    return McpServer


def required_scopes(body: bytes) -> set[str]:
    """Find the scopes that the messages of a body need: `lab:read`, except for the call of a tool that writes."""
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
    """Make a `receive` that delivers a body which has been read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
