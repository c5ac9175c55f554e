"""Adapters by prefix: environments of public packages under names such as `textarena:Mastermind-v0`."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any

from rolloutlab.environments.protocol import Source
from rolloutlab.errors import InputError

ADAPTERS: Mapping[str, str] = {
    "gymnasium": "rolloutlab.integrations.gymnasium",
    "openenv": "rolloutlab.integrations.openenv",
    "reasoning-gym": "rolloutlab.integrations.reasoning_gym",
    "textarena": "rolloutlab.integrations.textarena",
}
"""By prefix, the module with `source(name, **options)` for what comes after the colon, and `names()`."""


def adapted(name: str, options: Mapping[str, Any]) -> Source:
    """The source of `PREFIX:NAME`. options: of the package, for this environment.

    Raises:
        InputError: there is no such prefix or name, or the package is not installed.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in ADAPTERS:
        close = get_close_matches(prefix, ADAPTERS, n=1) if colon else []
        raise InputError(
            f"{name!r} is not an environment", hint=", ".join(f"{each}:NAME" for each in close or ADAPTERS)
        )
    source: Source = import_module(ADAPTERS[prefix]).source(rest, **options)
    return source


def adapted_names(begun: str) -> list[str]:
    """Names of adapters to complete a word with: prefixes, and after a colon the names of a package, if installed."""
    prefix, colon, _ = begun.partition(":")
    if not colon or prefix not in ADAPTERS:
        return [f"{each}:" for each in ADAPTERS]
    try:
        return [f"{prefix}:{name}" for name in import_module(ADAPTERS[prefix]).names()]
    except InputError:
        return []


def package(name: str, extra: str) -> ModuleType:
    """A module of the package that an adapter is for; InputError where the package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        hint = f"pip install 'rolloutlab[{extra}]'"
        raise InputError(f"environments of {extra} need {error.name}", hint=hint) from error


def check_name(prefix: str, name: str, names: Collection[str]) -> None:
    """InputError with the nearest names unless it is one of these."""
    if name not in names:
        folded = {each.lower(): each for each in names}
        close = [folded[each] for each in get_close_matches(name.lower(), folded, n=3, cutoff=0.4)] or sorted(names)[:3]
        raise InputError(f"there is no {prefix}:{name}", hint=", ".join(f"{prefix}:{each}" for each in close))


def name_with(name: str, options: Mapping[str, Any]) -> str:
    """The name of a source, with its options: an environment with other options is another one."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name
