"""Signatures of reward functions of other libraries, and return values that have components."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutlab.errors import InputError, RewardError
from rolloutlab.scoring.calls import bound_names
from rolloutlab.store.rewards import finite
from rolloutlab.trajectories.tables import AFTER, BEFORE

_TRAINER = {"trainer_state", "environments"}


def is_asynchronous(function: Any) -> bool:
    """A coroutine function, or an object with such a `__call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def own_parameters(function: Any, columns: Sequence[str]) -> set[str]:
    """The parameters of a function that are neither columns nor bound by a `functools.partial`."""
    if not callable(function):
        return set()
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return set()
    return parameters.keys() - set(columns) - bound_names(function)


def wanted(function: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """The named parameters of a function that a partial has not given, and whether it takes any other keyword."""
    parameters = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    bound = bound_names(function)
    named = {name: p for name, p in parameters.items() if p.kind not in variable and name not in bound}
    return named, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def check_known(function: Any, known: Sequence[str], hints: Mapping[str, str]) -> None:
    """InputError for a required parameter that is unknown. hints: what to type, for some."""
    for name, parameter in wanted(function)[0].items():
        if parameter.default is inspect.Parameter.empty and name not in known:
            what = "only a trainer has" if name in _TRAINER else "is no column"
            listed = ", ".join(dict.fromkeys(known))
            message = f"the reward function has a parameter {name!r}, which {what}; there are {listed}"
            raise InputError(message, hint=hints.get(name, f"{name}=None in its parameters"))


def with_parts(value: Any, parts: Mapping[str, Any]) -> Any:
    """A value with components that are only stored: the numbers of `parts`, if any."""
    numbers = {}
    for name, part in parts.items():
        try:
            numbers[f"{name}_part" if name in {"reward", *BEFORE, *AFTER} else name] = finite(part, name)
        except RewardError:  # a text, for instance
            continue
    return {"reward": value, **numbers} if numbers and value is not None else value
