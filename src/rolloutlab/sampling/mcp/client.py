"""One context server: its tools, and calls of them, over one connection that many conversations share."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, Tool

from rolloutlab.api.http.proxy import proxy_of
from rolloutlab.auth.session import OAuthSession
from rolloutlab.errors import BrokenOffError, RefusedError, RolloutlabError, UnreachableError
from rolloutlab.sampling.mcp.auth import BearerAuth
from rolloutlab.sampling.mcp.limits import BoundedStream
from rolloutlab.sampling.mcp.tools import ContextTool
from rolloutlab.sanitize import escape_control_chars

T = TypeVar("T")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # else what it logs and we tell is in the cell twice

_PATIENCE = 60.0
"""Seconds without any byte of an answer."""
_IN_ALL = 600.0
"""Seconds that a tool may take, without those in which somebody signs in."""
_MOST = 16 << 20
"""Bytes of an answer that are read."""
_MOST_SAID = 1 << 20
"""Bytes of text that a tool may say: a policy reads all of it, and each trajectory keeps it."""
_PAGES = 50
"""Pages of a list of tools that are asked for."""
_LONGEST = 500


class McpConnection:
    """A context server at an address; everything is awaited on one event loop, or on another that took its place.

    in_all: seconds that a tool may take, without those in which somebody signs in.
    """

    def __init__(self, url: str, access: OAuthSession, *, in_all: float = _IN_ALL) -> None:
        self.url = url
        self._in_all = in_all
        self._bearer = BearerAuth(access)
        self._held: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[Client] | None = None
        self._end = asyncio.Event()

    async def tools(self) -> list[ContextTool]:
        """All of its tools.

        Raises:
            SignInError: it wants a sign-in, or more of it than was allowed. UnreachableError: nothing answers.
        """

        async def listed(client: Client) -> list[ContextTool]:
            found: list[ContextTool] = []
            cursor: str | None = None
            for _ in range(_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += map(self._tool, page.tools)
                cursor = page.next_cursor
                if cursor is None:
                    break
            return found

        return await self._with(listed)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """What a tool says to some arguments, as text, and whether that is an error of the tool.

        Raises:
            As `tools`; RefusedError: the server did not take the call, or says more than is read.
        """

        async def called(client: Client) -> tuple[str, bool]:
            result = await client.call_tool(name, dict(arguments))
            said = self._bearer.masked(_said(result))
            if len(said) > _MOST_SAID or len(said.encode("utf-8", "replace")) > _MOST_SAID:
                raise RefusedError(f"{self.url} says more than {_MOST_SAID >> 10:,} KiB of text, which are not kept")
            return said, bool(result.is_error)

        return await self._with(called)

    async def close(self) -> None:
        """End the connection."""
        self._end.set()
        if self._held and self._held.get_loop() is asyncio.get_running_loop():
            with suppress(Exception):
                await self._held

    async def _with(self, work: Callable[[Client], Awaitable[T]]) -> T:
        begun = time.monotonic()
        why: RolloutlabError
        try:
            return await self._in_time(work)
        except MCPError as error:
            why = RefusedError(f"{self.url} answered: {self._told(error)}")
        except RolloutlabError as error:
            why = error
        except Exception as error:  # noqa: BLE001 - the SDK has many ways to say that a connection is gone
            why = UnreachableError(f"{self.url} is no context server that answers: {self._told(error)}")
        why = self._bearer.failure_since(begun) or why
        why.message = self._bearer.masked(why.message)
        why.args = (why.message,)
        why.__context__ = why.__cause__ = None  # IPython shows a group of errors in its own way, and at length
        raise why.with_traceback(None)

    async def _in_time(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """What comes of it, if it comes in time; BrokenOffError if not."""

        async def done() -> T:
            return await work(await self._client())

        task, begun = asyncio.create_task(done()), time.monotonic() - self._bearer.paused
        try:
            while (left := begun + self._in_all - time.monotonic() + self._bearer.paused) > 0:
                if (await asyncio.wait({task}, timeout=left))[0]:
                    return task.result()
            raise BrokenOffError(f"{self.url} did not answer in {self._in_all:g} s")
        finally:
            task.cancel()

    def _told(self, error: BaseException) -> str:
        """What went wrong, in the words of a stranger, who may repeat what we sent."""
        return escape_control_chars(self._bearer.masked(_root(error)))[:_LONGEST]

    def _tool(self, told: Tool) -> ContextTool:
        described, schema = map(self._bearer.masked, (told.description or "", json.dumps(told.input_schema)))
        name = self._bearer.masked(told.name)
        return ContextTool(name, described, json.loads(schema), partial(self.call, told.name))

    async def _client(self) -> Client:
        """The open connection, a new one where the last has broken, or hangs with its loop."""
        here = asyncio.get_running_loop()
        if self._opened is None or self._held is None or self._held.done() or self._held.get_loop() is not here:
            self._end = asyncio.Event()
            self._opened = here.create_future()
            self._held = asyncio.create_task(self._hold(self._opened))
        return await asyncio.shield(self._opened)

    async def _hold(self, opened: "asyncio.Future[Client]") -> None:
        """Keep a connection open; it has to be entered and left by the same task."""
        try:
            async with (
                httpx2.AsyncClient(auth=self._bearer, timeout=_PATIENCE, transport=_transport(self.url)) as http,
                Client(streamable_http_client(self.url, http_client=http)) as client,
            ):
                opened.set_result(client)
                await self._end.wait()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the connection
            if not opened.done():
                opened.set_exception(error)


def _transport(url: str) -> BoundedStream:
    trusted = httpx2.create_ssl_context()  # by SSL_CERT_FILE too
    return BoundedStream(httpx2.AsyncHTTPTransport(verify=trusted, trust_env=False, proxy=proxy_of(url)), _MOST)


def _said(result: CallToolResult) -> str:
    """An answer as text; as JSON where it has no text for its structure."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)


def _root(error: BaseException) -> str:
    """The first reason in a group of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
