"""Canonical URL of a server, which is its `resource` in token requests (RFC 8707, section 2)."""

import re
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit, urlunsplit

from rolloutlab.errors import InputError

_NAMED = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?(/[\w./-]*)?")
"""A host with a dot, and maybe a path: a URL but for its https://."""
_HOST = re.compile(r"[\w.-]+|[\da-f:.]+", re.ASCII)
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=256)
def canonical_resource(url: str) -> str:
    """Write a URL with scheme and host in lower case, without a default port or a slash at the end.

    Raises:
        InputError: it has no scheme or host, a fragment, a user, a query, dot segments in its path, or characters that
            browsers and libraries parse differently; the message does not repeat secrets in them.
    """
    try:
        parts = urlsplit(written := url.strip())
        port = parts.port
    except (ValueError, AttributeError):
        raise InputError("not the URL of a server", hint="%login https://tools.example/mcp") from None
    host = host_of(parts)
    wrong = "an invalid character" if is_ambiguous(written) else _find_fault(parts, fragment="#" in url)
    if wrong or host is None:
        example = written if _NAMED.fullmatch(written) else "tools.example/mcp"
        message = f"the URL of a server has {wrong or 'an invalid host name'}"
        raise InputError(message, hint=f"%login https://{example}")
    name = f"[{host}]" if ":" in host else host
    netloc = name if port in (None, _PORTS[parts.scheme.lower()]) else f"{name}:{port}"
    return urlunsplit((parts.scheme.lower(), netloc, parts.path.rstrip("/"), "", ""))


def host_of(parts: SplitResult) -> str | None:
    """Return the host in lower case and in ASCII (IDNA); None where it is no valid name."""
    try:
        name = (parts.hostname or "").encode("idna").decode()
    except UnicodeError:  # a part that is empty or longer than 63 letters
        return None
    return name if _HOST.fullmatch(name) else None


def is_ambiguous(url: str) -> bool:
    """Whether a URL has spaces, control characters or backslashes, which parsers treat differently."""
    return any(each.isspace() or not each.isprintable() or each == "\\" for each in url)


def _find_fault(parts: SplitResult, *, fragment: bool) -> str | None:
    if parts.scheme.lower() not in _PORTS or not parts.hostname:
        return "no https:// and host"
    if fragment:
        return "a fragment"
    if parts.username is not None or parts.password is not None:
        return "a user"
    if any(segment.lower().replace("%2e", ".") in {".", ".."} for segment in parts.path.split("/")):
        return "a . or .. in its path"  # RFC 3986, 5.2.4: removed before the request is sent
    return "a query" if parts.query else None
