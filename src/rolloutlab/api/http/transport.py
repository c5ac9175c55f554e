"""Transport of requests: proxies of the environment, a connection pool for each, the errors of a connection."""

import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from functools import lru_cache
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from rolloutlab.api.http.errors import CUT_OFF, connection_hint, root_cause
from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.errors import BrokenOffError, UnreachableError
from rolloutlab.fsutil import NONE_LEFT, TO_HAVE_MORE, short_of_descriptors

T = TypeVar("T")

IDLE_SECONDS = 1.5
"""The time after which an unused connection is closed, before the server closes it under a new request: gunicorn does
so after 2 s, uvicorn after 5 s."""


def proxy_of(url: str) -> str | None:
    """Find the proxy of a URL in `HTTP_PROXY` or `HTTPS_PROXY` (else `ALL_PROXY`), unless `NO_PROXY` has the host.

    The variables are read as by the standard library: lower case counts, too; in `NO_PROXY`, `*` is every host and
    `.example` every host below it. Requests to this machine use no proxy: to a proxy elsewhere, `localhost` is itself.

    Raises:
        UnreachableError: the proxy is of an unsupported kind, such as SOCKS.
    """
    target = _split(url)
    host, proxies = target.hostname or "", getproxies()
    address, place = proxies.get(target.scheme) or proxies.get("all"), f"{host}:{target.port}" if target.port else host
    if not address or on_this_machine(target.geturl()) or proxy_bypass(place):
        return None
    proxy = _split(address)
    if proxy.scheme not in {"http", "https"} or not proxy.hostname:
        raise UnreachableError(
            f"the proxy for {target.scheme} in the environment is not a URL that begins with http://",
            hint=f"{target.scheme.upper()}_PROXY=http://proxy.example:3128, or NO_PROXY={host}",
        )
    return proxy.geturl()


def proxy_words(url: str) -> str:
    """Say ` through the proxy HOST`, for the message of an error; empty without a proxy."""
    try:
        proxy = proxy_of(url)
    except UnreachableError:
        return ""
    return f" through the proxy {urlsplit(proxy).netloc.rpartition('@')[2]}" if proxy else ""


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address if "://" in address else f"http://{address}")
    except ValueError:
        return urlsplit("")


class ProxyRouter(httpx.AsyncBaseTransport):
    """Connections to each host, direct or through the proxy that the environment names for it.

    max_connections: the limit of each pool. unencrypted: the http addresses to which keys may go. Requests to them use
    no proxy, because a proxy could read the keys.
    """

    def __init__(self, max_connections: int, unencrypted: Unencrypted) -> None:
        self._max_connections = max_connections
        self._unencrypted = unencrypted
        self._of_hosts: dict[tuple[str, str, int | None], AiohttpTransport] = {}
        self._of_proxies: dict[tuple[str | None, bool], AiohttpTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        host = url.scheme, url.host, url.port
        if self._unencrypted.allows(str(url)):
            return await self._through(None, encrypted=False).handle_async_request(request)
        if host not in self._of_hosts:
            proxy = proxy_of(str(url))
            self._of_hosts[host] = self._through(proxy, encrypted=bool(proxy) or url.scheme == "https")
        return await self._of_hosts[host].handle_async_request(request)

    def _through(self, proxy: str | None, *, encrypted: bool = True) -> AiohttpTransport:
        """Find the pool of a proxy. Without encryption, as to the embedded service, no certificates are read."""
        if (proxy, encrypted) not in self._of_proxies:
            most = self._max_connections
            limits = httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=IDLE_SECONDS)
            trusted = certificates(httpx.create_ssl_context) if encrypted else False
            pool = AiohttpTransport(verify=trusted, limits=limits, proxy=make_proxy(proxy))
            self._of_proxies[proxy, encrypted] = pool
        return self._of_proxies[proxy, encrypted]

    async def aclose(self) -> None:
        for transport in self._of_proxies.values():
            await transport.aclose()


def certificates(read: Callable[[], T]) -> T:
    """Call `read`, which reads the trusted certificates, and explain its error.

    Raises:
        UnreachableError: the file or folder that the environment names for them cannot be used.
    """
    try:
        return read()
    except OSError as error:
        named = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), None)
        if named is None or short_of_descriptors(error):
            raise
        reason = error.strerror if isinstance(error.strerror, str) and error.errno else "it has no certificates"
        message = f"the certificates in {os.environ[named]}, which {named} names, cannot be read: {reason}"
        raise UnreachableError(
            message, hint=f"%env {named}=/path/of/certificates.pem, or del os.environ['{named}']"
        ) from error


def make_proxy(proxy: str | None) -> httpx.Proxy | None:
    """Make a proxy for httpx. Its user and password become a header, which aiohttp sends as Proxy-Authorization."""
    if proxy is None:
        return None
    parsed = httpx.Proxy(proxy)
    if parsed.raw_auth is None:
        return parsed
    credentials = b64encode(b":".join(parsed.raw_auth)).decode()
    return httpx.Proxy(parsed.url, headers={"Authorization": f"Basic {credentials}"})


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of an event stream, which end with CR, LF or both. A byte order mark may be before the first.

    httpx's `aiter_lines` splits at U+2028 too, which JSON may contain.
    """
    rest, mark, after_cr = b"", "\ufeff", False
    async for chunk in chunks:
        piece = chunk.removeprefix(b"\n") if after_cr else chunk  # the second half of an end of a line
        after_cr = chunk.endswith(b"\r") if chunk else after_cr
        *whole, rest = (rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").removeprefix(mark)
            mark = ""
    yield rest.decode(errors="replace").removeprefix(mark)


@lru_cache(maxsize=64)
def parse_url(url: str) -> httpx.URL:
    """Parse a URL, or raise UnreachableError if it is no http or https URL with a host."""
    try:
        parsed = httpx.URL(url)
        valid = parsed.scheme in {"http", "https"} and bool(parsed.host)  # `host` is decoded only now
    except (httpx.InvalidURL, UnicodeError):
        valid = False
    if not valid:
        raise UnreachableError(f"{url} is not a service URL", hint="check ROLLOUTLAB_URL")
    return parsed


def connection_error(url: str, error: Exception, *, direct: bool = False) -> UnreachableError:
    """Make the error for a request without a response. direct: the request went through no proxy."""
    kind, reason = UnreachableError if not_connected(error) else BrokenOffError, failure_reason(error)
    if reason == NONE_LEFT:
        return UnreachableError(f"no connection to {origin(url)} can be made: {reason}", hint=TO_HAVE_MORE)
    if reason == CUT_OFF:
        return BrokenOffError(f"{origin(url)} answered, but {reason}", hint=connection_hint(url))
    proxy = "" if direct else proxy_words(url)
    return kind(f"nothing answers at {origin(url)}{proxy}: {reason}", hint=connection_hint(url))


def origin(url: str) -> str:
    """Return scheme, host and port of a URL, without a user."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def not_connected(error: Exception) -> bool:
    """Whether no connection was made. httpx-aiohttp reports broken connections as connect timeouts too."""
    cause = error.__cause__
    if cause is None:
        return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)


def failure_reason(error: Exception) -> str:
    """Say why a request failed: by the root cause, as httpx-aiohttp reports every failure to connect as a timeout."""
    not_connected = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    default = "the connection could not be made" if not_connected else str(error) or type(error).__name__
    return root_cause(error) or default
