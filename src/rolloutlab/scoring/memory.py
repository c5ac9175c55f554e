"""Fingerprints of reward functions: equal where the same function gives the same result for the same trajectory."""

import builtins
import dis
import hashlib
import inspect
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from rolloutlab.scoring.calls import RewardCall

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_PURE = {
    *("ast", "base64", "binascii", "bisect", "cmath", "collections", "copy", "dataclasses", "decimal", "difflib"),
    *("enum", "fractions", "functools", "hashlib", "heapq", "html", "itertools", "json", "keyword", "math"),
    *("numbers", "operator", "re", "string", "struct", "textwrap", "typing", "unicodedata", "urllib.parse", "zlib"),
    *("rapidfuzz", "regex"),
}
"""Modules whose functions read their arguments only: no clock, chance, file, environment or network."""
_IMPURE = {
    *("__import__", "breakpoint", "compile", "dir", "eval", "exec", "globals", "hash", "id", "input", "locals", "vars"),
}
"""Built-in functions that read what code does not name, or differ from process to process."""
_INSTALLED = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(__file__).resolve().parents[1],
)


class _UnknownError(Exception):
    """A function uses something that the fingerprint does not cover."""


def fingerprint(call: RewardCall) -> str:
    """SHA-256 of a function: code, constants, defaults, closure, attributes, and the globals it names, recursively.

    Globals may be numbers, texts, containers of them, compiled patterns, functions, and modules of `_PURE`, which may
    also be imported in the body. Empty for a function that is not to be remembered: one with `cache=False`, or one that
    uses anything else, as its result may depend on what the fingerprint does not cover: modules of your own, objects,
    a clock, chance, the environment, a file or a service.
    """
    if not call.cache:
        return ""
    try:
        parts = "\n".join(_described(call.function, set()))
    except (_UnknownError, RecursionError):
        return ""
    return hashlib.sha256(f"{sys.version_info[:2]} {call.style} {call.name}\n{parts}".encode()).hexdigest()


def source_of(function: Any) -> str:
    """The source text of a function, for the log of scorings; what it is where there is none.

    Without the indentation that it has where it was written: the same function within a loop is no other one.
    """
    body = getattr(function, "body", None)
    if isinstance(body, str):
        return body
    while isinstance(function, partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function if inspect.isroutine(function) else type(function)))
    except (OSError, TypeError):
        return repr(function)


def _described(value: Any, above: set[int]) -> Iterator[str]:
    """Lines that differ where values do. above: ids of the objects that the value is inside of, against circles."""
    if type(value) in _PLAIN:  # a subclass may have methods of its own
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in above:
        yield "circle"
        return
    describe = _KINDS.get(type(value)) or (_named if isinstance(value, type | ModuleType) else None)
    if describe is None:
        raise _UnknownError
    yield from describe(value, above | {id(value)})


def _function(function: FunctionType, above: set[int]) -> Iterator[str]:
    if _is_installed_file(function.__code__.co_filename):
        if function.__closure__ is not None:
            raise _UnknownError
        yield from _named(function, above)
        return
    yield "function"
    yield from _described(function.__defaults__, above)
    yield from _described(function.__kwdefaults__, above)
    yield from _described(function.__dict__, above)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # it has no value yet
            content = None
        yield from _described(content, above)
    yield from _code(function.__code__, above)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__ or hasattr(builtins, name):
            yield f"global {name}"
            yield from _described(function.__globals__.get(name, getattr(builtins, name, None)), above)


def _code(code: CodeType, above: set[int]) -> Iterator[str]:
    exceptions = getattr(code, "co_exceptiontable", b"")
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount, code.co_flags
    yield f"code {code.co_code.hex()} {exceptions.hex()} {names}"
    for constant in code.co_consts:
        yield from _described(constant, above)


def _names(code: CodeType) -> set[str]:
    """The globals that code reads; _UnknownError if it changes one, or imports a module that is not pure."""
    names: set[str] = set()
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[i - 2].argval  # before the names to import
            if level or not _is_pure(step.argval):
                raise _UnknownError
        elif step.opname in {"STORE_GLOBAL", "DELETE_GLOBAL"}:
            raise _UnknownError
        elif step.opcode in dis.hasname and not any(part in step.opname for part in ("ATTR", "METHOD", "IMPORT")):
            names.add(step.argval)
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return names.union(*inner)


def _sequence(values: Any, above: set[int]) -> Iterator[str]:
    yield f"{type(values).__name__} {len(values)}"
    for value in values:
        yield from _described(value, above)


def _set(values: Any, above: set[int]) -> Iterator[str]:
    yield f"{type(values).__name__} {len(values)}"
    yield from sorted("\n".join(_described(value, above)) for value in values)


def _mapping(values: Mapping[Any, Any], above: set[int]) -> Iterator[str]:
    yield f"mapping {len(values)}"
    for key, value in values.items():
        yield from _described(key, above)
        yield from _described(value, above)


def _partial(function: "partial[Any]", above: set[int]) -> Iterator[str]:
    for part in (function.func, function.args, function.keywords):
        yield from _described(part, above)


def _method(method: MethodType, above: set[int]) -> Iterator[str]:
    yield from _described(method.__func__, above)
    yield from _described(method.__self__, above)


def _named(value: Any, _above: set[int]) -> Iterator[str]:
    """A class, a function or a module, by its name, if it is built in or pure."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "builtins"
    name = "" if isinstance(value, ModuleType) else value.__qualname__
    owner = getattr(value, "__self__", None)
    built_in = module == "builtins" and name not in {"", *_IMPURE}
    if not (built_in or _is_pure(module)) or not (owner is None or isinstance(owner, ModuleType)):
        raise _UnknownError
    yield f"{type(value).__name__} {module}.{name} {_version(module)}"


def _slice(value: slice, above: set[int]) -> Iterator[str]:
    yield from _described((value.start, value.stop, value.step), above)


def _pattern(pattern: "re.Pattern[Any]", _above: set[int]) -> Iterator[str]:
    yield f"pattern {pattern.flags} {pattern.pattern!r}"


_KINDS: Mapping[type, Callable[[Any, set[int]], Iterator[str]]] = {
    FunctionType: _function,
    CodeType: _code,
    tuple: _sequence,
    list: _sequence,
    set: _set,
    frozenset: _set,
    dict: _mapping,
    partial: _partial,
    MethodType: _method,
    slice: _slice,
    BuiltinFunctionType: _named,
    re.Pattern: _pattern,
}


def _is_pure(module: str) -> bool:
    """Whether a module is one of `_PURE`, and not a file of your own of that name."""
    public = module.lstrip("_")  # of `_heapq` for instance, which is a part of heapq
    if not any(public == pure or public.startswith(f"{pure}.") for pure in _PURE):
        return False
    root = module.partition(".")[0]
    file = getattr(sys.modules.get(root), "__file__", None)
    return root in sys.stdlib_module_names if file is None else _is_installed_file(file)


def _is_installed_file(file: str) -> bool:
    return file.startswith("<frozen ") or any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)


def _version(module: str) -> str:
    """What changes with another version of a module's package."""
    root = sys.modules.get(module.partition(".")[0])
    file = getattr(root, "__file__", None)
    try:
        return str(getattr(root, "__version__", "")) or (str(Path(file).stat().st_mtime_ns) if file else "")
    except OSError:
        return ""
