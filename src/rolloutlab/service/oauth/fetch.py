"""Fetching an address that a stranger named: https, no redirect, no private address, small and soon (OWASP, SSRF).

Whoever names a host also decides what it resolves to, and may say something else the next time. So the addresses are
checked that are connected to, not those of another question.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import h11

from rolloutlab.service.oauth.clients import split

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host and port."""

LARGEST = 1 << 16
"""Bytes of an answer."""
PATIENCE = 5.0
"""Seconds for all of it."""

_NAT64 = IPv6Network("64:ff9b::/96")
_PIECE = 1 << 14


class FetchError(Exception):
    """Nothing was fetched; the text says why."""


@dataclass(frozen=True)
class Answer:
    """What an address answered with status 200. headers: by name in lower case."""

    headers: Mapping[str, str]
    body: bytes


def is_public(address: str) -> bool:
    """Whether an IP address is for anybody to use: not of this machine, not of its network, not of its cloud."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and (inner := _inner(ip)):
        ip = inner
    return ip.is_global and not ip.is_multicast


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the operating system finds them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Fetcher:
    """Fetches documents. allowed: which IP addresses may be connected to. context: whose certificates are trusted."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        allowed: Callable[[str], bool] = is_public,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._context = context

    async def get(self, url: str) -> Answer:
        """The answer of an address; FetchError for anything but a 200 that is small and soon."""
        parts = split(url)
        if parts is None or parts.scheme != "https":
            raise FetchError("it is no https address")
        host, port = str(parts.hostname), parts.port or 443
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._exchange(host, port, target)
        except TimeoutError as error:
            raise FetchError(f"it did not answer in {PATIENCE:.0f} s") from error
        except (OSError, UnicodeError, h11.ProtocolError) as error:
            raise FetchError(f"it cannot be reached: {type(error).__name__}") from error

    async def _exchange(self, host: str, port: int, target: str) -> Answer:
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(self._allowed, addresses)):
            raise FetchError("it is not on the public network")
        reader, writer = await self._connect(addresses, host, port)
        try:
            exchange = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST)
            name = f"[{host}]" if ":" in host else host
            headers = [("Host", name if port == 443 else f"{name}:{port}"), ("Accept", "application/json")]
            headers += [("Accept-Encoding", "identity"), ("Connection", "close"), ("User-Agent", "rolloutlab")]
            for event in (h11.Request(method="GET", target=target, headers=headers), h11.EndOfMessage()):
                writer.write(exchange.send(event) or b"")
            return await _read(exchange, reader)
        finally:
            writer.transport.abort()  # what is still to come is not wanted

    async def _connect(
        self, addresses: Sequence[str], host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first address where one can be had, and whose certificate is the host's."""
        context = self._context or ssl.create_default_context()
        for address in addresses[:-1]:
            with suppress(OSError):  # a machine may have no IPv6
                return await asyncio.open_connection(address, port, ssl=context, server_hostname=host)
        return await asyncio.open_connection(addresses[-1], port, ssl=context, server_hostname=host)


async def _read(exchange: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    headers: dict[str, str] = {}
    read = bytearray()
    while not isinstance(event := exchange.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if event is h11.NEED_DATA:
            exchange.receive_data(await reader.read(_PIECE))
        elif isinstance(event, h11.Response):
            if event.status_code != 200:
                raise FetchError(f"it answered {event.status_code}, and only 200 is taken")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            read += event.data
            if len(read) > LARGEST:
                raise FetchError(f"it is larger than {LARGEST:,} bytes")
    return Answer(headers, bytes(read))


def _inner(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
