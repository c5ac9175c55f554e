"""Request and Response types of the sans-IO OAuth flow, and the transport that runs a flow."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from pydantic_core import from_json

from rolloutlab.api.http.ip_scope import NetworkScope, may_contact, scope_of_all
from rolloutlab.api.http.ssrf import Fetched, fetch_untrusted
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.urls import host, origin
from rolloutlab.errors import ServiceError, SignInError

T = TypeVar("T")

_CODE = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Request:
    """An HTTP request; its repr hides everything but the method."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Response:
    """An HTTP response. headers: in order; names may be repeated."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)

    def values(self, name: str) -> list[str]:
        """Return every header of a name, ignoring case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def document(self) -> dict[str, Any] | None:
        """Return the JSON object of a success; None for any other response."""
        return self._object() if self.status in (200, 201) else None

    def error(self) -> str | None:
        """Return the error code (RFC 6749, 5.2). The rest of the body may hold secrets."""
        return error_code((self._object() or {}).get("error"))

    def _object(self) -> dict[str, Any] | None:
        try:
            document = from_json(self.body)
        except ValueError:
            return None
        return document if isinstance(document, dict) else None


def error_code(value: object) -> str | None:
    """Return an error code with the syntax of those in the standards; None for any other text, which is not shown."""
    return value if isinstance(value, str) and _CODE.fullmatch(value) else None


Flow = Generator[Request, Response, T]
"""Yields requests, is sent their responses, and returns the result."""

_MAX_BYTES = 1 << 20
_ACCEPT = "application/json, text/event-stream"
_PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
_TIMEOUT = 20.0  # seconds of a request and its whole response


@dataclass(frozen=True)
class Transport:
    """Runs flows; their requests go no further into private networks than the server's own `scope`."""

    scope: NetworkScope

    async def run(self, flow: Flow[T]) -> T:
        """Send the requests of a flow, and return its result.

        Raises:
            UnreachableError: there is no connection, or only to a forbidden address.
            ServiceError: a response is too large.
        """
        try:
            request = next(flow)
            while True:
                try:
                    fetched = await _fetch(request, self.scope)
                except ServiceError as error:
                    request = flow.throw(error)  # the flow may try another URL
                else:
                    request = flow.send(Response(fetched.status, fetched.headers, fetched.body))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()


async def probe_server(server: str) -> tuple[Transport, Challenge | None]:
    """Find the transport for a server's flows, and the server's challenge to a request without a token, if any.

    Some servers challenge POST alone, or have their endpoint under the same path with a slash at its end.
    """
    fetched = await _fetch(Request("GET", server, {"Accept": _ACCEPT}), NetworkScope.LOOPBACK)
    scope = scope_of_all(fetched.addresses)  # of the connected address, as another lookup may give another one
    if scope is None:
        raise SignInError(f"{host(server)} resolves to an address that no server can have")
    challenge = _find_challenge(fetched)
    moved = _find_redirect(server, fetched)
    for url in dict.fromkeys([moved or server, *([f"{server}/"] if urlsplit(server).path else [])]):
        for method in () if challenge or fetched.status < 300 else ("GET", "POST"):
            if challenge is None and (method, url) != ("GET", server):
                challenge = _find_challenge(await _fetch(_probe(method, url), scope))
    return Transport(scope), challenge


def _probe(method: str, url: str) -> Request:
    """Make a request that changes nothing: as POST a `ping` of the context protocol."""
    headers = {"Accept": _ACCEPT}
    if method == "GET":
        return Request(method, url, headers)
    return Request(method, url, {**headers, "Content-Type": "application/json"}, _PING)


def _find_challenge(fetched: Fetched) -> Challenge | None:
    response = Response(fetched.status, fetched.headers)
    return bearer(response.values("WWW-Authenticate")) if fetched.status == 401 else None


def _find_redirect(server: str, fetched: Fetched) -> str | None:
    """Find where a redirect leads, if that is of the same origin. Other redirects are not followed."""
    location = next(iter(Response(fetched.status, fetched.headers).values("Location")), None)
    if location is None or fetched.status not in {301, 302, 307, 308}:
        return None
    try:
        url = urljoin(server, location).partition("#")[0]
        return url if origin(url) == origin(server) else None
    except ValueError:
        return None


async def _fetch(request: Request, scope: NetworkScope) -> Fetched:
    return await fetch_untrusted(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body,
        is_allowed_ip=lambda address: may_contact(scope, address),
        max_bytes=_MAX_BYTES,
        timeout=_TIMEOUT,
    )
