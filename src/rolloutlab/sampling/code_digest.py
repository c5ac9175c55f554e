"""Digests of reward functions and of all that they use: equal for equal code, constants and settings."""

import copyreg
import dis
import functools
import io
import itertools
import marshal
import os
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from types import BuiltinMethodType, CodeType, FunctionType, MappingProxyType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from rolloutlab.sampling.array_digest import describe_array
from rolloutlab.sampling.source_digest import digest_sources, is_installed, is_of_user, is_of_user_class

_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(...))
_OF_CLASS = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__"),
    *("__static_attributes__", "__firstlineno__", "_abc_impl", "__slots__", "__dataclass_fields__"),
}
_FIELDS = {"__pydantic_fields__", "__attrs_attrs__"}
_DEPTH = 4
"""Levels of attributes and items that have parts of their own. A deeper object is in the digest of the level above."""
_ITEMS = 64
"""The most items of a container that have parts of their own. A larger container has one part."""
_PARTS = 200
"""The most parts below one name. If there were more, fewer levels get parts of their own."""
_LOOKED_AT = 20_000
"""The most objects below one name whose contents are read one by one. Arrays, frames and plain data count as one."""
_STACK = 150
"""The most objects that contain one another, below one name."""
_LEVELS, _ENTRIES = 8, 20_000_000
"""The most levels and entries of plain data that have one digest."""
_MARSHAL = 2
"""The version of marshal without references: its bytes are the same for equal data."""


def describe_parts(value: Any, root: str, like: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Digest each part of a function, object or class, and of what its code uses.

    Returns digests by path. A path is the same in each process, such as `__main__:WEIGHTS|['long']`: parts are globals,
    closure cells, attributes and items. What a digest depends on:

    - of the user's functions and classes, the bytecode and the members
    - of functions, classes and modules of installed packages, only the name
    - of objects of installed packages, how they are pickled, or their attributes
    - of objects inside of these, only the plain public attributes

    root: how the paths of `value` itself begin. like: an earlier description. Its depths are used again, so that the
    paths can be compared.
    """
    return _Descriptions(like).parts_of(root, value)


def changed_parts(one: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    """Find the paths at which two descriptions differ, without the paths below another such path.

    A name that only one of them has does not count. If the code names something else, the code itself differs.
    Otherwise the name was not there yet, such as a module that is imported when a function first runs.
    """
    roots = [{_root(path) for path in each} for each in (one, other)]
    both = roots[0] & roots[1]
    differing = {p for p in one.keys() | other.keys() if one.get(p) != other.get(p) and _root(p) in both}
    return {path for path in differing if not is_part(path, differing - {path})}


def is_part(path: str, of: Iterable[str]) -> bool:
    """Whether a path is one of several, or below one of them."""
    return any(path == each or (path.startswith(each) and path[len(each)] in ".[(") for each in of)


def _root(path: str) -> str:
    return path.partition("|")[0]


@dataclass
class _Shallow:
    """An object, apart from the objects in it.

    text: what identifies it besides its children.
    children: the objects in it. Each has a label, which continues the path, and says whether it is internal to an
        object of an installed package.
    whole: whether the object is one part together with its children. It is if they have no lasting path, as the items
        of a set, or are data, as the items of a long list.
    """

    text: str
    children: list[tuple[str, Any, bool]] = field(default_factory=list)
    whole: bool = False


class _Descriptions:
    """Describes values below names, one after another: code before data, as there may be too much data to look at.

    Reading a value queues the globals, modules and classes that it uses, each by its own name.
    """

    def __init__(self, like: Mapping[str, str]) -> None:
        self._like = like
        self._parts: dict[str, str] = {}
        self._code: deque[tuple[str, Any]] = deque()
        self._data: deque[tuple[str, Any]] = deque()
        self._named: dict[str, Any] = {}
        self._folded: dict[tuple[int, bool], str] = {}
        self._kept: list[Any] = []  # so that an id stays that of its object
        self._stack: dict[int, int] = {}
        self._left, self._now = 0, ""

    def parts_of(self, root: str, value: Any) -> dict[str, str]:
        self._queue(root, value)
        while self._code or self._data:
            name, each = (self._code or self._data).popleft()
            self._left, self._now = _LOOKED_AT, name
            self._parts |= self._describe(f"{name}|", each)
        return self._parts

    def _queue(self, name: str, value: Any) -> bool:
        """Queue a value to be described by a name; return False if the name is another object's."""
        if name not in self._named:
            self._named[name] = value
            is_code = isinstance(value, FunctionType | MethodType | ModuleType | type | functools.partial)
            (self._code if is_code else self._data).append((name, value))
        return self._named[name] is value

    def _describe(self, path: str, value: Any) -> dict[str, str]:
        """Describe a value by at most `_PARTS` parts, as deep as that allows, or as deep as in `like`."""
        known = self._like.get(f"{path}.depth()")
        for depth in [int(known)] if known else range(_DEPTH, 0, -1):
            parts: dict[str, str] = {}
            self._expand(path, value, False, depth, parts)
            if len(parts) <= _PARTS:
                break
        return parts | ({f"{path}.depth()": str(depth)} if depth < _DEPTH or known else {})

    def _expand(self, path: str, value: Any, inside: bool, depth: int, parts: dict[str, str]) -> None:
        """Add the parts of a value to `parts`.

        Args:
            path: the path of the value.
            value: the value.
            inside: whether it is internal to an object of an installed package.
            depth: levels below it that get parts of their own.
            parts: the digests by path, which are added to.
        """
        node = self._read_node(value, inside)
        if not depth or node.whole or not node.children or id(value) in self._stack:
            parts[path] = self._fold(value, inside, node)[0]
            return
        parts[path] = _hash(node.text)
        self._stack[id(value)] = len(self._stack)
        for label, child, is_inside in node.children:
            if len(parts) <= _PARTS or depth == 1:
                self._expand(path + label, child, is_inside, depth - 1, parts)
        del self._stack[id(value)]

    def _fold(self, value: Any, inside: bool, node: _Shallow | None = None) -> tuple[str, int]:
        """Digest an object with all objects in it; return also the outermost object on the stack that it leads back to.

        In a cycle, the digest has the number of steps up to the object that comes again. Such a digest depends on where
        the cycle was entered, so it is kept for later only once nothing in it leads further out than the object itself.
        """
        own, outermost = len(self._stack), _STACK
        if type(value) in _PLAIN:
            return _hash(self._read_node(value, inside).text), outermost
        if id(value) in self._stack:
            return f"up {own - self._stack[id(value)]}", self._stack[id(value)]
        if digest := self._folded.get((id(value), inside)):
            return digest, outermost
        self._left -= 1
        if self._left < 0 or own >= _STACK:
            return _hash(type(value).__qualname__), outermost
        node = node or self._read_node(value, inside)
        self._kept.append(value)
        self._stack[id(value)] = own
        lines = []
        for label, child, is_inside in node.children:
            digest, back = self._fold(child, is_inside)
            outermost = min(outermost, back)
            lines.append(f"{label} {digest}")
        del self._stack[id(value)]
        digest = _hash("\n".join([node.text, *sorted(lines)]))
        if outermost >= own:
            self._folded[id(value), inside] = digest
            return digest, _STACK
        return digest, outermost

    def _read_node(self, value: Any, inside: bool) -> _Shallow:
        try:
            return self._read(value, inside)
        except Exception:  # noqa: BLE001 - a method of the value failed, and may raise anything
            return _Shallow(f"unreadable {type(value).__name__}")

    def _read(self, value: Any, inside: bool) -> _Shallow:
        of = type(value)
        if of in _PLAIN:
            return _Shallow(f"{of.__name__} {value!r}")
        if isinstance(value, Enum):
            return _Shallow(f"{_class_name(of)} {value._name_}", [(".value", value._value_, inside), *_own_class(of)])
        if isinstance(value, dict | list | tuple | set | frozenset | deque):
            return self._read_container(value, inside)
        if isinstance(value, FunctionType):
            return self._read_function(value)
        if isinstance(value, CodeType):
            return self._read_code(value)
        if isinstance(value, type):
            name = _class_name(value)
            is_described_here = not is_of_user_class(value) or (self._queue(name, value) and name != self._now)
            return _Shallow(name) if is_described_here else self._read_class(value)
        return self._read_simple(value, inside) or self._read_object(value, inside)

    def _read_simple(self, value: Any, inside: bool) -> _Shallow | None:
        """Read an object of a known type that is made of a few others; None for other objects."""
        if isinstance(value, ModuleType):
            self._queue_module(value, None)
            return _Shallow(f"module {value.__name__}")
        if isinstance(value, re.Pattern):
            return _Shallow(f"pattern {value.pattern!r} {value.flags}")
        if isinstance(value, BuiltinMethodType | MethodWrapperType):
            own = getattr(value, "__self__", None)
            bound = [] if own is None or isinstance(own, ModuleType) else [(".__self__", own, False)]
            return _Shallow(f"builtin {value.__qualname__}", bound)
        if parts := _parts_of_wrapper(value):
            return _Shallow(type(value).__name__, [(f".{name}", each, False) for name, each in parts.items()])
        if value is os.environ or isinstance(value, io.IOBase):
            return _Shallow(type(value).__name__)
        if array := describe_array(value, inside=inside):
            return _Shallow(array[0], [(f"[{i}]", each, inside) for i, each in enumerate(array[1])], whole=True)
        return None

    def _read_container(self, value: Any, inside: bool) -> _Shallow:
        of, own = type(value), []
        if is_of_user_class(of):
            own = [
                *_own_class(of),
                *((f".{name}", each, False) for name, each in (_attributes_of(value) or {}).items()),
            ]
        if factory := getattr(value, "default_factory", None):
            own.append((".default_factory", factory, False))
        text = f"{of.__name__} {len(value)}"
        if isinstance(value, set | frozenset):
            return _Shallow(text, [*(("", each, inside) for each in value), *own], whole=True)
        if isinstance(value, dict):
            return self._read_dict(value, text, own, inside)
        plain = _digest_plain(list(value))
        if plain is not None:
            return _Shallow(f"{text} {plain}", own)
        items = [(f"[{i}]", each, inside) for i, each in enumerate(value)]
        return _Shallow(text, [*items, *own], whole=len(value) > _ITEMS)

    def _read_dict(self, value: Any, text: str, own: list[tuple[str, Any, bool]], inside: bool) -> _Shallow:
        """Read a dictionary regardless of its order, because one made from a set has another order in each kernel.

        text: what identifies it so far. own: children besides its items.
        """
        if isinstance(value, OrderedDict):
            text += f" {[self._fold(key, inside)[0] for key in value]}"
        if len(value) > _ITEMS:
            pairs: list[Any] = list(value.items())
            with suppress(TypeError):
                pairs.sort()
            plain = _digest_plain(pairs)
            if plain is not None:
                return _Shallow(f"{text} {plain}", own)
            return _Shallow(text, [*(("", pair, inside) for pair in value.items()), *own], whole=True)
        if all(type(key) in _PLAIN for key in value):
            keys = sorted(map(repr, value))
            return _Shallow(f"{text} {keys}", [*((f"[{key!r}]", each, inside) for key, each in value.items()), *own])
        return _Shallow(text, [*(("", pair, inside) for pair in value.items()), *own], whole=True)

    def _read_function(self, function: FunctionType) -> _Shallow:
        cells = zip(function.__code__.co_freevars, map(_read_cell, function.__closure__ or ()), strict=True)
        defaults = [("(defaults)", function.__defaults__), ("(keywords)", function.__kwdefaults__)]
        attributes = [(f".{name}", each) for name, each in sorted(vars(function).items()) if name != "__wrapped__"]
        parts = [*((f"({name})", each) for name, each in cells), *defaults, *attributes]
        parts = [part for part in parts if part[1] is not None and part[1] != {}]
        # a decorator of an installed package has the user's function in a cell
        if is_installed(function.__code__.co_filename):
            children = [(label, each, True) for label, each in parts]
            return _Shallow(f"function {function.__module__}.{function.__qualname__}", children)
        self._queue_globals(function.__code__, function.__globals__)
        text = self._fold(function.__code__, inside=False)[0]
        return _Shallow(f"function {text}", [(label, each, False) for label, each in parts])

    def _read_code(self, code: CodeType) -> _Shallow:
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_argcount, code.co_kwonlyargcount
        text = f"code {code.co_code.hex()} {code.co_exceptiontable.hex()} {names} {code.co_flags}"
        return _Shallow(text, [(f"[{i}]", each, False) for i, each in enumerate(code.co_consts)], whole=True)

    def _queue_globals(self, code: CodeType, names: dict[str, Any]) -> None:
        """Queue the globals that code uses, each by its name, and what the code takes of the user's modules."""
        module = str(names.get("__name__"))
        steps = [step for step in dis.get_instructions(code) if step.opname not in {"PRECALL", "CACHE", "EXTENDED_ARG"}]
        for i, step in enumerate(steps):
            if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and step.argval in names:
                following = itertools.takewhile(lambda s: s.opname in {"LOAD_ATTR", "LOAD_METHOD"}, steps[i + 1 :])
                self._queue_global(module, step.argval, names[step.argval], [each.argval for each in following])
            elif step.opname == "IMPORT_NAME":
                level, taken = steps[i - 2].argval, steps[i - 1].argval or ()
                package = str(names.get("__package__") or "")
                self._queue_import(level, step.argval, package, taken, taken or code.co_names)
        for each in code.co_consts:
            if isinstance(each, CodeType):
                self._queue_globals(each, names)

    def _queue_global(self, module: str, name: str, value: Any, attributes: Sequence[str]) -> None:
        self._queue(f"{module}:{name}", f"module {value.__name__}" if isinstance(value, ModuleType) else value)
        if isinstance(value, ModuleType):
            self._queue_module(value, attributes or None)

    def _queue_module(self, module: ModuleType, attributes: Sequence[str] | None) -> None:
        """Queue what code takes of one of the user's modules: a chain of attributes, or all if that is not known."""
        name, own = module.__name__, vars(module)
        if not is_of_user(module):
            return
        if attributes:
            if attributes[0] in own:
                self._queue_global(name, attributes[0], own[attributes[0]], attributes[1:])
        elif name != "__main__" and self._queue(f"module {name}", sorted(each for each in own if each[:2] != "__")):
            for each, value in sorted(own.items()):
                if not each.startswith("__"):
                    is_module = isinstance(value, ModuleType)  # the functions of this module tell what they take of it
                    self._queue(f"{name}:{each}", f"module {value.__name__}" if is_module else value)

    def _queue_import(self, level: int, name: str, package: str, taken: Sequence[str], used: Sequence[str]) -> None:
        """Queue a module that a function imports when it runs: its files, and what it holds if it is imported already.

        Args:
            level: the number of dots before the name.
            name: the name of the module, without the dots.
            package: the package of the function.
            taken: the names after `import`.
            used: the attributes that the function may use.
        """
        for each, text in digest_sources("." * level + name, package, taken).items():
            self._queue(f"import {each}", text)
            module = sys.modules.get(each)
            if module:
                for attribute in used:
                    self._queue_module(module, [attribute])

    def _read_class(self, of: type) -> _Shallow:
        children = [(f"(base {i})", base, False) for i, base in enumerate(of.__bases__)]
        children += [("(metaclass)", type(of), False)]
        members = getattr(of, "__members__", {}) if issubclass(of, Enum) else {}
        children += [(f".{name}", member._value_, False) for name, member in members.items()]
        for name, each in sorted(vars(of).items()):
            is_set = name in _FIELDS or type(each) in _PLAIN or hasattr(each, "__get__") or not name.startswith("__")
            hidden = name in _OF_CLASS or name in members or (members and name.startswith("_") and name.endswith("_"))
            if is_set and not hidden:
                children.append((f".{name}", each, False))
        return _Shallow(f"class {of.__name__}", children)

    def _read_object(self, value: Any, inside: bool) -> _Shallow:
        of = type(value)
        text, children = _class_name(of), list(_own_class(of))
        library = not is_of_user_class(of)
        wrapped = getattr(value, "__wrapped__", None)  # of functools.lru_cache, for instance
        if wrapped is not None:
            return _Shallow(text, [(".__wrapped__", wrapped, False)])
        text += "".join(f" {base.__repr__(value)}" for base in _PLAIN[:5] if isinstance(value, base))
        if library and (not inside or of.__module__.partition(".")[0] in sys.stdlib_module_names):
            pickled = _reduce(value)
            if pickled is not None:
                return _Shallow(text, [(f"({i})", each, True) for i, each in enumerate(pickled)])
        if isinstance(value, Mapping) and library and not inside:
            return _Shallow(text, [("", dict(value), True)])
        for name, each in sorted((_attributes_of(value) or {}).items()):
            lazy = isinstance(getattr(of, name, None), functools.cached_property)
            internal = library and inside and (name.startswith("_") or type(each) not in _PLAIN)
            if not lazy and not internal:
                children.append((f".{name}", each, library))
        return _Shallow(text, children)


def _own_class(of: type) -> list[tuple[str, Any, bool]]:
    return [("(class)", of, False)] if is_of_user_class(of) else []


def _class_name(of: type) -> str:
    return f"class {of.__module__}.{of.__qualname__}"


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _digest_plain(values: list[Any]) -> str | None:
    """Digest plain data of a few levels; None if anything else is among it."""
    if not _is_plain(values):
        return None
    try:
        return blake2b(marshal.dumps(values, _MARSHAL), digest_size=16).hexdigest()
    except ValueError:
        return None


def _is_plain(values: list[Any]) -> bool:
    """Whether all values are plain data of a few levels. They are checked level by level, because there may be many.

    marshal alone would not do: it accepts arrays, of which it writes only the bytes. `_ENTRIES` counts a list that
    several others share once for each of them, as marshal writes it.
    """
    level, size = values, 0
    for _ in range(_LEVELS):
        kinds = set(map(type, level)).difference(_PLAIN)
        if not kinds:
            return True
        nested: list[Any] = [each for each in level if type(each) not in _PLAIN]
        if not kinds <= {tuple, list, dict, set, frozenset} or (size := size + sum(map(len, nested))) > _ENTRIES:
            return False
        held = [each.values() for each in nested if type(each) is dict]
        level = list(itertools.chain.from_iterable((*nested, *held)))
    return False


def _reduce(value: Any) -> list[Any] | None:
    """Return what an object is pickled as: the function that makes it, and its arguments and state.

    None if it is pickled by its `__dict__`, like most objects, or if it cannot be pickled.
    """
    of = type(value)
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    says = of in copyreg.dispatch_table or any(getattr(of, name) is not getattr(object, name) for name in names)
    if not says and getattr(value, "__dict__", None) is not None:
        return None
    reduce = copyreg.dispatch_table.get(of)
    try:
        made = reduce(value) if reduce else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - the object cannot be pickled
        return None
    if isinstance(made, str):
        return [made]
    function, arguments, *more = made
    return [function, arguments, *(each if i == 0 else list(each) for i, each in enumerate(more[:3]) if each)]


def _parts_of_wrapper(value: Any) -> dict[str, Any]:
    """Return what a partial, a method or a descriptor is made of, by attribute; empty for any other value."""
    if isinstance(value, functools.partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, MethodType):
        return {"__func__": value.__func__, "__self__": value.__self__}
    names = ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__", "func", "args", "keywords")
    descriptors: Any = property | staticmethod | classmethod | functools.cached_property | functools.partialmethod
    named = {name: getattr(value, name, None) for name in names} if isinstance(value, descriptors) else {}
    return {name: each for name, each in named.items() if each is not None}


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object by name; None if it has neither a `__dict__` nor slots."""
    slots = [name for of in type(value).__mro__ for name in _slots_of(of)]
    kept = getattr(value, "__dict__", None)
    if kept is None and not slots:
        return None
    named = {name: getattr(value, name, None) for name in slots if name not in {"__dict__", "__weakref__"}}
    return named | {str(name): each for name, each in dict(kept or {}).items()}


def _slots_of(of: type) -> Iterator[str]:
    """List the slots of a class by the names of their attributes: of `__x` in a class `A`, that is `_A__x`."""
    slots = vars(of).get("__slots__", ())
    for name in [slots] if isinstance(slots, str) else slots:
        is_private = name.startswith("__") and not name.endswith("__")
        yield f"_{of.__name__.lstrip('_')}{name}" if is_private else name


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has no value yet
        return None
