"""WebSocket connection on which each JSON message has one answer."""

import asyncio
from contextlib import suppress
from typing import Any

import aiohttp
from pydantic_core import from_json

from rolloutlab.api.http.transport import origin, proxy_of
from rolloutlab.errors import BrokenOffError, ServiceError, UnreachableError

_MAX_BYTES = 16 * 2**20


class JsonSocket:
    """One connection, to be used in the event loop that opened it."""

    def __init__(self, url: str, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._url = url
        self._http = http
        self._socket = socket

    @classmethod
    async def connect(cls, url: str, timeout: float = 10.0) -> "JsonSocket":
        """Connect to an http or https URL. UnreachableError if that fails, or takes longer than `timeout` seconds."""
        http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        try:
            async with asyncio.timeout(timeout):  # the time-outs of aiohttp do not count the handshake
                socket = await http.ws_connect(url, proxy=proxy_of(url), heartbeat=20.0, max_msg_size=_MAX_BYTES)
        except BaseException as error:
            await http.close()
            if isinstance(error, aiohttp.ClientError | OSError):
                why = str(error) or f"no answer within {timeout:g} s"
                raise UnreachableError(f"no WebSocket at {origin(url)}: {why}", hint=url) from error
            raise
        return cls(url, http, socket)

    async def ask(self, message: Any) -> Any:
        """Send a message and return the answer. BrokenOffError if the connection ends before the answer."""
        with suppress(aiohttp.ClientError):  # a server that refuses a session says why before it closes
            await self._socket.send_json(message)
        answer = await self._socket.receive()
        if answer.type != aiohttp.WSMsgType.TEXT:
            raise BrokenOffError(f"{origin(self._url)} ended the connection")
        try:
            return from_json(answer.data)
        except ValueError as error:
            raise ServiceError(f"{origin(self._url)} answered with something that is not JSON") from error

    async def send(self, message: Any) -> None:
        """Send a message that has no answer."""
        await self._socket.send_json(message)

    async def close(self) -> None:
        await self._socket.close()
        await self._http.close()
