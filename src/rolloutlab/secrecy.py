"""Where a key may be sent: over https, or on this machine; over http elsewhere only where a person has allowed it."""

import socket
import warnings
from collections.abc import Container
from urllib.parse import urlsplit

from rolloutlab.errors import InputError
from rolloutlab.reach import Reach, reach_of
from rolloutlab.settings import on_this_machine

SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-chroma-token")
"""Headers that carry a key or a token, in lower case."""


class Unencrypted:
    """The http addresses in one's own network that keys may go to, as long as this object lives; none of it is stored.

    Raises:
        InputError: from `check`, a key would be readable on its way; from `allow`, the address is in no own network.
    """

    def __init__(self) -> None:
        self._allowed: set[tuple[str, int]] = set()

    def allow(self, url: str) -> None:
        """Let keys go to an http address in a private network from now on, with a warning; https needs no leave."""
        if urlsplit(url).scheme != "http" or on_this_machine(url):
            return
        host, port = place = _place(url)
        if not _private(host):
            raise InputError(
                f"{host} is in no network of your own: a key would be read on the way", hint=f"https://{host}"
            )
        self._allowed.add(place)
        warnings.warn(
            f"keys go to http://{host}:{port} unencrypted: every machine on the way can read them", stacklevel=2
        )

    def check(self, url: str, headers: Container[str] = SECRET_HEADERS) -> None:
        """InputError where a request with these headers would show a key to machines on its way."""
        if not any(name in headers for name in SECRET_HEADERS):
            return
        try:
            sealed = urlsplit(url).scheme == "https" or on_this_machine(url) or _place(url) in self._allowed
        except ValueError:
            raise InputError("that is no address to send a key to", hint="https://train.example") from None
        if not sealed:
            host, port = _place(url)
            raise InputError(
                f"http://{host}:{port} is not encrypted: a key would be read on the way",
                hint=f"https://{host}; or --insecure-http, inside your own network",
            )


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _private(host: str) -> bool:
    """Whether all addresses of a host are in private networks (RFC 1918, RFC 4193, RFC 6598), or on this machine."""
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(reach_of(str(each[4][0])) in (Reach.PRIVATE, Reach.LOOPBACK) for each in resolved)
