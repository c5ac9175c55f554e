"""Keyword arguments of a call that a typed dictionary lists (PEP 692): shown in its help, and checked by name."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, cleandoc, signature
from textwrap import indent
from typing import Any, TypeVar, cast

from rolloutlab.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def takes(*options: type) -> Callable[[F], F]:
    """Decorate a call that takes `**given: Unpack[OPTIONS]`: each option then is in its signature and its `Args:`.

    Help, completion and the reference show these. None stands for the default: options that are None are not passed
    on. An unknown option raises an InputError that names the closest one.

    options: the typed dictionaries that OPTIONS extends, then OPTIONS itself. Each docstring lists its own options.
    """

    def decorate(function: F) -> F:
        kinds = {name: kind for each in options for name, kind in each.__annotations__.items()}
        keywords = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kinds[name]) for name in kinds]
        *own, _given = signature(function).parameters.values()
        shown = signature(function).replace(parameters=[*own, *keywords])

        @wraps(function)
        def call(*values: Any, **given: Any) -> Any:
            for name in given.keys() - shown.parameters.keys():
                close = get_close_matches(name, shown.parameters, n=1)
                hint = f"{close[0]}=..." if close else f"lab.{function.__name__}?"
                raise InputError(f"there is no setting {name!r}", hint=hint)
            return function(*values, **{n: value for n, value in given.items() if n not in kinds or value is not None})

        call.__signature__ = shown  # type: ignore[attr-defined]
        call.__doc__ = _with_options(function.__doc__ or "", options)
        return cast("F", call)

    return decorate


def _with_options(docstring: str, options: tuple[type, ...]) -> str:
    """Append options to the `Args:` of a docstring. Each typed dictionary lists its options below its first line."""
    listed = [indent(cleandoc(each.__doc__ or "").partition("\n\n")[2], " " * 4) for each in options]
    arguments, raises, errors = cleandoc(docstring).partition("\n\nRaises:")
    return "\n".join([arguments, *listed]) + raises + errors
