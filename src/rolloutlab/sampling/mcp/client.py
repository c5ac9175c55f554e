"""MCP client: one connection to a server, shared by many conversations; bearer tokens, limits of responses."""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Tool
from pydantic import ValidationError

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import IDLE_SECONDS, certificates, proxy_of
from rolloutlab.auth.session import OAuthSession
from rolloutlab.errors import BrokenOffError, RefusedError, RolloutlabError, SignInError, UnreachableError
from rolloutlab.sampling.mcp.answers import ReadStream
from rolloutlab.sampling.mcp.tools import ContextTool
from rolloutlab.sanitize import escape_control_chars

_REMEMBERED = 100  # tokens that are masked in texts; older ones have expired, because each is used for minutes


class BearerAuth(httpx2.Auth):
    """Attaches the token to every request, and repeats a request after a renewal or a step-up."""

    requires_request_body = True

    def __init__(self, access: OAuthSession) -> None:
        self._access = access
        self._failure: tuple[float, RolloutlabError] | None = None
        self._sent: deque[str] = deque(maxlen=_REMEMBERED)
        self._waiting = 0
        self._paused = 0.0
        self._since = 0.0

    @property
    def paused(self) -> float:
        """Seconds in which requests waited for a sign-in. They do not count as the time of a tool."""
        return self._paused + (time.monotonic() - self._since if self._waiting else 0.0)

    def failure_since(self, begun: float) -> RolloutlabError | None:
        """Return the error that ended a request since a time; None if none did.

        The SDK reports only that a connection was closed.
        """
        return self._failure[1] if self._failure and self._failure[0] >= begun else None

    def mask(self, text: str) -> str:
        """Mask the tokens that were sent to the server in a text of the server."""
        for token in sorted(self._sent, key=len, reverse=True):  # the longer first: one may begin with another
            text = text.replace(token, "...")
        return text

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        operation, again = operation_of(await request.aread()), True  # a redirected request has not been read yet
        try:
            while again:
                token = await self._access.token()
                if token:
                    if token not in self._sent:
                        self._sent.append(token)
                    request.headers["Authorization"] = f"Bearer {token}"
                    Unencrypted().check(str(request.url), request.headers)
                response = yield request
                headers = response.headers.multi_items()
                with self._count_as_waiting():
                    again = await self._access.after(response.status_code, headers, operation, token)
                if response.status_code == 401 and not again:
                    server = self._access.server
                    raise SignInError(f"{server} wants you to sign in", hint=f"%login {server}")
        except RolloutlabError as error:
            self._failure = time.monotonic(), error
            raise

    @contextmanager
    def _count_as_waiting(self) -> Iterator[None]:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._paused += time.monotonic() - self._since


def operation_of(body: bytes) -> str:
    """Return the operation of a JSON-RPC request, by which tries are counted: `tools/call search`, or the method."""
    try:
        message = json.loads(body)
        name = (message.get("params") or {}).get("name", "")
        return f"{message.get('method', '')} {name}".strip()
    except (ValueError, AttributeError):
        return ""


class _SessionWatch(httpx2.AsyncBaseTransport):
    """A transport that finds out why a server did not answer a call, and retries a busy server.

    The reason may be the call itself, or that the server has lost the session. The SDK passes on the error of a
    response without its status, so the reason is put into the data of the error. ended: whether a connection was
    refused, as by a server that has ended.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport
        self.ended = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        retries = Retries(_TRIES, _BACKOFF)
        while True:
            try:
                response = await self._transport.handle_async_request(request)
            except httpx2.ConnectError:
                self.ended = True
                raise
            if request.method != "POST" or response.status_code not in _BUSY:
                break
            if (pause := retries.after_answer(response.status_code, response.headers)) is None:
                break
            await response.aclose()
            await asyncio.sleep(pause)
        status, in_session = response.status_code, "mcp-session-id" in request.headers
        # the errors of other requests stay as they are: the SDK finds the version of the protocol by them
        if status < 400 or status == 401 or not operation_of(await request.aread()).startswith("tools/"):
            return response
        body = await response.aread()
        await response.aclose()
        challenges = [("WWW-Authenticate", each) for each in response.headers.get_list("WWW-Authenticate")]
        return httpx2.Response(status, headers=challenges, json=_mark_error(status, body, in_session=in_session))

    async def aclose(self) -> None:
        await self._transport.aclose()


def _mark_error(status: int, body: bytes, *, in_session: bool) -> dict[str, Any]:
    """Return the JSON-RPC error of a response to a call, marked if it is not, or may not be, about the call.

    By the protocol the status for a lost session is 404. Servers also answer 400 or 410, and a gateway before a server
    may answer anything.
    """
    try:
        error = json.loads(body)["error"]
        code, message = int(error["code"]), str(error["message"])
        of_session = in_session and code not in _OF_THE_CALL
        names_it = status in {404, 410} or "session" in message.lower()
        # a server may use other words for it, such as "Server not initialized": `_run_in_session` asks it
        mark = (_LOST if names_it else _UNCLEAR if status == 400 else None) if of_session else None
    except (ValueError, LookupError, TypeError):
        words = " ".join(body.decode(errors="replace").split())[:_MAX_ERROR]
        code, message = INVALID_REQUEST, f"{status} {words or 'without a reason'}"
        mark = _AWAY if status in _OF_GATEWAYS else _LOST if in_session and status in {400, 404, 410} else _UNCLEAR
    mark = _AWAY if status in _BUSY else mark
    return {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": code, "message": message, **({"data": mark} if mark else {})},
    }


class ResponseTooLargeError(httpx2.SSEError, httpx2.StreamError):
    """A response is too large. With both base classes, the SDK fails only the request that the response belongs to."""


class BoundedStream(httpx2.AsyncBaseTransport):
    """Reads at most `max_bytes` of each response, and none that is compressed, as that could expand to any size."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, max_bytes: int) -> None:
        self._transport = transport
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await self._transport.handle_async_request(request)
        compressed = response.headers.get("Content-Encoding", "identity").lower() != "identity"
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CountedStream(response.stream, self._max_bytes, compressed=compressed)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _CountedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int, *, compressed: bool) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._compressed = compressed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._compressed:
            raise ResponseTooLargeError("a compressed response, which was not asked for, was not read")
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > self._max_bytes:
                raise ResponseTooLargeError(f"a response of more than {self._max_bytes >> 10:,} KiB was not read")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


T = TypeVar("T")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # without it, a cell shows its errors twice

_READ_TIMEOUT = 60.0  # seconds without any byte of a response
_IN_ALL = 600.0  # seconds for a tool, without those of a sign-in
_MAX_BYTES = 16 << 20  # of a response
_MAX_RESULT = 1 << 20  # bytes of a tool's result: a policy reads all of it, and each trajectory stores it
_MAX_PAGES = 50
_MAX_ERROR = 500
# marks of an error: the session is lost; it may be lost; there is no server, or it is busy
_LOST, _UNCLEAR, _AWAY = (f"rolloutlab: {why}" for why in ("the session is lost", "no reason", "no server"))
_BUSY, _OF_GATEWAYS = {429, 503}, {502, 504}
_TRIES, _BACKOFF = 4, 0.2
_OF_THE_CALL = {METHOD_NOT_FOUND, INVALID_PARAMS, -32002}  # the last one: MCP's own for a resource that is not there


class _Link:
    """A connection that is open, or being opened.

    held: the task that keeps it open. end: ends that task when it is set. calls: the number of calls under way.
    replaced: whether a new connection has taken its place; then the end of the last call ends it.
    """

    def __init__(self) -> None:
        self.opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.end = asyncio.Event()
        self.watch: _SessionWatch | None = None
        self.held: asyncio.Task[None] | None = None
        self.calls = 0
        self.replaced = False


class McpConnection:
    """A connection to an MCP server. Its methods are awaited on one event loop, or later on one that replaced it.

    in_all: seconds that a tool call may take, without the time of a sign-in.
    incomplete: why `tools` may not have read all tools; "" if it has.
    """

    def __init__(self, url: str, access: OAuthSession, *, in_all: float = _IN_ALL) -> None:
        self.url = url
        self._in_all = in_all
        self._bearer = BearerAuth(access)
        self._link: _Link | None = None
        self._left_out: list[str] = []
        self.incomplete = ""

    async def tools(self) -> list[ContextTool]:
        """Read all tools of the server, and set `incomplete`.

        Raises:
            SignInError: the server requires a sign-in, or one with more rights. UnreachableError: nothing answers.
        """

        async def list_pages(client: Client) -> list[ContextTool]:
            tools: dict[str, ContextTool] = {}
            cursor: str | None = None
            seen: set[str] = set()
            self.incomplete = ""
            self._left_out.clear()
            while True:
                page = await client.list_tools(cursor=cursor)
                tools |= {tool.name: self._make_tool(tool) for tool in page.tools}
                if not (cursor := page.next_cursor):  # some servers send "" with the last page
                    return list(tools.values())
                if cursor in seen or len(seen) == _MAX_PAGES:
                    again = "names a page of its tools again" if cursor in seen else f"has more than {_MAX_PAGES} pages"
                    self.incomplete = f"{self.url} {again}: {len(tools)} tools were read, there may be others"
                    return list(tools.values())
                seen.add(cursor)

        tools = await self._run(list_pages)
        if self._left_out:
            names = self._bearer.mask(", ".join(dict.fromkeys(self._left_out)))
            left_out = f"{self.url} describes tools in a form that cannot be read, which are left out: {names}"
            self.incomplete = "; ".join(filter(None, [self.incomplete, escape_control_chars(left_out)[:_MAX_ERROR]]))
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool; return its result as text, and whether that is an error of the tool.

        Raises:
            As `tools`; RefusedError: the server refused the call, or its result is too long. UnreachableError also if
            the server has ended, or has lost the session and does not begin another one.
        """

        async def call_tool(client: Client) -> tuple[str, bool]:
            result = await client.call_tool(name, dict(arguments))
            text = self._bearer.mask("\n".join(block.text for block in result.content if block.type == "text"))
            if len(text) > _MAX_RESULT or len(text.encode("utf-8", "replace")) > _MAX_RESULT:
                raise RefusedError(f"{self.url} returned more than {_MAX_RESULT >> 10:,} KiB of text")
            return text, bool(result.is_error)

        return await self._run(call_tool)

    async def close(self) -> None:
        """End the connection."""
        if self._link is None or self._link.held is None:
            return
        self._link.end.set()
        if self._link.held.get_loop() is asyncio.get_running_loop():
            with suppress(Exception):
                await self._link.held

    async def _run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run work on a connection; raise its errors as RolloutlabErrors, with tokens masked."""
        begun = time.monotonic()
        failure: RolloutlabError
        try:
            return await self._run_in_time(work)
        except MCPError as error:
            failure = RefusedError(f"{self.url} answered: {self._reason_of(error)}")
        except ValidationError as error:  # one answer cannot be read; the server may answer other calls
            failure = RefusedError(f"{self.url} answered: {self._reason_of(error)}")
        except RolloutlabError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the SDK raises many types when a connection is gone
            failure = UnreachableError(f"{self.url} is not a context server that answers: {self._reason_of(error)}")
        failure = self._bearer.failure_since(begun) or failure
        failure.message = self._bearer.mask(failure.message)
        failure.args = (failure.message,)
        failure.__context__ = failure.__cause__ = None  # IPython would show the SDK's exception groups at length
        raise failure.with_traceback(None)

    async def _run_in_time(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run work in a session; raise BrokenOffError after the most seconds that a tool call may take."""
        task, begun = asyncio.create_task(self._run_in_session(work)), time.monotonic() - self._bearer.paused
        try:
            while (left := begun + self._in_all - time.monotonic() + self._bearer.paused) > 0:
                if (await asyncio.wait({task}, timeout=left))[0]:
                    return task.result()
            raise BrokenOffError(f"{self.url} did not answer in {self._in_all:g} s")
        finally:
            task.cancel()

    async def _run_in_session(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run work in a session; once more in a new one, if the server does not know this one any more."""
        link = await self._open()
        try:
            return await self._run_through(link, work)
        except MCPError as error:
            if (link.watch and link.watch.ended) or error.data == _AWAY:
                raise self._ended_error(error) from None
            if error.data != _LOST and (error.data != _UNCLEAR or await self._run_through(link, self._is_known)):
                raise
        link.replaced = True
        another = await self._open()
        try:
            return await self._run_through(another, work)
        except MCPError as error:
            if error.data == _AWAY:
                raise self._ended_error(error) from None
            if error.data not in {_LOST, _UNCLEAR} or await self._run_through(another, self._is_known):
                raise
            message = f"{self.url} does not know the session that it has just begun: {self._reason_of(error)}"
            raise UnreachableError(message) from None

    async def _is_known(self, client: Client) -> bool:
        """Return whether the server knows the session. If it does, an error was about the call alone."""
        try:
            await client.list_tools(cache_mode="refresh")
        except MCPError as error:
            return error.data not in {_LOST, _UNCLEAR, _AWAY}
        return True

    def _ended_error(self, error: MCPError) -> UnreachableError:
        return UnreachableError(f"{self.url} does not answer any more: {self._reason_of(error)}")

    async def _run_through(self, link: _Link, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run work on a connection, and end the connection after it if that is replaced and not used any more."""
        link.calls += 1
        try:
            return await work(link.opened.result())
        finally:
            link.calls -= 1
            if link.replaced and not link.calls:  # not before: others may still be answered
                link.end.set()

    def _reason_of(self, error: BaseException) -> str:
        """Return the message of an error, without control characters and tokens, which a server may put into it."""
        return escape_control_chars(self._bearer.mask(_root_message(error)))[:_MAX_ERROR]

    def _make_tool(self, tool: Tool) -> ContextTool:
        description, schema = map(self._bearer.mask, (tool.description or "", json.dumps(tool.input_schema)))
        name = self._bearer.mask(tool.name)
        return ContextTool(name, description, json.loads(schema), partial(self.call, tool.name))

    async def _open(self) -> _Link:
        """Return the open connection; open a new one if it is broken, has lost its session, or is of another loop."""
        here, link = asyncio.get_running_loop(), self._link
        if link is None or link.replaced or not link.held or link.held.done() or link.held.get_loop() is not here:
            self._link = link = _Link()
            link.held = asyncio.create_task(self._hold(link))
        try:
            await asyncio.shield(link.opened)
        except (MCPError, ValidationError) as error:
            raise UnreachableError(f"{self.url} begins no session: {self._reason_of(error)}") from None
        return link

    async def _hold(self, link: _Link) -> None:
        """Keep a connection open until its `end`. The SDK requires that one task enters and leaves it."""
        try:
            link.watch = _SessionWatch(_transport(self.url))
            async with (
                httpx2.AsyncClient(auth=self._bearer, timeout=_READ_TIMEOUT, transport=link.watch) as http,
                Client(self._messages(http)) as client,
            ):
                link.opened.set_result(client)
                await link.end.wait()
        except Exception as error:  # noqa: BLE001 - raised in the tasks that wait for the connection
            if not link.opened.done():
                link.opened.set_exception(error)

    @asynccontextmanager
    async def _messages(self, http: httpx2.AsyncClient) -> AsyncGenerator[Any, None]:
        async with streamable_http_client(self.url, http_client=http) as (received, sent):
            yield ReadStream(received, self._left_out), sent


def _transport(url: str) -> BoundedStream:
    encrypted = url.startswith("https") or bool(proxy_of(url))
    trusted = certificates(httpx2.create_ssl_context) if encrypted else False  # reads SSL_CERT_FILE too
    limits = httpx2.Limits(keepalive_expiry=IDLE_SECONDS)
    connections = httpx2.AsyncHTTPTransport(verify=trusted, trust_env=False, proxy=proxy_of(url), limits=limits)
    return BoundedStream(connections, _MAX_BYTES)


def _root_message(error: BaseException) -> str:
    """Return the message of the first exception in a group. If an answer has a wrong form, that is one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False)[0]
        return f"the result cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    if isinstance(error, MCPError) and error.code == PARSE_ERROR and "validation error" in str(error):  # the SDK's own
        return "the result cannot be read: it is no message of the protocol"
    return str(error) or type(error).__name__
