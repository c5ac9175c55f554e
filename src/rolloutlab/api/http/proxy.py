"""Proxy for a request, from the environment; never for this machine."""

from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.errors import UnreachableError


def proxy_of(url: str) -> str | None:
    """The proxy in `HTTP_PROXY` or `HTTPS_PROXY` (else `ALL_PROXY`), unless `NO_PROXY` has the host.

    As the standard library reads them: in lower case too, `*` for every host, `.example` for all below it. Never for
    this machine, which would be another one to a proxy elsewhere.

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


def through(url: str) -> str:
    """` through the proxy HOST` for the message of an error; empty without a proxy."""
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
