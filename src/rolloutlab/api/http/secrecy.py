"""Where a key may be sent: over https, or on this machine; over http elsewhere only where a person has allowed it."""

import socket
import warnings
from collections.abc import Iterable
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import in_own_network, on_this_machine
from rolloutlab.errors import InputError

_SECRET = ("auth", "cookie", "key", "token", "secret", "password", "credential")
"""What the names of headers that carry a key or a token have in them."""
_OPEN = {"idempotency-key"}
"""Names that have some of it and yet carry none."""


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
        if not _in_own_network(host):
            raise InputError(
                f"{host} is in no network of your own: a key would be read on the way", hint=f"https://{host}"
            )
        self._allowed.add(place)
        warnings.warn(
            f"keys go to http://{host}:{port} unencrypted: every machine on the way can read them", stacklevel=2
        )

    def allows(self, url: str) -> bool:
        """Whether keys may go to an http address because a person said so: then no proxy of the environment does."""
        return urlsplit(url).scheme == "http" and _place(url) in self._allowed

    def check(self, url: str, headers: Iterable[str] = ("Authorization",)) -> None:
        """InputError where a request with headers of these names would show a key to machines on its way."""
        if not any(map(is_secret, headers)):
            return
        try:
            sealed = urlsplit(url).scheme == "https" or on_this_machine(url) or self.allows(url)
        except ValueError:
            raise InputError("that is no address to send a key to", hint="https://train.example") from None
        if not sealed:
            host, port = _place(url)
            raise InputError(
                f"http://{host}:{port} is not encrypted: a key would be read on the way",
                hint=f"https://{host}; or --insecure-http, inside your own network",
            )


def is_secret(header: str) -> bool:
    """Whether a header of this name may carry a key, a token or a password: such names are not a closed list."""
    name = header.lower()
    return name not in _OPEN and any(part in name for part in _SECRET)


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _in_own_network(host: str) -> bool:
    """Whether all addresses of a host are in networks of one's own, or on this machine."""
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(in_own_network(str(each[4][0])) for each in resolved)
