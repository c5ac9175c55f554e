"""Plain HTTP messages: what the flow wants sent, and what it is answered. Nothing in this room's heart does I/O."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_core import from_json

from rolloutlab.api.http.ip_scope import NetworkScope, may_contact, scope_of_all
from rolloutlab.api.http.ssrf import Fetched, fetch_untrusted
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.urls import host
from rolloutlab.errors import ServiceError, SignInError

T = TypeVar("T")

_CODE = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Request:
    """What is to be sent; its repr shows nothing that is secret."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Response:
    """What came back. headers: in order, a name as often as it came."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)

    def values(self, name: str) -> list[str]:
        """Every header of a name, in whatever case."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def document(self) -> dict[str, Any] | None:
        """The JSON object of a success; None where it is none."""
        return self._object() if self.status in (200, 201) else None

    def error(self) -> str | None:
        """The error code of a refusal (RFC 6749, 5.2); what else the body says may hold secrets."""
        return error_code((self._object() or {}).get("error"))

    def _object(self) -> dict[str, Any] | None:
        try:
            found = from_json(self.body)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def error_code(said: object) -> str | None:
    """An error code as those of the standards are written; None where it is a stranger's sentence, or nothing."""
    return said if isinstance(said, str) and _CODE.fullmatch(said) else None


Flow = Generator[Request, Response, T]
"""Asks for requests to be sent, one by one, and returns what comes of them."""


_MOST = 1 << 20
"""Bytes of an answer."""
_PATIENCE = 20.0
"""Seconds of an answer as a whole."""


@dataclass(frozen=True)
class Transport:
    """Sends what a flow asks for, on behalf of a server in some network."""

    reach: NetworkScope

    async def run(self, flow: Flow[T]) -> T:
        """What comes of a flow.

        Raises:
            UnreachableError: nothing answers, or where nobody may be asked. ServiceError: an answer has no end.
        """
        try:
            request = next(flow)
            while True:
                try:
                    answer = await _sent(request, self.reach)
                except ServiceError as error:
                    request = flow.throw(error)  # the flow may know another place to ask
                else:
                    request = flow.send(Response(answer.status, answer.headers, answer.body))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()


async def probe_server(server: str) -> tuple[Transport, Challenge | None]:
    """How to ask on behalf of a server, and its challenge to somebody without a token, None where it gives none.

    It leads no further into private networks than it is itself: at the address that it has answered from, which another
    look at its name need not give.
    """
    answer = await _sent(
        Request("GET", server, {"Accept": "application/json, text/event-stream"}), NetworkScope.LOOPBACK
    )
    reach = scope_of_all(answer.addresses)
    if reach is None:
        raise SignInError(f"{host(server)} is at an address where no server can be")
    told = Response(answer.status, answer.headers)
    return Transport(reach), bearer(told.values("WWW-Authenticate")) if answer.status == 401 else None


async def _sent(request: Request, reach: NetworkScope) -> Fetched:
    return await fetch_untrusted(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body,
        is_allowed_ip=lambda address: may_contact(reach, address),
        max_bytes=_MOST,
        timeout=_PATIENCE,
    )
