"""A listener on this machine for the answer of a sign-in (RFC 8252, 7.3): a random port, and a path none can guess.

Where the address had to be registered beforehand it is fixed: what none can guess is then the state alone.
"""

import asyncio
import hmac
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from rolloutlab.auth.redirect import page

Take = Callable[[str], bool]
"""Given a query: whether it is the answer that is waited for."""

HOST = "127.0.0.1"
FIXED = "/callback"
"""The path of an address that was registered beforehand."""
LONGEST = 32 * 1024
"""Bytes of a request."""
PATIENCE = 10.0
"""Seconds that a request may take to come."""


@asynccontextmanager
async def listening(take: Take, port: int | None = None) -> AsyncIterator[str]:
    """The address at which answers are taken, for as long as the context lasts.

    port: of an address that was registered beforehand, 0 where any is the same to its server; None for one that is new.

    Raises:
        OSError: somebody else listens on that port.
    """
    path = f"/{secrets.token_urlsafe(32)}" if port is None else FIXED

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            writer.write(_response(_answered(head.decode("latin-1"), f"{HOST}:{port}", path, take)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_one, HOST, port or 0, limit=LONGEST)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://{HOST}:{port}{path}"
    finally:
        server.close()


def _answered(head: str, host: str, path: str, take: Take) -> page.Page:
    """The page for a request. Another Host means that a name of somebody else's leads here (DNS rebinding)."""
    first, *lines = head.split("\r\n")
    method, target, _version = first.split(" ")
    hosts = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.lower() == "host"]
    asked = urlsplit(target)
    if hosts != [host] or not hmac.compare_digest(asked.path.encode(), path.encode()):
        return page.NOT_HERE
    if method != "GET":
        return page.WRONG_METHOD
    if "state=" not in asked.query:
        return page.NO_ANSWER
    return page.RECEIVED if take(asked.query) else page.UNAWAITED


def _response(shown: page.Page) -> bytes:
    headers, body = shown.rendered()
    told = {**headers, "Content-Length": str(len(body)), "Connection": "close"}
    if shown is page.WRONG_METHOD:
        told["Allow"] = "GET"
    lines = [f"HTTP/1.1 {shown.status} {HTTPStatus(shown.status).phrase}", *(f"{k}: {v}" for k, v in told.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
