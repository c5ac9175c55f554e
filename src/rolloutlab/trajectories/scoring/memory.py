"""Fingerprints of reward functions: equal where the same function gives the same result for the same trajectory."""

import dataclasses
import hashlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from rolloutlab.trajectories.scoring.calls import RewardCall

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_REFLECTIVE = {"globals", "locals", "vars", "eval", "exec", "__import__", "input", "breakpoint"}
"""Names by which a function reaches what its code does not name."""
_INSTALLED = (
    *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(__file__).resolve().parents[2],
)


class _UnknownError(Exception):
    """A function uses something that cannot be compared."""


def fingerprint(call: RewardCall) -> str:
    """SHA-256 of a function: its code, constants, defaults, closure, and the globals that it names, recursively.

    Globals may be numbers, texts, containers of them, compiled patterns, functions and installed modules. Empty for a
    function that is not to be remembered: one with `cache=False`, one that gets a whole trajectory or a group (whose
    rewards change), or one that uses anything else, such as a module of your own, an open file or a model. Where a
    function reads the clock, a file or a service, the same code gives another result: that is not visible here.
    """
    if not call.cache:
        return ""
    try:
        parts = "\n".join(_described(call.function, set()))
    except (_UnknownError, RecursionError):
        return ""
    return hashlib.sha256(f"{sys.version_info[:2]} {call.style} {call.name}\n{parts}".encode()).hexdigest()


def source_of(function: Any) -> str:
    """The source text of a function, for the log of scorings; what it is where there is none."""
    body = getattr(function, "body", None)
    if isinstance(body, str):
        return body
    while isinstance(function, partial):
        function = function.func
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return repr(function)


def _described(value: Any, above: set[int]) -> Iterator[str]:
    """Lines that differ where values do. above: ids of the objects that the value is inside of, against circles."""
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
        return
    if id(value) in above:
        yield "circle"
        return
    inside = above | {id(value)}
    for kind, describe in _KINDS.items():
        if isinstance(value, kind):
            yield from describe(value, inside)
            return
    if dataclasses.is_dataclass(value) and _is_installed(type(value).__module__):
        yield f"{type(value).__module__}.{type(value).__qualname__}"
        for field in dataclasses.fields(value):
            yield from _described(getattr(value, field.name), inside)
        return
    raise _UnknownError


def _function(function: FunctionType, above: set[int]) -> Iterator[str]:
    if function.__closure__ is None and _is_installed_file(function.__code__.co_filename):
        yield f"function {function.__module__}.{function.__qualname__} {_version(function.__module__ or '')}"
        return
    yield "function"
    yield from _described(function.__defaults__, above)
    yield from _described(function.__kwdefaults__, above)
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # it has no value yet
            content = None
        yield from _described(content, above)
    yield from _code(function.__code__, above)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield f"global {name}"
            yield from _described(function.__globals__[name], above)
        elif name in _REFLECTIVE:
            raise _UnknownError


def _code(code: CodeType, above: set[int]) -> Iterator[str]:
    exceptions = getattr(code, "co_exceptiontable", b"")
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount, code.co_flags
    yield f"code {code.co_code.hex()} {exceptions.hex()} {names}"
    for constant in code.co_consts:
        yield from _described(constant, above)


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)


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
    """A class, a built-in function or a module, by its name, if it comes with Python or an installed package."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "builtins"
    owner = getattr(value, "__self__", None)
    if not _is_installed(module) or not (owner is None or isinstance(owner, ModuleType)):
        raise _UnknownError
    yield f"{type(value).__name__} {module}.{getattr(value, '__qualname__', '')} {_version(module)}"


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
    ModuleType: _named,
    type: _named,
    BuiltinFunctionType: _named,
    re.Pattern: _pattern,
}


def _is_installed(module: str) -> bool:
    """Whether a module comes with Python or an installed package, and so changes with its version only."""
    root = module.partition(".")[0]
    if root in {"__main__", "__mp_main__"}:  # of a notebook, whichever file started it
        return False
    if root in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(root), "__file__", None)
    return file is not None and _is_installed_file(file)


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
