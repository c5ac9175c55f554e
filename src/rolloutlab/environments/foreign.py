"""Environments of packages with other protocols, and what to type for each."""

from inspect import isclass
from typing import Any

_BY_PACKAGE = {
    "gym": "gymnasium:ID",
    "gymnasium": "gymnasium:ID",
    "openenv": "openenv:URL, of a server of it",
    "tinker_cookbook": "a class with reset(seed) and step(answer) around it: docs/environments.md",
    "verifiers": "rolloutlab capture NAME --sessions -- the command that evaluates it: docs/capture.md",
}


def advice(environment: Any) -> str | None:
    """What to type for an environment, or a class of one, that is of another package; None where it is of none."""
    made = environment if isclass(environment) else type(environment)
    packages = (str(each.__module__).partition(".")[0] for each in made.__mro__)
    return next((_BY_PACKAGE[package] for package in packages if package in _BY_PACKAGE), None)
