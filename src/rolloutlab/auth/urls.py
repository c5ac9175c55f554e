"""Which addresses are taken: servers to sign in to, and endpoints that can be trusted with a code."""

from functools import lru_cache
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.http.urls import canonical_resource, host_of, is_ambiguous
from rolloutlab.errors import InputError, SignInError


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def host(url: str) -> str:
    """Host and port, as a person is shown them."""
    return urlsplit(url).netloc.rpartition("@")[2]


@lru_cache(maxsize=256)
def covers(resource: str, url: str) -> bool:
    """Whether an address is the resource or lies below it; asked with every request, so it is remembered."""
    resource = canonical_resource(resource)
    try:
        url = canonical_resource(url.partition("?")[0])
    except InputError:
        return False
    return origin(resource) == origin(url) and f"{urlsplit(url).path}/".startswith(f"{urlsplit(resource).path}/")


def checked_server(url: str) -> str:
    """The canonical address of a server to sign in to: https, or http on this machine.

    Raises:
        InputError: it is no such address.
    """
    found = canonical_resource(url)
    if urlsplit(found).scheme != "https" and not on_this_machine(found):
        said = f"{origin(found)} is not encrypted: a token would be read on the way"
        raise InputError(said, hint=f"%login https{found.removeprefix('http')}")
    return found


def checked_endpoint(what: str, url: str, server: str) -> str:
    """An address that a document names: https, or http on this machine where the server is on this machine too.

    Raises:
        SignInError: it is neither, or holds a user or a fragment.
    """
    try:
        parts = urlsplit(url)
        whole = host_of(parts) is not None and (parts.port or True)
    except ValueError:
        whole = False
    odd = is_ambiguous(url) or not url.isascii()
    if odd or not whole or parts.username is not None or parts.fragment:
        raise SignInError(f"{host(server)} names a {what} that is no address")
    here = parts.scheme == "http" and on_this_machine(url) and on_this_machine(server)
    if parts.scheme != "https" and not here:
        raise SignInError(f"{host(server)} names a {what} without https: {ascii(origin(url))[:200]}")
    return url
