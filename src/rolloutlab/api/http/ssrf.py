"""Fetch a URL from an untrusted party: no redirects, size and time limits, SSRF check on the resolved IP."""

import asyncio
import ipaddress
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from rolloutlab.api.http.client import DEFAULT_HEADERS
from rolloutlab.api.http.ip_scope import NetworkScope, scope_of
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import certificates, connection_error, make_proxy, origin, parse_url, proxy_of
from rolloutlab.errors import BrokenOffError, ServiceError, UnreachableError

_GZIP_OR_DEFLATE = 32 + zlib.MAX_WBITS  # zlib detects which by the header


@dataclass(frozen=True)
class Fetched:
    """A response. headers: names may be repeated. addresses: the allowed IP addresses of the host; one sent it."""

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
    is_allowed_ip: Callable[[str], bool],
    max_bytes: int,
    timeout: float,
) -> Fetched:
    """Send a request to a URL that another party chose; return the response, whatever its status.

    Redirects are not followed. The body of an event stream is not read, because it has no end.

    Args:
        method: The method, such as `GET`.
        url: The URL.
        headers: Further headers.
        content: The body to send.
        is_allowed_ip: Whether an IP address may be contacted. It is called with the very address that is connected to,
            so that DNS cannot change between check and use.
        max_bytes: The largest size of the decoded body.
        timeout: Seconds for the request. The look-up of the host has as many of its own if there is a proxy.

    Raises:
        InputError: a secret would be sent unencrypted.
        UnreachableError: there is no connection, or no allowed address.
        ServiceError: the response is too large, or has an encoding that was not asked for.
    """
    target = _parse_target(url)
    if _is_ip(target.host):  # aiohttp connects to it without a call of the resolver, which checks names
        if not is_allowed_ip(target.host):
            raise _forbidden(target.host)
    elif target.host.replace(".", "").isdigit():  # such as 127.1: aiohttp 3.12 connects to it unchecked
        raise UnreachableError(f"{target.host} is not a host name")
    Unencrypted().check(str(target), {name.lower() for name in headers})
    extensions = {"timeout": httpx.Timeout(timeout).as_dict()}
    headers = {**DEFAULT_HEADERS, **headers}
    request = httpx.Request(method, target, headers=headers, content=content, extensions=extensions)
    guard = _Guard(is_allowed_ip)
    try:
        async with asyncio.timeout(timeout):
            proxy = await _find_proxy(target, guard)
    except OSError as error:  # a TimeoutError too
        raise UnreachableError(connection_error(url, error).message) from error
    connections = await _make_connections(guard, proxy, encrypted=target.scheme == "https")
    try:
        async with asyncio.timeout(timeout):
            response = await connections.handle_async_request(request)
            return await _read_response(response, tuple(guard.addresses) or (target.host,), max_bytes)
    except TimeoutError as error:
        raise BrokenOffError(f"{origin(url)} did not answer in {timeout:g} s") from error
    except (httpx.RequestError, aiohttp.ClientError) as error:
        failure = connection_error(url, error)
        raise type(failure)(failure.message) from error  # without the hint, which is about the user's own services
    finally:
        await connections.aclose()


class _Guard(aiohttp.abc.AbstractResolver):
    """A resolver that returns allowed addresses only; aiohttp connects to these without resolving again."""

    def __init__(self, is_allowed_ip: Callable[[str], bool]) -> None:
        self._is_allowed_ip = is_allowed_ip
        self.addresses: list[str] = []
        """Every address that was returned; a connection goes to one of them."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[aiohttp.abc.ResolveResult]:
        try:
            results = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise UnreachableError(f"{host} is not a host name") from error
        allowed = [each for each in results if self._is_allowed_ip(str(each[4][0]))]
        if not allowed:
            raise _forbidden(host)
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

    async def close(self) -> None:  # aiohttp calls it; there is nothing open
        pass


def _parse_target(url: str) -> httpx.URL:
    try:
        return parse_url(url)
    except UnreachableError:  # without its hint, which is about the user's own services; and the URL may be long
        raise UnreachableError(f"{ascii(url.partition('?')[0])[:200]} is not an http or https URL") from None


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _forbidden(host: str) -> UnreachableError:
    return UnreachableError(f"{host} is in a private network that a server outside it must not send requests to")


async def _find_proxy(target: httpx.URL, guard: _Guard) -> str | None:
    """Find the proxy for the request; None for a direct connection.

    Raises:
        UnreachableError: the host has no allowed address.
        OSError: the host has no address.
    """
    proxy = proxy_of(str(target))
    if proxy and not _is_ip(
        target.host
    ):  # the proxy resolves the name itself, unchecked, so it is parse_url here first
        await guard.resolve(target.host, target.port or 0)
    return None if NetworkScope.LOOPBACK in map(scope_of, guard.addresses) else proxy


async def _make_connections(guard: _Guard, proxy: str | None, *, encrypted: bool) -> httpx.AsyncBaseTransport:
    """Make connections to the guard's addresses only, or to the proxy, whose own address the user chose."""
    # in a thread: it reads files for 20 ms or more
    context = await asyncio.to_thread(certificates, httpx.create_ssl_context) if encrypted else False
    resolver = None if proxy else guard
    connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True, ssl=context)
    client = aiohttp.ClientSession(connector=connector, trust_env=False)
    return AiohttpTransport(client=client, proxy=make_proxy(proxy))


async def _read_response(response: httpx.Response, addresses: tuple[str, ...], max_bytes: int) -> Fetched:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)
    try:
        endless = "text/event-stream" in response.headers.get("Content-Type", "")
        body = b"" if endless else await _read_body(response, max_bytes)
    finally:
        await response.aclose()
    return Fetched(response.status_code, addresses, headers, body)


async def _read_body(response: httpx.Response, max_bytes: int) -> bytes:
    """Read the body, decompressing it here up to the limit.

    httpx would decompress a whole chunk before the limit could stop it, and several times if several encodings are
    named.
    """
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip", "deflate"}:
        raise ServiceError(f"a response with content encoding {ascii(encoding)[:50]} was not read")
    decompressor = zlib.decompressobj(_GZIP_OR_DEFLATE)
    body = b""
    async for chunk in response.aiter_raw():
        try:
            body += chunk if encoding == "identity" else decompressor.decompress(chunk, max_bytes + 1 - len(body))
        except zlib.error as error:
            raise ServiceError("a response could not be decompressed") from error
        if len(body) > max_bytes:
            raise ServiceError(f"a response of more than {max_bytes >> 10:,} KiB was not read")
    return body
