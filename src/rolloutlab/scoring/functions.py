"""Scores from reward functions and weights, checked before they are stored; the last scorer of each collection."""

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from rolloutlab.errors import InputError, RewardError
from rolloutlab.objective.credit import ENVIRONMENT
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import replace_surrogates
from rolloutlab.scoring.foreign import recognise_foreign
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Score, StoredCollection, StoredTrajectory, TrajectoryKey
from rolloutlab.store.rewards import finite
from rolloutlab.trajectories.tables import AFTER, BEFORE

RewardFunction = Callable[..., Any]
"""Called with what its parameters name (`calls.reward_call`); returns a number, or components and their numbers."""

Outcome = float | dict[str, float]
"""A number, or a number per component, as a function returned it for a trajectory."""

Functions = RewardFunction | Sequence[RewardFunction] | Mapping[str, RewardFunction]
"""One function, several under their own names, or under names given to them."""

Scorer = tuple[Functions, Mapping[str, float] | None]
"""Functions and the weights of their components."""

NOT_APPLICABLE: Outcome = {}
"""The outcome of a function of TRL that returned None: it adds nothing to the reward."""

_Parts = tuple[dict[str, float], dict[str, float]]
"""Components that count towards the reward, and those that are only stored."""

UNNAMED = ""  # the name of a function that was given by itself: its number is the reward, not a component of it


def required(functions: Functions | None) -> Functions:
    """The functions; InputError if there are none."""
    if functions is None:
        raise InputError("there is no reward function", hint="lambda answer: float(len(answer) < 80)")
    return functions


class NotApplicableError(RewardError):
    """No reward function applies to a trajectory."""


def check_functions(functions: Functions) -> None:
    """Raise InputError or RewardError if these are not valid reward functions. No function is called."""
    by_name(functions)


def say_kept(lab: Lab, label: str, *, overwrite: bool, say: Callable[[str], None]) -> None:
    """Say a line if rewards given by hand were kept."""
    by_hand = 0 if overwrite else lab.rewards.by_hand(lab.collection(label))
    if by_hand:
        say(f"{count(by_hand, 'reward')} given by hand kept -> --overwrite (overwrite=True) replaces them")


class Scorers:
    """What scored in this session: the last of each collection, by its names, and the functions of each change."""

    def __init__(self) -> None:
        self._last: dict[str, Scorer] = {}
        self._by_change: dict[int, Functions] = {}

    def add(
        self, collection: StoredCollection, change: int, functions: Functions, weights: Mapping[str, float] | None
    ) -> None:
        """Record what has scored a collection, and the number of that change."""
        names = f"{collection.name}:{collection.generation}", collection.name
        self._last |= dict.fromkeys(names, (functions, weights))
        self._by_change[change] = functions

    def of(self, collection: StoredCollection) -> Scorer | None:
        """What last scored a generation, else another generation of the collection."""
        return self._last.get(f"{collection.name}:{collection.generation}") or self._last.get(collection.name)

    def scorer_for(
        self, collection: StoredCollection, functions: Functions | None, name: str, *, gives_reward: bool = False
    ) -> Scorer | tuple[None, None]:
        """The given functions, else those that last scored the collection. Raises InputError: there are neither.

        name: the name of the collection in messages. gives_reward: whether the environment or program of the collection
        may give rewards; then no function is needed.
        """
        scorer = (functions, None) if functions else self.of(collection)
        if scorer is None and gives_reward:
            return None, None
        if scorer is None:
            hint = f"%%compare {name}, with the reward function as its body"
            raise InputError(f"nothing scored {name} in this notebook yet", hint=hint)
        return scorer

    def to_resume(self, change: int, functions: Functions | None, name: str) -> Functions:
        """The given functions, else those of a change. Raises InputError: this session does not know the functions."""
        scoring = functions or self._by_change.get(change)
        if scoring is None:
            hint = f"%%reward {name} --resume, with the reward function as its body or --with"
            raise InputError(f"what scored {name} is not known in this notebook", hint=hint)
        return scoring

    def rename(self, old: str, new: str) -> None:
        """Follow a renamed collection."""
        self._last = {re.sub(rf"^{re.escape(old)}(?=:|$)", new, label): by for label, by in self._last.items()}


def by_name(functions: Functions) -> dict[str, RewardFunction]:
    """The functions by name; a single function has the name `UNNAMED`."""
    if isinstance(functions, Mapping):
        named = {str(name): function for name, function in functions.items()}
    elif isinstance(functions, Sequence) and not isinstance(functions, str):
        names = [str(getattr(function, "__name__", "")) for function in functions]
        twice = [name for name, times in Counter(names).items() if times > 1 or not name.isidentifier()]
        if twice:
            raise InputError("each reward function needs a name of its own", hint='{"exact": f, "brief": g}')
        named = dict(zip(names, functions, strict=True))
    else:
        return {UNNAMED: _callable(functions)}
    if not named:
        raise InputError("there is no reward function", hint='{"exact": f, "brief": g}')
    for name in named:
        _check_name(name)
    return {name: _callable(function) for name, function in named.items()}


def source_of(function: Any) -> str | None:
    """Return the source text of a function, or of the class of a callable object; None if it has none.

    Its indentation is removed: the same function within a loop is not another one.
    """
    body = getattr(function, "body", None)
    if isinstance(body, str):
        return body
    while isinstance(function, partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function if inspect.isroutine(function) else type(function)))
    except (OSError, TypeError):
        return None


def _callable(function: Any) -> RewardFunction:
    # a rubric, for one, is no function; what of its library is not supported is an error of its own
    if not callable(function) and not recognise_foreign(function, ()):
        raise InputError(f"{function!r} is not a reward function", hint="lambda trajectory, answer, messages, row: 1.0")
    made: RewardFunction = function
    return made


def _check_name(name: str) -> None:
    """Raise RewardError for a name that no column can have."""
    if name in {"", *BEFORE, *AFTER}:
        raise RewardError(f"a component cannot be called {name!r}, as a column is", hint=f"right_{name}: ...")


def weights_of(weights: Mapping[str, float] | None) -> dict[str, float]:
    """Weights as numbers; InputError for one that is not finite."""
    return {name: _weight(name, w) for name, w in (weights or {}).items()}


def _weight(name: str, value: Any) -> float:
    try:
        return finite(value, name)
    except RewardError:
        message = f"the weight of {name} is {value!r}, which is not a finite number"
        raise InputError(message, hint=f"{name}=1.0") from None


def check_known(weights: Mapping[str, float], known: Sequence[str]) -> None:
    """InputError for a weight of an unknown component."""
    for name in weights:
        if name not in known:
            close = near_miss(name, known) or ", ".join(known) or "a function that returns components"
            raise InputError(f"a weight is given for {name!r}, which is not a component of the reward", hint=close)


def near_miss(name: str, known: Sequence[str]) -> str:
    """The known name that is closest to another; empty if none is close."""
    return next(iter(get_close_matches(name, known, n=1)), "")


def score_of(trajectory: TrajectoryKey, outcomes: Mapping[str, Outcome], weights: Mapping[str, float]) -> Score:
    """The score of a trajectory: the weighted sum of what its functions returned; weights are 1 by default.

    Components are stored as the functions gave them, unweighted.

    Raises:
        RewardError: two functions gave the same component, or the sum is too large.
        NotApplicableError: each function was `NOT_APPLICABLE`.
    """
    if not any(outcome != NOT_APPLICABLE for outcome in outcomes.values()):
        raise NotApplicableError(f"no reward function applies to {trajectory.name}: each returned None")
    counted: dict[str, float] = {}
    stored: dict[str, float] = {}
    for name, outcome in outcomes.items():
        new_counted, new_stored = _parts(name, outcome)
        for twice in (new_counted.keys() | new_stored.keys()) & (counted.keys() | stored.keys()):
            message = f"two reward functions give a component {twice!r} to {trajectory.name}"
            raise RewardError(message, hint=f"{name}_{twice}: ...")
        counted |= new_counted
        stored |= new_stored
    total = sum(weights.get(name, 1.0) * value for name, value in counted.items())
    parts = {name: value for name, value in {**counted, **stored}.items() if name != UNNAMED}
    return Score(trajectory, finite(total, trajectory.name), parts)


def check_environment_part(names: Sequence[str], trajectories: Iterable[StoredTrajectory]) -> None:
    """RewardError for a function with the name of the component that an environment has given."""
    if ENVIRONMENT in names and (played := next(filter(_environment, trajectories), None)):
        message = f"{ENVIRONMENT!r} is the component of what the environment {_environment(played)} gave"
        raise RewardError(f"{message}, so no reward function can have this name", hint=f"my_{ENVIRONMENT}: ...")


def _environment(trajectory: StoredTrajectory) -> Any:
    """The name of a trajectory's environment, if it has one."""
    return (trajectory.extra.get("metadata") or {}).get("environment")


def environment_part(trajectory: StoredTrajectory) -> dict[str, Outcome]:
    """The reward of a trajectory's environment, as a component beside those of functions; nothing without one."""
    if not _environment(trajectory):
        return {}
    reward = (trajectory.extra.get("metrics") or {}).get(ENVIRONMENT)
    return {} if reward is None else {ENVIRONMENT: float(reward)}


def counted_names(outcomes: Mapping[str, Outcome]) -> list[str]:
    """The names that a weight may have; a function that was not applicable counts under its own name."""
    parts = [[name] if outcome == NOT_APPLICABLE else _parts(name, outcome)[0] for name, outcome in outcomes.items()]
    return [part for each in parts for part in each if part]


def outcome_of(name: str, value: Any, trajectory: str, *, none_is_valid: bool = False) -> Outcome:
    """Check what a function returned for a trajectory, and convert it to a number, or to numbers by component.

    none_is_valid: whether the function may return None, which means `NOT_APPLICABLE`.

    Raises:
        RewardError: the value is neither, or the name of a component is not valid.
    """
    if none_is_valid and (value is None or value == NOT_APPLICABLE):
        return NOT_APPLICABLE
    if not isinstance(value, Mapping):
        return finite(value, f"{trajectory} ({name})" if name else trajectory)
    if not value:
        raise RewardError(f"the reward of {trajectory} has no components", hint="return 0.0, or a component")
    parts = {replace_surrogates(str(k)): finite(v, f"{trajectory} ({k})") for k, v in value.items()}
    for part in parts.keys() - {"reward"}:
        _check_name(part)
    return parts


def _parts(name: str, outcome: Outcome) -> _Parts:
    """The result of one function: a number under its own name, or components, all of which count.

    If there is a component `reward`, it is the number of the function. The other components are then stored, but do not
    count.
    """
    if not isinstance(outcome, Mapping):
        return {name: outcome}, {}
    others = {part: value for part, value in outcome.items() if part != "reward"}
    return ({name: outcome["reward"]}, others) if "reward" in outcome else (others, {})
