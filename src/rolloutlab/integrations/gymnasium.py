"""Adapter of Gymnasium: `gymnasium:ID`, environments that draw themselves as text and have a few actions."""

import re
from collections.abc import Mapping
from inspect import getdoc
from typing import Any, NamedTuple

from rolloutlab.environments.adapters import check_name, class_of, import_package, name_with, packages_of
from rolloutlab.environments.protocol import Step
from rolloutlab.errors import InputError

_COLOURED = re.compile(r"\x1b\[(?P<codes>[\d;]*)m(?P<text>[^\x1b]*)\x1b\[0m")
_BACKGROUND = re.compile(r"(^|;)4\d(;|$)")


_PACKAGES = {"gym", "gymnasium"}


class _Legend(NamedTuple):
    """Names of the actions, from 0, and what the letters of the drawing mean."""

    actions: tuple[str, ...]
    text: str


_LAKE = _Legend(("left", "down", "right", "up"), "[ ] you, S start, F ice, H hole, G goal")
_CLIFF = _Legend(("up", "right", "down", "left"), "x you, C cliff, T goal")
_TAXI = _Legend(
    ("south", "north", "east", "west", "pickup", "dropoff"),
    "[ ] the taxi, with _ or no ( ) on the map when the passenger is in it, ( ) the passenger, < > the destination",
)
_LEGENDS = {"FrozenLake": _LAKE, "FrozenLake8x8": _LAKE, "CliffWalking": _CLIFF, "CliffWalkingSlippery": _CLIFF}
_LEGENDS |= {"Taxi": _TAXI}


def source(name: str, **options: Any) -> "Gymnasium":
    """Make the source of an environment. options: of `gymnasium.make`, such as `is_slippery=False`."""
    check_name("gymnasium", name, import_package("gymnasium", "gymnasium").registry)
    return Gymnasium(name, options)


def names() -> list[str]:
    """List the registered environments that can draw themselves as text, and whose actions have names here."""
    gymnasium = import_package("gymnasium", "gymnasium")
    return [name for name, spec in gymnasium.registry.items() if name.partition("-")[0] in _LEGENDS]


class Gymnasium:
    """The source of one environment. Its rows are empty: a group begins in the state of its seed."""

    def __init__(self, id_: str, options: Mapping[str, Any]) -> None:
        self.name = name_with(f"gymnasium:{id_}", options)
        self._id = id_
        self._options = options
        self.environment({}).close()

    def rows(self, limit: int | None, seed: int) -> list[dict[str, Any]]:  # noqa: ARG002 - each group has its own
        return [{} for _ in range(limit or 1)]

    def environment(self, row: Mapping[str, Any]) -> "DrawnEnvironment":  # noqa: ARG002
        gymnasium = import_package("gymnasium", "gymnasium")
        try:
            environment = gymnasium.make(self._id, render_mode="ansi", **self._options)
        except (gymnasium.error.Error, TypeError, ValueError) as error:
            raise InputError(f"{self.name}: {error}", hint="gymnasium:FrozenLake-v1") from error
        if "ansi" not in environment.metadata.get("render_modes", ()) or not isinstance(
            environment.action_space, gymnasium.spaces.Discrete
        ):
            raise InputError(f"{self.name} does not draw itself as text", hint="gymnasium:FrozenLake-v1")
        return DrawnEnvironment(environment, self._id)


class DrawnEnvironment:
    """One episode. An answer takes the last action that it names. If it names none, the next text says so."""

    def __init__(self, environment: Any, id_: str) -> None:
        self._environment = environment
        name = id_.rpartition("/")[2].partition("-")[0]
        first, count = int(environment.action_space.start), int(environment.action_space.n)
        numbers = tuple(str(first + i) for i in range(count))
        actions, self._legend = _LEGENDS.get(name, _Legend(numbers, ""))
        self._actions = {action: first + i for i, action in enumerate(actions)}
        self._named = re.compile(rf"\b({'|'.join(map(re.escape, actions))})\b", re.IGNORECASE)

    def reset(self, seed: int) -> str:
        self._environment.reset(seed=seed)
        about = " ".join((getdoc(type(self._environment.unwrapped)) or "").strip().partition("\n\n")[0].split())
        lines = (about, f"Map: {self._legend}." if self._legend else "", self._question(), self._draw())
        return "\n".join(line for line in lines if line)

    def step(self, answer: str) -> Step:
        named = self._named.findall(answer)
        if not named:
            return Step(f"This names no action. {self._question()}\n{self._draw()}", info={"no_action": True})
        _, reward, terminated, truncated, _ = self._environment.step(self._actions[named[-1].lower()])
        info = {"truncated": True} if truncated else {}
        return Step(self._draw(), reward, terminated or truncated, info)

    def close(self) -> None:
        self._environment.close()

    def _question(self) -> str:
        return f"Answer with one action: {', '.join(self._actions)}."

    def _draw(self) -> str:
        return in_brackets(str(self._environment.render())).strip("\n")


def in_brackets(drawing: str) -> str:
    """Replace the colours of a drawing by brackets: [ ] for a background, < > for magenta, ( ) for another colour."""
    while match := _COLOURED.search(drawing):
        drawing = drawing[: match.start()] + _bracket(match["text"], match["codes"]) + drawing[match.end() :]
    return drawing


def _bracket(text: str, codes: str) -> str:
    left, right = "[]" if _BACKGROUND.search(codes) else "<>" if codes.startswith("35") else "()"
    return f"{left}{text}{right}"


def refuse(environment: Any) -> None:
    """Raise InputError for an environment of Gym or Gymnasium, or its class: their steps take actions, not texts."""
    if not _PACKAGES.isdisjoint(packages_of(environment)):
        name = class_of(environment).__name__
        what = f"{name} is an environment of Gymnasium, whose step takes an action of its action_space, not a text"
        raise InputError(what, hint=advice(environment))


def advice(environment: Any) -> str | None:
    """Say what to do with an environment: use its registered name, register it, or write a class around it."""
    if _PACKAGES.isdisjoint(packages_of(environment)):
        return None
    made = class_of(environment)
    spec = getattr(environment, "spec", None)
    if spec is not None:
        return f"--env gymnasium:{spec.id}"
    modes = (getattr(made, "metadata", None) or {}).get("render_modes", ())
    own = f"{made.__name__}-v0"
    if "ansi" in modes:
        return f"gymnasium.register({own!r}, {made.__name__}), then --env gymnasium:{own}"
    return f"a class with reset(seed) and step(answer) around {made.__name__}: docs/environments.md"
