"""Scoring of a collection: what is missing, prepared functions, storage under one change, and what is reported."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pandas as pd

from rolloutlab.errors import InputError, interrupted
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.run import ProgressBar
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Score, StoredCollection, StoredTrajectory
from rolloutlab.store.scorings import Failure, NewScoring, RewardResult
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.frame import Frame
from rolloutlab.trajectories.scoring.calls import NAMES, RewardCall
from rolloutlab.trajectories.scoring.cells import RewardCell
from rolloutlab.trajectories.scoring.foreign import ForeignReward, call_of
from rolloutlab.trajectories.scoring.functions import Functions, Scorers, by_name, required, say_kept, weights_of
from rolloutlab.trajectories.scoring.memory import fingerprint, source_of
from rolloutlab.trajectories.scoring.run import ScoringRun, duration, pace, stopped
from rolloutlab.trajectories.scoring.workers import ScoringOptions

TRIED = 3
"""Trajectories of a dry run."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ScoringRequest:
    """What scores a collection, and how. functions: None with `resume` for those of the last scoring."""

    functions: Functions | None
    weights: Mapping[str, float] | None
    options: ScoringOptions


class _Change:
    """Stores batches of outcomes as one change, which begins with the first. began: called then."""

    def __init__(self, lab: Lab, stored: StoredCollection, new: NewScoring, keep_hand: bool, began: Say) -> None:
        self._lab, self._stored, self._new = lab, stored, new
        self._keep_hand, self._began = keep_hand, began
        self._number: int | None = None
        self.resumed: int | None = None

    def __call__(self, scores: Sequence[Score], failures: Sequence[Failure], results: Sequence[RewardResult]) -> None:
        if self._number is None:
            self._number = self._lab.scorings.begin(self._stored, self._new, self.resumed)
            self._began(f"{self._stored.name}:{self._stored.generation}")
        keep = self._keep_hand
        self._lab.scorings.store(self._number, self._new.source, scores, failures, results, keep_hand=keep)


def score_collection(
    lab: Lab, collection: Collection, request: ScoringRequest, scorers: Scorers, progress: ProgressBar, say: Say
) -> Collection | pd.DataFrame:
    """Score a collection and return it, or try a few trajectories and return a frame (`dry_run`).

    Outcomes are stored as they come, as one change. Where some trajectories fail, `say` gets their number by type of
    error, and they have no reward. scorers: gets what scores once the first outcomes are stored.

    Raises:
        InputError: a function, weight or option is not valid, or there is nothing to resume.
        RewardError: every trajectory failed, and no reward was changed; or more than half did, and the rest is left.
        KeyboardInterrupt: with a note on what is stored.
    """
    stored, name, options = collection.stored, collection.name, request.options
    if options.resume:
        functions, weights = scorers.to_resume(stored, request.functions, name)
        request = replace(request, functions=functions, weights=request.weights or weights)
    if options.dry_run:
        return _tried(lab, collection, request, say)
    lab.check_writable()
    calls = prepared(lab, stored, request, say)
    began = partial(scorers.add, functions=required(request.functions), weights=request.weights)
    change = _Change(lab, stored, NewScoring("function", *_described(request, calls)), not options.overwrite, began)
    finished: set[int] = set()
    if options.resume:
        change.resumed, finished = _left(lab, stored, name)
    prints = {call.name: mark for call in calls if options.cache and (mark := fingerprint(call))}
    for mark in prints.values() if options.overwrite else ():
        lab.scorings.forget_results(mark)
    is_remembered = any(lab.scorings.is_remembered(mark) for mark in prints.values())
    run = ScoringRun(
        collection.each_group(), calls, weights_of(request.weights), options, change,
        wanted=partial(_is_wanted, finished, options.overwrite), fingerprints=prints,
        remembered=lab.scorings.remembered if is_remembered else None,
    )  # fmt: skip
    total = _total(lab, collection, finished, options.overwrite)
    wait_for(run, total, name, progress)
    report(run, total, name, say)
    say_kept(lab, collection.label, overwrite=options.overwrite, say=say)
    return collection


def _tried(lab: Lab, collection: Collection, request: ScoringRequest, say: Say) -> pd.DataFrame:
    """The scores of the first trajectories, one after another, with seconds and errors; nothing is stored.

    `say` gets an estimate for all. Errors: as `score_collection`, for arguments.
    """
    calls, weights = prepared(lab, collection.stored, request, say), weights_of(request.weights)
    options = replace(request.options, concurrency=1, retries=0)
    rows: dict[str, dict[str, Any]] = {}
    called, seconds = 0, 0.0
    for group, trajectory in _first(collection, options.overwrite):
        scores: list[Score] = []

        def keep(some: Sequence[Score], *_: Any, kept: list[Score] = scores) -> None:
            kept.extend(some)

        run = ScoringRun([group], calls, weights, options, keep, wanted=partial(_is_one_of, {trajectory.id}))
        run.wait()
        given: dict[str, Any] = {"reward": scores[0].reward, **scores[0].components} if scores else {"reward": None}
        error = getattr(run.first_error, "message", "")
        rows[trajectory.name] = {**given, "seconds": run.tally.seconds, "error": error}
        called, seconds = called + run.tally.called, seconds + run.tally.seconds
    summary = lab.collection(collection.label)
    left = sum(summary.trajectories if call.per == "trajectory" else summary.groups for call in calls)
    each, at_once = seconds / max(called, 1), request.options.processes or request.options.concurrency
    line = f"{count(called, 'call')} took {each:.3g} s each; {count(left, 'call')} take about"
    say(f"{line} {duration(left * each / min(at_once, max(left, 1)))} with {at_once} at a time; nothing was stored")
    columns = dict.fromkeys(["reward", *(part for row in rows.values() for part in row)])
    ordered = [*(c for c in columns if c not in ("seconds", "error")), "seconds", "error"]
    return Frame([*rows.values()], index=pd.Index([*rows], name="trajectory"), columns=ordered)


def prepared(lab: Lab, stored: StoredCollection, request: ScoringRequest, say: Say) -> list[RewardCall]:
    """The calls of the functions for the rows of a collection; `say` gets what their parameters leave in doubt."""
    columns = lab.scorings.columns(stored)
    calls = []
    for name, function in by_name(required(request.functions)).items():
        call = call_of(name, function, columns)
        if call.style and not isinstance(function, ForeignReward):
            say(f"{name or 'the reward function'} has the signature of {call.style}, and is called as there")
        for note in function.shadowed(NAMES, columns) if isinstance(function, RewardCell) else ():
            say(note)
        calls.append(call)
    return calls


def _left(lab: Lab, stored: StoredCollection, name: str) -> tuple[int, set[int]]:
    """The change of the last scoring, and what it scored."""
    last = lab.scorings.last(stored)
    if last is None or last.source != "function":
        raise InputError(f"no function scored {name}: there is nothing to resume", hint=f"%%reward {name}")
    return last.change, lab.scorings.scored(last.change)


def _is_wanted(finished: set[int], overwrite: bool, trajectory: StoredTrajectory) -> bool:
    return trajectory.id not in finished and (overwrite or trajectory.source != "hand")


def _is_one_of(ids: set[int], trajectory: StoredTrajectory) -> bool:
    return trajectory.id in ids


def _total(lab: Lab, collection: Collection, finished: set[int], overwrite: bool) -> int:
    summary = lab.collection(collection.label)
    return max(0, summary.trajectories - len(finished) - (0 if overwrite else lab.rewards.by_hand(summary)))


def _first(collection: Collection, overwrite: bool) -> Iterator[tuple[Any, StoredTrajectory]]:
    tried = 0
    for group in collection.each_group():
        for trajectory in group.trajectories:
            if tried < TRIED and (overwrite or trajectory.source != "hand"):
                tried += 1
                yield group, trajectory
        if tried == TRIED:
            return


def _described(request: ScoringRequest, calls: Sequence[RewardCall]) -> tuple[list[str], str, dict[str, Any], str]:
    """Names, source text, options and style, for the log."""
    functions = by_name(required(request.functions))
    code = "\n\n".join(source_of(function) for function in functions.values())
    options = asdict(request.options) | {"weights": dict(request.weights or {})}
    names = [name or getattr(function, "__name__", "cell") for name, function in functions.items()]
    return names, code, options, ", ".join(dict.fromkeys(call.style for call in calls if call.style))


def wait_for(run: ScoringRun, total: int, name: str, progress: ProgressBar) -> None:
    """Wait for a run, with progress; an interrupt gets a note."""
    begun = time.monotonic()

    def watch() -> None:
        failed = f", {run.tally.failures:,} failed" if run.tally.failures else ""
        note = pace(run.tally.done, total, time.monotonic() - begun)
        progress.update(run.tally.done, total, f"{note}{failed}")

    try:
        run.wait(watch)
    except KeyboardInterrupt as error:
        if run.stored:
            of = f"{run.stored:,} of {count(total, 'trajectory')} are done and stored"
            interrupted(error, of, f"%%reward {name} --resume")
        else:
            interrupted(error, f"it was scoring {run.scoring or name}; no reward was changed", "run the cell again")
        raise


def report(run: ScoringRun, total: int, name: str, say: Say) -> None:
    """Raise or say how a run ended."""
    tally = run.tally
    if tally.failures and not tally.scored and run.first_error:
        raise run.first_error
    if run.stopped_early:
        raise stopped(tally, name, total - tally.done, run.first_error)
    if tally.failures:
        say(f"{tally.line()} -> %%reward {name} --resume")
    if tally.reused:
        say(f"{count(tally.reused, 'result')} of the same function remembered -> --no-cache calls it again")
    for weight in run.unused_weights():
        say(f"no trajectory has the component {weight!r}, which a weight is given for")
