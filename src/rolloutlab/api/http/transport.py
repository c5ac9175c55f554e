"""The connections that requests go over, and what a failure of one of them means."""

from base64 import b64encode
from collections.abc import AsyncIterator
from functools import lru_cache

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from rolloutlab.api.http.errors import root_cause, what_to_look_at
from rolloutlab.api.http.proxy import proxy_of, through
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.errors import BrokenOffError, UnreachableError
from rolloutlab.fsutil import NONE_LEFT, TO_HAVE_MORE


class Ways(httpx.AsyncBaseTransport):
    """The connections to each host: direct ones, or those through the proxy that the environment names for it.

    most: connections at once to the hosts of one way. unencrypted: the addresses that keys go to without encryption:
    directly, since a proxy would read them.
    """

    def __init__(self, most: int, unencrypted: Unencrypted) -> None:
        self._most = most
        self._unencrypted = unencrypted
        self._of_hosts: dict[tuple[str, str, int | None], AiohttpTransport] = {}
        self._of_proxies: dict[str | None, AiohttpTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        host = url.scheme, url.host, url.port
        if self._unencrypted.allows(str(url)):
            return await self._through(None).handle_async_request(request)
        if host not in self._of_hosts:
            self._of_hosts[host] = self._through(proxy_of(str(url)))
        return await self._of_hosts[host].handle_async_request(request)

    def _through(self, proxy: str | None) -> AiohttpTransport:
        if proxy not in self._of_proxies:
            limits = httpx.Limits(max_connections=self._most, max_keepalive_connections=self._most)
            self._of_proxies[proxy] = AiohttpTransport(limits=limits, proxy=proxied(proxy))
        return self._of_proxies[proxy]

    async def aclose(self) -> None:
        for transport in self._of_proxies.values():
            await transport.aclose()


def proxied(proxy: str | None) -> httpx.Proxy | None:
    """A proxy as the transport takes it. Its user and password are a header, which aiohttp renames for the proxy."""
    if proxy is None:
        return None
    parsed = httpx.Proxy(proxy)
    if parsed.raw_auth is None:
        return parsed
    credentials = b64encode(b":".join(parsed.raw_auth)).decode()
    return httpx.Proxy(parsed.url, headers={"Authorization": f"Basic {credentials}"})


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The lines of a stream of events. Python and httpx would also end one at U+2028, which JSON may hold."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


@lru_cache(maxsize=64)
def checked(url: str) -> httpx.URL:
    """The address, or UnreachableError when nothing can be there."""
    try:
        parsed = httpx.URL(url)
        whole = parsed.scheme in {"http", "https"} and bool(parsed.host)
    except (httpx.InvalidURL, UnicodeError):  # a host is not read before it is asked for
        whole = False
    if not whole:
        raise UnreachableError(f"{url} is no address of a service", hint="check ROLLOUTLAB_URL")
    return parsed


def unanswered(url: str, error: Exception, *, direct: bool = False) -> UnreachableError:
    """The error for a request that the transport could not get answered. direct: it went through no proxy."""
    kind = UnreachableError if _unconnected(error) else BrokenOffError
    hint, why = what_to_look_at(url), why_not(error)
    if why == NONE_LEFT:
        return UnreachableError(f"no connection to {origin(url)} can be made: {why}", hint=TO_HAVE_MORE)
    way = "" if direct else through(url)
    return kind(f"nothing answers at {origin(url)}{way}: {why}", hint=hint)


def origin(url: str) -> str:
    """Scheme, host and port of an address, without a user."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def _unconnected(error: Exception) -> bool:
    """Whether no connection was made. The transport reports that, and any that breaks, as a time-out of connecting."""
    cause = error.__cause__
    if cause is None:
        return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def why_not(error: Exception) -> str:
    """The transport reports every failure to connect as a time-out; what lies below it knows better."""
    unconnected = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    otherwise = "the connection could not be made" if unconnected else str(error) or type(error).__name__
    return root_cause(error) or otherwise
