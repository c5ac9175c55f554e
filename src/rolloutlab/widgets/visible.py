"""Text that other people and policies wrote, so that all of it is seen and none of it acts."""

import re

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = "\u00ad\u200b\u2028\u2029\u2060\ufeff"
_ACTING = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_INVISIBLE}\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with every character that acts instead of being seen written out.

    Escape and other control characters become their pictures (`␛`), marks that turn the direction of text, invisible
    ones and halves of characters their numbers (`⟨202e⟩`). Line ends and tabs stay.
    """
    return _ACTING.sub(_written_out, text.replace("\r\n", "\n"))


def with_fix(line: str) -> dict[str, str]:
    """The two parts of a line of a report, visible: what there is to say, and what to type about it if anything."""
    text, _, fix = line.partition(" -> ")
    expected = fix.removeprefix("nothing: ")
    return {
        "text": visible(f"{text}: {expected}" if expected != fix else text),
        "fix": visible(fix) * (expected == fix),
    }


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8{code:04x}\u27e9"
