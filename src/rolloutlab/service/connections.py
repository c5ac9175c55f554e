"""No more connections than the process has file descriptors for; each one more gets a 503, and is closed.

Without a bound the event loop cannot accept at all once descriptors run out: it is woken over and over for connections
that it cannot take, no client is answered, and jobs cannot open their files.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ACCEPTED_AT_ONCE = 4
"""Connections that are accepted in one turn of the event loop; it is some turns before they are counted."""

_RESERVE = 64
"""Descriptors for what is no connection, such as bodies of jobs, and for connections that are turned away."""
_MOST_WAITING = 8
_FEWEST = 4
_ENOUGH = 65_536
_LONGEST_SILENCE = 1.0
_TOO_MANY = "the service has as many connections as it has file descriptors for"


def most_connections() -> int | None:
    """As many as there are descriptors for besides what is open, once the limit is as high as it may be.

    None where the operating system has no such limit.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    limit = _ENOUGH if soft == resource.RLIM_INFINITY else soft
    return max(limit - sum(1 for _ in Path("/dev/fd").iterdir()) - _RESERVE, _FEWEST)


def bounded(protocol: Callable[..., asyncio.Protocol], most: int) -> Callable[..., asyncio.Protocol]:
    """A maker of uvicorn's protocols that turns away each connection beyond so many."""
    waiting: set[asyncio.Protocol] = set()

    def make(server_state: Any, **options: Any) -> asyncio.Protocol:
        if len(server_state.connections) >= most:
            return _TurnedAway(waiting)
        return protocol(server_state=server_state, **options)

    return make


class _TurnedAway(asyncio.Protocol):
    """Answers the first that a client sends with a 503; one that sends nothing is closed soon.

    waiting: those of which nothing has come yet. Where there are many of them the answer does not wait for a request.
    """

    def __init__(self, waiting: set[asyncio.Protocol]) -> None:
        self._waiting = waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._waiting) >= _MOST_WAITING:
            self._refuse()
        else:
            self._waiting.add(self)
            asyncio.get_running_loop().call_later(_LONGEST_SILENCE, transport.close)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._waiting.discard(self)

    def _refuse(self) -> None:
        self._transport.write(_refusal())
        self._transport.close()


def _refusal() -> bytes:
    """The answer as both sides of the service word a refusal."""
    error = {"message": _TOO_MANY, "type": "server_error", "param": None, "code": None}
    body = json.dumps({"detail": _TOO_MANY, "error": error}).encode()
    head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close"
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n".encode() + body
