"""Size limit for responses of context servers, which are not trusted."""

from collections.abc import AsyncIterator

import httpx2


class ResponseTooLargeError(httpx2.SSEError, httpx2.StreamError):
    """A response is too large. Of both base classes, so that the SDK fails only the request that it belongs to."""


class BoundedStream(httpx2.AsyncBaseTransport):
    """Reads at most `max_bytes` of each response, uncompressed, as a compressed one could expand to any size."""

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
