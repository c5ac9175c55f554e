"""Scores from reward functions and weights, checked before they are stored; the last scorer of each collection."""

import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rolloutlab.errors import InputError, NotFoundError, RewardError, RolloutlabError, interrupted
from rolloutlab.objective.preflight import count
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Edit, Ref, Score, StoredCollection, StoredTrajectory
from rolloutlab.store.rewards import finite
from rolloutlab.trajectories.frame import AFTER, BEFORE
from rolloutlab.trajectories.table_query import number_of

RewardFunction = Callable[[StoredTrajectory, str, list[dict[str, Any]], Mapping[str, Any]], Any]
"""Called with (trajectory, answer, messages, row); returns a number, or a mapping of components to numbers."""

Functions = RewardFunction | Sequence[RewardFunction] | Mapping[str, RewardFunction]
"""One function, several under their own names, or under names given to them."""

Scorer = tuple[Functions, Mapping[str, float] | None]
"""Functions and the weights of their components."""

_Parts = tuple[dict[str, float], dict[str, float]]
"""Components that count towards the reward, and those that are only stored."""

_UNNAMED = ""  # the name of a function that was given by itself: its number is the reward, not a component of it


def score(
    trajectories: Iterable[StoredTrajectory], functions: Functions, weights: Mapping[str, float] | None = None
) -> list[Score]:
    """The score of each trajectory: the weighted sum of its components, with weight 1 where none is given.

    Components are stored as the functions gave them, unweighted. Nothing else of a trajectory is kept in memory, so
    that those of a large collection can be read one after the other.

    Raises:
        InputError: a function or a weight is not valid, or a weight is for an unknown component.
        RewardError: a function failed or returned no finite number; the message names the trajectory.
    """
    named, factors = _by_name(functions), {name: _weight(name, w) for name, w in (weights or {}).items()}
    components = [(Ref(t.id, t.name), _components(named, t)) for t in trajectories]
    if components:
        _check_known(factors, [*dict.fromkeys(name for _, (counted, _) in components for name in counted if name)])
    return [_weighed(ref, counted, extra, factors) for ref, (counted, extra) in components]


def check_functions(functions: Functions) -> None:
    """InputError or RewardError unless these can score; none is called."""
    _by_name(functions)


def give(
    lab: Lab, label: str, scores: Sequence[Score], source: str, *, overwrite: bool, say: Callable[[str], None]
) -> None:
    """Store the scores of a collection; `say` gets a line where rewards given by hand were kept.

    source: `function` or `judge`. overwrite: replace those, too.
    """
    lab.rewards.give(scores, source, keep_hand=not overwrite)
    by_hand = 0 if overwrite else lab.rewards.by_hand(lab.collection(label))
    if by_hand:
        say(f"{count(by_hand, 'reward')} given by hand kept -> --overwrite (overwrite=True) replaces them")


def undo(lab: Lab, label: str, name: str) -> list[Edit]:
    """Take back the newest change of a collection, called `name` in messages; NotFoundError when none is left."""
    edits = lab.rewards.undo(lab.collection(label))
    if not edits:
        raise NotFoundError(f"no reward of {name} is left to undo", hint=f"%rewards {name} --history")
    return edits


class Scorers:
    """What last scored each collection in this session: by label with generation, and by name for any generation."""

    def __init__(self) -> None:
        self._last: dict[str, Scorer] = {}

    def add(self, label: str, functions: Functions, weights: Mapping[str, float] | None) -> None:
        """Record what has scored a collection; label: `NAME:N`."""
        self._last |= dict.fromkeys((label, label.partition(":")[0]), (functions, weights))

    def of(self, collection: StoredCollection) -> Scorer | None:
        """What last scored a generation, else another generation of the collection."""
        return self._last.get(f"{collection.name}:{collection.generation}") or self._last.get(collection.name)

    def scorer_for(self, collection: StoredCollection, functions: Functions | None, name: str) -> Scorer:
        """These functions, else what last scored the collection, called `name` in messages; InputError without any."""
        scorer = (functions, None) if functions else self.of(collection)
        if scorer is None:
            hint = f"%%compare {name}, with the reward function as its body"
            raise InputError(f"nothing scored {name} in this notebook yet", hint=hint)
        return scorer

    def rename(self, old: str, new: str) -> None:
        """Follow a renamed collection."""
        self._last = {re.sub(rf"^{re.escape(old)}(?=:|$)", new, label): by for label, by in self._last.items()}


def _by_name(functions: Functions) -> dict[str, RewardFunction]:
    """The functions under their names; one that was given by itself has none."""
    if isinstance(functions, Mapping):
        named = {str(name): function for name, function in functions.items()}
    elif isinstance(functions, Sequence) and not isinstance(functions, str):
        names = [str(getattr(function, "__name__", "")) for function in functions]
        twice = [name for name, times in Counter(names).items() if times > 1 or not name.isidentifier()]
        if twice:
            raise InputError("each reward function needs a name of its own", hint='{"exact": f, "brief": g}')
        named = dict(zip(names, functions, strict=True))
    else:
        return {_UNNAMED: _callable(functions)}
    if not named:
        raise InputError("there is no reward function", hint='{"exact": f, "brief": g}')
    for name in named:
        _check_name(name)
    return {name: _callable(function) for name, function in named.items()}


def _callable(function: Any) -> RewardFunction:
    if not callable(function):
        raise InputError(f"{function!r} is not a reward function", hint="lambda trajectory, answer, messages, row: 1.0")
    made: RewardFunction = function
    return made


def _check_name(name: str) -> None:
    if name in {"", *BEFORE, *AFTER}:
        raise RewardError(f"a component cannot be called {name!r}, as a column is", hint=f"right_{name}: ...")


def _weight(name: str, value: Any) -> float:
    try:
        return finite(value, name)
    except RewardError:
        message = f"the weight of {name} is {value!r}, which is not a finite number"
        raise InputError(message, hint=f"{name}=1.0") from None


def _check_known(weights: Mapping[str, float], known: Sequence[str]) -> None:
    for name in weights:
        if name not in known:
            close = get_close_matches(name, known, n=1) or [", ".join(known) or "a function that returns components"]
            raise InputError(f"a weight is given for {name!r}, which is not a component of the reward", hint=close[0])


def _components(named: Mapping[str, RewardFunction], trajectory: StoredTrajectory) -> _Parts:
    counted: dict[str, float] = {}
    stored: dict[str, float] = {}
    for name, function in named.items():
        new_counted, new_stored = _parts(name, _apply(name, function, trajectory), trajectory)
        for twice in (new_counted.keys() | new_stored.keys()) & (counted.keys() | stored.keys()):
            message = f"two reward functions give a component {twice!r} to {trajectory.name}"
            raise RewardError(message, hint=f"{name}_{twice}: ...")
        counted |= new_counted
        stored |= new_stored
    return counted, stored


def _apply(name: str, function: RewardFunction, trajectory: StoredTrajectory) -> Any:
    try:
        return function(trajectory, trajectory.answer, trajectory.messages, trajectory.row)
    except RolloutlabError:
        raise
    except KeyboardInterrupt as error:
        interrupted(error, f"it was scoring {trajectory.name}; no reward was changed", "run the cell again")
        raise
    except (Exception, SystemExit) as error:
        who = " ".join(filter(None, ("the reward function", name)))
        raise RewardError(
            f"{who} failed on {trajectory.name}: {type(error).__name__}: {error}{_line_of(error)}",
            hint=f"%group {trajectory.name.rpartition('/')[0]} shows it; no reward was changed",
        ) from error


def _line_of(error: BaseException) -> str:
    """The line of the reward function that raised, when its source is at hand."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (line {frames[1].lineno}: {frames[1].line})" if len(frames) > 1 and frames[1].line else ""


def _parts(name: str, outcome: Any, trajectory: StoredTrajectory) -> _Parts:
    """The result of one function: a number under its own name, or components, all of which count.

    A component `reward` counts as the function's number; the others are then only stored.
    """
    if not isinstance(outcome, Mapping):
        return {name: finite(outcome, f"{trajectory.name} ({name})" if name else trajectory.name)}, {}
    if not outcome:
        raise RewardError(f"the reward of {trajectory.name} has no components", hint="return 0.0, or a component")
    parts = {str(k): finite(v, f"{trajectory.name} ({k})") for k, v in outcome.items()}
    own = {name: parts.pop("reward")} if "reward" in parts else {}
    for part in parts:
        _check_name(part)
    return (own, parts) if own else (parts, {})


def _weighed(
    trajectory: Ref, counted: Mapping[str, float], stored: Mapping[str, float], weights: Mapping[str, float]
) -> Score:
    total = sum(weights.get(name, 1.0) * value for name, value in counted.items())
    parts = {name: value for name, value in {**counted, **stored}.items() if name != _UNNAMED}
    return Score(trajectory, finite(total, trajectory.name), parts)


def reward_of(value: Any, name: str) -> float:
    """A reward that was given or typed; RewardError where it is not a finite number."""
    typed = number_of(value) if isinstance(value, str) else None
    try:
        return finite(value if typed is None or math.isinf(typed) else typed, name)
    except RewardError as error:
        with_point = value.replace(",", ".") if isinstance(value, str) and "," in value else ""
        hint = with_point if number_of(with_point) is not None else "a number such as 0.5"
        raise RewardError(error.message, hint=hint) from None
