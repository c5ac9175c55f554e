"""JSON of any size, read from a file piece by piece: only the value at hand is in memory.

The reader finds where values begin and end and leaves what is in them to a strict parser. Between them, it is strict
itself.
"""

import re
from collections.abc import Iterator
from itertools import count
from typing import BinaryIO

from pydantic_core import from_json

_PIECE = 1 << 18

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_ARRAY = rb'\[[^"{}\[\]NI]*+\]'
_OBJECT = rb'\{(?:[^"{}\[\]NI]++|' + _STRING + rb"|" + _ARRAY + rb")*+\}"
_INSIDE = re.compile(rb'(?:[^"{}\[\]NI]++|' + _STRING + rb"|" + _ARRAY + rb"|" + _OBJECT + rb")*+", re.DOTALL)
"""As much as can be passed over without counting brackets: scalars, strings, and arrays and objects without more in
them. Outside of strings, N and I occur in NaN and Infinity alone, which JSON does not have."""
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_SCALAR = re.compile(rb"[^\s,:\[\]{}\"NI]++")
_SPACE = re.compile(rb"[ \t\n\r]*+")
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_DEEPEST = 256  # the strict parser gives up before


class MalformedJsonError(Exception):
    """The text is not JSON. path: where in it that was found."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class JsonStream:
    """Reads one JSON text from its beginning to its end. `path` is where in the text the value at hand lies."""

    def __init__(self, file: BinaryIO) -> None:
        self.path: list[str | int] = []
        self._file = file
        self._text = b""
        self._at = 0

    def peek(self) -> bytes:
        """The first character of what comes next; empty at the end of the text."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def members(self) -> Iterator[str]:
        """The names in the object at hand; the value of each must be read before the next is asked for."""
        seen: set[str] = set()
        for _ in self._listed(b"{", b"}"):
            if self.peek() != b'"':
                raise self._unexpected("a name in quotes")
            name = self._name()
            if name in seen:
                raise MalformedJsonError((*self.path, name), "this name is there twice")
            seen.add(name)
            self._take(b":")
            self.path.append(name)
            yield name
            self.path.pop()

    def items(self) -> Iterator[int]:
        """The positions in the array at hand; the value at each must be read before the next is asked for."""
        for position in self._listed(b"[", b"]"):
            self.path.append(position)
            yield position
            self.path.pop()

    def value(self) -> bytes:
        """The text of the value at hand, whose inside is not checked."""
        first = self.peek()
        flat = _WHOLE_STRING if first == b'"' else _SCALAR
        length = self._nested() if first in {b"{", b"["} else self._flat(flat)
        start, self._at = self._at, self._at + length
        return self._text[start : self._at]

    def end(self) -> None:
        """There must be nothing more."""
        if self.peek():
            raise self._unexpected("the end")

    def _nested(self) -> int:
        """The length of the object or array at hand."""
        depth = length = 1
        while depth:
            passed = _INSIDE.match(self._text, self._at + length)
            length = passed.end() - self._at if passed else length
            mark = self._text[self._at + length : self._at + length + 1]
            if mark in _DEPTH:
                depth, length = depth + _DEPTH[mark], length + 1
            elif mark in {b"N", b"I"} or depth > _DEEPEST or not self._more():  # a quote: its string goes on further
                raise self._unexpected("a complete value of JSON", length)
        return length

    def _flat(self, pattern: re.Pattern[bytes]) -> int:
        """The length of the string or scalar at hand."""
        while True:
            match = pattern.match(self._text, self._at)
            if match and match.end() < len(self._text):
                return match.end() - self._at
            if not self._more():
                if match is None:
                    raise self._unexpected("a value")
                return match.end() - self._at

    def _name(self) -> str:
        try:
            return str(from_json(self.value()))
        except ValueError as error:
            raise MalformedJsonError(tuple(self.path), f"a name cannot be read: {error}") from error

    def _listed(self, opening: bytes, closing: bytes) -> Iterator[int]:
        self._take(opening)
        if self.peek() != closing:
            for position in count():
                yield position
                if self.peek() == closing:
                    break
                self._take(b",")
        self._at += 1

    def _take(self, expected: bytes) -> None:
        if self.peek() != expected:
            raise self._unexpected(expected.decode())
        self._at += 1

    def _more(self) -> bool:
        """Read on, as much again as the value at hand has already, so that a long one is not looked at too often."""
        kept = self._text[self._at :]
        piece = self._file.read(max(_PIECE, len(kept)))
        self._text, self._at = kept + piece, 0
        return bool(piece)

    def _unexpected(self, wanted: str, ahead: int = 0) -> MalformedJsonError:
        at = self._at + ahead
        found = self._text[at : at + 12].decode(errors="replace") or "the end of the text"
        return MalformedJsonError(tuple(self.path), f"{wanted} is expected, not {found}")
