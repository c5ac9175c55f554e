"""Listening socket of the service: http on loopback only, https anywhere else, and a limit of connections.

Without the limit, the event loop cannot accept at all once the process runs out of file descriptors: it is woken over
and over for connections that it cannot take, no client gets a response, and jobs cannot open their files.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.errors import InputError

_WILDCARDS = {"0.0.0.0", "::", "0"}
PLAIN_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Loopback hosts, which are served without a certificate."""
ACCEPTED_AT_ONCE = 4
"""Connections that asyncio accepts per turn of the event loop. uvicorn counts them only some turns later."""
_RESERVE = 64
"""File descriptors for other files, such as bodies of jobs, and for connections that are being rejected."""
_MAX_REJECTED_WAITING = 8
_MIN_CONNECTIONS = 4
_MAX_DESCRIPTORS = 65_536
_REJECTED_TIMEOUT = 1.0
_TOO_MANY = "the service has as many connections as it has file descriptors for"


@dataclass(frozen=True)
class ListenAddress:
    """Where the service listens.

    Attributes:
        host: A name or an IP address, as in the service's URLs.
        certificate: The PEM file of the certificate; None for http.
        key: The PEM file of its key.

    Raises:
        InputError: the host cannot be in a URL, needs a certificate, or certificate and key do not match.
    """

    host: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not self._is_host():
            hint = self._command(socket.gethostname())
            raise InputError(f"{self.host!r} is not a host name or address that a client can connect to", hint=hint)
        if (self.certificate is None) != (self.key is None):
            raise InputError("--tls-cert and --tls-key go together", hint=self._command(self.host))
        if self.certificate is None and self.host.lower() not in PLAIN_HOSTS:
            message = f"{self.host} is reachable from other machines, and http is not encrypted"
            raise InputError(message, hint=self._command(self.host))
        self._check_files()

    def url(self, port: int) -> str:
        """Return the origin of the service, as browsers write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return canonical_resource(f"{'https' if self.certificate else 'http'}://{host}:{port}")

    def listen(self, port: int) -> socket.socket:
        """Listen on a port; 0 takes a free one.

        Raises:
            InputError: the host is not of this machine, or the port is taken.
        """
        try:
            family, _, _, _, (address, *_) = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)[0]
            socket.create_server((address, 0), family=family).close()
        except (OSError, UnicodeError) as error:
            hint = self._command(socket.gethostname())
            raise InputError(f"{self.host} is not a host of this machine: {error}", hint=hint) from error
        try:
            listener = socket.create_server((address, port), family=family)
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} cannot be used: {error}", hint=self._command(self.host)) from error
        # connections inherit it; an answer of two writes would wait 40 ms for the acknowledgement of the first
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    def _command(self, host: str) -> str:
        """Return the command that serves at a host, with these files."""
        local = self.certificate is None and self.key is None and host in PLAIN_HOSTS
        files = "" if local else f" --tls-cert {self.certificate or 'cert.pem'} --tls-key {self.key or 'key.pem'}"
        return f"rolloutlab serve --host {host}{files}"

    def _is_host(self) -> bool:
        """Whether the host can be in a URL, which a wildcard address cannot."""
        try:
            return urlsplit(self.url(1)).hostname == self.host.lower() and self.host not in _WILDCARDS
        except InputError:
            return False

    def _check_files(self) -> None:
        if self.certificate is None or self.key is None:
            return
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # never prompt for a passphrase
        except (OSError, ValueError) as error:  # ValueError: a NUL in a name
            message = f"{self.certificate} and {self.key} are not a certificate and its unencrypted key: {error}"
            raise InputError(message, hint=f"openssl x509 -noout -subject -dates -in {self.certificate}") from error


def max_connections() -> int | None:
    """Raise the soft limit of file descriptors to the hard one, and return how many are free for connections.

    The result is None where the operating system has no such limit.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    limit = _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(limit - sum(1 for _ in Path("/dev/fd").iterdir()) - _RESERVE, _MIN_CONNECTIONS)


def limit_connections(protocol: Callable[..., asyncio.Protocol], limit: int) -> Callable[..., asyncio.Protocol]:
    """Make a factory of uvicorn's protocols that rejects connections beyond a limit."""
    waiting: set[asyncio.Protocol] = set()

    def make(server_state: Any, **options: Any) -> asyncio.Protocol:
        if len(server_state.connections) >= limit:
            return _Rejected(waiting)
        return protocol(server_state=server_state, **options)

    return make


class _Rejected(asyncio.Protocol):
    """Answers the first bytes of a client with a 503; a silent client is disconnected after a second.

    waiting: rejected connections that have sent nothing yet. If there are many, the 503 does not wait for a request.
    """

    def __init__(self, waiting: set[asyncio.Protocol]) -> None:
        self._waiting = waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._waiting) >= _MAX_REJECTED_WAITING:
            self._respond()
        else:
            self._waiting.add(self)
            asyncio.get_running_loop().call_later(_REJECTED_TIMEOUT, transport.close)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self._respond()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._waiting.discard(self)

    def _respond(self) -> None:
        # the body has the fields of both error formats: the path of the request is not known
        error = {"message": _TOO_MANY, "type": "server_error", "param": None, "code": None}
        body = json.dumps({"detail": _TOO_MANY, "error": error}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close"
        self._transport.write(f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n\r\n".encode() + body)
        self._transport.close()
