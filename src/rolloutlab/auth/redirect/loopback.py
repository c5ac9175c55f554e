"""Loopback listener for the authorization response (RFC 8252, 7.3), with a random port and path.

Where the redirect URI is registered beforehand the path is fixed, and only the state is secret.
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
"""Takes the query of a request, and returns whether it is the expected response."""

HOST = "127.0.0.1"
FIXED = "/callback"
"""The path of a registered redirect URI."""
_MAX_REQUEST = 32 * 1024
_TIMEOUT = 10.0  # seconds for a request to arrive


@asynccontextmanager
async def listening(take: Take, port: int | None = None) -> AsyncIterator[str]:
    """Listen, and yield the redirect URI. OSError if the port is in use.

    port: the port of a registered redirect URI; 0 is any port with the fixed path; None is any with a random path.
    """
    path = f"/{secrets.token_urlsafe(32)}" if port is None else FIXED

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _TIMEOUT)
            writer.write(_encode(_choose_page(head.decode("latin-1"), f"{HOST}:{port}", path, take)))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, HOST, port or 0, limit=_MAX_REQUEST)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://{HOST}:{port}{path}"
    finally:
        server.close()


def _choose_page(head: str, host: str, path: str, take: Take) -> page.Page:
    """Choose the page for a request. Another Host header than `host` means DNS rebinding."""
    first, *lines = head.split("\r\n")
    method, target, _version = first.split(" ")
    hosts = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.lower() == "host"]
    url = urlsplit(target)
    if hosts != [host] or not hmac.compare_digest(url.path.encode(), path.encode()):
        return page.NOT_HERE
    if method != "GET":
        return page.WRONG_METHOD
    if "state=" not in url.query:
        return page.NO_ANSWER
    return page.RECEIVED if take(url.query) else page.UNAWAITED


def _encode(shown: page.Page) -> bytes:
    """Write a page as an HTTP response."""
    headers, body = shown.render()
    headers |= {"Content-Length": str(len(body)), "Connection": "close"}
    if shown is page.WRONG_METHOD:
        headers["Allow"] = "GET"
    lines = [f"HTTP/1.1 {shown.status} {HTTPStatus(shown.status).phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
