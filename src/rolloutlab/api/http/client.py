"""One loop, one pool, every request to a service that is trusted; `untrusted.py` asks the others."""

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import aiohttp
import httpx
from pydantic_core import from_json

from rolloutlab.api.http.errors import refusal
from rolloutlab.api.http.retries import Retries
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import Ways, checked, lines_of, origin, unanswered, why_not
from rolloutlab.errors import BrokenOffError, ServiceError, SignInError, UnreachableError, interrupted
from rolloutlab.fsutil import NONE_LEFT, TO_HAVE_MORE, short_of_descriptors
from rolloutlab.settings import Bearers, TokenSource

T = TypeVar("T")

Pieces = Callable[[], AsyncIterator[bytes]]
"""A body as it is made, from its beginning each time that it is sent."""

MAX_CONNECTIONS = 512
"""Requests under way at once; what is more waits for a connection."""

_LONGEST_CLEAN_UP = 0.5
_LONGEST_SILENCE = 0.2
SAID_OF_US = {"Accept": "*/*", "Accept-Encoding": "gzip, deflate", "User-Agent": "rolloutlab"}


@dataclass(frozen=True)
class _Body:
    """What a request carries."""

    json: Any
    content: str | Pieces | None
    params: Mapping[str, str | int] | None
    headers: Mapping[str, str]


class _Made:
    """A body that is made anew whenever it is read. failure: why it could not be made to its end, the last time."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self.failure: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.failure = None
        try:
            async for piece in self._pieces():
                yield piece
        except Exception as error:
            self.failure = error
            raise


class HttpClient:
    """A pool of connections and the event loop that owns it, in a daemon thread, for as long as the process lives.

    transport: for tests; by default real connections. unencrypted: the http addresses that keys may go to.
    """

    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, *, tries: int = 4, backoff: float = 0.2
    ) -> None:
        self._transport = transport
        self._tries = tries
        self._backoff = backoff
        self._background: set[Future[Any]] = set()
        self.unencrypted = Unencrypted()

    def retries(self) -> Retries:
        """How one request is tried again."""
        return Retries(self._tries, self._backoff)

    def begin(self, work: Coroutine[Any, Any, object]) -> "Future[Any]":
        """Have a coroutine run on the loop while nobody waits for it; what it raises is logged.

        It is cancelled when the connections are closed.
        """
        begun: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._background.add(begun)
        begun.add_done_callback(self._background.discard)
        begun.add_done_callback(_log_failure)
        return begun

    def run(
        self,
        work: Coroutine[Any, Any, T],
        tick: Callable[[], None] | None = None,
        every: float = 0.1,
        *,
        to_its_end: bool = False,
    ) -> T:
        """Run a coroutine on the loop while this thread waits for it and calls `tick` every so many seconds.

        Whatever interrupts the wait, a KeyboardInterrupt above all, cancels the coroutine, lets it end, and is raised.
        to_its_end: wait for that end however long it takes, as for a slow disk; a second interrupt ends that wait.
        """
        outcome: Future[T] = Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(asyncio.ensure_future(work))
            begun[0].add_done_callback(lambda task: _settle(outcome, task))

        try:
            loop = self._loop
        except UnreachableError:
            work.close()
            raise
        try:
            loop.call_soon_threadsafe(begin)
            while True:
                try:
                    return outcome.result(timeout=every)
                except FutureTimeoutError:
                    if outcome.done():
                        return outcome.result()
                    if tick:
                        tick()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                interrupted(error, "it was interrupted while it waited for an answer", "run the cell again")
            if not outcome.done():  # the loop comes to this after `begin`, however early the interrupt is
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in begun])
                self._let_end(outcome, to_its_end)
            raise

    def _let_end(self, outcome: "Future[Any]", to_its_end: bool) -> None:
        """Wait a moment for what was cancelled. Where it never lets go of the loop, the next call gets another one."""
        if to_its_end:
            wait([outcome])
            return
        alive = threading.Event()
        if not wait([outcome], timeout=_LONGEST_CLEAN_UP).done:
            self._loop.call_soon_threadsafe(alive.set)
            if not alive.wait(_LONGEST_SILENCE):
                connections = self.__dict__.get("_connections")
                asyncio.run_coroutine_threadsafe(self._farewell(connections), self._loop)
                self._forget()

    async def request(
        self,
        method: str,
        url: str,
        *,
        token: str | Bearers | None = None,
        json: Any = None,
        content: str | Pieces | None = None,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 60.0,
        retry: bool | None = None,
    ) -> Any:
        """The JSON of the answer. GET and DELETE are tried again when that can help; others only with `retry`.

        content: a JSON text, or one that is made while it is sent.
        patience: seconds without any byte of an answer.

        Raises:
            UnreachableError: nothing answers. SignInError: 401 or 403. NotFoundError: 404. RefusedError: another 4xx.
            ServiceError: 5xx, or an answer that is not JSON. InputError: a key or token would go there unencrypted.
        """
        body = _Body(json, content, params, headers or {})
        again = method in {"GET", "DELETE"} if retry is None else retry
        response = await self._sent(method, url, token, body, patience, again=again)
        return _answer(response)

    async def events(
        self,
        url: str,
        *,
        token: str | Bearers | None = None,
        content: str,
        headers: Mapping[str, str] | None = None,
        patience: float = 60.0,
    ) -> AsyncIterator[str]:
        """POST, and the `data:` of each server-sent event of the answer, as it comes.

        A service that answers with one JSON text instead gives that text. It is tried again until the answer begins.

        Raises:
            As `request`; BrokenOffError also when the answer breaks off.
        """
        body = _Body(None, content, None, {**(headers or {}), "Accept": "text/event-stream"})
        response = await self._sent("POST", url, token, body, patience, again=True, stream=True)
        try:
            if not response.is_success:
                await response.aread()
                _answer(response)
            if "text/event-stream" not in response.headers.get("Content-Type", ""):
                yield (await response.aread()).decode(errors="replace")
                return
            async for line in lines_of(response.aiter_bytes()):
                data = line.removeprefix("data:").strip()
                if line.startswith("data:") and data != "[DONE]":
                    yield data
        except (httpx.RequestError, aiohttp.ClientError) as error:
            raise BrokenOffError(f"the answer of {origin(url)} broke off: {why_not(error)}") from error
        finally:
            await response.aclose()

    async def _sent(
        self,
        method: str,
        url: str,
        token: str | Bearers | None,
        body: "_Body",
        patience: float,
        *,
        again: bool,
        stream: bool = False,
    ) -> httpx.Response:
        """The response to a request, tried again where that can help."""
        kind = {"Content-Type": "application/json"} if body.content is not None else {}
        made, text = (_Made(body.content), None) if callable(body.content) else (None, body.content)
        request = httpx.Request(
            method,
            checked(url),
            json=body.json,
            content=made or text,
            params=body.params,
            headers={**SAID_OF_US, **kind, **body.headers},
            extensions={"timeout": httpx.Timeout(patience, connect=5.0).as_dict()},
        )
        retries = self.retries() if again else Retries(1, self._backoff)
        bearer = None if isinstance(token, str | None) else token.of(url)
        while True:
            said = await bearer.token() if bearer else token if isinstance(token, str) else None
            request.headers.update(_bearing(said))
            if request.url.scheme != "https":
                self.unencrypted.check(str(request.url), request.headers)
            try:
                response = await self._answered(request, stream=stream)
            except (httpx.RequestError, aiohttp.ClientError) as error:
                if made and made.failure:  # the transport calls it a broken connection; no service takes half a body
                    raise made.failure from error
                pause = retries.after_failure()
                if pause is None:
                    raise unanswered(url, error, direct=self.unencrypted.allows(url)) from error
            else:
                if bearer and await _renewed(bearer, response, f"{method} {request.url.path}", said):
                    continue
                pause = retries.after_answer(response.status_code, response.headers)
                if pause is None:
                    return response
                await response.aclose()
            await asyncio.sleep(pause)

    async def _answered(self, request: httpx.Request, *, stream: bool) -> httpx.Response:
        """What the transport answers. httpx's client would only add cookies and redirects, at twice the CPU time."""
        try:
            response = await self._connections.handle_async_request(request)
        except OSError as error:  # the transport reads certificates before it connects
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
        if "_loop" not in self.__dict__:
            return
        for begun in list(self._background):
            begun.cancel()
        self.run(self._farewell(self.__dict__.get("_connections")))
        self._thread.join()
        self._forget()

    async def _farewell(self, connections: httpx.AsyncBaseTransport | None) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_LONGEST_CLEAN_UP)
        if connections:
            await connections.aclose()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.stop)  # after those who wait for this

    def _forget(self) -> None:
        atexit.unregister(self.close)
        del self.__dict__["_loop"]
        self.__dict__.pop("_connections", None)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        try:
            loop = asyncio.new_event_loop()
        except OSError as error:
            if not short_of_descriptors(error):
                raise
            raise UnreachableError(f"no connection can be made: {NONE_LEFT}", hint=TO_HAVE_MORE) from error

        def turn() -> None:
            loop.run_forever()
            loop.close()

        self._thread = threading.Thread(target=turn, name="rolloutlab-http", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # connections left open would be complained about at the end of a script
        return loop

    @cached_property
    def _connections(self) -> httpx.AsyncBaseTransport:
        return self._transport or Ways(MAX_CONNECTIONS, self.unencrypted)


def _log_failure(ended: "Future[Any]") -> None:
    if not ended.cancelled() and (error := ended.exception()):
        logging.getLogger(__name__).error("what ran in the background failed", exc_info=error)


def _settle(outcome: "Future[T]", ended: "asyncio.Task[T]") -> None:
    """Hand what became of a task to the thread that waits for it."""
    if ended.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()
    elif error := ended.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(ended.result())


def _answer(response: httpx.Response) -> Any:
    if not response.is_success:
        token = response.request.headers.get("Authorization", "").removeprefix("Bearer ") or None
        raise refusal(origin(str(response.url)), response.status_code, response.reason_phrase, response.content, token)
    try:
        return from_json(response.content)
    except ValueError as error:
        raise ServiceError(f"{origin(str(response.url))} answered with something that is not JSON") from error


async def _renewed(bearer: TokenSource, response: httpx.Response, operation: str, token: str | None) -> bool:
    """Whether another token is to be tried after this answer, which is closed then, and where that raises."""
    renewed = True
    try:
        renewed = await bearer.after(response.status_code, response.headers.multi_items(), operation, token)
    finally:
        if renewed:
            await response.aclose()
    return renewed


def _bearing(token: str | None) -> dict[str, str]:
    if token and not (token.isascii() and token.isprintable()):
        raise SignInError("the token has characters that no header can carry", hint="ROLLOUTLAB_API_KEY")
    return {"Authorization": f"Bearer {token}"} if token else {}
