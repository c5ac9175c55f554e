"""A loss of one's own: the source of a function of a cell, in a private file of the lab folder, named by its hash.

The embedded service of this machine trains with it. A job carries the hash alone, so that no service runs code that
came with a request. This side never imports torch; the function is called by the service.
"""

import ast
import dis
import hashlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.fsutil import locked, own, refused, write_private
from rolloutlab.settings import Settings

Loss = Callable[..., Any]
"""`fn(new, old, advantage, weight, history) -> loss`; see `rolloutlab.policy.custom_loss`."""
_PARAMETERS = 5
_HINT = "def loss(new, old, advantage, weight, history): return -(weight * advantage * new).sum() / len(new)"


def publish_loss(loss: Loss, settings: Settings) -> str:
    """Write the source of a loss into the lab folder; its SHA-256 in hexadecimal digits.

    Raises:
        InputError: it is not a plain function of five arguments, or uses what cannot be written down; or the embedded
        service is not in use. LabError: the file cannot be written.
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
    """A function as a module: imports, constants, then the function. InputError: as of `publish_loss`."""
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
    return "".join(f"{line}\n" for line in [*_definitions(loss, _defaults(function)), source.rstrip()])


def _defaults(function: ast.FunctionDef) -> set[str]:
    """Names in the default values of parameters."""
    values = [each for each in [*function.args.defaults, *function.args.kw_defaults] if each]
    return {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}


def _definitions(loss: Any, defaults: set[str]) -> Iterator[str]:
    """An import or an assignment for each name that the function takes from its notebook."""
    cells = zip(loss.__code__.co_freevars, loss.__closure__ or (), strict=True)
    values = {**loss.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    for name in sorted({*defaults, *_global_names(loss.__code__), *loss.__code__.co_freevars} & values.keys()):
        value = values[name]
        if isinstance(value, ModuleType):
            yield f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}"
        elif (
            value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
        ):
            yield f"{name} = {value!r}"
        elif value is not loss:
            what = f"{name}, a {type(value).__name__}"
            raise InputError(
                f"the loss uses {what}: only modules, numbers and texts go with it", hint=f"put {name} inside"
            )


def _global_names(code: CodeType) -> Iterator[str]:
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in {"LOAD_GLOBAL", "LOAD_NAME"})
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
