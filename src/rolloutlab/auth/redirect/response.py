"""What an authorization server answers through the browser: the parameters of an address (RFC 6749, 4.1.2)."""

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl

_MOST = 32
_QUOTES = "<>\"'`"


def parameters(text: str) -> dict[str, str]:
    """The parameters in an address, or in its query alone; none where one comes twice (RFC 6749, 3.1), or is no text.

    Spaces and line ends, which an address has none of, are left out: a terminal may have broken it.
    """
    bare = "".join(text.split()).strip(_QUOTES)
    query = bare.partition("?")[2] if "://" in bare.partition("=")[0] else bare.removeprefix("?")
    try:
        pairs = parse_qsl(query.partition("#")[0], keep_blank_values=True, max_num_fields=_MOST, errors="strict")
    except ValueError:
        return {}
    return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else {}


def is_for(state: str, answer: Mapping[str, str]) -> bool:
    """Whether an answer carries this state; how long that takes to find out says nothing about the state."""
    return hmac.compare_digest(_bytes(answer.get("state", "")), _bytes(state))


def _bytes(text: str) -> bytes:
    """Also of text with halves of characters, which a page may send."""
    return text.encode("utf-8", "surrogatepass")
