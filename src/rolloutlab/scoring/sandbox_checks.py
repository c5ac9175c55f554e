"""Checks of a sandboxed program, in a process of their own: its functions are called there, their values compared here.

A script for `python -I`. `sandbox.py` gives it a JSON object by standard input: `checks` (the text), `requests` and
`answers` (file descriptors to and from the program), `memory` (bytes) and `seconds` (of processor time) that it may
use, and `values` (the text of `sandbox_values.py`).

Nothing of the program runs in this process. It sends plain values as JSON; what is not plain stays there, and is an
object here whose attributes and calls are asked for. Such an object is not compared here and is neither true nor false,
so that a program cannot answer `double(2) == 4` by an object of its own. Nor can it end a loop of the checks, which
would pass as if it had compared something: exceptions by which Python ends loops become others.
"""

from __future__ import annotations  # nothing is imported for types: it would take a third of the time

import ast
import builtins
import ctypes
import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, TypeVar

    T = TypeVar("T")

_SET_DUMPABLE = 4
_LONGEST = 10_000_000
"""Bytes of one answer of the program."""
_ENDS_LOOPS = "StopIteration", "StopAsyncIteration", "GeneratorExit"
_CODEC: dict[str, Any] = {}
"""The names of `sandbox_values.py`, whose text is run here."""


class ProgramError(RuntimeError):
    """The program ended, or raised an exception that has no meaning in the checks."""


class Remote:
    """An object of the program."""

    _link: Link

    def __init__(self, link: Link, place: int, kind: str) -> None:
        self.__dict__.update(_link=link, _place=place, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of this class alone: a copy or a comparison here must not be the program's
            raise AttributeError(name)
        try:
            return self._link.ask("get", self, [name])
        except AttributeError as error:
            if name == "keys":  # by which `dict` knows a mapping
                raise
            # else `getattr` would take its default
            raise ProgramError(f"AttributeError: {error}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", self, [name, value])

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._link.ask("call", self, list(arguments), named)

    def __len__(self) -> int:
        return self._link.ask_for(int, "len", self)

    def __str__(self) -> str:
        return self._link.ask_for(str, "str", self)

    def __repr__(self) -> str:
        return self._link.ask_for(str, "repr", self)

    def __contains__(self, value: Any) -> bool:
        try:
            items = iter(self)
        except TypeError:  # what cannot be iterated over has no word but the program's
            return self._link.ask_for(bool, "in", self, [value])
        return any(each is value or each == value for each in items)

    def __getitem__(self, key: Any) -> Any:
        return self._link.ask("item", self, [key])

    def __iter__(self) -> Remote:
        return self._link.ask_for(Remote, "iter", self)

    def __next__(self) -> Any:
        held = self._link.ask_for(list, "next", self)
        if not held:
            raise StopIteration
        return held[0]

    def __reversed__(self) -> Any:  # else an IndexError of the program would end it
        return reversed(list(self))

    def __bool__(self) -> bool:
        raise TypeError(f"{self._words()} is neither true nor false here; compare a plain value of it")

    def __eq__(self, other: Any) -> bool:
        if other is None or self is other:
            return self is other
        words = other._words() if isinstance(other, Remote) else f"a {type(other).__name__}"
        raise TypeError(
            f"{self._words()} cannot be compared with {words} here; let the program return a plain "
            "value, as a number, text, list or dict, or compare an attribute or str() of it"
        )

    def __hash__(self) -> int:  # else it would be unlike every value of a set or dictionary, in silence
        raise TypeError(f"{self._words()} cannot be looked up or be a key here; take a plain value of it")

    def _words(self) -> str:
        kind: str = self._kind
        return f"an object of the program ({kind[:100]})"


class Link:
    """Requests to the program and its answers, one line each."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._objects: dict[int, Any] = {}
        self.has_answered = False
        """Whether the program was called, or a plain value of it was read."""

    def read(self) -> Any:
        """The next answer, as JSON."""
        line = self._answers.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise ProgramError("the program ended before its checks did, or gave an answer of more than 10 MB")
        try:
            return json.loads(line)
        except Exception as error:  # noqa: BLE001 - ValueError, RecursionError, MemoryError: none that a function raised
            raise ProgramError(f"the program gave an answer that cannot be read: {error!r}") from None

    def ask(self, what: str, remote: Remote, arguments: list[Any], named: dict[str, Any] | None = None) -> Any:
        """What the program answers. Lists, dictionaries and sets that it changes in place are changed here, too."""
        sent = [_sent(each) for each in arguments]
        request = what, remote._place, sent, {name: _sent(each) for name, each in (named or {}).items()}
        self._requests.write(json.dumps(request).encode() + b"\n")
        self._requests.flush()
        answer = self.read()
        try:
            kind, held, changed = answer
            for own, before, after in zip(arguments, sent, changed, strict=True):
                if after is not None and after != before:
                    _change(own, self._decoded(after))
            is_raised = kind == "raised"
            value = self._kind(held[0])(str(held[1])) if is_raised else self._decoded(held)
        except Exception as error:  # noqa: BLE001 - the program may write what it likes
            raise ProgramError(f"the program gave an answer that cannot be read: {error!r}") from None
        self.has_answered |= what != "get" or not (isinstance(value, Remote | type))
        if is_raised:
            raise value
        return value

    def ask_for(self, kind: type[T], what: str, remote: Remote, arguments: list[Any] | None = None) -> T:
        """An answer of one type, as Python's own functions need it."""
        value = self.ask(what, remote, arguments or [])
        if not isinstance(value, kind):  # no subclass: a plain value is of its own type, and nothing derives Remote
            raise ProgramError(f"{what} of an object of the program is a {type(value).__name__}")
        return value

    def _decoded(self, node: Any) -> Any:
        return _CODEC["decode"](node, self._other)

    def _other(self, kind: str, held: Any) -> Any:
        """An object of the program, the same each time; an exception class of it is one here, to be caught."""
        place, name, *bases = held
        if place not in self._objects:
            if kind == "exception":
                self._objects[place] = type(name, (self._kind(bases[0]),), {})
            else:
                self._objects[place] = Remote(self, int(place), str(name))
        return self._objects[place]

    def _kind(self, node: Any) -> type[Exception]:
        """The class of an exception: Python's own by its name, so that checks can expect it, or one of the program."""
        if type(node) is list:
            kind = self._other(*node)
        else:
            kind = getattr(builtins, node, None)
            if node in _ENDS_LOOPS:
                return type(node, (ProgramError,), {})
            if node.startswith("Unicode"):  # which are not made of a text
                return ValueError
        return kind if isinstance(kind, type) and issubclass(kind, Exception) else ProgramError


class Names(dict):  # type: ignore[type-arg]  # `Any` is not imported
    """What names are that the checks do not define: Python's own, else the program's."""

    def __init__(self, link: Link, tree: ast.Module) -> None:
        super().__init__(vars(builtins))
        program = self["program"] = Remote(link, 0, "module")
        # A program that defines `math` must not be what the checks compare with. As functions they are only called.
        modules = {
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        } & sys.stdlib_module_names
        self._program, self._known = program, set(link.read()) - modules

    def __missing__(self, name: str) -> Any:
        if name not in self._known:
            raise KeyError(name)
        self[name] = value = getattr(self._program, name)
        return value


def _change(own: Any, new: Any) -> None:
    if type(own) is not type(new):
        return
    if isinstance(own, list):
        own[:] = new
    elif isinstance(own, dict | set):
        own.clear()
        own.update(new)


def _sent(value: Any) -> Any:
    """A value as the program gets it; TypeError for one that is neither plain nor the program's."""
    return _CODEC["encode"](value, _sent_object)


def _sent_object(value: Any) -> Any:
    if isinstance(value, Remote):
        return ["object", [value._place, value._kind]]
    made = "value.tolist()" if hasattr(value, "tolist") else "a number, text, list or dict"
    raise TypeError(f"a {type(value).__name__} cannot be given to the program: plain values can; give {made}")


def _run_tests(names: dict[str, Any], tree: ast.Module) -> None:
    """Run tests that only pytest or unittest would run: functions `test…`, and methods of classes."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    case = getattr(sys.modules.get("unittest"), "TestCase", None)
    for name, value in list(names.items()):
        if isinstance(value, type) and value.__module__ == "__main__" and case and issubclass(value, case):
            unittest = sys.modules["unittest"]
            tests = unittest.defaultTestLoader.loadTestsFromTestCase(value)
            if not unittest.TextTestRunner().run(tests).wasSuccessful():
                raise SystemExit(f"tests of {name} failed")
        elif isinstance(value, type) and value.__module__ == "__main__" and name.startswith("Test"):
            for method in [each for each in dir(value) if each.startswith("test")]:
                instance = value()
                getattr(instance, "setup_method", lambda: None)()
                _run_test(f"{name}.{method}", getattr(instance, method))
        elif name.startswith("test") and name not in used and callable(value) and not isinstance(value, Remote):
            _run_test(name, value)


def _run_test(name: str, test: Any) -> None:
    if test() is not None:  # a coroutine or a generator has not run
        raise SystemExit(f"{name}() did not run to its end: write it as a plain function")


def _run(checks: str, link: Link) -> None:
    tree = ast.parse(checks, "<checks>")
    # unittest and doctest look for their tests in the module of this name
    module = sys.modules["__main__"] = type(sys)("__main__")
    names = vars(module)
    names["__builtins__"] = Names(link, tree)
    try:
        exec(compile(tree, "<checks>", "exec", dont_inherit=True), names)
    except SystemExit as stop:  # of unittest.main
        if stop.code:
            raise
    else:
        _run_tests(names, tree)
    master = getattr(sys.modules.get("doctest"), "master", None)
    if master is not None and master.failures:  # it only prints them
        raise SystemExit(f"{master.failures} examples of doctest failed")
    if not link.has_answered:
        raise SystemExit("the checks called nothing of the program")


def main(options: dict[str, Any]) -> None:
    exec(options["values"], _CODEC)
    with os.fdopen(options["requests"], "wb") as requests, os.fdopen(options["answers"], "rb") as answers:
        _run(options["checks"], Link(requests, answers))


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (value, value) if hard == resource.RLIM_INFINITY else (min(value, hard), hard))
    except (OSError, ValueError):  # macOS refuses some
        pass


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)  # else a program of the same user could write its memory
    given = json.loads(sys.stdin.buffer.read())
    _limit(resource.RLIMIT_AS, given["memory"])
    _limit(resource.RLIMIT_CPU, given["seconds"])
    main(given)
