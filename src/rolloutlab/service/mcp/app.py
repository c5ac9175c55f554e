"""Streamable HTTP at /context: before the protocol is spoken, each request is checked.

Requests stand alone: no session is kept, so a token that was renewed goes on where the old one was, and an answer is
one JSON document. The scope that a call needs is in its body, which is therefore read before it is passed on: a token
without it gets the challenge by which a client steps up.
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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.tools import TOOLS
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.metadata import READ
from rolloutlab.service.oauth.params import whole

if TYPE_CHECKING:
    from rolloutlab.service.mcp.sdk_server import McpServer

PATH = "/context"
ACCESS = "rolloutlab.access"
"""Where an ASGI scope holds who calls."""
LARGEST = 4 * 1024 * 1024
"""Bytes of a request."""


class McpApp:
    """The tools over a lab's memory. issuer: the origin that browsers may come from. hosts: what it is asked for as."""

    def __init__(self, memory: LabTools, guard: Guard, issuer: str, hosts: Collection[str]) -> None:
        self._memory = memory
        self._guard = guard
        self._issuer = issuer
        self._hosts = hosts
        self._asked = asyncio.Event()

    def route(self) -> Route:
        """Where it is served."""
        return Route(PATH, _Guarded(self._answer, self._guard))

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """What has to be around the application while it serves."""
        self._speaker: asyncio.Future[McpServer] = asyncio.get_running_loop().create_future()
        speaking = asyncio.create_task(self._speak())
        try:
            yield
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._asked.set()
        await (await asyncio.shield(self._speaker))(scope, receive, send)

    async def _speak(self) -> None:
        """From the first request on: what speaks the protocol takes a while to load, and most labs are never asked."""
        await self._asked.wait()
        try:
            speaker = (await asyncio.to_thread(_speaker))(self._memory, self._issuer, self._hosts)
            async with speaker.run():
                self._speaker.set_result(speaker)
                await asyncio.Event().wait()
        except Exception as error:
            if self._speaker.done():
                raise
            self._speaker.set_exception(error)


def _speaker() -> "type[McpServer]":
    from rolloutlab.service.mcp.sdk_server import McpServer

    return McpServer


class _Guarded:
    """Lets a request through whose token allows what it asks for."""

    def __init__(self, inner: ASGIApp, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            scope[ACCESS] = access = await self._guard.access(request)
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
        return await whole(request, LARGEST)
    except ValueError as error:
        raise HTTPException(413, str(error)) from error


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for the next reader."""
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return rest.pop() if rest else await receive()

    return replay
