"""Text that other people and policies wrote, so that all of it is seen and none of it acts."""

import re

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u00ad\u180e\u200b\u2028\u2029\u2060-\u2064\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_ACTING = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]")


def escape_control_chars(text: str) -> str:
    """The text with every character that acts instead of being seen written out.

    Escape and other control characters become their pictures (`␛`), marks that turn the direction of text, invisible
    ones and halves of characters their numbers (`⟨202e⟩`). Line ends and tabs stay.
    """
    return _ACTING.sub(_written_out, text.replace("\r\n", "\n"))


def escape_to_one_line(text: str, longest: int | None = None) -> str:
    """The same on one line, and not longer than so many characters."""
    line = " ".join(escape_control_chars(text).split())
    return line if longest is None or len(line) <= longest else f"{line[: longest - 3]}..."


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8{code:04x}\u27e9"
