"""What a server is called where tokens are asked for: its canonical address, the resource (RFC 8707, 2)."""

import re
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit, urlunsplit

from rolloutlab.errors import InputError

_NAMED = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?(/[\w./-]*)?")
"""A host with a dot, and maybe a path: an address but for its https://."""
_HOST = re.compile(r"[\w.-]+|[\da-f:.]+", re.ASCII)
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=256)
def canonical_resource(url: str) -> str:
    """An address as the resource that it names: scheme and host in lower case, no usual port, no slash at the end.

    Raises:
        InputError: it has no scheme or host, a fragment, a user, a query, dot segments in its path, or characters that
            browsers and libraries read each in its own way; the message does not repeat what they hold.
    """
    try:
        parts = urlsplit(written := url.strip())
        port = parts.port
    except (ValueError, AttributeError):
        raise InputError("that is no address of a server", hint="%login https://tools.example/mcp") from None
    host = host_of(parts)
    wrong = "a character that no address has" if acts(written) else _wrong(parts, fragment="#" in url)
    if wrong or host is None:
        meant = written if _NAMED.fullmatch(written) else "tools.example/mcp"
        raise InputError(
            f"the address of a server has {wrong or 'a name that no host can have'}", hint=f"%login https://{meant}"
        )
    named = f"[{host}]" if ":" in host else host
    shown = named if port in (None, _PORTS[parts.scheme.lower()]) else f"{named}:{port}"
    return urlunsplit((parts.scheme.lower(), shown, parts.path.rstrip("/"), "", ""))


def host_of(parts: SplitResult) -> str | None:
    """The host as it is looked up, in lower case and in ASCII; None where no host can be called that."""
    try:
        named = (parts.hostname or "").encode("idna").decode()
    except UnicodeError:  # a part that is empty or longer than 63 letters
        return None
    return named if _HOST.fullmatch(named) else None


def acts(url: str) -> bool:
    """Whether an address has spaces, control characters or backslashes, which not everybody reads as part of it."""
    return any(each.isspace() or not each.isprintable() or each == "\\" for each in url)


def _wrong(parts: SplitResult, *, fragment: bool) -> str | None:
    if parts.scheme.lower() not in _PORTS or not parts.hostname:
        return "no https:// and host"
    if fragment:
        return "a fragment"
    if parts.username is not None or parts.password is not None:
        return "a user"
    if any(segment.lower().replace("%2e", ".") in {".", ".."} for segment in parts.path.split("/")):
        return "a . or .. in its path"  # RFC 3986, 5.2.4: another address once it is sent
    return "a query" if parts.query else None
