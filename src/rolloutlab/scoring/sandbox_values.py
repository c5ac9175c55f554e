"""Values between a sandboxed program and its checks: plain ones as JSON, by copies, without code; both sides run this.

Nothing of the package is imported: its text is run in the process of the program and in that of the checks.
"""

from __future__ import annotations  # nothing is imported for types: it would take a third of the time

import sys
from collections import Counter, OrderedDict, defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LARGE = 10**1000
"""Python reads and writes decimal integers of up to 4300 digits alone."""
_LISTS = list, tuple, set, frozenset
_DICTS = dict, OrderedDict, Counter, defaultdict


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """A value as JSON; `other` encodes what is not plain. Subclasses are not plain: they may compare as they like."""
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is int:
        return value if abs(value) < _LARGE else ["int", hex(value)]
    if kind in _LISTS:
        return [kind.__name__, [encode(each, other) for each in value]]
    if kind in _DICTS:
        name = "dict" if kind is defaultdict else kind.__name__
        return [name, [[encode(key, other), encode(each, other)] for key, each in value.items()]]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind is complex:
        return ["complex", [value.real, value.imag]]
    if value is ...:
        return ["...", None]
    if kind is getattr(sys.modules.get("fractions"), "Fraction", ()):
        return ["Fraction", [encode(value.numerator, other), encode(value.denominator, other)]]
    if kind is getattr(sys.modules.get("decimal"), "Decimal", ()):
        return ["Decimal", str(value)]
    return other(value)


def decode(node: Any, other: Callable[[str, Any], Any]) -> Any:
    """The value of what `encode` gave; any exception for what it did not give, as a program may write it."""
    if type(node) is not list:
        return node
    kind, held = node
    if kind in _MADE:
        return _MADE[kind](held)
    if kind in _OF_LISTS:
        return _OF_LISTS[kind](decode(value, other) for value in held)
    if kind in _OF_PAIRS:
        return _OF_PAIRS[kind]({decode(key, other): decode(value, other) for key, value in held})
    if kind == "Fraction":
        return __import__("fractions").Fraction(*(decode(each, other) for each in held))
    return other(kind, held)


_OF_LISTS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in _LISTS}
_OF_PAIRS: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in _DICTS if kind is not defaultdict}
_MADE: dict[str, Callable[[Any], Any]] = {
    "int": lambda held: int(held, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda held: complex(*held),
    "...": lambda _: ...,
    "Decimal": lambda held: __import__("decimal").Decimal(held),
}
