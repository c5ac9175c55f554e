"""A run of reward functions over groups: calls begin as others end, and outcomes are passed on in batches."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count as number
from itertools import islice
from queue import Empty
from typing import Any

from rolloutlab.errors import BudgetError, RewardError, RolloutlabError
from rolloutlab.objective.preflight import count
from rolloutlab.runtime import LoopThread
from rolloutlab.scoring.calls import RewardCall
from rolloutlab.scoring.estimate import Tally
from rolloutlab.scoring.functions import (
    NotApplicableError,
    Outcome,
    check_environment_part,
    check_known,
    counted_names,
    environment_part,
    near_miss,
    outcome_of,
    score_of,
)
from rolloutlab.scoring.workers import CallError, PendingCall, Result, ScoringOptions, Workers, described
from rolloutlab.store.models import Group, Ref, Score, StoredTrajectory
from rolloutlab.store.scorings import Failure, RewardResult

MIN_OUTCOMES = 16
"""A run stops early if more than half of at least this many trajectories have failed."""
_BATCH = 512
"""The most outcomes that wait to be stored."""
_INTERVAL = 1.0
"""The most seconds that outcomes wait to be stored."""
_WRITE_PAUSE = 20.0
"""The pause between two writes is this many times as long as the last write took, up to `_INTERVAL`.

So with slow functions each outcome is stored at once. Outcomes may have been paid for: the sooner they are on disk, the
fewer are lost if the process is killed.
"""
_GRACE = 0.6
"""Seconds that running calls get to end after an interrupt."""
_PATIENCE = 60.0
"""Seconds that running calls get to end after too many failures."""
_GROUPS = 64
"""Groups whose cached results are read together."""
_END = object()
_POLL = 0.05
_MAX_MESSAGE = 2000


Remembered = Callable[[str, Iterable[int]], Mapping[int, Any]]
"""Returns the stored results of a key by trajectory (`Scorings.remembered`)."""

Store = Callable[[Sequence[Score], Sequence[Failure], Sequence[RewardResult]], None]
"""Stores a batch of outcomes."""


@dataclass(eq=False)
class _InProgress:
    """A trajectory that is being scored, with the results and errors of its functions so far.

    waiting: how many functions have no result yet. place: its place in the order of the groups.
    """

    trajectory: StoredTrajectory
    waiting: int
    place: int
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    errors: dict[str, CallError] = field(default_factory=dict)


class ScoringRun:
    """Scores groups with prepared functions, with a bounded number of trajectories in memory.

    It runs in a thread of its own, so that an interrupt of the main thread never cuts a write: what was computed is
    stored.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        calls: Sequence[RewardCall],
        weights: Mapping[str, float],
        options: ScoringOptions,
        store: Store,
        loop: LoopThread,
        *,
        wanted: Callable[[StoredTrajectory], bool] = lambda _: True,
        cache_keys: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
    ) -> None:
        """Prepare a run, which `wait` starts.

        Args:
            groups: The groups, read as they are needed.
            calls: The reward functions.
            weights: Weights by component; a missing one is 1.
            options: Concurrency, time-out and retries.
            store: Called with each batch of outcomes.
            loop: The event loop of coroutine functions.
            wanted: Whether to score a trajectory. Functions of a group still get all its members.
            cache_keys: The key of stored results, by the name of each function whose results are cached.
            remembered: Returns the stored results; None if no results are cached.
        """
        self._groups, self._calls, self._weights, self._options = groups, calls, weights, options
        self._store, self._wanted, self._remembered = store, wanted, remembered
        self._cache_keys = cache_keys or {}
        self._loop, self._workers = loop, Workers(options, calls, loop)
        self.tally = Tally()
        self.stored = 0
        """Trajectories whose outcomes are stored."""
        self._first_failure: tuple[int, BaseException] | None = None
        self.stopped_early = False
        self._error: BaseException | None = None
        self._scores: list[Score] = []
        self._failures: list[Failure] = []
        self._results: list[RewardResult] = []
        self._known: dict[str, None] = {}
        self._summed: dict[str, None] = {}
        self._checked = False
        self._under_way: dict[PendingCall, None] = {}
        self._number = number()
        self._stop, self._ended = threading.Event(), threading.Event()
        self._flushed, self._pause_to_flush = time.monotonic(), 0.0
        self.scoring = ""
        """The trajectory or group of the oldest running call."""

    def wait(self, watch: Callable[[], object] = lambda: None) -> None:
        """Run until all is done; `watch` is called in this thread meanwhile.

        After an interrupt, even one that a function raises, what is done is stored, and this call ends within a second.
        Calls that hang are left behind.

        Raises:
            What `store` raises; RolloutlabError for an argument that is wrong for all trajectories.
        """
        try:  # an interrupt may come as soon as the thread makes its first call, before `start` returns
            threading.Thread(target=self._run, name="rolloutlab-scoring", daemon=True).start()
            while not self._ended.is_set():
                if self._workers.in_caller:
                    self._workers.serve(_POLL)
                else:
                    self._ended.wait(2 * _POLL)
                watch()
        except BaseException:
            self._stop.set()
            self._ended.wait(_GRACE + 0.2)
            raise
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            if self._loop.is_blocked():  # by an earlier run
                self._loop.leave()
            self._score()
        except BaseException as error:  # noqa: BLE001 - it is raised by `wait`
            self._error = error
        finally:
            self._workers.close()
            self._ended.set()

    def _score(self) -> None:
        """Begin calls as others end, until all have ended or the run stops; then store the rest."""
        jobs = self._jobs()
        has_more = True
        while True:
            while has_more and not self._stop.is_set() and len(self._under_way) < self._workers.limit:
                try:
                    job = next(jobs, _END)
                except Exception as error:  # noqa: BLE001 - it is raised by `wait`, once what was computed is stored
                    self._error = error
                    self._stop.set()
                    break
                has_more = job is not _END
                if isinstance(job, PendingCall):
                    self._begin(job)
                else:
                    self._flush_if_due()
            if self._stop.is_set() or not self._under_way:
                break
            self._collect()
            self.stopped_early = not self._stop.is_set() and self._has_too_many_failures()
            if self.stopped_early:
                break
            self._flush_if_due()
        interrupted = self._stop.is_set()
        until = time.monotonic() + (_GRACE if interrupted else _PATIENCE)
        for job in [job for job in self._under_way if job.delay and job.begun is None]:
            del self._under_way[job]  # a retry that has not begun yet: no further call is made
        while self._under_way and time.monotonic() < until and self._stop.is_set() == interrupted:
            self._collect()
        self._flush(last=True, complete=not (interrupted or self.stopped_early))

    def _jobs(self) -> Iterator[PendingCall | None]:
        """Yield the calls to make, and None after every `_GROUPS` groups, to store cached results without calls."""
        groups = iter(self._groups)
        while some := list(islice(groups, _GROUPS)):
            ids = [t.id for group in some for t in group.trajectories]
            known = {name: self._remembered(key, ids) for name, key in self._cache_keys.items() if self._remembered}
            for group in some:
                wanted = [t for t in group.trajectories if self._wanted(t)]
                check_environment_part([call.name for call in self._calls], wanted)
                yield from self._jobs_of(group, wanted, known) if wanted else ()
            yield None

    def _jobs_of(
        self, group: Group, wanted: Sequence[StoredTrajectory], known: Mapping[str, Mapping[int, Any]]
    ) -> Iterator[PendingCall]:
        unscored = [_InProgress(t, len(self._calls), next(self._number)) for t in wanted]
        for call in (call for call in self._calls if call.per == "group"):
            yield PendingCall(call, group.trajectories, group, unscored)
        for each in unscored:
            for call in (call for call in self._calls if call.per == "trajectory"):
                results = known.get(call.name, {})
                if each.trajectory.id in results:
                    self.tally.reused += 1
                    self._take_value(each, call, results[each.trajectory.id], remember=False)
                else:
                    yield PendingCall(call, (each.trajectory,), group, [each])

    def _begin(self, job: PendingCall) -> None:
        self._under_way[job] = None
        self.scoring = next(iter(self._under_way)).name
        self._workers.start(job)

    def _collect(self) -> None:
        """Take the results that have come, after waiting a moment for the first, and end calls that are late."""
        with suppress(Empty):
            self._take(self._workers.results.get(timeout=_POLL))
            for _ in range(self._workers.limit):
                self._take(self._workers.results.get_nowait())
        now, limit = time.monotonic(), self._options.timeout
        if self._stop.is_set():
            return
        late = [j for j in self._under_way if limit is not None and j.begun is not None and now - j.begun > limit]
        if late and (error := self._workers.blocking([*self._under_way])):
            self._error = error
            self._stop.set()
            return
        for job in late:
            self._workers.abandon(job)
            self._take(Result(job, None, CallError("TimeoutError", f"no result after {limit:g} s")))

    def _take(self, result: Result) -> None:
        job, error = result.job, result.error
        if job not in self._under_way:  # it was late
            return
        del self._under_way[job]
        if error and error.error == "KeyboardInterrupt":
            self._error = error.cause or KeyboardInterrupt()  # an error from another process has no cause
            self.scoring = job.name
            self._stop.set()
            return
        if error and isinstance(error.cause, BudgetError):  # no further call would be paid for
            self._error = error.cause
            self._stop.set()
            return
        self.tally.add(job.call.name, time.monotonic() - job.begun if job.begun else 0.0)
        if error and job.attempt < self._options.retries and not self._makes_no_more_calls:
            delay = self._options.backoff * 2**job.attempt
            self._begin(PendingCall(job.call, job.members, job.group, job.scores, job.attempt + 1, delay))
            return
        values = error or _values_of(job, result.value)
        for each in job.scores:
            if isinstance(values, CallError):
                self._fail(each, job.call, values)
            else:
                self._take_value(each, job.call, values[each.trajectory.id], remember=True)

    def _take_value(self, each: _InProgress, call: RewardCall, value: Any, *, remember: bool) -> None:
        try:
            outcome = outcome_of(call.name, value, each.trajectory.name, none_is_valid=call.style == "TRL")
        except BaseException as wrong:  # noqa: BLE001 - a method of the value may fail: a failure of this trajectory
            self._fail(each, call, described(wrong))
            return
        each.outcomes[call.name] = outcome
        if remember and call.name in self._cache_keys:
            self._results.append(RewardResult(self._cache_keys[call.name], each.trajectory.id, outcome))
        self._end(each)

    def _fail(self, each: _InProgress, call: RewardCall, error: CallError) -> None:
        each.errors[call.name] = error
        self._end(each)

    def _end(self, each: _InProgress) -> None:
        """Count a result of a trajectory; after the last result, score the trajectory."""
        each.waiting -= 1
        if each.waiting:
            return
        ref = Ref(each.trajectory.id, each.trajectory.name)
        if not each.errors:
            outcomes = {call.name: each.outcomes[call.name] for call in self._calls}
            outcomes |= environment_part(each.trajectory)
            try:
                self._scores.append(score_of(ref, outcomes, self._weights))
            except RewardError as wrong:
                each.errors[""] = described(wrong)
            else:
                self._known.update(dict.fromkeys(counted_names(outcomes)))
                for parts in (each for each in outcomes.values() if isinstance(each, Mapping) and "reward" not in each):
                    self._summed.update(dict.fromkeys(parts))
                self.tally.scored += 1
                return
        name, error = next(iter(each.errors.items()))
        self.tally.failed[error.error] += 1
        if self._first_failure is None or each.place < self._first_failure[0]:
            self._first_failure = each.place, _error_of(name, error, ref.name)
        self._failures.append(Failure(ref, name, error.error, error.message[:_MAX_MESSAGE], error.line))

    def _has_too_many_failures(self) -> bool:
        """Whether more than half of the trajectories will have failed, even if all that are under way succeed."""
        failures = self.tally.failures - self.tally.failed[NotApplicableError.__name__]
        if self.tally.done < MIN_OUTCOMES or failures <= self.tally.done / 2:
            return False
        waiting = {each.place for job in self._under_way for each in job.scores if each.waiting}
        return failures > (self.tally.done + len(waiting)) / 2

    @property
    def _makes_no_more_calls(self) -> bool:
        """Whether no further call is made."""
        return self.stopped_early or self._stop.is_set()

    def _flush_if_due(self) -> None:
        waited = time.monotonic() - self._flushed
        if len(self._scores) + len(self._failures) >= _BATCH or waited >= self._pause_to_flush:
            self._flush()

    def _flush(self, *, last: bool = False, complete: bool = False) -> None:
        """Store the outcomes so far, once there is any score.

        A weight whose component no trajectory has is an error only in a run that is `complete` and has stored nothing
        yet. In any other run a later trajectory may still have the component.
        """
        unknown = [] if self._checked else [name for name in self._weights if name not in self._known]
        early = unknown and not last and self.tally.done < MIN_OUTCOMES
        if early or not self.tally.scored or not (self._scores or self._failures or self._results):
            return
        if unknown and complete:
            check_known(self._weights, [*self._known])
        self._checked, begun = True, time.monotonic()
        self._store(self._scores, self._failures, self._results)
        self.stored += len(self._scores) + len(self._failures)
        self._scores, self._failures, self._results = [], [], []
        self._flushed = time.monotonic()
        self._pause_to_flush = min(_INTERVAL, _WRITE_PAUSE * (self._flushed - begun))

    @property
    def first_error(self) -> BaseException | None:
        """The error of the failed trajectory that is first in the order of the groups."""
        return self._first_failure and self._first_failure[1]

    @property
    def unstored_failures(self) -> list[Failure]:
        """The failures of a run that scored no trajectory: it stores nothing."""
        return [*self._failures]

    def summed_components(self) -> list[str]:
        """List the components of functions that return several, if the reward is their sum and no weight was given."""
        return [*self._summed] if len(self._summed) > 1 and not self._weights else []

    def unused_weights(self) -> dict[str, str]:
        """Find weights whose component no trajectory has, each with a component of a similar name, or an empty text."""
        unused = [name for name in self._weights if name not in self._known] if self.tally.scored else []
        return {name: near_miss(name, [*self._known]) for name in unused}


def _values_of(job: PendingCall, value: Any) -> dict[int, Any] | CallError:
    """Split what a call returned into values by trajectory id. A function of a group must return one per member."""
    if job.call.per == "trajectory":
        return {job.members[0].id: value}
    try:
        plain = not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping | Set)
        values = [value] if plain else list(value)
    except BaseException as wrong:  # noqa: BLE001 - of a generator, or of the value's own methods
        return described(wrong)
    if plain or len(values) != len(job.members):
        got = "a set" if isinstance(value, Set) else "one value" if plain else count(len(values), "value")
        message = f"a reward function of a group must return a list of {len(job.members)} values, not {got}"
        hint = "return [0.0 for answer in answers]"
        return CallError("RewardError", message, "", RewardError(f"{message}, for {job.name}", hint=hint))
    return {t.id: each for t, each in zip(job.members, values, strict=True)}


def _error_of(name: str, error: CallError, trajectory: str) -> BaseException:
    """Make the error that a cell stops with if every trajectory has failed."""
    if isinstance(error.cause, RolloutlabError):
        return error.cause
    who = " ".join(filter(None, ("the reward function", name)))
    place = f" ({error.line})" if error.line else ""
    hint = f"%group {trajectory.rpartition('/')[0]} shows it; no reward was changed"
    if "main thread" in error.message:
        hint = "--concurrency 1 calls it in the main thread"
    hint = getattr(error.cause, "rolloutlab_hint", hint)
    why = error.message if len(error.message) <= _MAX_MESSAGE else f"{error.message[:_MAX_MESSAGE]}…"
    made = RewardError(f"{who} failed on {trajectory}: {error.error}: {why}{place}", hint=hint)
    made.__cause__ = error.cause
    return made


def too_many_failures(tally: Tally, name: str, left: int, first: BaseException | None) -> RewardError:
    """Make the error of a run that stopped because more than half of its trajectories failed."""
    why = getattr(first, "message", str(first))
    rest = f"; {count(left, 'trajectory')} not tried" if left else ""
    return RewardError(
        f"{tally.line()}{rest}; the first: {why}", hint=f"%%reward {name} --resume, once the function is corrected"
    )
