"""Publish a user's loss: the source of a function, in a private file of the lab folder, named by its hash.

The embedded service of this machine trains with it. A job carries only the hash, so that no service runs code that came
with a request. This module never imports torch; the service calls the function.
"""

import ast
import builtins
import dis
import hashlib
import inspect
import json
import math
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.fsutil import locked, own, refused, write_private
from rolloutlab.settings import Settings

Loss = Callable[..., Any]
"""`fn(new, old, advantage, weight, history) -> loss`; see `rolloutlab.policy.custom_loss`."""
_PARAMETERS = 5
_NO_VALUE = object()
_FIND = """
import importlib.util, json, sys
find = lambda name: name not in ("", "__main__") and importlib.util.find_spec(name)
specs = {name: find(name) for name in sys.argv[1:]}
print(json.dumps({name: (spec.origin or "") if spec else None for name, spec in specs.items()}))
"""
"""A program that prints where modules are, by name. An empty text is a package without a file."""
_HINT = "def loss(new, old, advantage, weight, history): return -(weight * advantage * new).sum() / len(new)"


def publish_loss(loss: Loss, settings: Settings) -> str:
    """Write the source of a loss into the lab folder; return its SHA-256 in hexadecimal digits.

    Raises:
        InputError: it is not a plain function of five arguments, it uses a value other than a module, a number or a
            text, or the embedded service is not in use.
        LabError: the file cannot be written.
    """
    if settings.service is not None:
        message = "a loss of your own trains on the embedded service of this machine alone"
        raise InputError(message, hint="%connect embedded")
    source = source_of(loss).encode()
    digest = hashlib.sha256(source).hexdigest()
    path = settings.service_folder / "losses" / f"{digest}.py"
    try:
        own(path.parent)
        with locked(path.with_name("lock")):
            write_private(path, source)
    except OSError as error:
        raise refused(f"{path} cannot be written", error, "free some disk space") from error
    return digest


def source_of(loss: Loss) -> str:
    """Write a function as a module: imports, constants, then the function. Raises InputError as `publish_loss` does."""
    if not inspect.isfunction(loss) or loss.__name__ == "<lambda>":
        raise InputError("a loss is a function made with def", hint=_HINT)
    try:
        inspect.signature(loss).bind(*range(_PARAMETERS))
        source = textwrap.dedent(inspect.getsource(loss))
        [function] = ast.parse(source).body
    except (TypeError, ValueError, OSError, SyntaxError) as error:
        raise InputError(f"{loss.__name__} is not a loss: {error}", hint=_HINT) from None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        raise InputError(f"{loss.__name__} is a coroutine, or has a decorator", hint=_HINT)
    used = {*_defaults(function), *_global_names(loss.__code__), *loss.__code__.co_freevars}
    lines = list(_definitions(loss, used))
    _check_modules([*(line.split()[1] for line in lines if line.startswith("import ")), *_imports(function)])
    return "".join(f"{line}\n" for line in [*lines, source.rstrip()])


def _defaults(function: ast.FunctionDef) -> set[str]:
    """Return the names in the default values of parameters."""
    values = [each for each in [*function.args.defaults, *function.args.kw_defaults] if each]
    return {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a function imports, except within `try`, which may handle their absence."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (each.name for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module or "."
        elif not isinstance(child, ast.Try):
            yield from _imports(child)


def _definitions(loss: Any, used: set[str]) -> Iterator[str]:
    """Yield an import or an assignment for each name that the function takes from its notebook."""
    values = {**loss.__globals__, **dict.fromkeys(loss.__code__.co_freevars, _NO_VALUE), **_closure(loss)}
    for name in sorted(used):
        value = values.get(name, getattr(builtins, name, _NO_VALUE))
        if value is _NO_VALUE and name != "torch":  # torch is defined by the service
            raise InputError(f"the loss uses {name}, which has no value", hint=f"{name} = ... before the call")
        if name in values and value is not loss:
            yield _definition(name, value)


def _closure(loss: Any) -> dict[str, Any]:
    """Return the values of variables of enclosing functions, except of those that have none yet."""
    values = {}
    for name, cell in zip(loss.__code__.co_freevars, loss.__closure__ or (), strict=True):
        with suppress(ValueError):  # assigned after the call
            values[name] = cell.cell_contents
    return values


def _definition(name: str, value: Any) -> str:
    """Write a name's value as an import or assignment. Numbers and texts of NumPy or enumerations become Python's."""
    if (numpy := sys.modules.get("numpy")) and isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
    if value is None or isinstance(value, bool):
        return f"{name} = {value!r}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} = float('{float.__repr__(value)}')"
    for kind in (int, float, str):
        if isinstance(value, kind):
            return f"{name} = {kind.__repr__(value)}"
    message = f"the loss uses {name}, a {type(value).__name__}: only modules, numbers and texts go with it"
    raise InputError(message, hint=f"put {name} inside")


def _check_modules(modules: Iterable[str]) -> None:
    """Raise InputError for a module that the kernel can import, but not the service.

    The kernel starts the service with `python -P`, so it finds no modules beside the notebook, nor any in a folder that
    a cell has added to `sys.path`.
    """
    names = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"torch"}
    if not names:
        return
    command = [sys.executable, "-P", "-c", _FIND, *sorted(names)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        return  # the check of the job, in the service, fails where the module is missing there
    for name, origin in json.loads(done.stdout).items():
        here = getattr(sys.modules.get(name), "__file__", None)
        if origin is None or (here and Path(here).resolve() != Path(origin).resolve()):
            message = f"the loss uses {name or '.'}, a module that the embedded service cannot import"
            raise InputError(message, hint="put what it uses of it inside, or %pip install the module")


def _global_names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a code reads and does not assign, with those of functions inside it."""
    instructions = list(dis.get_instructions(code))
    own = {each.argval for each in instructions if each.opname in {"STORE_GLOBAL", "STORE_NAME"}}
    yield from (
        each.argval for each in instructions if each.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and each.argval not in own
    )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
