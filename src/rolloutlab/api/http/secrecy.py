"""Secrets in headers: where tokens come from, and to which hosts they may go over plain http."""

import hmac
import socket
import warnings
from collections.abc import Iterable
from typing import Protocol
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import in_own_network, on_this_machine
from rolloutlab.errors import InputError

_SECRET = ("auth", "cookie", "key", "token", "secret", "password", "credential")
"""Parts of the names of headers that carry secrets."""
_NOT_SECRET = {"idempotency-key"}


class TokenSource(Protocol):
    """A bearer token that may be renewed while requests are under way; None before a sign-in."""

    async def token(self) -> str | None: ...

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:
        """Take note of a response, and return whether to send its request again. token: what the request carried."""


class Bearers(Protocol):
    """Token sources of several servers."""

    def of(self, url: str) -> TokenSource | None: ...


class Unencrypted:
    """The http hosts in private networks to which keys may be sent. Nothing is stored on disk."""

    def __init__(self) -> None:
        self._allowed: set[tuple[str, int]] = set()

    def allow(self, url: str) -> None:
        """Allow keys on http to a host, with a warning; InputError if the host is not in a private network."""
        if urlsplit(url).scheme != "http" or on_this_machine(url):
            return
        host, port = place = _place(url)
        if not _in_own_network(host):
            message = f"{host} is not in a private network: a key could be read on the way"
            raise InputError(message, hint=_https_of(url))
        self._allowed.add(place)
        warnings.warn(
            f"keys go to http://{host}:{port} unencrypted: every machine on the way can read them", stacklevel=2
        )

    def allows(self, url: str) -> bool:
        """Whether a person allowed keys on http to this host. Such requests bypass proxies."""
        return urlsplit(url).scheme == "http" and _place(url) in self._allowed

    def check(self, url: str, headers: Iterable[str] = ("Authorization",)) -> None:
        """Raise InputError if a request with headers of these names would send a secret unencrypted."""
        if not any(map(is_secret, headers)):
            return
        try:
            safe = urlsplit(url).scheme == "https" or on_this_machine(url) or self.allows(url)
        except ValueError:
            raise InputError("a key would be sent to an invalid URL", hint="https://train.example") from None
        if not safe:
            host, port = _place(url)
            message = f"http://{host}:{port} is not encrypted: a key could be read on the way"
            raise InputError(message, hint=f"{_https_of(url)}; or --insecure-http, inside your own network")


def is_secret(header: str) -> bool:
    """Whether a header of this name may carry a secret. It is guessed by parts of names: there is no closed list."""
    name = header.lower()
    return name not in _NOT_SECRET and any(part in name for part in _SECRET)


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def _https_of(url: str) -> str:
    return f"https://{urlsplit(url).netloc.rpartition('@')[2]}"


def _in_own_network(host: str) -> bool:
    """Whether all addresses of a host are private or loopback."""
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(in_own_network(str(each[4][0])) for each in resolved)


def proof(token: str, nonce: str, base_url: str) -> str:
    """Compute the proof that a service knows the lab's token, which it gives before the client sends the token.

    It is the HMAC-SHA256 (RFC 2104) of a nonce and of the URL that the client asks, as 64 hexadecimal digits.
    """
    # with the URL a program at another port cannot relay the challenge to the service
    return hmac.new(token.encode(), f"rolloutlab health\n{nonce}\n{base_url}".encode(), "sha256").hexdigest()


def proves(response: object, token: str, nonce: str, base_url: str) -> bool:
    """Whether the response to a health check contains the proof."""
    claimed = response.get("proof") if isinstance(response, dict) else None
    return isinstance(claimed, str) and hmac.compare_digest(claimed.encode(), proof(token, nonce, base_url).encode())
