"""HTTP client for trusted services: an event loop in a thread, connection pools, retries, tokens, event streams."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import aiohttp
import httpx
from pydantic_core import from_json

from rolloutlab.api.http.errors import status_error
from rolloutlab.api.http.retries import Retries
from rolloutlab.api.http.secrecy import Bearers, TokenSource, Unencrypted, is_secret
from rolloutlab.api.http.transport import (
    ProxyRouter,
    connection_error,
    failure_reason,
    lines_of,
    not_connected,
    origin,
    parse_url,
)
from rolloutlab.errors import BrokenOffError, ServiceError, SignInError, UnreachableError, interrupted
from rolloutlab.fsutil import NONE_LEFT, TO_HAVE_MORE, short_of_descriptors
from rolloutlab.runtime import LoopThread
from rolloutlab.sanitize import join_surrogates

T = TypeVar("T")

BodyFactory = Callable[[], AsyncIterator[bytes]]
"""Makes the chunks of a body, from its beginning each time that it is sent."""

MAX_CONNECTIONS = 512
"""Concurrent requests; further ones wait for a connection."""

_TIMED_OUT = 408
_END_TIMEOUT = 0.5  # seconds for what runs when the connections are closed
_REST_TIMEOUT = 0.1  # seconds for the end of a response after its last event; some servers hold the connection
_DONE = "[DONE]"
"""The data of the last event of a stream."""
DEFAULT_HEADERS = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "rolloutlab"}


class Tries(Protocol):
    """Called around each try of a request, for example to count what paid requests cost."""

    async def begin(self) -> None:
        """Called before a try; an exception ends the request."""

    def failed(self, *, reached: bool) -> None:
        """Called after a failed try. reached: whether the server may have done the work."""


@dataclass(frozen=True)
class _Body:
    """Body, query and headers of a request."""

    json: Any
    content: str | BodyFactory | None
    params: Mapping[str, str | int] | None
    headers: Mapping[str, str]


class _StreamedBody:
    """A body that is generated again for each try. failure: what its generator raised in the last try, if anything."""

    def __init__(self, factory: BodyFactory) -> None:
        self._factory = factory
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.failure = None
        try:
            async for chunk in self._factory():
                yield chunk
        except Exception as error:
            self.failure = error
            raise


class HttpClient:
    """Connection pools and the event loop that owns them, in a daemon thread.

    Args:
        transport: Replaces real connections, for tests.
        tries: How many tries of a request may fail.
        backoff: Seconds before the second try; see `Retries`.

    Attributes:
        unencrypted: The http addresses to which keys may go.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, *, tries: int = 4, backoff: float = 0.2
    ) -> None:
        self._transport = transport
        self._tries = tries
        self._backoff = backoff
        self._background: set[Future[Any]] = set()
        self._loop = LoopThread("rolloutlab-http", self._end)
        self.unencrypted = Unencrypted()

    def retries(self) -> Retries:
        """Make the backoff policy of one request."""
        return Retries(self._tries, self._backoff)

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine in the background, until its future is cancelled, or `close` does it."""
        self._start_for(work)
        future = self._loop.submit(work)
        self._background.add(future)
        future.add_done_callback(self._background.discard)
        return future

    def begin(self, work: Coroutine[Any, Any, object]) -> "Future[Any]":
        """Run a coroutine in the background as `submit` does, and log its exception."""
        future = self.submit(work)
        future.add_done_callback(_log_failure)
        return future

    def run(
        self,
        work: Coroutine[Any, Any, T],
        tick: Callable[[], None] | None = None,
        every: float = 0.1,
        *,
        to_its_end: bool = False,
    ) -> T:
        """Run a coroutine, as `LoopThread.run` does. UnreachableError: no file descriptor is left for the loop."""
        self._start_for(work)
        try:
            return self._loop.run(work, tick, every, to_its_end=to_its_end)
        except KeyboardInterrupt as error:
            interrupted(error, "interrupted while waiting for a response", "run the cell again")
            raise

    async def request(
        self,
        method: str,
        url: str,
        *,
        token: str | Bearers | None = None,
        json: Any = None,
        content: str | BodyFactory | None = None,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        retry: bool | None = None,
        tries: Tries | None = None,
    ) -> Any:
        """Send a request and return the JSON of the response.

        Args:
            method: The method, such as `GET`.
            url: The URL.
            token: A bearer token, or a source of tokens; None sends none.
            json: A value to send as JSON.
            content: A JSON text to send instead, or a function that streams one.
            params: Parameters of the query.
            headers: Further headers.
            timeout: The largest number of seconds without a byte of the response.
            retry: Whether to try again if that can help; None does so for GET and DELETE only.
            tries: Called before each try, and after each failed one.

        Raises:
            UnreachableError: there is no connection.
            SignInError: 401 or 403.
            NotFoundError: 404, 405 or 501.
            RefusedError: another 4xx, or a redirect.
            ServiceError: another 5xx, or a response that is not JSON.
            InputError: a key or token would be sent unencrypted.
        """
        body = _Body(json, content, params, headers or {})
        retry = method in {"GET", "DELETE"} if retry is None else retry
        return _parse_response(await self._send(method, url, token, body, timeout, retry=retry, tries=tries))

    async def events(
        self,
        url: str,
        *,
        token: str | Bearers | None = None,
        content: str,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        tries: Tries | None = None,
    ) -> AsyncGenerator[str, None]:
        """POST, and yield the `data:` of each server-sent event, or the whole text of a response of another type.

        The request is retried until a response begins. The response ends with `data: [DONE]`, or else with its body.

        Args:
            url: The URL.
            token: A bearer token, or a source of tokens; None sends none.
            content: A JSON text.
            headers: Further headers.
            timeout: The largest number of seconds without a byte of the response.
            tries: Called before each try, and after each failed one.

        Raises:
            BrokenOffError: the response broke off.
            RolloutlabError: the errors of `request`.
        """
        body = _Body(None, content, None, {**(headers or {}), "Accept": "text/event-stream"})
        response = await self._send("POST", url, token, body, timeout, retry=True, stream=True, tries=tries)
        try:
            if not response.is_success:
                await response.aread()
                _parse_response(response)
            if "text/event-stream" not in response.headers.get("Content-Type", "").lower():
                yield (await response.aread()).decode(errors="replace")
                return
            lines = lines_of(response.aiter_bytes())
            async for data in _data_of(lines):
                yield data
            await _read_to_end(lines)
        except (httpx.RequestError, aiohttp.ClientError) as error:
            raise BrokenOffError(f"the response of {origin(url)} broke off: {failure_reason(error)}") from error
        finally:
            await response.aclose()

    async def download(
        self,
        url: str,
        *,
        token: str | Bearers | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> AsyncGenerator[bytes, None]:
        """GET, and yield the body of the response as it arrives. The request is retried until a response begins.

        Args:
            url: The URL.
            token: A bearer token, or a source of tokens; None sends none.
            headers: Further headers.
            timeout: The largest number of seconds without a byte of the response.

        Raises:
            BrokenOffError: the response broke off.
            RolloutlabError: the errors of `request`.
        """
        body = _Body(None, None, None, {**(headers or {}), "Accept-Encoding": "identity"})
        response = await self._send("GET", url, token, body, timeout, retry=True, stream=True)
        try:
            if not response.is_success:
                await response.aread()
                _parse_response(response)
            async for chunk in response.aiter_bytes():
                yield chunk
        except (httpx.RequestError, aiohttp.ClientError) as error:
            raise BrokenOffError(f"the response of {origin(url)} broke off: {failure_reason(error)}") from error
        finally:
            await response.aclose()

    async def _send(
        self,
        method: str,
        url: str,
        token: str | Bearers | None,
        body: "_Body",
        timeout: float,
        *,
        retry: bool,
        stream: bool = False,
        tries: Tries | None = None,
    ) -> httpx.Response:
        kind = {"Content-Type": "application/json"} if body.content is not None else {}
        streamed, text = (_StreamedBody(body.content), None) if callable(body.content) else (None, body.content)
        request = httpx.Request(
            method,
            parse_url(url),
            json=body.json,
            content=streamed or text,
            params=body.params,
            headers={**DEFAULT_HEADERS, **kind, **body.headers},
            extensions={"timeout": httpx.Timeout(timeout, connect=5.0).as_dict()},
        )
        retries = self.retries() if retry else Retries(1, self._backoff)
        source = None if isinstance(token, str | None) else token.of(url)
        while True:
            bearer = await source.token() if source else token if isinstance(token, str) else None
            request.headers.update(_authorization(bearer))
            if request.url.scheme != "https":
                self.unencrypted.check(str(request.url), request.headers)
            try:
                response = await self._try(request, stream, tries)
            except (httpx.RequestError, aiohttp.ClientError) as error:
                if streamed and streamed.failure:  # the transport reports it as a broken connection
                    raise streamed.failure from error
                pause = retries.after_failure()
                if pause is None:
                    raise connection_error(url, error, direct=self.unencrypted.allows(url)) from error
            else:
                if source and await _renew_token(source, response, f"{method} {request.url.path}", bearer):
                    continue
                pause = retries.after_answer(response.status_code, response.headers)
                if pause is None:
                    return response
                await response.aclose()
            await asyncio.sleep(pause)

    async def _try(self, request: httpx.Request, stream: bool, tries: Tries | None) -> httpx.Response:
        """Send a request once, and report the try to `tries`."""
        if tries is None:
            return await self._send_once(request, stream=stream)
        await tries.begin()
        try:
            response = await self._send_once(request, stream=stream)
        except (httpx.RequestError, aiohttp.ClientError) as error:
            tries.failed(reached=not not_connected(error))
            raise
        if not response.is_success:
            tries.failed(reached=response.status_code >= 500 or response.status_code == _TIMED_OUT)
        return response

    async def _send_once(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        try:
            # not httpx.AsyncClient: it would add cookies and redirects only, at twice the CPU time
            response = await self._connections.handle_async_request(request)
        except OSError as error:  # from reading certificates, before the connection
            if not short_of_descriptors(error):
                raise
            raise httpx.ConnectError(NONE_LEFT) from error
        response.request = request
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response

    def close(self) -> None:
        """Close the connections and end the loop."""
        self._loop.close()

    def _start_for(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start the loop. If that fails, close the coroutine that was to run on it, and raise."""
        try:
            self._loop.start()
        except OSError as error:
            work.close()
            if not short_of_descriptors(error):
                raise
            raise UnreachableError(f"no connection can be made: {NONE_LEFT}", hint=TO_HAVE_MORE) from error

    def _end(self) -> Coroutine[Any, Any, None]:
        """Make the coroutine that ends the tasks and connections of the present loop. The next loop has new ones."""
        background, self._background = self._background, set()
        return _shut_down(background, self.__dict__.pop("_connections", None))

    @cached_property
    def _connections(self) -> httpx.AsyncBaseTransport:
        return self._transport or ProxyRouter(MAX_CONNECTIONS, self.unencrypted)


async def _data_of(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the data of each event before `[DONE]`, except empty data, which only keeps the connection open.

    An event ends with an empty line. Some servers leave that out, so a JSON text that is whole also ends it.
    """
    event: list[str] = []
    async for line in lines:
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data and data != _DONE:
            event.append(data)
        if event and (not line or data == _DONE or (data and _is_whole(event))):
            yield "\n".join(event)
            event = []
        if data == _DONE:
            return
    if event:
        yield "\n".join(event)


def _is_whole(event: Sequence[str]) -> bool:
    try:
        json.loads("\n".join(event))
    except (ValueError, RecursionError):
        return False
    return True


async def _read_to_end(lines: AsyncIterator[str]) -> None:
    """Read what comes after the last event, so that the connection can be used again. How it ends does not matter."""
    with suppress(TimeoutError, httpx.RequestError, aiohttp.ClientError):
        async with asyncio.timeout(_REST_TIMEOUT):
            async for _ in lines:
                pass


def _log_failure(future: "Future[Any]") -> None:
    if not future.cancelled() and (error := future.exception()):
        logging.getLogger(__name__).error("a background task failed", exc_info=error)


async def _shut_down(background: "set[Future[Any]]", connections: httpx.AsyncBaseTransport | None) -> None:
    for future in background:
        future.cancel()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:  # such as the renewal of a token, which is lost if its response is not read
        await asyncio.wait(others, timeout=_END_TIMEOUT)
    if connections:
        await connections.aclose()


def _parse_response(response: httpx.Response) -> Any:
    if not response.is_success:
        sent = [value.removeprefix("Bearer ") for name, value in response.request.headers.items() if is_secret(name)]
        status, reason, location = response.status_code, response.reason_phrase, response.headers.get("Location")
        raise status_error(origin(str(response.url)), status, reason, response.content, sent, location)
    with suppress(ValueError):
        return from_json(response.content)
    with suppress(ValueError, RecursionError):
        return join_surrogates(json.loads(response.content))
    raise ServiceError(f"{origin(str(response.url))} answered with something that is not JSON")


async def _renew_token(source: TokenSource, response: httpx.Response, operation: str, token: str | None) -> bool:
    """Give a response to the source of its token, and return whether to try again.

    If so, or if the source raises, the response is closed.
    """
    renewed = True
    try:
        renewed = await source.after(response.status_code, response.headers.multi_items(), operation, token)
    finally:
        if renewed:
            await response.aclose()
    return renewed


def _authorization(token: str | None) -> dict[str, str]:
    if token and not (token.isascii() and token.isprintable()):
        raise SignInError("the token has characters that no header can contain", hint="ROLLOUTLAB_API_KEY")
    return {"Authorization": f"Bearer {token}"} if token else {}
