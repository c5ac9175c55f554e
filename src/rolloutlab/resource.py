"""What a server is called where tokens are asked for: its canonical address, the resource (RFC 8707, 2)."""

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

from rolloutlab.errors import InputError

_NAMED = re.compile(r"[\w-]+(\.[\w-]+)+(:\d+)?(/[\w./-]*)?")
"""A host with a dot, and maybe a path: an address but for its https://."""
_PORTS = {"http": 80, "https": 443}


def canonical(url: str) -> str:
    """An address as the resource that it names: scheme and host in lower case, no usual port, no slash at the end.

    Raises:
        InputError: it has no scheme or host, a fragment, a user or a query; the message does not repeat what they hold.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except (ValueError, AttributeError):
        raise InputError("that is no address of a server", hint="%login https://tools.example/mcp") from None
    wrong = _wrong(parts, fragment="#" in url)
    if wrong:
        meant = url.strip() if _NAMED.fullmatch(url.strip()) else "tools.example/mcp"
        raise InputError(f"the address of a server has {wrong}", hint=f"%login https://{meant}")
    host = parts.hostname or ""
    named = f"[{host}]" if ":" in host else host
    shown = named if port in (None, _PORTS[parts.scheme.lower()]) else f"{named}:{port}"
    return urlunsplit((parts.scheme.lower(), shown, parts.path.rstrip("/"), "", ""))


def _wrong(parts: SplitResult, *, fragment: bool) -> str | None:
    if parts.scheme.lower() not in _PORTS or not parts.hostname:
        return "no https:// and host"
    if fragment:
        return "a fragment"
    if parts.username is not None or parts.password is not None:
        return "a user"
    return "a query" if parts.query else None
