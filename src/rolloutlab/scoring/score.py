"""Score a collection: choose the trajectories, call the functions, store outcomes as one change, and report."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from rolloutlab.errors import BudgetError, InputError, interrupted
from rolloutlab.objective.preflight import count
from rolloutlab.runtime import LoopThread
from rolloutlab.sampling.code_digest import describe_parts
from rolloutlab.sampling.run import ProgressBar
from rolloutlab.scoring.calls import RewardCall, RewardCell
from rolloutlab.scoring.estimate import MeasuredCalls, ModelUsage, Tally, pace, time_line, token_lines, used
from rolloutlab.scoring.foreign import ForeignReward, call_of
from rolloutlab.scoring.functions import Functions, Scorers, by_name, required, say_kept, source_of, weights_of
from rolloutlab.scoring.run import ScoringRun, too_many_failures
from rolloutlab.scoring.workers import ScoringOptions
from rolloutlab.settings import Price
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, Score, StoredCollection, StoredTrajectory, TrajectorySummary
from rolloutlab.store.scorings import Failure, NewScoring, RewardResult
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.first_reward import NAMES
from rolloutlab.trajectories.tables import data_frame

if TYPE_CHECKING:
    import pandas as pd

REWARD = "reward"
"""The prefix of the paths of parts of reward functions."""

DRY_RUN_SIZE = 3
"""Trajectories of a dry run."""

_RESUMED_OPTIONS = ("concurrency", "timeout", "retries", "processes", "backoff", "overwrite", "cache")

Say = Callable[[str], None]


class _Resumed(NamedTuple):
    """The scoring to resume.

    change: its number. since: rewards that were given after this change are kept; None: those that were given after the
    resume began. settled: the ids of the trajectories that the resume leaves as they are.
    """

    change: int
    since: int | None
    settled: Set[int]


@dataclass(frozen=True)
class ScoringRequest:
    """How to score a collection. With `resume`, what the user did not give is taken from the last scoring.

    Attributes:
        functions: The reward functions; None takes those of the last scoring.
        weights: Weights by component.
        given: The `ScoringOptions` that the user gave.
        loop: The event loop for coroutine functions.
        price: Prices of the models that functions ask, for the estimate of a dry run.
    """

    functions: Functions | None
    weights: Mapping[str, float] | None
    given: Mapping[str, Any]
    loop: LoopThread
    price: Callable[[str], Price | None] = lambda _: None

    @cached_property
    def options(self) -> ScoringOptions:
        """InputError: a value is out of range."""
        return ScoringOptions(**self.given)

    def resuming(self, functions: Functions, stored: Mapping[str, Any]) -> "ScoringRequest":
        """Fill in functions, and the stored options and weights of the scoring to resume."""
        of_calls = {name: stored[name] for name in _RESUMED_OPTIONS if name in stored}
        options = {**of_calls, **self.given}
        return replace(self, functions=functions, weights=self.weights or stored.get("weights"), given=options)


class _Change:
    """Stores batches of outcomes as one change. began: called with the change's number at the first batch."""

    def __init__(
        self,
        lab: Lab,
        stored: StoredCollection,
        new: NewScoring,
        began: Callable[[int], None],
        resumed: _Resumed | None,
        *,
        keep_hand: bool,
    ) -> None:
        self._lab, self._stored, self._new = lab, stored, new
        self._began, self._resumed, self._keep_hand = began, resumed, keep_hand
        self._number: int | None = None

    def __call__(self, scores: Sequence[Score], failures: Sequence[Failure], results: Sequence[RewardResult]) -> None:
        resumed = self._resumed
        if self._number is None:
            self._number = self._lab.scorings.begin(self._stored, self._new, resumed.change if resumed else None)
            self._began(self._number)
        self._lab.scorings.store(
            self._number, self._new.source, scores, failures, results,
            keep_hand=self._keep_hand, since=resumed.since if resumed else None,
        )  # fmt: skip


def score_collection(
    lab: Lab, collection: Collection, request: ScoringRequest, scorers: Scorers, progress: ProgressBar, say: Say
) -> "Collection | pd.DataFrame":
    """Score a collection and return it, or try a few trajectories and return a frame (`dry_run`).

    Outcomes are stored as they come, as one change; a resume is a change of its own. If some trajectories fail, they
    get no reward, and `say` gets their number by type of error.

    Args:
        lab: The lab.
        collection: The collection, or one group of it.
        request: Functions, weights and options.
        scorers: Gets the functions and weights when the first outcomes are stored.
        progress: Shows the progress.
        say: Gets notes for the user.

    Raises:
        InputError: a function, weight or option is not valid, or there is nothing to resume.
        RewardError: every trajectory failed, and no reward was changed; or more than half failed, and the run stopped.
        KeyboardInterrupt: with a note on what is stored.
    """
    stored, name, overwrites = collection.stored, collection.name, request.options.overwrite
    resumed: _Resumed | None = None
    if request.options.resume:
        request, resumed = _resume(lab, stored, request, scorers, name)
    options = request.options
    if options.dry_run:
        return _dry_run(lab, collection, request, resumed, say)
    lab.check_writable()
    calls = make_calls(lab, stored, request, say)
    recorded = asdict(options) | {"weights": weights_of(request.weights)}
    new = scoring_of(required(request.functions), calls, recorded)
    began = partial(scorers.add, stored, functions=required(request.functions), weights=request.weights)
    change = _Change(lab, stored, new, began, resumed, keep_hand=not options.overwrite)
    if resumed and any(call.per == "group" for call in calls):
        resumed = resumed._replace(settled=_of_settled_groups(lab, stored, resumed.settled))
    settled = resumed.settled if resumed else frozenset()
    keys = _cache_keys(request, calls)
    if options.cache and (called := [call.name or "the function" for call in calls if call.name not in keys]):
        reason = "functions of a group, of other libraries and without source text are called each time"
        say(f"results of {', '.join(called)} are not kept: {reason}")
    for key in keys.values() if overwrites else ():
        lab.scorings.forget_results(key)
    is_remembered = any(map(lab.scorings.is_remembered, keys.values()))
    unread: Counter[str] = Counter()
    run = ScoringRun(
        _counted(collection.each_group(), unread), calls, weights_of(request.weights), options, change, request.loop,
        wanted=partial(_is_wanted, settled, options.overwrite), cache_keys=keys,
        remembered=lab.scorings.remembered if is_remembered else None,
    )  # fmt: skip
    total = _total(collection, resumed, options.overwrite)
    wait_for(run, total, name, progress)
    report(run, total, name, say)
    if unread:
        of, marks = count(unread.total(), "trajectory"), ", ".join(unread)
        say(f"the answers of {of} contain reasoning, which is not read ({marks}): it was scored as a part of them")
    say_kept(lab, collection.label, overwrite=options.overwrite, say=say)
    return collection


def _counted(groups: Iterable[Group], unread: Counter[str]) -> Iterator[Group]:
    """Yield the groups; `unread` counts trajectories whose answer has reasoning of an unknown format, by its mark."""
    for group in groups:
        unread.update(mark for each in group.trajectories if (mark := each.unread_reasoning))
        yield group


def _dry_run(
    lab: Lab, collection: Collection, request: ScoringRequest, resumed: _Resumed | None, say: Say
) -> "pd.DataFrame":
    """Score the first trajectories one after another; return rewards, seconds and errors, and store nothing.

    A function of a group is called once per group, so each trajectory gets the seconds of the whole group. `say` gets
    estimates for the collection.

    Raises:
        InputError: as in `score_collection`.
    """
    calls, weights = make_calls(lab, collection.stored, request, say), weights_of(request.weights)
    options = replace(request.options, concurrency=1, retries=0)
    functions = by_name(required(request.functions))
    before = {name: dict(getattr(function, "usage", {})) for name, function in functions.items()}
    rows: dict[str, dict[str, Any]] = {}
    total = Tally()
    wanted = partial(_is_wanted, resumed.settled if resumed else frozenset(), options.overwrite)
    for group, tried in _first(collection, wanted, together=any(call.per == "group" for call in calls)):
        scores: dict[str, Score] = {}
        failures: dict[str, Failure] = {}

        def keep(some: Sequence[Score], failed: Sequence[Failure], *_: Any, kept: Any = (scores, failures)) -> None:
            kept[0].update({each.trajectory.name: each for each in some})
            kept[1].update({each.trajectory.name: each for each in failed})

        wanted_now = partial(_is_one_of, {t.id for t in tried})
        run = ScoringRun([group], calls, weights, options, keep, request.loop, wanted=wanted_now)
        run.wait()
        keep((), run.unstored_failures)
        for trajectory in tried:
            score, failed = scores.get(trajectory.name), failures.get(trajectory.name)
            given: dict[str, Any] = {"reward": score.reward, **score.components} if score else {"reward": None}
            alone = getattr(run.first_error, "message", "") if len(tried) == 1 else ""
            error = "" if score else alone or (failed.message if failed else "")
            rows[trajectory.name] = {**given, "seconds": sum(run.tally.seconds.values()), "error": error}
        for name, times in run.tally.called.items():
            total.add(name, run.tally.seconds[name], times)
    left = _total(collection, resumed, options.overwrite)
    settled = resumed.settled if resumed else frozenset()
    groups = len({each.group for each in collection.outlines() if each.id not in settled})
    for line in _estimates(request, calls, total, before, left, groups) if rows else ():
        say(line)
    if not options.overwrite and any(map(lab.scorings.is_remembered, _cache_keys(request, calls).values())):
        say("some results are remembered, so a run makes fewer calls than that; --overwrite makes all")
    columns = dict.fromkeys(["reward", *(part for row in rows.values() for part in row)])
    ordered = [*(c for c in columns if c not in ("seconds", "error")), "seconds", "error"]
    return data_frame([*rows.values()], [*rows], columns=ordered)


def _estimates(
    request: ScoringRequest,
    calls: Sequence[RewardCall],
    tally: Tally,
    before: Mapping[str, Mapping[str, ModelUsage]],
    left: int,
    groups: int,
) -> list[str]:
    """Lines with the time of all calls, and with the tokens of models that functions have asked.

    Args:
        request: Functions, options and prices.
        calls: The calls of the functions.
        tally: What the calls of the dry run took.
        before: The tokens that functions had used before the dry run, by model.
        left: The number of trajectories to score.
        groups: The number of groups that have some of these.
    """
    measured = [
        MeasuredCalls(
            tally.called[call.name], tally.seconds.get(call.name, 0.0), groups if call.per == "group" else left
        )
        for call in calls
    ]
    at_once = request.options.processes or request.options.concurrency
    in_threads = not request.options.processes and not all(call.asynchronous for call in calls)
    lines = [f"{time_line(measured, at_once, in_threads)}; nothing was stored"]
    for name, function in by_name(required(request.functions)).items():
        spent = used(before[name], getattr(function, "usage", {}))
        lines += token_lines(spent, tally.called[name], left, request.price)
    return lines


def _cache_keys(request: ScoringRequest, calls: Sequence[RewardCall]) -> dict[str, str]:
    """Return the keys of stored results by component: equal for the same name and source text of a function.

    With `cache` the user promises that such a function gives the same result for the same trajectory. Functions of a
    group have no key, because a group may get new members. Functions of other libraries have none either, because only
    the source text of an adapter is known.
    """
    named = by_name(required(request.functions)) if request.options.cache else {}
    keys = {}
    for call in (each for each in calls if each.per == "trajectory" and not each.style and each.name in named):
        function = named[call.name]
        if source := source_of(function):
            name = call.name or getattr(function, "__name__", "cell")
            keys[call.name] = sha256(f"{name}\n{source}".encode(errors="surrogatepass")).hexdigest()
    return keys


def make_calls(lab: Lab, stored: StoredCollection, request: ScoringRequest, say: Say) -> list[RewardCall]:
    """Make the calls of the functions for the rows of a collection; `say` gets notes on ambiguous parameters."""
    columns = lab.scorings.columns(stored)
    calls = []
    for name, function in by_name(required(request.functions)).items():
        call = call_of(name, function, columns)
        if call.style and not isinstance(function, ForeignReward):
            say(f"{name or 'the reward function'} looks like a reward function of {call.style}, and is called like one")
        notes = function.shadowed(NAMES, columns) if isinstance(function, RewardCell) else []
        for note in (*notes, *filter(None, [call.note])):
            say(note)
        calls.append(call)
    return calls


def _resume(
    lab: Lab, stored: StoredCollection, request: ScoringRequest, scorers: Scorers, name: str
) -> tuple[ScoringRequest, _Resumed]:
    """The request completed from the last scoring, and what that scoring has settled."""
    last = lab.scorings.last(stored)
    if last is not None and last.source != "function":
        raise InputError(f"a {last.source} scored {name} last: there is nothing to resume", hint=f"%%reward {name}")
    if last is None and lab.scorings.history(stored):
        raise InputError(f"each scoring of {name} is undone: there is nothing to resume", hint=f"%%reward {name}")
    if last is None:
        raise InputError(f"no function scored {name}: there is nothing to resume", hint=f"%%reward {name}")
    functions = scorers.to_resume(last.change, request.functions, name)
    resuming = request.resuming(functions, last.options)
    since = None if request.options.overwrite else last.first
    settled = lab.scorings.settled(stored, last.first, since if resuming.options.overwrite else 0)
    return resuming, _Resumed(last.first, since, settled)


def _of_settled_groups(lab: Lab, stored: StoredCollection, settled: Set[int]) -> Set[int]:
    """The settled trajectories whose whole group is settled.

    A function of a group compares all members: if one of them is new, the values of the others no longer hold.
    """
    outlines = lab.outlines.of(stored)
    unsettled = {each.group for each in outlines if each.id not in settled}
    return {each.id for each in outlines if each.id in settled and each.group not in unsettled}


def _is_wanted(settled: Set[int], overwrite: bool, trajectory: StoredTrajectory | TrajectorySummary) -> bool:
    return trajectory.id not in settled and (overwrite or trajectory.source != "hand")


def _is_one_of(ids: set[int], trajectory: StoredTrajectory) -> bool:
    return trajectory.id in ids


def _total(collection: Collection, resumed: _Resumed | None, overwrite: bool) -> int:
    """The number of trajectories to score."""
    settled = resumed.settled if resumed else frozenset()
    return sum(_is_wanted(settled, overwrite, each) for each in collection.outlines())


def _first(
    collection: Collection, wanted: Callable[[StoredTrajectory], bool], *, together: bool
) -> Iterator[tuple[Group, list[StoredTrajectory]]]:
    """Yield the first trajectories to score, each with its group; `together` yields those of a group at once."""
    left = DRY_RUN_SIZE
    for group in collection.each_group():
        some = [t for t in group.trajectories if wanted(t)][:left]
        left -= len(some)
        yield from ((group, each) for each in (([some] if some else []) if together else ([t] for t in some)))
        if not left:
            return


def scoring_of(functions: Functions, calls: Sequence[RewardCall], options: Mapping[str, Any]) -> NewScoring:
    """Describe functions for the log: names, source text, options, style, and digests of their parts."""
    named = by_name(functions)
    code = "\n\n".join(source_of(function) or repr(function) for function in named.values())
    names = [name or getattr(function, "__name__", "cell") for name, function in named.items()]
    styles = ", ".join(dict.fromkeys(call.style for call in calls if call.style))
    compiled = {call.name: call.function for call in calls if isinstance(named[call.name], RewardCell)}
    parts = describe_parts({**named, **compiled}, REWARD)  # a cell holds all variables of the notebook
    return NewScoring("function", names, code, {**options, "parts": parts}, styles)


def wait_for(run: ScoringRun, total: int, name: str, progress: ProgressBar) -> None:
    """Wait for a run and show its progress; add a note to an interrupt and to the end of a budget."""
    begun = time.monotonic()

    def watch() -> None:
        failed = f", {run.tally.failures:,} failed" if run.tally.failures else ""
        note = pace(run.tally.done, total, time.monotonic() - begun)
        progress.update(run.stored, total, f"{note}{failed}")  # what is on disk

    try:
        run.wait(watch)
    except BudgetError as error:
        stored = f"{run.stored:,} of {count(total, 'trajectory')} are done and stored"
        hint = f"%%reward {name} --resume, {'with a new' if error.holds else 'without a'} budget"
        raise BudgetError(f"{error.message}; {stored}", hint=hint) from None
    except KeyboardInterrupt as error:
        if run.stored:
            of = f"{run.stored:,} of {count(total, 'trajectory')} are done and stored"
            interrupted(error, of, f"%%reward {name} --resume")
        else:
            interrupted(
                error, f"interrupted while scoring {run.scoring or name}; no reward was changed", "run the cell again"
            )
        raise


def report(run: ScoringRun, total: int, name: str, say: Say) -> None:
    """Raise the error of a run that failed, or say how it ended."""
    tally = run.tally
    if tally.failures and not tally.scored and run.first_error:
        raise run.first_error
    if run.stopped_early:
        raise too_many_failures(tally, name, total - tally.done, run.first_error)
    if tally.failures:
        say(f"{tally.line()} -> %%reward {name} --resume")
    if tally.reused:
        say(f"{count(tally.reused, 'result')} of the same function remembered -> --no-cache calls it again")
    if parts := run.summed_components():
        say(f"the reward is {' + '.join(parts)} -> --weight {parts[-1]}=0 leaves {parts[-1]} out of the sum")
    for weight, near in run.unused_weights().items():
        meant = f" -> --weight {near}=... (not {weight})" if near else ""
        say(f"no trajectory has the component {weight!r}, so its weight is not used{meant}")
