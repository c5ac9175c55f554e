"""Scores from reward functions and weights, checked before they are stored; which functions scored what last."""

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
"""Components that count towards the reward, and those that are only kept."""

_ALONE = ""
"""The name of a function that was given by itself: its number is the reward, not a component of it."""


def score(
    trajectories: Iterable[StoredTrajectory], functions: Functions, weights: Mapping[str, float] | None = None
) -> list[Score]:
    """What the functions make of each trajectory: the weighted sum of their components, 1 where no weight is given.

    Components are kept as the functions gave them, unweighted. Nothing else of a trajectory is kept, so that those of
    a large collection can be read one after the other.

    Raises:
        InputError: a function or a weight is not what was expected, or a weight is for no component.
        RewardError: a function failed or gave no finite number; the message names the trajectory.
    """
    named, factors = _by_name(functions), {name: _weight(name, w) for name, w in (weights or {}).items()}
    found = [(Ref(t.id, t.name), _components(named, t)) for t in trajectories]
    if found:
        _check_known(factors, [*dict.fromkeys(name for _, (counted, _) in found for name in counted if name)])
    return [_weighed(ref, counted, kept, factors) for ref, (counted, kept) in found]


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
    kept = 0 if overwrite else lab.rewards.by_hand(lab.collection(label))
    if kept:
        say(f"{count(kept, 'reward')} given by hand kept -> --overwrite (overwrite=True) replaces them")


def undo(lab: Lab, label: str, name: str) -> list[Edit]:
    """Take back the newest change of a collection's rewards; name: what the message calls it.

    Raises:
        NotFoundError: nothing is left to take back.
    """
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
        """These functions, else what last scored the collection; name: what the message calls it.

        Raises:
            InputError: nothing has scored it.
        """
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
        return {_ALONE: _callable(functions)}
    if not named:
        raise InputError("there is no reward function", hint='{"exact": f, "brief": g}')
    for name in named:
        _check_name(name)
    return {name: _callable(function) for name, function in named.items()}


def _callable(function: Any) -> RewardFunction:
    if not callable(function):
        raise InputError(f"{function!r} is no reward function", hint="lambda trajectory, answer, messages, row: 1.0")
    made: RewardFunction = function
    return made


def _check_name(name: str) -> None:
    if name in {"", *BEFORE, *AFTER}:
        raise RewardError(f"a component cannot be called {name!r}, as a column is", hint=f"right_{name}: ...")


def _weight(name: str, value: Any) -> float:
    try:
        return finite(value, name)
    except RewardError:
        raise InputError(f"the weight of {name} is {value!r}, which is no finite number", hint=f"{name}=1.0") from None


def _check_known(weights: Mapping[str, float], known: Sequence[str]) -> None:
    for name in weights:
        if name not in known:
            close = get_close_matches(name, known, n=1) or [", ".join(known) or "a function that returns components"]
            raise InputError(f"a weight is given for {name!r}, which is no component of the reward", hint=close[0])


def _components(named: Mapping[str, RewardFunction], trajectory: StoredTrajectory) -> _Parts:
    counted: dict[str, float] = {}
    kept: dict[str, float] = {}
    for name, function in named.items():
        count_too, keep_too = _parts(name, _apply(name, function, trajectory), trajectory)
        for taken in (count_too.keys() | keep_too.keys()) & (counted.keys() | kept.keys()):
            raise RewardError(
                f"two reward functions give a component {taken!r} to {trajectory.name}", hint=f"{name}_{taken}: ..."
            )
        counted |= count_too
        kept |= keep_too
    return counted, kept


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
    """What one function returned: a number under its own name, or components, all of which count.

    A component `reward` counts as the function's number; the others are then only kept.
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
    trajectory: Ref, counted: Mapping[str, float], kept: Mapping[str, float], weights: Mapping[str, float]
) -> Score:
    total = sum(weights.get(name, 1.0) * value for name, value in counted.items())
    parts = {name: value for name, value in {**counted, **kept}.items() if name != _ALONE}
    return Score(trajectory, finite(total, trajectory.name), parts)


def reward_of(told: Any, name: str) -> float:
    """A reward as it was given or typed; RewardError where it is no finite number."""
    typed = number_of(told) if isinstance(told, str) else None
    try:
        return finite(told if typed is None or math.isinf(typed) else typed, name)
    except RewardError as error:
        meant = told.replace(",", ".") if isinstance(told, str) and "," in told else ""
        hint = meant if number_of(meant) is not None else "a number such as 0.5"
        raise RewardError(error.message, hint=hint) from None
