"""Which proxy of the environment a request goes through; none on this machine."""

from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.errors import UnreachableError


def proxy_of(url: str) -> str | None:
    """The proxy that `HTTP_PROXY` or `HTTPS_PROXY` (else `ALL_PROXY`) names, unless `NO_PROXY` has the host.

    As the standard library reads them: in lower case too, `*` for every host, `.example` for all below it. This
    machine never has one: a proxy elsewhere would look for the service on a machine of its own.

    Raises:
        UnreachableError: it is of a kind that is not spoken here, such as SOCKS.
    """
    there = _split(url)
    host, named = there.hostname or "", getproxies()
    address = named.get(there.scheme) or named.get("all")
    if not address or on_this_machine(there.geturl()) or proxy_bypass(f"{host}:{there.port}" if there.port else host):
        return None
    proxy = _split(address)
    if proxy.scheme not in {"http", "https"} or not proxy.hostname:
        raise UnreachableError(
            f"the proxy of the environment for {there.scheme} is no address that begins with http://",
            hint=f"{there.scheme.upper()}_PROXY=http://proxy.example:3128, or NO_PROXY={host}",
        )
    return proxy.geturl()


def through(url: str) -> str:
    """The words that name the proxy of an address, without its user and password; none where it has no proxy."""
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
