"""Escape or replace characters in untrusted text before it is displayed or stored."""

import json
import re
from typing import Any

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u00ad\u180e\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]")


def escape_control_chars(text: str) -> str:
    """The text with control characters as pictures (`␛`), other unsafe ones as numbers (`⟨202e⟩`), \\n and \\t kept."""
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def escape_to_one_line(text: str, limit: int | None = None) -> str:
    """As `escape_control_chars`, on one line of at most `limit` characters."""
    line = " ".join(escape_control_chars(text).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 3]}..."


def replace_surrogates(text: str, limit: int | None = None) -> str:
    """The first `limit` characters of a text, with `?` for each lone surrogate, which UTF-8 cannot encode."""
    return text[:limit].encode("utf-8", "replace").decode()


def join_surrogates(value: Any) -> Any:
    """A JSON value whose texts are valid Unicode: pairs of surrogates are joined, and U+FFFD replaces a lone one.

    Servers in JavaScript send half of an emoji as an escape where a token or a chunk ends within it.
    """
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8{code:04x}\u27e9"
