"""Checks of URLs: of servers to sign in to, and of endpoints that codes and tokens are sent to."""

from functools import lru_cache
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.http.urls import canonical_resource, host_of, is_ambiguous
from rolloutlab.errors import InputError, SignInError


def origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def host(url: str) -> str:
    """Return host and port, for messages."""
    return urlsplit(url).netloc.rpartition("@")[2]


@lru_cache(maxsize=256)
def covers(resource: str, url: str) -> bool:
    """Whether a URL is the resource or below it. It is cached, as every request calls it."""
    resource = canonical_resource(resource)
    try:
        url = canonical_resource(url.partition("?")[0])
    except InputError:
        return False
    return origin(resource) == origin(url) and f"{urlsplit(url).path}/".startswith(f"{urlsplit(resource).path}/")


def check_server(url: str) -> str:
    """Return the canonical URL of a server to sign in to, or raise InputError unless it is https or on this machine."""
    canonical = canonical_resource(url)
    if urlsplit(canonical).scheme != "https" and not on_this_machine(canonical):
        message = f"{origin(canonical)} is not encrypted: a token could be read on the way"
        raise InputError(message, hint=f"%login https{canonical.removeprefix('http')}")
    return canonical


def check_endpoint(what: str, url: str, server: str) -> str:
    """Return a URL from metadata, or raise SignInError unless it is https, or http with it and the server local."""
    try:
        parts = urlsplit(url)
        valid = host_of(parts) is not None and (parts.port or True)
    except ValueError:
        valid = False
    if not valid or is_ambiguous(url) or not url.isascii() or parts.username is not None or parts.fragment:
        raise SignInError(f"{host(server)} names an invalid {what}")
    local = parts.scheme == "http" and on_this_machine(url) and on_this_machine(server)
    if parts.scheme != "https" and not local:
        raise SignInError(f"{host(server)} names a {what} without https: {ascii(origin(url))[:200]}")
    return url
