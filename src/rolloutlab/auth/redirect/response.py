"""Parameters of an authorization response (RFC 6749, 4.1.2)."""

import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl

_MAX_FIELDS = 32
_QUOTES = "<>\"'`"


def parameters(text: str) -> dict[str, str]:
    """Parse the parameters of a URL or of its query; none if one is repeated (RFC 6749, 3.1) or not UTF-8.

    Whitespace is removed, as a terminal may have wrapped the URL.
    """
    bare = "".join(text.split()).strip(_QUOTES)
    query = bare.partition("?")[2] if "://" in bare.partition("=")[0] else bare.removeprefix("?")
    try:
        pairs = parse_qsl(query.partition("#")[0], keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        return {}
    return dict(pairs) if len({name for name, _ in pairs}) == len(pairs) else {}


def is_for(state: str, response: Mapping[str, str]) -> bool:
    """Whether a response has this state. They are compared in constant time."""

    def encode(text: str) -> bytes:
        return text.encode("utf-8", "surrogatepass")  # a page may send lone surrogates

    return hmac.compare_digest(encode(response.get("state", "")), encode(state))
