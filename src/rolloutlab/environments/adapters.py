"""Adapters: plug-ins for the environments of other packages, and functions that these plug-ins share."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from importlib import import_module
from inspect import isclass
from types import ModuleType
from typing import Any

from rolloutlab.environments.protocol import Adapter, Source
from rolloutlab.errors import InputError, RolloutlabError, described
from rolloutlab.plugins import ENVIRONMENTS, ask_all, load, load_all, names

_RETURNS = "def source(name): return Games(name), with name, rows(limit, seed) and environment(row)"


def make_source(name: str, options: Mapping[str, Any]) -> Source:
    """Make the source of a name `PREFIX:NAME`. options: the package's own options for this environment.

    Raises:
        InputError: there is no such prefix or name, or the package is not installed.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in names(ENVIRONMENTS):
        adapters = _load_adapters()
        close = get_close_matches(prefix, adapters, n=1) if colon else []
        raise InputError(
            f"{name!r} is not an environment", hint=", ".join(f"{each}:NAME" for each in close or adapters)
        )
    adapter = load(ENVIRONMENTS, prefix)  # its error says why the plug-in cannot be used
    if not hasattr(adapter, "source"):
        raise InputError(f"the plug-in {prefix} has no environments by name: its module has no source()", hint=_RETURNS)
    try:
        source = adapter.source(rest, **options)
    except RolloutlabError:
        raise
    except Exception as error:
        raise InputError(f"the plug-in {prefix} cannot make {name}: {described(error)}", hint=_RETURNS) from error
    if not (isinstance(getattr(source, "name", None), str) and is_source(source)):
        raise InputError(f"source() of the plug-in {prefix} returned {source!r}, no source", hint=_RETURNS)
    made: Source = source
    return made


def is_source(env: Any) -> bool:
    """Whether an object has the methods of a `Source`."""
    return callable(getattr(env, "environment", None)) and callable(getattr(env, "rows", None))


def complete_names(begun: str) -> list[str]:
    """Complete `begun`: by the prefixes of adapters or, after a colon, by the names of an installed package."""
    prefix, colon, _ = begun.partition(":")
    adapters = _load_adapters()
    if not colon or prefix not in adapters:
        return [f"{each}:" for each in adapters]
    try:
        return [f"{prefix}:{name}" for name in getattr(adapters[prefix], "names", list)()]
    except Exception:  # noqa: BLE001 - the package is not installed, or fails in its own way: Tab offers nothing
        return []


def recognise(env: Any, options: Mapping[str, Any]) -> Source | None:
    """Make the source of a class or factory if an adapter recognises it, else return None."""
    source: Any = ask_all(ENVIRONMENTS, "recognise", env, options, kind=object)
    return source if is_source(source) else None


def refuse(environment: Any) -> None:
    """Raise InputError for an object or class of another package that looks like an environment but is none."""
    ask_all(ENVIRONMENTS, "refuse", environment, kind=type(None))


def advice(environment: Any) -> str | None:
    """Return what to type for an environment, or its class, if an adapter knows its package; else None."""
    return ask_all(ENVIRONMENTS, "advice", environment, kind=str)


def packages_of(environment: Any) -> set[str]:
    """Return the top-level packages of a class and of its bases. environment: the class, or an instance."""
    return {str(each.__module__).partition(".")[0] for each in class_of(environment).__mro__}


def class_of(environment: Any) -> type:
    """Return the class of an environment. A class is returned unchanged."""
    return environment if isclass(environment) else type(environment)


def import_package(name: str, extra: str) -> ModuleType:
    """Import a module of the package that an adapter is for; raise InputError if the package is not installed.

    name: the module. extra: the extra of rolloutlab that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        hint = f"pip install 'rolloutlab[{extra}]'"
        raise InputError(f"environments of {extra} need {error.name}", hint=hint) from error


def check_name(prefix: str, name: str, known: Collection[str]) -> None:
    """Raise InputError with the nearest names unless a name is known."""
    if name not in known:
        folded = {each.lower(): each for each in known}
        close = [folded[each] for each in get_close_matches(name.lower(), folded, n=3, cutoff=0.4)] or sorted(known)[:3]
        raise InputError(f"there is no {prefix}:{name}", hint=", ".join(f"{prefix}:{each}" for each in close))


def name_with(name: str, options: Mapping[str, Any]) -> str:
    """Return the name of a source with its options, because with other options it is another environment."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else name


def _load_adapters() -> dict[str, Adapter]:
    return {name: plugin for name, plugin in load_all(ENVIRONMENTS) if hasattr(plugin, "source")}
