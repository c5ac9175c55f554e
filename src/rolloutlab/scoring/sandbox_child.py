"""Child processes of the sandbox: a program within its limits, and its checks, in a process of their own.

The text of this file is the script of both, for `python -I -c`, so it imports the standard library alone. Its argument
is a file descriptor of a JSON object (`sandbox.py`). Of a program: `code`, `limits` (resource(3) names and values),
`report` (a file descriptor, which gets a line when it begins and [returncode, finished] at the end) and `calls` (none,
or two file descriptors, by which its checks call it). Of checks: `checks` (the text), `limits`, and `requests` and
`answers` (the other ends of `calls`).

Nothing of a program runs in the process of its checks. The program sends plain values as JSON. Any other value stays in
its process; the checks get a `Remote`, which asks the program for attributes and calls. A `Remote` cannot be compared
with values and is neither true nor false, so that a program cannot answer `double(2) == 4` by an object of its own. Nor
can a program end a loop of the checks before anything was compared: exceptions that end loops become others.
"""

from __future__ import annotations  # nothing is imported for types: it would take a third of the time

import ast
import builtins
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections import Counter, OrderedDict, defaultdict
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import IO, Any, TypeVar

    T = TypeVar("T")

# of prctl(2)
_PDEATHSIG, _SET_DUMPABLE, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 36, 38
_CAPABILITIES_3 = 0x20080522
_MARK = 16
_LAST_KILL = 4.0
"""Seconds after which to give up killing what a program has started."""
_LONGEST = 10_000_000
"""Bytes of one answer of the program."""
_ENDS_LOOPS = "StopIteration", "StopAsyncIteration", "GeneratorExit"
_LARGE = 10**1000
"""From here on integers are sent in hexadecimal: Python reads and writes at most 4300 decimal digits."""
_LISTS = list, tuple, set, frozenset
_DICTS = dict, OrderedDict, Counter, defaultdict


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """Encode a value as JSON. `other` encodes what is not plain, such as subclasses, which may override `==`."""
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
    """Decode what `encode` made. Any other input, which a program may send, raises an exception."""
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


def supervise(options: Mapping[str, Any]) -> None:
    """Run a program in a fork of this process, end all that it has started, and report how it ended."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _prctl(_SUBREAPER, 1)  # what the program leaves behind becomes a child of this process
    mark, (ended, end), report = os.urandom(_MARK), os.pipe(), options["report"]
    os.write(report, b"begun\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which runs the `finally` below
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _restrict(options["limits"])
        run(options["code"], mark, end, options["calls"])
        return
    code = -signal.SIGKILL
    try:
        while True:
            process, status = os.waitpid(-1, 0)
            if process == pid:
                code = os.waitstatus_to_exitcode(status)
                break
    finally:
        _kill_all(pid)
        os.set_blocking(ended, False)
        finished = False
        with suppress(BlockingIOError):
            finished = os.read(ended, 2 * _MARK) == mark
        os.write(report, json.dumps([code, finished]).encode())
        os._exit(0)


def _restrict(limits: Mapping[str, int]) -> None:
    """Set the limits and drop all privileges of this process: from here on it runs the program."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    set_limits(limits)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _prctl(_NO_NEW_PRIVS, 1)  # otherwise a program that root starts from here would get the capabilities back
    if sys.platform == "linux":  # capset(2): without capabilities even root can neither mount nor change limits
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
        ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)())


def set_limits(limits: Mapping[str, int]) -> None:
    """Set soft and hard limits of this process, by their names in `resource`."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is not None:
            _, hard = resource.getrlimit(kind)
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            with suppress(OSError, ValueError):  # macOS refuses some
                resource.setrlimit(kind, (least, least))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _kill_all(pid: int) -> None:
    """End the program's process group, then every child. Orphans become children of this process, so none is missed."""
    give_up = time.monotonic() + _LAST_KILL
    while time.monotonic() < give_up:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        for child in _children():
            os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def run(source: str, mark: bytes, end: int, calls: list[int]) -> None:
    """Run the program as `__main__`, write the mark when its last line has run, and then answer its checks.

    A program that exits earlier, by `os._exit(0)` or `sys.exit()`, leaves no mark, because checks that it has after
    that have not run. A program that exits with 0 on its last line, by `sys.exit`, `quit` or `unittest.main`, has come
    to its end. The mark is in the process of the program, which can find it and forge its end. So checks that count
    run in another process, which trusts nothing that `ServedProgram` answers.
    """
    write, path = os.write, os.path.abspath("main.py")  # kept now: the program may replace functions of modules
    lines: list[IO[bytes]] = [os.fdopen(calls[0], "rb"), os.fdopen(calls[1], "wb")] if calls else []
    with open(path, "wb") as file:
        file.write(source.encode("utf-8", "surrogatepass"))
    module = sys.modules["__main__"] = type(sys)("__main__")
    names = vars(module)
    names["__file__"], sys.argv[:] = path, ["main.py"]

    def finish() -> None:
        with suppress(OSError):  # the program has closed all files
            write(end, mark)
        if lines:
            ServedProgram(names, *lines).serve()

    try:
        code = source.encode("utf-8", "surrogatepass")
        exec(compile(code, path, "exec", dont_inherit=True), names)
    except SystemExit as stop:
        if _exits_at_last_statement(stop, source, path):
            finish()
        raise
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None  # the program may have replaced `sys.exit`
    finish()


def _exits_at_last_statement(stop: SystemExit, source: str, path: str) -> bool:
    """Whether a program exited with 0 by a call of `exit`, `quit` or `main` that is its last statement."""
    last: Any = ast.parse(source).body[-1]
    while isinstance(last, ast.If):
        last = last.body[-1]
    called = getattr(getattr(last, "value", None), "func", None)
    name = getattr(called, "attr", getattr(called, "id", ""))
    frame = stop.__traceback__ and stop.__traceback__.tb_next
    if stop.code or name not in ("exit", "quit", "main") or frame is None or frame.tb_lineno < last.lineno:
        return False
    while frame := frame.tb_next:
        if frame.tb_frame.f_code.co_filename == path:
            return False
    return True


class ServedProgram:
    """Answers the requests of the checks. names: the names of the program's module."""

    def __init__(self, names: dict[str, Any], requests: IO[bytes], answers: IO[bytes]) -> None:
        self._names, self._requests, self._answers = names, requests, answers
        self._kept: list[Any] = []
        self._places: dict[int, int] = {}
        self._place(type("Names", (), {"__getattr__": lambda _, name: names[name]})())

    def serve(self) -> None:
        """Send the names of the program, then answer requests until the checks end."""
        self._send([name for name in self._names if not name.startswith("__")])
        for line in self._requests:
            what, where, given, named = json.loads(line)
            values = [self._decode(node) for node in given]
            answer: tuple[str, Any]
            try:
                keywords = {name: self._decode(node) for name, node in named.items()}
                done = _perform(what, self._kept[where], values, keywords)
                answer = "value", self._encode(done)
            except Exception as error:
                answer = "raised", [self._kind(type(error)), str(error)]
            changed = [self._encode(value) if type(value) in (list, dict, set) else None for value in values]
            self._send([*answer, changed])

    def _place(self, thing: Any) -> int:
        if id(thing) not in self._places:  # the id stays unique, because `_kept` keeps the object alive
            self._places[id(thing)] = len(self._kept)
            self._kept.append(thing)
        return self._places[id(thing)]

    def _kind(self, error: type[BaseException]) -> Any:
        """Encode an exception class: one of Python by its name, one of the program by its place, name and base."""
        if error.__module__ == "builtins":
            return error.__name__
        base = next(base for base in error.__bases__ if issubclass(base, Exception))
        return ["exception", [self._place(error), error.__name__, self._kind(base)]]

    def _encode_object(self, value: Any) -> Any:
        if isinstance(value, type):
            own = issubclass(value, Exception) and value.__module__ != "builtins"
            return self._kind(value) if own else ["object", [self._place(value), value.__name__]]
        if hasattr(value, "tolist"):  # an array, or a number of one
            return encode(value.tolist(), self._encode_object)
        return ["object", [self._place(value), type(value).__name__]]

    def _encode(self, value: Any) -> Any:
        try:
            return encode(value, self._encode_object)
        except RecursionError:
            return ["object", [self._place(value), type(value).__name__]]

    def _decode(self, node: Any) -> Any:
        return decode(node, lambda _, held: self._kept[held[0]])

    def _send(self, answer: Any) -> None:
        self._answers.write(json.dumps(answer).encode() + b"\n")
        self._answers.flush()


def _perform(what: str, thing: Any, values: list[Any], named: dict[str, Any]) -> Any:
    """Do with an object of the program what the checks request."""
    if what == "call":
        return thing(*values, **named)
    if what == "get":
        return getattr(thing, values[0])
    if what == "set":
        return setattr(thing, *values)
    if what == "item":
        return thing[values[0]]
    if what == "in":
        return values[0] in thing
    if what == "next":
        try:
            return [next(thing)]
        except StopIteration:
            return []
    of_one: dict[str, Callable[[Any], Any]] = {"len": len, "iter": iter, "str": str, "repr": repr}
    return of_one[what](thing)


class ProgramError(RuntimeError):
    """The program ended, or raised an exception that has no meaning in the checks."""


class Remote:
    """An object of the program, in the process of the checks."""

    _link: Link

    def __init__(self, link: Link, place: int, kind: str) -> None:
        self.__dict__.update(_link=link, _place=place, _kind=kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # never the program's: it must not decide how an object is copied or compared here
            raise AttributeError(name)
        try:
            return self._link.ask("get", self, [name])
        except AttributeError as error:
            if name == "keys":  # `dict` tells a mapping by this attribute
                raise
            # no AttributeError, for which `getattr` would return its default
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
        except TypeError:  # it cannot be iterated over, so only the program can say what it contains
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

    def __reversed__(self) -> Any:  # by index, an IndexError of the program would end the loop
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

    def __hash__(self) -> int:  # a default hash would make it differ from every member of a set, silently
        raise TypeError(f"{self._words()} cannot be looked up or be a key here; take a plain value of it")

    def _words(self) -> str:
        kind: str = self._kind
        return f"an object of the program ({kind[:100]})"


class Link:
    """Requests to the program and its answers, one line each."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers
        self._objects: dict[int, Any] = {}
        self.has_answered = False
        """Whether the program was called, or a plain value of it was read."""

    def read(self) -> Any:
        """Read the next answer, which is JSON."""
        line = self._answers.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise ProgramError("the program ended before its checks did, or gave an answer of more than 10 MB")
        try:
            return json.loads(line)
        except Exception as error:
            raise ProgramError(f"the program gave an answer that cannot be read: {error!r}") from None

    def ask(self, what: str, remote: Remote, arguments: list[Any], named: dict[str, Any] | None = None) -> Any:
        """Ask the program and return its answer. Lists, dictionaries and sets that it changed are changed here, too."""
        sent = [_encode_argument(each) for each in arguments]
        request = what, remote._place, sent, {name: _encode_argument(each) for name, each in (named or {}).items()}
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            raise ProgramError("the program ended before its checks did") from None
        answer = self.read()
        try:
            kind, held, changed = answer
            for own, before, after in zip(arguments, sent, changed, strict=True):
                if after is not None and after != before:
                    _copy_into(own, self._decode(after))
            is_raised = kind == "raised"
            value = self._kind(held[0])(str(held[1])) if is_raised else self._decode(held)
        except Exception as error:
            raise ProgramError(f"the program gave an answer that cannot be read: {error!r}") from None
        self.has_answered |= what != "get" or not (isinstance(value, Remote | type))
        if is_raised:
            raise value
        return value

    def ask_for(self, kind: type[T], what: str, remote: Remote, arguments: list[Any] | None = None) -> T:
        """Ask for an answer of one type, as special methods must return it."""
        value = self.ask(what, remote, arguments or [])
        if not isinstance(value, kind):  # exact: plain values are never of a subclass, and Remote has none
            raise ProgramError(f"{what} of an object of the program is a {type(value).__name__}")
        return value

    def _decode(self, node: Any) -> Any:
        return decode(node, self._find_object)

    def _find_object(self, kind: str, held: Any) -> Any:
        """Find what stands for an object of the program, always the same: a Remote, or an exception class to catch."""
        place, name, *bases = held
        if place not in self._objects:
            if kind == "exception":
                self._objects[place] = type(name, (self._kind(bases[0]),), {})
            else:
                self._objects[place] = Remote(self, int(place), str(name))
        return self._objects[place]

    def _kind(self, node: Any) -> type[Exception]:
        """Decode an exception class: Python's own, so that checks can expect it, or what stands for the program's."""
        if type(node) is list:
            kind = self._find_object(*node)
        else:
            kind = getattr(builtins, node, None)
            if node in _ENDS_LOOPS:
                return type(node, (ProgramError,), {})
            if node.startswith("Unicode"):  # their constructors take more than a text
                return ValueError
        return kind if isinstance(kind, type) and issubclass(kind, Exception) else ProgramError


class Names(dict):  # type: ignore[type-arg]  # `Any` is not imported
    """The names that the checks use but do not define: Python's built-in names, then those of the program."""

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


def _copy_into(own: Any, new: Any) -> None:
    """Change a list, dictionary or set of the checks to what the program made of it."""
    if type(own) is not type(new):
        return
    if isinstance(own, list):
        own[:] = new
    elif isinstance(own, dict | set):
        own.clear()
        own.update(new)


def _encode_argument(value: Any) -> Any:
    """Encode an argument for the program. TypeError: it is neither plain nor an object of the program."""
    return encode(value, _encode_object)


def _encode_object(value: Any) -> Any:
    if isinstance(value, Remote):
        return ["object", [value._place, value._kind]]
    made = "value.tolist()" if hasattr(value, "tolist") else "a number, text, list or dict"
    raise TypeError(f"a {type(value).__name__} cannot be given to the program: plain values can; give {made}")


def _run_tests(names: dict[str, Any], tree: ast.Module) -> None:
    """Run the tests that only pytest or unittest would call: functions `test…`, and methods of test classes."""
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
    if test() is not None:  # a coroutine or a generator, which has not run
        raise SystemExit(f"{name}() did not run to its end: write it as a plain function")


def run_checks(checks: str, link: Link) -> None:
    """Run checks on the program at the other end of a link. They have passed if this returns."""
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
    if master is not None and master.failures:  # doctest prints failures and raises nothing
        raise SystemExit(f"{master.failures} examples of doctest failed")
    if not link.has_answered:
        raise SystemExit("the checks called nothing of the program")


if __name__ == "__main__":
    with os.fdopen(int(sys.argv.pop()), "rb") as _file:
        _options = json.loads(_file.read())
    if "code" in _options:
        supervise(_options)
    else:
        _prctl(_SET_DUMPABLE, 0)  # else a program of the same user could write the memory of its checks
        set_limits(_options["limits"])
        with os.fdopen(_options["requests"], "wb") as _asks, os.fdopen(_options["answers"], "rb") as _hears:
            run_checks(_options["checks"], Link(_asks, _hears))
