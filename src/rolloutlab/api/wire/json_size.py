"""Memory that a JSON text takes as values of Python, estimated from the text: `[],[],…` takes forty times its size."""

MAX_VALUES_BYTES = 1 << 30
"""The limit of what is read as one value, such as a line of a file, an item of an array, or a request."""

_OF_CHARACTERS = ((b"[", 64), (b"{", 240), (b",", 60))
"""Bytes for each list, for each object, and for each further item of one, on CPython 3.11 with a text or a number."""

_MOST_OF_A_CHARACTER = 256


def values_bytes(text: bytes) -> int:
    """Estimate the bytes that the values of a JSON text take. Brackets and commas in strings make it too high."""
    return len(text) + sum(text.count(character) * size for character, size in _OF_CHARACTERS)


def too_large(text: bytes | str) -> str | None:
    """Say what is wrong with a JSON text that would take too much memory; None if it is not too large.

    Bracket and comma are one byte in UTF-8, so that a text may be given as either.
    """
    if len(text) * _MOST_OF_A_CHARACTER <= MAX_VALUES_BYTES:  # a file may have a million short lines
        return None
    size = values_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
    if size <= MAX_VALUES_BYTES:
        return None
    return f"its values would take {size / (1 << 30):.1f} GiB of memory, more than {MAX_VALUES_BYTES >> 30}"
