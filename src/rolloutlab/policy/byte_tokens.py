"""Bytes of byte-level BPE tokens, which tokenizers write with printable characters."""

from functools import cache


def raw_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level BPE token that is not valid UTF-8 by itself."""
    table = _byte_table()
    return bytes(table.get(character, ord("?")) for character in token)


@cache
def _byte_table() -> dict[str, int]:
    """Make the inverse of GPT-2's table of printable characters for bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
