"""Asking somebody who is not trusted: once, briefly, and only where it may lead us."""

import asyncio
import ipaddress
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from rolloutlab.api.http.client import SAID_OF_US
from rolloutlab.api.http.ip_scope import NetworkScope, scope_of
from rolloutlab.api.http.proxy import proxy_of
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import checked, origin, proxied, unanswered
from rolloutlab.errors import BrokenOffError, ServiceError, UnreachableError

_EITHER = 32 + zlib.MAX_WBITS
"""Tells zlib to find out whether it is gzip or deflate."""


@dataclass(frozen=True)
class Fetched:
    """An answer as it is. headers: a name as often as it came. addresses: IP addresses, one of which has given it."""

    status: int
    addresses: tuple[str, ...]
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)


async def fetch_untrusted(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    content: bytes = b"",
    reachable: Callable[[str], bool],
    most: int,
    patience: float,
) -> Fetched:
    """The answer, whatever its status; where it redirects to is not asked.

    reachable: whether an IP address may be talked to; asked of the very address that is connected to. most: bytes of
    the answer's body, unpacked; that of a stream of events, which has no end, is left out. patience: seconds in all.

    Raises:
        InputError: a secret would go there unencrypted. UnreachableError: nothing answers, or nothing that may be
            talked to. ServiceError: the answer is too large, or
            packed in a way that nobody asked for.
    """
    there = _address(url)
    if _is_address(there.host) and not reachable(there.host):  # no name that would be looked up
        raise _unreachable(there.host)
    Unencrypted().check(str(there), {name.lower() for name in headers})
    extensions = {"timeout": httpx.Timeout(patience).as_dict()}
    request = httpx.Request(method, there, headers={**SAID_OF_US, **headers}, content=content, extensions=extensions)
    guard = _Guard(reachable)
    try:
        async with asyncio.timeout(patience):
            proxy = await _proxy(there, guard)
    except OSError as error:  # a TimeoutError too
        raise UnreachableError(unanswered(url, error).message) from error
    connections = await _guarded(guard, proxy, encrypted=there.scheme == "https")
    try:
        async with asyncio.timeout(patience):
            response = await connections.handle_async_request(request)
            return await _read(response, tuple(guard.addresses) or (there.host,), most)
    except TimeoutError as error:
        raise BrokenOffError(f"{origin(url)} did not answer in {patience:g} s") from error
    except (httpx.RequestError, aiohttp.ClientError) as error:
        raise type(found := unanswered(url, error))(found.message) from error  # its hint is for our own services
    finally:
        await connections.aclose()


class _Guard(aiohttp.abc.AbstractResolver):
    """Names become addresses, of those that may be talked to: aiohttp connects to these and asks nobody else."""

    def __init__(self, reachable: Callable[[str], bool]) -> None:
        self._reachable = reachable
        self.addresses: list[str] = []
        """Those that a connection was made to, or might have been."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise UnreachableError(f"{host} is no name of a host") from error
        allowed = [each for each in found if self._reachable(str(each[4][0]))]
        if not allowed:
            raise _unreachable(host)
        self.addresses += [str(each[4][0]) for each in allowed]
        return [
            {
                "hostname": host,
                "host": str(address[0]),
                "port": int(address[1]),
                "family": kind,
                "proto": protocol,
                "flags": socket.AI_NUMERICHOST,
            }
            for kind, _, protocol, _, address in allowed
        ]

    async def close(self) -> None:
        pass


def _address(url: str) -> httpx.URL:
    try:
        return checked(url)
    except UnreachableError:  # its hint is for our own services, and all of an address may be much
        raise UnreachableError(f"{ascii(url.partition('?')[0])[:200]} is no address that can be asked") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unreachable(host: str) -> UnreachableError:
    return UnreachableError(f"{host} is in a network that a server elsewhere must not lead us into")


async def _proxy(there: httpx.URL, guard: _Guard) -> str | None:
    """The proxy that the request goes through, once its host is known to be one that may be talked to.

    A proxy looks the name up by itself, where nothing can be checked: so it is looked up here first, and a name that is
    not known here is not asked for. This machine is asked directly, whatever it is called.

    Raises:
        UnreachableError: the host may not be talked to. OSError: it has no address.
    """
    proxy = proxy_of(str(there))
    if proxy and not _is_address(there.host):
        await guard.resolve(there.host, there.port or 0)
    return None if NetworkScope.LOOPBACK in map(scope_of, guard.addresses) else proxy


async def _guarded(guard: _Guard, proxy: str | None, *, encrypted: bool) -> httpx.AsyncBaseTransport:
    """Connections that only the guard's addresses are taken for, or to the proxy, whose own address is the user's."""
    context = await asyncio.to_thread(httpx.create_ssl_context) if encrypted else False  # it takes a while to make
    resolver = None if proxy else guard
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True, ssl=context)
    client = aiohttp.ClientSession(connector=connector, trust_env=False)
    return AiohttpTransport(client=client, proxy=proxied(proxy))


async def _read(response: httpx.Response, addresses: tuple[str, ...], most: int) -> Fetched:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)
    try:
        endless = "text/event-stream" in response.headers.get("Content-Type", "")
        body = b"" if endless else await _body(response, most)
    finally:
        await response.aclose()
    return Fetched(response.status_code, addresses, headers, body)


async def _body(response: httpx.Response, most: int) -> bytes:
    """The body, unpacked no further than allowed: httpx would unpack a piece whole, and as often as it was packed."""
    packed = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in {"identity", "gzip", "deflate"}:
        raise ServiceError(f"an answer that is packed as {ascii(packed)[:50]} was not read")
    unpacking = zlib.decompressobj(_EITHER)
    body = b""
    async for piece in response.aiter_raw():
        try:
            body += piece if packed == "identity" else unpacking.decompress(piece, most + 1 - len(body))
        except zlib.error as error:
            raise ServiceError("an answer could not be unpacked") from error
        if len(body) > most:
            raise ServiceError(f"an answer of more than {most >> 10:,} KiB was not read")
    return body
