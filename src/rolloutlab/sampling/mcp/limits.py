"""How much of an answer is read: a context server is a stranger, and its answers would else have no end."""

from collections.abc import AsyncIterator

import httpx2


class ResponseTooLargeError(httpx2.SSEError, httpx2.StreamError):
    """More than is read; an error of both kinds that the SDK tells to the one who asked, and to nobody else."""


class BoundedStream(httpx2.AsyncBaseTransport):
    """Reads no more than `most` bytes of each answer, which comes as it is: what is packed could unpack to anything."""

    def __init__(self, transport: httpx2.AsyncBaseTransport, most: int) -> None:
        self._transport = transport
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await self._transport.handle_async_request(request)
        packed = response.headers.get("Content-Encoding", "identity").lower() != "identity"
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CountedStream(response.stream, self._most, packed=packed)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _CountedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int, *, packed: bool) -> None:
        self._stream = stream
        self._most = most
        self._packed = packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise ResponseTooLargeError("an answer that is packed, though it was asked for as it is, was not read")
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > self._most:
                raise ResponseTooLargeError(f"an answer of more than {self._most >> 10:,} KiB was not read")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
