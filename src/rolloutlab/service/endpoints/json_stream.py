"""Streaming JSON pull parser: only the current value is in memory.

It finds where values begin and end, and returns their text for a strict parser; between values it is strict itself.
"""

import re
from collections.abc import Iterator
from itertools import count
from typing import BinaryIO

from pydantic_core import from_json

_CHUNK = 1 << 18
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_ARRAY = rb'\[[^"{}\[\]NI]*+\]'
_OBJECT = rb'\{(?:[^"{}\[\]NI]++|' + _STRING + rb"|" + _ARRAY + rb")*+\}"
_INSIDE = re.compile(rb'(?:[^"{}\[\]NI]++|' + _STRING + rb"|" + _ARRAY + rb"|" + _OBJECT + rb")*+", re.DOTALL)
"""What can be skipped without counting brackets: scalars, strings, and flat arrays and objects. Outside strings, N and
I occur only in NaN and Infinity, which are not JSON."""
_WHOLE_STRING = re.compile(_STRING, re.DOTALL)
_SCALAR = re.compile(rb"[^\s,:\[\]{}\"NI]++")
_SPACE = re.compile(rb"[ \t\n\r]*+")
_DEPTH = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_MAX_VALUE = 1 << 28
"""The most bytes of one value, such as a trajectory, which is in memory as a whole."""
_MAX_DEPTH = 256  # beyond the limit of the strict parser


class MalformedJsonError(Exception):
    """The text is not JSON. path: where the value with the error is."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class JsonStream:
    """Reads one JSON text from beginning to end. path: where the current value is."""

    def __init__(self, file: BinaryIO) -> None:
        self.path: list[str | int] = []
        self._file = file
        self._text = b""
        self._position = 0

    def peek(self) -> bytes:
        """Return the next character that is not white space, and stay before it; empty at the end of the text."""
        while True:
            if space := _SPACE.match(self._text, self._position):
                self._position = space.end()
            if self._position < len(self._text) or not self._read_more():
                return self._text[self._position : self._position + 1]

    def members(self) -> Iterator[str]:
        """Yield the names of the current object. The value of each must be read before the next name."""
        seen: set[str] = set()
        for _ in self._elements(b"{", b"}"):
            if self.peek() != b'"':
                raise self._unexpected("a name in quotes")
            try:
                name = str(from_json(self.value()))
            except ValueError as error:
                raise MalformedJsonError(tuple(self.path), f"invalid name: {error}") from error
            if name in seen:
                raise MalformedJsonError((*self.path, name), "duplicate name")
            seen.add(name)
            self._consume(b":")
            self.path.append(name)
            yield name
            self.path.pop()

    def items(self) -> Iterator[int]:
        """Yield the indices of the current array. The value at each must be read before the next index."""
        for index in self._elements(b"[", b"]"):
            self.path.append(index)
            yield index
            self.path.pop()

    def value(self) -> bytes:
        """Read the text of the current value. What is inside an array or object is not validated here."""
        first = self.peek()
        flat = _WHOLE_STRING if first == b'"' else _SCALAR
        length = self._nested_length() if first in {b"{", b"["} else self._flat_length(flat)
        start, self._position = self._position, self._position + length
        return self._text[start : self._position]

    def end(self) -> None:
        """Raise MalformedJsonError unless the text ends here."""
        if self.peek():
            raise self._unexpected("the end")

    def _nested_length(self) -> int:
        """Measure the current object or array, in bytes."""
        depth = length = 1
        while depth:
            skipped = _INSIDE.match(self._text, self._position + length)
            length = skipped.end() - self._position if skipped else length
            char = self._text[self._position + length : self._position + length + 1]
            if char in _DEPTH:
                depth, length = depth + _DEPTH[char], length + 1
            # a quote: its string ends in the next chunk
            elif char in {b"N", b"I"} or depth > _MAX_DEPTH or not self._read_more():
                raise self._unexpected("a complete JSON value", length)
        return length

    def _flat_length(self, pattern: re.Pattern[bytes]) -> int:
        """Measure the current string or scalar, in bytes."""
        while True:
            match = pattern.match(self._text, self._position)
            if match and match.end() < len(self._text):
                return match.end() - self._position
            if not self._read_more():
                if match is None:
                    raise self._unexpected("a value")
                return match.end() - self._position

    def _elements(self, opening: bytes, closing: bytes) -> Iterator[int]:
        self._consume(opening)
        if self.peek() != closing:
            for index in count():
                yield index
                if self.peek() == closing:
                    break
                self._consume(b",")
        self._position += 1

    def _consume(self, expected: bytes) -> None:
        if self.peek() != expected:
            raise self._unexpected(expected.decode())
        self._position += 1

    def _read_more(self) -> bool:
        """Read as much again as the current value has so far: rescanning a long value then costs linear time."""
        rest = self._text[self._position :]
        if len(rest) > _MAX_VALUE:
            raise MalformedJsonError(tuple(self.path), f"a value of more than {_MAX_VALUE >> 20} MiB")
        chunk = self._file.read(max(_CHUNK, len(rest)))
        self._text, self._position = rest + chunk, 0
        return bool(chunk)

    def _unexpected(self, expected: str, ahead: int = 0) -> MalformedJsonError:
        position = self._position + ahead
        actual = self._text[position : position + 12].decode(errors="replace") or "the end of the text"
        return MalformedJsonError(tuple(self.path), f"expected {expected}, not {actual}")
