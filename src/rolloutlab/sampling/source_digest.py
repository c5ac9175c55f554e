"""Digests of the user's own files: those of the modules that a function imports when it runs."""

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_FOLDERS = {"site-packages", "dist-packages"}
_OWN = Path(__file__).resolve().parents[1]
"""The folder of this package."""


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to rolloutlab."""
    if file.startswith("<"):
        return file.startswith("<frozen ")
    path = Path(file).resolve()
    return bool(_FOLDERS.intersection(path.parts)) or any(path.is_relative_to(each) for each in (*_LIBRARIES, _OWN))


def is_of_user(module: ModuleType) -> bool:
    """Whether a module is the user's own. The notebook (`__main__`) is."""
    file = None if module.__name__ == "__main__" else getattr(module, "__file__", None)
    if file is None:
        name = module.__name__.partition(".")[0]
        return name == "__main__" or (name not in sys.stdlib_module_names and name not in sys.builtin_module_names)
    return not is_installed(file)


def is_of_user_class(of: type) -> bool:
    """Whether a class is the user's own."""
    module = sys.modules.get(of.__module__)
    return is_of_user(module or ModuleType(str(of.__module__)))


def digest_sources(name: str, package: str, taken: Sequence[str]) -> dict[str, str]:
    """Digest each of the user's files that an import reads, by the name of its module.

    The files are found without importing anything, because an import may have effects.

    name: the imported name, relative or absolute. package: the package of the module that imports it. taken: the names
    after `import` in `from name import ...`.
    """
    digests: dict[str, str] = {}
    wanted = [(name, package, tuple(taken))]
    while wanted:
        name, package, taken = wanted.pop()
        with suppress(ImportError, ValueError):
            name = resolve_name(name, package)
        for each in [*_prefixes_of(name), *(f"{name}.{one}" for one in taken)]:
            spec = None if each in digests else _find_spec(each)
            if spec is None or spec.origin is None or not spec.has_location or is_installed(spec.origin):
                continue
            with suppress(OSError):
                source = Path(spec.origin).read_bytes()
                digests[each] = sha256(source).hexdigest()
                own = each if spec.submodule_search_locations else each.rpartition(".")[0]
                wanted += [(imported, own, names) for imported, names in _find_imports(source)]
    return digests


def _prefixes_of(name: str) -> list[str]:
    """List the packages of a module from the outermost one, and the module itself: `a`, `a.b`, `a.b.c`."""
    steps = name.split(".")
    return [".".join(steps[: i + 1]) for i in range(len(steps))]


def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module without importing its packages, as `importlib.util.find_spec` would."""
    path: Any = None
    spec = None
    for each in _prefixes_of(name):
        if each in sys.builtin_module_names:
            return None
        with suppress(ImportError, AttributeError, ValueError):
            spec = PathFinder.find_spec(each, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
        if path is None and each != name:
            return None
    return spec


def _find_imports(source: bytes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Find the imports in the source of a module: each imported name, with the names taken from it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, ()) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(each.name for each in node.names)
