"""Checks of a sandboxed program, in a process of their own: its functions are called there, their values compared here.

A script for `python -I`. `sandbox.py` gives it a JSON object by standard input: `checks` (the text), `requests` and
`answers` (file descriptors to and from the program).

Nothing of the program runs in this process. It sends texts that `ast.literal_eval` reads, which are plain values; what
is not plain stays there, and is an object here whose attributes and calls are asked for. Such an object equals nothing
but itself and is neither true nor false, so that a program cannot answer `double(2) == 4` by an object of its own.
"""

from __future__ import annotations  # nothing is imported for types: it would take a third of the time

import ast
import builtins
import ctypes
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

_SET_DUMPABLE = 4
_LONGEST = 10_000_000
"""Bytes of one answer of the program."""


class ProgramError(Exception):
    """The program ended, or raised an exception of its own."""


class Remote:
    """An object of the program."""

    def __init__(self, link: Link, place: int) -> None:
        self.__dict__.update(_link=link, _place=place)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of this class alone: a copy or a comparison here must not be the program's
            raise AttributeError(name)
        return self._link.ask("get", self, [name], {})

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self, [name, value], {})

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._link.ask("call", self, list(arguments), named)

    def __len__(self) -> int:
        length = self._link.ask("len", self, [], {})
        return length if type(length) is int else 0

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("item", self, [key], {})

    def __iter__(self) -> Iterator[Any]:
        values = self._link.ask("list", self, [], {})
        return iter(values if type(values) is list else [])

    def __bool__(self) -> bool:
        raise TypeError("an object of the program is neither true nor false here; compare a plain value of it")

    def __repr__(self) -> str:
        return f"<object {self._place} of the program>"


class Link:
    """Requests to the program and its answers, one line each."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers

    def read(self) -> Any:
        """The next answer: plain values, and objects of the program in their places."""
        line = self._answers.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise ProgramError("the program ended before its checks did, or gave an answer of more than 10 MB")
        return ast.literal_eval(line.decode())

    def ask(self, what: str, remote: Remote, arguments: list[Any], named: dict[str, Any]) -> Any:
        """What the program answers. Lists, dictionaries and sets that it changes in place are changed here, too."""
        sent = [_sent(each) for each in arguments]
        request = what, remote._place, sent, {name: _sent(each) for name, each in named.items()}
        self._requests.write(repr(request).encode() + b"\n")
        self._requests.flush()
        kind, value, changed = self.read()
        for own, new in zip(arguments, changed, strict=False):
            self._change(own, new)
        if kind == "raised":
            raise _exception(str(value))
        return Remote(self, int(value)) if kind == "object" else value

    def _change(self, own: Any, new: Any) -> None:
        if type(own) is not type(new) or own == new:
            return
        if isinstance(own, list):
            own[:] = new
        elif isinstance(own, dict | set):
            own.clear()
            own.update(new)


def _sent(value: Any) -> tuple[str, Any]:
    """A value as the program gets it; TypeError for one that is neither plain nor the program's."""
    if isinstance(value, Remote):
        return "object", value._place
    try:
        is_plain = ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        is_plain = False
    if not is_plain:
        raise TypeError(f"a {type(value).__name__} cannot be given to the program: plain values can")
    return "value", value


def _exception(text: str) -> Exception:
    """The exception that the program raised: one of Python's own by name, so that checks can expect it."""
    name, _, message = text.partition(": ")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
        return kind(message)
    return ProgramError(text)


def main(options: dict[str, Any]) -> None:
    with os.fdopen(options["requests"], "wb") as requests, os.fdopen(options["answers"], "rb") as answers:
        link = Link(requests, answers)
        names: dict[str, Any] = {"__name__": "checks", "program": Remote(link, 0)}
        for name in link.read():
            # a program that defines `all` or `math` must not be what the checks compare with
            if not hasattr(builtins, name) and name not in sys.stdlib_module_names and name not in names:
                names[name] = getattr(names["program"], name)
        exec(compile(options["checks"], "<checks>", "exec", dont_inherit=True), names)


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # else a program of the same user could write its memory
    main(json.loads(sys.stdin.buffer.read()))
