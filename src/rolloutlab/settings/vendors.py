"""Hosted services and engines by name, as the plug-ins of `rolloutlab.engines` describe them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutlab.plugins import ENGINES, load, load_all, names

LOCAL = "local"
"""The engine of the service's own process."""
KINDS = ("rolloutlab", "openai")
"""Kinds of services without a vendor: one that follows the specification, and one that only samples."""


@dataclass(frozen=True)
class Vendor:
    """A hosted service of one vendor.

    Attributes:
        url: The URL of its training API.
        api_key_env: The variable with its key, which goes to that URL alone.
        names_hold_project: Whether its models are named PROJECT/NAME, so that a project is needed and no header names
            it.
    """

    url: str
    api_key_env: str
    names_hold_project: bool = False


def vendors() -> Mapping[str, Vendor]:
    """Return the vendors of hosted services, by the name of their plug-in."""
    return {name: plugin.VENDOR for name, plugin in load_all(ENGINES) if hasattr(plugin, "VENDOR")}


def vendor_of(kind: str) -> Vendor | None:
    """Return the vendor of a kind of services; None for a kind that is no vendor's."""
    return None if kind in KINDS else load(ENGINES, kind).VENDOR


def engines() -> list[str]:
    """List the names of engines, of which the first is the service's own process."""
    return [LOCAL, *(name for name, plugin in load_all(ENGINES) if hasattr(plugin, "open_engine"))]


def engine_plugin(name: str) -> Any:
    """Load the plug-in of an engine; None for the service's own process, and for one that is not installed here."""
    return load(ENGINES, name) if name in names(ENGINES) else None


def engine_keys() -> set[str]:
    """List the environment variables that hold keys of engines."""
    return {variable for _, plugin in load_all(ENGINES) for variable in getattr(plugin, "KEY_VARIABLES", ())}


def connectable() -> list[str]:
    """List the plug-ins that `%connect NAME:MODEL` accepts: engines that the embedded service then uses."""
    return [name for name, plugin in load_all(ENGINES) if hasattr(plugin, "connect")]


def one_of(values: list[str]) -> str:
    """Write values as `'a', 'b' or 'c'`."""
    *most, last = map(repr, values)
    return f"{', '.join(most)} or {last}"
