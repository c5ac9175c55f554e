"""Environments of packages with other protocols, and what to type for each."""

from inspect import isclass
from typing import Any

from rolloutlab.errors import InputError

_GYM = {"gym", "gymnasium"}
_BY_PACKAGE = {
    "openenv": "openenv:URL, of a server of it",
    "tinker_cookbook": "a class with reset(seed) and step(answer) around it: docs/environments.md",
    "verifiers": "rolloutlab capture NAME --sessions -- the command that evaluates it: docs/capture.md",
}


def advice(environment: Any) -> str | None:
    """What to type for an environment, or a class of one, that is of another package; None where it is of none."""
    packages = _packages(environment)
    if not _GYM.isdisjoint(packages):
        return _advice_of_gym(environment)
    return next((_BY_PACKAGE[package] for package in packages if package in _BY_PACKAGE), None)


def check_no_gym(environment: Any) -> None:
    """InputError for an environment of Gym or Gymnasium, or a class of one: its steps take actions, not texts."""
    if not _GYM.isdisjoint(_packages(environment)):
        name = _made(environment).__name__
        what = f"{name} is an environment of Gymnasium, whose step takes an action of its action_space, not a text"
        raise InputError(what, hint=_advice_of_gym(environment))


def _advice_of_gym(environment: Any) -> str:
    """Its name where it is registered; else how to register one that draws itself, or a class around it."""
    made = _made(environment)
    spec = getattr(environment, "spec", None)
    if spec is not None:
        return f"--env gymnasium:{spec.id}"
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", ())
    own = f"{made.__name__}-v0"
    if "ansi" in modes:
        return f"gymnasium.register({own!r}, {made.__name__}), then --env gymnasium:{own}"
    return f"a class with reset(seed) and step(answer) around {made.__name__}: docs/environments.md"


def _made(environment: Any) -> type:
    return environment if isclass(environment) else type(environment)


def _packages(environment: Any) -> list[str]:
    return [str(each.__module__).partition(".")[0] for each in _made(environment).__mro__]
