"""Digest of what gives rewards: equal for the same code, constants and settings of functions, objects and classes."""

import dis
import functools
import inspect
import re
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_FILLED = (list, dict, set, deque)
_FILLING = {
    *("append", "appendleft", "add", "update", "setdefault", "pop", "popleft", "popitem", "extend", "insert"),
    *("clear", "discard", "remove"),
}
_MAKING = {"__init__", "__post_init__", "__new__", "__setstate__"}
_OF_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__"),
    *("__static_attributes__", "__firstlineno__", "_abc_impl", "__slots__", "__dataclass_fields__"),
}
_MOST = 5_000
"""Objects that are looked at: settings are few, and more are the contents of a model or of a data set."""
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN = Path(__file__).resolve().parents[1]


def code_digest(value: Any) -> str:
    """SHA-256 of a function, object or class: its code, constants, closure and attributes, and what it names.

    Code and modules of installed packages are compared by name, and so are objects without readable state, such as
    locks and clients inside of clients. What its own code changes while it runs, such as a count or a cache, is state
    and no setting, and is left out.
    """
    described = "\n".join(_Description().lines(value))
    return sha256(f"{sys.version_info[:2]}\n{described}".encode(errors="surrogatepass")).hexdigest()


@dataclass
class _Changed:
    """Names that code assigns outside of what makes an object, and names of containers that it fills."""

    assigned: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)

    def leaves_out(self, name: str, value: Any) -> bool:
        return name in self.assigned or (name in self.filled and isinstance(value, _FILLED))


class _Description:
    """Lines that differ where values do. An object is described once, so that circles and shared parts end."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # the object is kept, so that its id stays its own

    def lines(self, value: Any, *, inside: bool = False) -> Iterator[str]:
        """inside: of an object of an installed package, whose own such objects are its internals."""
        try:
            described = list(self._lines(value, inside=inside))
        except Exception:  # noqa: BLE001 - of the value's own methods: it cannot be compared
            described = [f"unreadable {type(value).__name__}"]
        yield from described

    def _lines(self, value: Any, *, inside: bool) -> Iterator[str]:
        if type(value) in _PLAIN:
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._seen or len(self._seen) >= _MOST:
            yield f"seen {self._seen.get(id(value), (-1,))[0]}"
            return
        if not isinstance(value, tuple):  # equal constants may be one object or several
            self._seen[id(value)] = len(self._seen), value
        if isinstance(value, dict | set | frozenset | list | tuple | deque):
            yield from self._container(value, inside=inside)
        elif isinstance(value, ModuleType | re.Pattern):
            yield f"module {value.__name__} {_module_text(value)}" if isinstance(value, ModuleType) else repr(value)
        elif isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, CodeType):
            yield from self._code(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif parts := _parts(value):
            yield from self._each(parts, inside=False)
        else:
            yield from self._object(value, inside=inside)

    def _container(self, value: Any, *, inside: bool) -> Iterator[str]:
        yield f"{type(value).__name__} {len(value)}"
        if isinstance(value, set | frozenset):
            yield from sorted("\n".join(self.lines(each, inside=inside)) for each in value)
        else:
            yield from self._each(chain(*value.items()) if isinstance(value, dict) else value, inside=inside)

    def _each(self, values: Any, *, inside: bool) -> Iterator[str]:
        for value in values:
            yield from self.lines(value, inside=inside)

    def _function(self, function: FunctionType) -> Iterator[str]:
        if _is_installed(function.__code__.co_filename):
            yield f"function {function.__module__}.{function.__qualname__}"
            cells = map(_content, function.__closure__ or ())  # of a decorator, the function that it wraps
            yield from self._each([each for each in cells if isinstance(each, FunctionType)], inside=True)
            return
        yield "function"
        attributes = {name: each for name, each in vars(function).items() if name != "__wrapped__"}
        yield from self._each((function.__defaults__, function.__kwdefaults__, attributes), inside=False)
        changed = _changed_by([function.__code__])
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            content = _content(cell)
            if not changed.leaves_out(name, content):
                yield from self.lines(content)
        yield from self._code(function.__code__)
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__ and not changed.leaves_out(name, function.__globals__[name]):
                yield f"global {name}"
                yield from self.lines(function.__globals__[name])

    def _code(self, code: CodeType) -> Iterator[str]:
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount
        yield f"code {code.co_code.hex()} {code.co_exceptiontable.hex()} {names} {code.co_flags}"
        yield from self._each(code.co_consts, inside=False)

    def _class(self, of: type) -> Iterator[str]:
        if _is_library_class(of):
            yield f"class {of.__module__}.{of.__qualname__}"
            return
        yield f"class {of.__name__}"
        yield from self._each(of.__bases__, inside=False)
        changed = _changed_by(_methods(of))
        for name, each in vars(of).items():
            if name not in _OF_CLASS and not changed.leaves_out(name, each):
                yield f"attribute {name}"
                yield from self.lines(each)

    def _object(self, value: Any, *, inside: bool) -> Iterator[str]:
        of = type(value)
        yield from self.lines(of)
        library = _is_library_class(of)
        if library and inside:
            return
        wrapped = getattr(value, "__wrapped__", None)  # of functools.lru_cache, for instance
        if wrapped is not None:
            yield from self.lines(wrapped)
            return
        state = _state(value)
        if state is None:
            shown = repr(value) if library else ""
            yield "" if " at 0x" in shown else shown
            return
        changed = _changed_by(_methods(of))
        for name, each in sorted(state.items()):
            lazy = isinstance(inspect.getattr_static(of, name, None), functools.cached_property)
            if not lazy and not changed.leaves_out(name, each):
                yield f"attribute {name}"
                yield from self.lines(each, inside=library)


def _parts(value: Any) -> tuple[Any, ...]:
    """What a partial, a method or a descriptor is made of; nothing for anything else."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    names = ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__", "func")
    descriptors: Any = property | staticmethod | classmethod | functools.cached_property
    return tuple(getattr(value, name, None) for name in names) if isinstance(value, descriptors) else ()


def _state(value: Any) -> dict[str, Any] | None:
    """The attributes of an object by name; None where it keeps none that can be read."""
    slots = [name for of in type(value).__mro__ for name in _slots(of)]
    kept = getattr(value, "__dict__", None)
    if kept is None and not slots:
        return None
    named = {name: getattr(value, name, None) for name in slots if name not in {"__dict__", "__weakref__"}}
    return named | {str(name): each for name, each in dict(kept or {}).items()}


def _slots(of: type) -> Sequence[str]:
    slots = vars(of).get("__slots__", ())
    return [slots] if isinstance(slots, str) else list(slots)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None


def _methods(of: type) -> Iterator[CodeType]:
    """The code that runs once an object is made."""
    for each in of.__mro__:
        for name, value in vars(each).items():
            for part in (
                value,
                *(getattr(value, attribute, None) for attribute in ("fget", "fset", "__func__", "func")),
            ):
                if isinstance(part, FunctionType) and name not in _MAKING:
                    yield inspect.unwrap(part).__code__


def _changed_by(codes: Any) -> _Changed:
    changed = _Changed()
    for code in codes:
        steps = list(dis.get_instructions(code))
        lines: dict[int, set[str]] = {}
        stores, line = set(), 0
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            line = step.starts_line or line
            if step.opname in {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"} or (
                step.opname == "STORE_DEREF" and step.argval in code.co_freevars
            ):
                changed.assigned.add(step.argval)
            elif step.opname in {"STORE_SUBSCR", "DELETE_SUBSCR"}:
                stores.add(line)
            elif isinstance(step.argval, str) and step.opname.startswith("LOAD_"):
                lines.setdefault(line, set()).add(step.argval)
                if following and following.argval in _FILLING and "CONST" not in following.opname:
                    changed.filled.add(step.argval)
        for each in stores:
            changed.filled |= lines.get(each, set())
        inner = _changed_by(constant for constant in code.co_consts if isinstance(constant, CodeType))
        changed.assigned |= inner.assigned
        changed.filled |= inner.filled
    return changed


def _globals_of(code: CodeType) -> set[str]:
    own = {s.argval for s in dis.get_instructions(code) if s.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    return own.union(*(_globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def _module_text(module: ModuleType) -> str:
    """Of a module of the user's, a digest of its source, which an edit changes."""
    file = getattr(module, "__file__", None)
    if not file or module.__name__ == "__main__" or _is_installed(file):
        return ""
    try:
        return sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_of(of: type) -> str | None:
    """The file of the module of a class; None for one that was written in a notebook."""
    module = sys.modules.get(of.__module__)
    return None if of.__module__ == "__main__" else getattr(module, "__file__", None)


def _is_library_class(of: type) -> bool:
    file = _file_of(of)
    if file is None:
        return of.__module__.partition(".")[0] in {"builtins", *sys.stdlib_module_names} - {"__main__"}
    return _is_installed(file)


def _is_installed(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith("<frozen ")
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in (*_LIBRARIES, _OWN))
