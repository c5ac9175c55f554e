"""Plug-ins, found by entry points: engines, environments, rewards, readers of files, places to search and trackers.

A package adds a plug-in to one of six groups in its pyproject.toml, as this package does for its integrations:

    [project.entry-points."rolloutlab.environments"]
    mastermind = "my_package.environments"

The name is what a user types (`--env mastermind:NAME`). docs/plugins.md has a whole example of each group;
`rolloutlab.testing` has test classes for the authors of plug-ins.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from rolloutlab.errors import InputError, RolloutlabError, described

ENGINES, ENVIRONMENTS = "rolloutlab.engines", "rolloutlab.environments"
REWARDS, READERS, SEARCH = "rolloutlab.rewards", "rolloutlab.readers", "rolloutlab.search"
TRACKERS = "rolloutlab.trackers"
_OWN = "rolloutlab"
T = TypeVar("T")


def names(group: str) -> list[str]:
    """List the names of a group's plug-ins: this package's own in alphabetical order, then those of others."""
    return list(_plugins(group))


def load(group: str, name: str) -> Any:
    """Load a plug-in. If this package and another one have it, this package's own is used, with a warning.

    Raises:
        InputError: no package has a plug-in of this name, two other packages have one, or it cannot be imported.
    """
    installed = _plugins(group)
    if name not in installed:
        close = get_close_matches(name, installed, n=1) or list(installed)
        hint = ", ".join(close) or f"pip install a package with {group}"
        raise InputError(f"{group} has no plug-in {name!r}", hint=hint)
    entry, *others = installed[name]
    if others and _package(entry) == _OWN:
        _warn(f"{name} of {group} in {_package(others[0])} is not used: rolloutlab has one of this name")
    elif others:
        packages = ", ".join(_package(each) for each in (entry, *others))
        raise InputError(
            f"several packages have {group} {name}: {packages}", hint=f"pip uninstall {_package(others[-1])}"
        )
    return _object(group, entry)


def load_all(group: str) -> Iterator[tuple[str, Any]]:
    """Load all plug-ins of a group, with their names. One that cannot be used is left out with a warning."""
    for name in _plugins(group):
        try:
            loaded = load(group, name)
        except InputError as error:
            _warn(f"{error.message} -> {error.hint}")
        else:
            yield name, loaded


def ask_all(group: str, function: str, *arguments: Any, kind: type[T]) -> T | None:
    """Call a function of each plug-in that has it; return the first result that is not None, or None.

    A plug-in that raises, or returns something else than None or a `kind`, is passed over with a warning that names
    it. Otherwise it would stop cells that have nothing to do with it. Only a RolloutlabError, which a plug-in raises on
    purpose, is raised here as well.
    """
    for name, plugin in load_all(group):
        if ask := getattr(plugin, function, None):
            try:
                result = ask(*arguments)
            except RolloutlabError:
                raise
            except Exception as error:  # noqa: BLE001 - another package may fail in any way
                _warn(f"the plug-in {name} of {group} is passed over: {function} raised {described(error)}")
                continue
            if result is None:
                continue
            if isinstance(result, kind):
                return result
            _warn(f"the plug-in {name} of {group} is passed over: {function} returned {result!r}")
    return None


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _object(group: str, entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        package = _package(entry)
        if package == _OWN:
            hint = f"pip install '{package}[{entry.name}]'"
            raise InputError(f"the plug-in {entry.name} of {group} needs {error.name}", hint=hint) from error
        # not `pip install MODULE`: the module's distribution may have another name, or that name may be another project
        hint = f"pip install --upgrade {package}, and restart the kernel if it was installed since this one began"
        what = f"the plug-in {entry.name} of {group}, in {package}, needs the module {error.name}"
        raise InputError(what, hint=hint) from error
    except (Exception, SystemExit) as error:  # another package may fail in any way when it is imported
        what = f"the plug-in {entry.name} of {group}, in {_package(entry)}, cannot be imported: {described(error)}"
        raise InputError(what, hint=f"pip install --upgrade {_package(entry)}") from error


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unknown package"


def _plugins(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    return _scan(tuple(sys.path), tuple(map(_changed_at, sys.path))).get(group, {})


def _changed_at(folder: str) -> int:
    """When something was last installed into a folder, or removed from it."""
    with suppress(OSError):
        return Path(folder or ".").stat().st_mtime_ns
    return 0


@lru_cache(maxsize=1)
def _scan(_path: tuple[str, ...], _changed: tuple[int, ...]) -> Mapping[str, dict[str, tuple[EntryPoint, ...]]]:
    """Find the plug-ins by group and name. Cached until a package is installed: to read all metadata takes 50 ms."""
    plugins: dict[str, dict[str, tuple[EntryPoint, ...]]] = {}
    everything = entry_points()
    for group in (ENGINES, ENVIRONMENTS, REWARDS, READERS, SEARCH, TRACKERS):
        entries = set(everything.select(group=group))  # an editable install may be found twice
        for entry in sorted(entries, key=lambda each: (_package(each) != _OWN, each.name, _package(each))):
            plugins.setdefault(group, {}).setdefault(entry.name, ())
            plugins[group][entry.name] += (entry,)
    return plugins
