"""Sample-score-train loop: each round is a generation of one collection."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import takewhile
from shlex import quote
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.environments.source import source_or_none
from rolloutlab.errors import InputError, JobFailedError, interrupted
from rolloutlab.objective.option_docs import rate_warnings
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import count, preflight
from rolloutlab.sampling.code_digest import changed_parts, is_part
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.sampling.plan import check_newest_environment
from rolloutlab.sampling.programs.program import check_newest_program
from rolloutlab.sampling.prompt import Row
from rolloutlab.sampling.split import HELD_OUT, TRAIN
from rolloutlab.scoring.judge import Judge
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection, SubmittedJob
from rolloutlab.training.loop_steps import LoopSteps
from rolloutlab.training.measures import Measure, again_name, held_out_name, measure, were_changed
from rolloutlab.training.submission import check_config, expand_options
from rolloutlab.training.unfinished import Unfinished, find_unfinished, find_unfinished_round, is_finished
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.members import members_of
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import loop as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.loop import Round
from rolloutlab.widgets.plot import Plot
from rolloutlab.widgets.progress import Live, Progress, ShownLive

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("step", "reward", "spread", "trained", "held_out", "seconds", "tokens")
_EARLIER = ("earlier_reward", "earlier_held_out")
_FURTHER = ("topped_up", *_EARLIER)
"""Columns that are shown only if a round has them."""
_OF_FINE_TUNING = {"files", "where"}
"""Options that only fine-tuning jobs have; a loop makes none of these."""

Measured = tuple[Round, Measure]
"""The results of a round or of a measurement, and how they were measured."""
RoundOptions = tuple[Mapping[str, Any], Options]
"""The options of a round's job as they are given, and resolved."""


@dataclass(repr=False, eq=False)
class Loop(ShownLive):
    """The rounds of a loop, shown as a chart and a table.

    Round N is the generation `NAME:N`. Held-out rows are sampled into generations of `held_out.NAME`. That name begins
    differently, so a pattern such as `NAME*` does not train on held-out rows by accident.

    name: the collection.
    model: the model that the loop trains.
    ended: why the loop stopped before its last round, if it did.
    warnings: about its learning rate, and about means that an earlier version stored.
    notes: lines about what an earlier call began, and whether this call went on with it.
    judged: a judge gives the rewards, so their means do not tell which checkpoint is better.
    round_results: the results of each round, as the lab has them.
    held_out_results: the results on the held-out rows.
    second_results: the results of best checkpoints that were measured again, with other seeds. The highest of several
        means is on average too high; the mean with other seeds is not.
    round_measure, held_out_measure: how this call measures rounds and held-out rows, if known before it samples.
    fixed_rows: every round takes the same rows, so means of other rows cannot be compared with theirs.
    because: what changed, if the first job of this call begins another run of the model.
    state: paths of parts of the reward code that scoring itself changes, such as a counter or a cache. They are left
        out when reward code is compared.
    """

    name: str
    model: str
    ended: str = ""
    warnings: Sequence[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    judged: bool = False
    round_results: list[Measured] = field(default_factory=list)
    held_out_results: list[Measured] = field(default_factory=list)
    second_results: list[Measured] = field(default_factory=list)
    round_measure: Measure | None = None
    held_out_measure: Measure | None = None
    fixed_rows: bool = True
    because: Sequence[str] = ()
    state: set[str] = field(default_factory=set)

    @property
    def rounds(self) -> list[Round]:
        """The rounds, and a row for a newer checkpoint that was measured.

        A held-out mean belongs to the first round that sampled its checkpoint.
        Means that were measured in another way than the newest are `earlier_reward` and `earlier_held_out`.
        """
        rounds = [replace(one, reward=None, spread=None, earlier_reward=one.reward) if self._round_differs(how) else one
                  for one, how in self.round_results]  # fmt: skip
        newest, earlier = (self._last_by_step(self.held_out_results, earlier=each) for each in (False, True))
        return _with_measures(rounds, newest, earlier)

    @property
    def measured(self) -> dict[int, float]:
        """The held-out mean by checkpoint, for checkpoints that were measured in the same way as the newest."""
        last = self._last_by_step(self.held_out_results)
        return {step: one.reward for step, one in last.items() if one.reward is not None}

    @property
    def last_measured(self) -> int | None:
        """The number of the round before which the held-out rows were last measured as they are now."""
        scored = [(one.number, how) for one, how in self.held_out_results if one.reward is not None]
        numbers = [number for number, how in scored if not self._held_out_differs(how)]
        return max(numbers, default=None)

    @property
    def again(self) -> dict[int, float]:
        """Held-out means by checkpoint that were measured again with other seeds."""
        last = self._last_by_step(self.second_results)
        return {step: one.reward for step, one in last.items() if one.reward is not None}

    @property
    def changes(self) -> list[str]:
        """Lines about means that cannot be compared with the newest, because they were measured in another way."""
        rounds, steps = self._find_different()
        return [*_describe_changes("mean reward", "round", rounds), *_describe_changes("held-out mean", "step", steps)]

    @property
    def remarks(self) -> list[str]:
        """The lines of `changes`, and one more if this call begins another run of the model."""
        if not self.because:
            return self.changes
        line = f"another run of {self.model} begins, as the {were_changed(self.because)}"
        return [*self.changes, f"{line} -> %runs {quote(self.model)}"]

    def _find_different(self) -> tuple[list[tuple[int | None, list[str]]], list[tuple[int | None, list[str]]]]:
        """Find the rounds and the held-out steps that were measured in another way, each with what differs."""
        rounds = [(one.number, self._round_differs(how)) for one, how in self.round_results if one.reward is not None]
        held_out = [(one.step, how) for one, how in self.held_out_results if one.reward is not None]
        steps = [(step, self._held_out_differs(how)) for step, how in held_out]
        return [each for each in rounds if each[1]], [each for each in steps if each[1]]

    def _round_differs(self, how: Measure) -> list[str]:
        scored = [measured for one, measured in self.round_results if one.reward is not None]
        newest = self.round_measure or (scored[-1] if scored else how)
        return how.differences(newest, self.state, rows=self.fixed_rows)

    def _held_out_differs(self, how: Measure) -> list[str]:
        if self.held_out_measure:
            return how.differences(self.held_out_measure, self.state)
        newest = (self.held_out_results or self.second_results)[-1][1]
        of_rounds = self.round_measure or (self.round_results[-1][1] if self.round_results else how)
        # without the rows, which always differ between rounds and held-out rows
        return how.differences(newest, self.state) or how.differences(of_rounds, self.state, rows=False)

    def _last_by_step(self, means: Sequence[Measured], *, earlier: bool = False) -> dict[int, Round]:
        """Find each checkpoint's last mean that compares with the newest; with `earlier`, the last that does not."""
        return {
            one.step: one
            for one, how in means
            if one.step is not None and one.reward is not None and bool(self._held_out_differs(how)) == earlier
        }

    @property
    def history(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per round. The last row may be the measurement after the last round.

        Its columns:

        - `step`: the checkpoint that was sampled.
        - `reward`, `spread`: mean and standard deviation of the rewards, without topped-up completions.
        - `trained`: the share of the groups that trained.
        - `held_out`: the mean reward of the held-out rows, if they were measured.
        - `seconds`: only for rounds of this call.
        - `tokens`: the sampled tokens to train on.
        - `topped_up`: the completions of top-ups, if there were any.
        - `earlier_reward`, `earlier_held_out`: means that were measured in another way than the newest, if there are
          any. They are then missing in `reward` and `held_out`.
        - one column for each option in which the jobs of the rounds differ.
        """
        rounds = self.rounds
        columns = [*_COLUMNS, *(name for name in _FURTHER if any(getattr(one, name) is not None for one in rounds))]
        options = render.find_varied(rounds)
        rows = [
            [*(getattr(one, column) for column in columns), *((one.options or {}).get(name) for name in options)]
            for one in rounds
        ]
        kinds = {column: "Int64" if column in {"step", "tokens", "topped_up"} else float for column in columns}
        return data_frame(rows, [one.number for one in rounds], "round", [*columns, *options], kinds)

    @property
    def best(self) -> str | None:
        """The checkpoint with the highest held-out mean, as `%%chat -m` takes it.

        If no rows were held out, it is the checkpoint with the highest mean of a round; None if a judge gives the
        rewards, or if there is no mean.
        """
        step = self.best_step
        return None if step is None else f"{self.model}@{step}"

    @property
    def best_step(self) -> int | None:
        """The step of `best`."""
        held = [(mean, step) for step, mean in self.measured.items()]
        own = [(one.reward, one.step) for one in self.rounds if one.reward is not None and one.step is not None]
        own = [] if self.judged else own
        return max(held or own, key=lambda pair: pair[0], default=(0.0, None))[1]

    @property
    def best_mean(self) -> float | None:
        """The held-out mean of `best`, measured again with other seeds; None if it was not measured again."""
        step = self.best_step
        return None if step is None else self.again.get(step)

    def plot(self) -> Plot:
        """Plot the mean reward by round, of what the loop trains on and of what is held out."""
        return render.plot(self.name, self.rounds)

    def __repr__(self) -> str:
        return render.text(self.heading(), self.rounds, [*self.warnings, *self.remarks], self.ended)

    def _repr_html_(self) -> str:
        best, lines = render.Best(self.best, self.best_mean), [*self.warnings, *self.remarks]
        return for_notebook(render.html(self.name, self.model, self.rounds, best, lines, self.ended, self.notes))

    def heading(self) -> str:
        """Summarize the loop in a line."""
        rounds = count(sum(one.trained is not None for one in self.rounds), "round")
        best = f", best {self.best}" if self.best else ""
        if self.best_mean is not None:
            best += f": held-out {self.best_mean:.3f} with other seeds than it was chosen by"
        return f"loop {self.name} on {self.model}: {rounds}{best}"


def check_counts(**counts: Any) -> None:
    """Raise InputError unless each count is a positive integer; `jobs` may be 0."""
    for name, value in counts.items():
        least = 0 if name == "jobs" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={least or 5}")


@dataclass(frozen=True)
class LoopPlan:
    """What a loop does in each round, and how many rounds it makes.

    steps: how it samples, scores, trains and measures.
    lab: the store.
    rows: the rows of a round, by its number.
    options: the options of the job of a round, by its number.
    jobs: how many rounds to make; with `one_of_several`, how many the loop has in the end.
    every: rounds between two measurements of the held-out rows.
    patience: the loop stops after so many rounds in a row in which nothing trained.
    parts: digests of the reward code before the first scoring, by path.
    begun: the round that an earlier call has begun and not finished, if there is one.
    one_of_several: as of `run_loop`.
    """

    steps: LoopSteps
    lab: Lab
    rows: Callable[[int], Any]
    options: Callable[[int], RoundOptions]
    jobs: int
    every: int
    patience: int
    parts: Mapping[str, str]
    begun: Unfinished | None = None
    one_of_several: bool = False

    @property
    def scores(self) -> bool:
        """Whether the loop has a reward of its own, beside that of an environment or a program."""
        return self.steps.reward is not None

    def line_of_round(self, line: str) -> str:
        """Return a line about a single round, or an empty one if the loop is one of several."""
        return "" if self.one_of_several else line


def run_loop(
    steps: LoopSteps,
    lab: Lab,
    over: Any,
    live: Live,
    default_rate: float | None,
    *,
    jobs: int,
    every: int,
    patience: int,
    one_of_several: bool = False,
) -> Loop:
    """Check everything, then make `jobs` rounds after those that the lab has, and show the loop after each.

    A round that an earlier call has begun is finished first, and is one of the `jobs`. The loop ends early if nothing
    trained in `patience` rounds in a row. After an error or an interrupt, the finished rounds are shown before it is
    raised.

    Args:
        steps: how it samples, scores, trains and measures.
        lab: the store.
        over: as of `Session.loop`.
        live: shows the loop.
        default_rate: the policy's learning rate, if known.
        jobs: how many rounds to make; 0 only loads the loop.
        every: rounds between two measurements of the held-out rows.
        patience: rounds in a row in which nothing trained before the loop ends.
        one_of_several: the loop is one of several. Then `jobs` is how many rounds it has in the end, the last
            measurement is finished even if no round is missing, and there are no lines about single rounds.

    Raises:
        As `Session.loop`.
    """
    check_counts(jobs=jobs, every=every, patience=patience)
    steps.check(will_train=jobs > 0)
    lab.check_name(steps.name)
    options = _cache_options(steps, will_train=jobs > 0)
    if not jobs:
        first = Options() if callable(steps.options) else options(_find_next_number(lab, steps.name))[1]
        return replace(_load(steps, lab, first), fixed_rows=over is not None and not callable(over))
    begun = _find_begun(steps, lab, lambda number: options(number)[1])
    first = options(begun.stored.generation if begun else _find_next_number(lab, steps.name))[1]
    parts = steps.parts()
    check_newest_environment(lab, steps.name, source_or_none(steps.sampling.get("env")))
    check_newest_program(lab, steps.name, steps.program)
    over, held_out = read_rows(over, steps.held_out, steps.sampling.get("limit"))
    steps = replace(steps, held_out=held_out)
    fixed_rows = None if callable(over) else over
    _check_split(fixed_rows or [], held_out)
    round_measure, held_out_measure = steps.check(fixed_rows, held_out)
    loop = replace(
        _load(steps, lab, first),
        round_measure=round_measure,
        held_out_measure=held_out_measure,
        fixed_rows=fixed_rows is not None,
    )
    loop.warnings = [*rate_warnings(first.learning_rate or 0.0, default_rate), *_warn_of_earlier_version(loop)]
    if not (begun and begun.job):
        loop.because = steps.find_run_changes(loop.model, steps.name, loop.round_measure, loop.held_out_measure)
    for line in [*loop.warnings, *loop.remarks]:
        live.update(loop, line)
    rows = partial(_rows_of_round, over, steps.sampling.get("limit"))
    plan = LoopPlan(steps, lab, rows, options, jobs, every, patience, parts, begun, one_of_several)
    try:
        for line in _make_rounds(loop, plan):
            live.update(loop, line)
    except BaseException as error:
        loop.ended = _explain_stop(loop, error)
        live.update(loop, loop.ended)
        raise
    return loop


def read_rows(over: Any, held_out: Any, limit: int | None) -> tuple[Any, list[Row] | None]:
    """Read the rows of a loop once, because every round takes the same ones, and an iterator gives them only once.

    A function of the round's number is returned as it is.
    """
    with Progress("reading rows") as shown:
        over = over if callable(over) else rows_of(over, limit, shown.count)
        return over, None if held_out is None else rows_of(held_out, limit, shown.count)


def _rows_of_round(over: Any, limit: int | None, number: int) -> Any:
    """Return the rows of a round. over: the rows of every round, or a function of the round's number."""
    if not callable(over):
        return over
    rows = rows_of(over(number), limit)
    _check_split(rows, None)
    return rows


def _cache_options(steps: LoopSteps, *, will_train: bool) -> Callable[[int], RoundOptions]:
    """Make a function that returns the options of a round, and calls a function of the user's once for each round.

    will_train: False if the loop is only loaded. Options that are derived from `max_tokens` then need none.
    """
    bounds = {steps.name: steps.sampling.get("max_tokens") if will_train else 1}

    @cache
    def options_of(number: int) -> RoundOptions:
        given = steps.options_of(number)
        return given, settle(check_config(expand_options(given, bounds).options))

    return options_of


def _load(steps: LoopSteps, lab: Lab, options: Options) -> Loop:
    """Do what `load_loop` does for the loop of these steps, and show the progress."""
    judged, scores = isinstance(steps.reward, Judge), steps.reward is not None
    with Progress(f"loop {steps.name}") as shown:
        model = steps.calls.models.selected
        return load_loop(lab, steps.name, model, options, judged=judged, scores=scores, counted=shown.step)


def _explain_stop(loop: Loop, error: BaseException) -> str:
    """Return why a loop has stopped, and how to continue it. An interrupt also gets this as its note."""
    # a job that failed would fail again, so the same call begins the round after it
    number = _next_number(loop) + (1 if isinstance(error, JobFailedError) else 0)
    goes_on = f"the same call goes on, in round {number}"
    if isinstance(error, KeyboardInterrupt):
        interrupted(error, "its rounds are kept", goes_on)
    stopped = f"stopped by {type(error).__name__}"
    # these would stop the same call again
    return stopped if isinstance(error, InputError | TypeError) else f"{stopped}; {goes_on}"


def _check_split(over: Sequence[Row], held_out: Sequence[Row] | None) -> None:
    """Raise InputError if a loop would train on rows that a split has held out, or measure on rows to train on."""
    for rows, part, name in ((over, HELD_OUT, "over"), (held_out or [], TRAIN, "held_out")):
        if any(row.part == part for row in rows):
            hint = "lab.loop(..., over=split.train, held_out=split.held_out)"
            raise InputError(f"rows of the part {part} of a split cannot be {name}=", hint=hint)


def _find_begun(steps: LoopSteps, lab: Lab, options: Callable[[int], Options]) -> Unfinished | None:
    """Find the round that an earlier call has begun and not finished."""
    trained = steps.service, steps.calls.models.selected
    begun = find_unfinished_round(lab, steps.name, trained, options, steps.factor, scores=steps.reward is not None)
    if begun is None or begun.job is None or steps.has_job(begun.job.id):
        return begun
    if begun.job.status is None:  # a kernel was killed before the service had all of the job
        lab.jobs.forget(begun.job.id)
    return replace(begun, job=None)


def _find_next_number(lab: Lab, name: str) -> int:
    """Find the number that the next round of a loop will have."""
    return 1 + max((each.generation for each in lab.collections() if each.name == name), default=0)


def load_loop(
    lab: Lab,
    name: str,
    model: str,
    options: Options,
    *,
    judged: bool,
    scores: bool = False,
    counted: Callable[[str, int, int], None] = lambda *_: None,
) -> Loop:
    """Load the loop from the lab: a round for each generation of `name`, and the measurements that were finished.

    Args:
        lab: the store.
        name: the collection.
        model: the model that the loop trains.
        options: of rounds without a job.
        judged: a judge gives the rewards. The loop also counts as judged if a judge scored its last round.
        scores: the loop has a reward beside that of an environment or a program.
        counted: called with a text and the number of generations read, of how many.
    """
    jobs, rounds = lab.jobs.newest_first(), lab.generations(name)[::-1]

    def means(stored: Sequence[StoredCollection], numbers: Sequence[int]) -> list[Measured]:
        read = list[Measured]()
        for i, (each, number) in enumerate(zip(stored, numbers, strict=True)):
            counted("rounds read", i, len(stored))
            read.append(_read_results(number, Collection(lab, each), options, lab, jobs))
        return read

    def measurements(of: str) -> list[Measured]:
        """Read the finished measurements in a collection; the number of each is that of the round after it."""
        stored = [each for each in lab.generations(of)[::-1] if is_finished(lab, each, scores=scores)]
        before = [[one.generation for one in rounds if one.id < each.id] for each in stored]
        return means(stored, [1 + max(numbers, default=0) for numbers in before])

    held, again = measurements(held_out_name(name)), measurements(again_name(name))
    made = means(rounds, [each.generation for each in rounds])
    judged |= any(how.scoring is not None and how.scoring.source == "judge" for _, how in made[-1:])
    loop = Loop(
        name, model, judged=judged, round_results=made, held_out_results=held, second_results=again,
    )  # fmt: skip
    loop.state.update(*(how.state for _, how in (*made, *held, *again)))
    return loop


def _warn_of_earlier_version(loop: Loop) -> list[str]:
    """Return a line if an earlier version stored some means, without the parts of the reward code to compare."""
    if all(how.is_described for _, how in (*loop.round_results, *loop.held_out_results)):
        return []
    return ["some means were stored by an earlier version: only the source text of their reward can be compared"]


@contextmanager
def _record_state(loop: Loop, plan: LoopPlan) -> Iterator[None]:
    """Record which parts of the reward code change while the context scores.

    Such parts are state, like a counter, and not settings. Parts that change between two calls are not recorded, so
    that a comparison of the two calls still finds them.
    """
    try:
        yield
    finally:
        changed = changed_parts(plan.parts, plan.steps.parts(plan.parts))
        new = {path for path in changed if not is_part(path, loop.state)}
        loop.state |= new
        names = {loop.name, held_out_name(loop.name), again_name(loop.name)}
        for newest in [each for each in plan.lab.collections() if new and each.name in names][:1]:
            plan.lab.keep_state(newest.id, loop.state)


def _describe_changes(mean: str, place: str, different: Sequence[tuple[int | None, list[str]]]) -> list[str]:
    """Return a line about means that were measured in another way than the newest.

    mean: what kind of mean. place: the noun of a place, `round` or `step`. different: the places, each with what
    differs there.
    """
    if not different:
        return []
    places = [*dict.fromkeys(str(where) for where, _ in different if where is not None)]
    shown = f"{place} {places[0]}" if len(places) == 1 else f"{place}s {places[0]} to {places[-1]}" if places else place
    words = list(dict.fromkeys(word for _, some in different for word in some))
    what = f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
    other = "other" if words == ["rows"] else "another"
    return [f"{mean} of {shown}: measured with {other} {what}, in a column of its own and not compared for the best"]


def _with_measures(rounds: list[Round], measured: Mapping[int, Round], earlier: Mapping[int, Round]) -> list[Round]:
    """Add each held-out mean to the first round that samples its checkpoint.

    If a checkpoint is newer than all rounds, its mean gets a row of its own.
    """
    left, left_earlier = dict(measured), dict(earlier)
    rounds = [
        one if one.step is None else _with_held_out(one, left.pop(one.step, None), left_earlier.pop(one.step, None))
        for one in rounds
    ]
    last = rounds[-1] if rounds else None
    later = [step for step in {**left, **left_earlier} if last and last.step is not None and step > last.step]
    if last and later:
        row, step = Round(last.number + 1, max(later)), max(later)
        rounds.append(_with_held_out(row, left.get(step), left_earlier.get(step)))
    return rounds


def _with_held_out(one: Round, held_out: Round | None, earlier: Round | None) -> Round:
    """Add to a round the held-out means of its checkpoint, if it was measured."""
    one = replace(one, held_out=held_out.reward, held_out_unscored=held_out.unscored) if held_out else one
    return replace(one, earlier_held_out=earlier.reward) if earlier else one


def _make_rounds(loop: Loop, plan: LoopPlan) -> Iterator[str]:
    """Make the rounds and measurements of a loop, adding each to it; yields lines about them."""
    steps, lab, known = plan.steps, plan.lab, loop.remarks
    begun, idle = (yield from _check_begun(loop, plan)), _count_idle_rounds(loop)
    held_out = None if steps.held_out is None else find_unfinished(lab, held_out_name(loop.name), scores=plan.scores)
    left = max(0, plan.jobs + 1 - _next_number(loop)) if plan.one_of_several else plan.jobs
    if plan.one_of_several and idle and idle % plan.patience == 0:
        left, loop.ended = 0, f"{loop.name} stays ended: nothing trained in {plan.patience} rounds in a row"
        yield loop.ended
    # it is not, if the rows come from a function, the reward did not fit them as planned, or a job is finished first
    run_is_known = loop.round_measure is not None and not (begun and begun.job)
    for _ in range(left):
        given, _ = plan.options(_next_number(loop))  # a wrong one is an error before anything is sampled
        if (held_out or _is_due(loop, plan)) and not (begun and begun.job):
            yield from _measure(loop, plan, held_out)
            held_out = None
        sees_run = not run_is_known and not (begun and begun.job)
        why, begun = _make_round(loop, plan, begun, sees_run=sees_run), None
        run_is_known |= sees_run  # reward and prompt are the same in all rounds of a call, so one look is enough
        idle = idle + 1 if why else 0
        if why and idle % plan.patience == 0:
            loop.ended = f"nothing trained in {plan.patience} rounds in a row: {why}"
        number = loop.round_results[-1][0].number
        shown = next(one for one in loop.rounds[::-1] if one.number == number)
        yield plan.line_of_round(render.line(shown, given if callable(steps.options) else {}))
        for line in loop.remarks:
            if line not in known:  # some are known only once a round is sampled
                yield line
        known = loop.remarks
        if loop.ended:
            yield loop.ended
            break
    if steps.held_out is not None:
        yield from _measure_at_end(loop, plan, held_out)


def _make_round(loop: Loop, plan: LoopPlan, begun: Unfinished | None, *, sees_run: bool) -> str:
    """Sample, score and train a round, or what `begun` lacks of one; return why nothing trained, or an empty text.

    sees_run: record before the job whether it begins another run of the model.
    """
    steps, started, number, why = plan.steps, perf_counter(), _next_number(loop), ""
    given, options = plan.options(number)
    if begun and begun.job:
        collection = steps.wait_for_job(begun.label, begun.job.id)
    else:
        rows = None if begun else plan.rows(number)
        with _record_state(loop, plan):
            collection = steps.finish_round(begun, given) if begun else steps.sample(rows, number, given)
        if sees_run:
            _see_new_run(loop, plan, collection)
        why = steps.train(collection.label, given)
    number = int(collection.label.rpartition(":")[2])
    made, how = _read_results(number, collection, options, plan.lab, plan.lab.jobs.newest_first())
    loop.round_results.append((replace(made, seconds=perf_counter() - started), how))
    return why


def _see_new_run(loop: Loop, plan: LoopPlan, collection: Collection) -> None:
    """Record what changed if a job on these completions begins another run of the model."""
    stored = collection.stored
    how = Measure(plan.lab.scorings.last(stored), read_config(stored.plan), (), ())
    loop.because = loop.because or plan.steps.find_run_changes(loop.model, loop.name, how, None)


def _check_begun(loop: Loop, plan: LoopPlan) -> Generator[str, None, Unfinished | None]:
    """Yield a line about the round that an earlier call has begun; return it if this call can go on with it.

    In that case it is taken out of the loop's results until it is finished.
    """
    begun = plan.begun
    if begun is None:
        return None
    number, (last, how) = begun.stored.generation, loop.round_results.pop()
    changed = []
    if not begun.job:
        rows = plan.rows(_next_number(loop))
        changed = plan.steps.changes_of_round(begun, plan.lab, rows, _next_number(loop), loop.state)
    if changed:
        loop.round_results.append((last, how))
        line = f"round {number} cannot go on, as what follows changed since it began: {', '.join(changed)}"
        yield _add_note(loop, line)
        return None
    yield _add_note(loop, f"round {number} goes on: {begun}")
    return begun


def _add_note(loop: Loop, line: str) -> str:
    """Add a line to the notes of the loop, and return it."""
    loop.notes.append(line)
    return line


def _count_idle_rounds(loop: Loop) -> int:
    """Count the rounds at the end of a loop in which nothing trained."""
    rounds = (one for one, _ in reversed(loop.round_results))
    return len([*takewhile(lambda one: one.reward is not None and one.options is None and not one.trained, rounds)])


def _is_due(loop: Loop, plan: LoopPlan) -> bool:
    """Whether the held-out rows are to be measured before the next round.

    Rounds are counted from the last measurement, even one of an earlier call. So a call that goes on measures before
    the same rounds as one that was not interrupted.
    """
    if plan.steps.held_out is None:
        return False
    last = loop.last_measured
    return last is None or _next_number(loop) - last >= plan.every


def _measure_at_end(loop: Loop, plan: LoopPlan, begun: Unfinished | None) -> Iterator[str]:
    """Measure the held-out rows under the newest checkpoint, and once more under the best one."""
    if begun or loop.last_measured != _next_number(loop):
        yield from _measure(loop, plan, begun)
        yield plan.line_of_round(render.line(loop.rounds[-1]))
    best = loop.best_step
    if best is None or best in loop.again:
        return
    begun = find_unfinished(plan.lab, again_name(loop.name), scores=plan.scores)
    changed = plan.steps.changes_of_measure(begun, plan.lab, loop.state, best) if begun else []
    if begun:
        yield _add_note(loop, _describe_measurement("measuring the best checkpoint again", begun, changed))
    with _record_state(loop, plan):
        measured = plan.steps.finish(begun) if begun and not changed else plan.steps.measure_again(best)
    loop.second_results.append(_read_results(_next_number(loop), measured, Options(), plan.lab))
    yield plan.line_of_round(loop.heading())


def _measure(loop: Loop, plan: LoopPlan, begun: Unfinished | None) -> Iterator[str]:
    """Measure the held-out rows under the newest checkpoint. begun: the measurement that an earlier call began."""
    changed = plan.steps.changes_of_measure(begun, plan.lab, loop.state) if begun else []
    if begun:
        yield _add_note(loop, _describe_measurement("measuring the held-out rows", begun, changed))
    with _record_state(loop, plan):
        measured = plan.steps.finish(begun) if begun and not changed else plan.steps.measure()
    loop.held_out_results.append(_read_results(_next_number(loop), measured, Options(), plan.lab))


def _describe_measurement(what: str, begun: Unfinished, changed: Sequence[str]) -> str:
    """Return a line about a measurement that an earlier call began: whether it goes on, or what has changed."""
    if changed:
        return f"{what} begins anew, as what follows changed since {begun.label} began: {', '.join(changed)}"
    return f"{what} goes on: {begun}"


def _next_number(loop: Loop) -> int:
    return 1 + (loop.round_results[-1][0].number if loop.round_results else 0)


def _read_results(
    number: int, collection: Collection, options: Options, lab: Lab, jobs: Sequence[SubmittedJob] = ()
) -> Measured:
    """Read the results of one generation, and how they were measured.

    options: decide what would train, if none of `jobs` trained on the generation. jobs: of the lab, newest first.
    """
    sent = next((job.options for job in reversed(jobs) if job.collections == (collection.label,)), None)
    sent = None if sent is None or sent.keys() & _OF_FINE_TUNING else sent
    options = options if sent is None else settle(ExperimentalTrainingConfig.model_validate(dict(sent)))
    groups, stored = collection.groups, collection.stored
    plan = read_config(stored.plan)
    made = replace(_summarize_round(number, groups, options, plan), options=sent)
    return made, measure(lab.scorings.last(stored), plan, groups)


def _summarize_round(number: int, groups: Sequence[Group], options: Options, plan: SamplingConfig | None) -> Round:
    """Compute the results of a round.

    The mean is over the first `n` completions of each group. Only groups that all failed or all passed are topped up:
    with those completions the mean would count hard and easy rows more than others, unlike in other rounds.
    """
    check = preflight(members_of(groups), options)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    first = [t for t in trajectories if plan is None or not plan.topped_up or t.position < plan.n]
    rewards, steps = [t.reward for t in first if t.reward is not None], {t.step for t in trajectories}
    mean = math.fsum(reward / len(rewards) for reward in rewards) if rewards else None
    spread = None if mean is None else math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards))
    return Round(
        number,
        steps.pop() if len(steps) == 1 else None,
        reward=mean,
        spread=spread,
        trained=check.trainable_groups / len(groups) if groups else 0.0,
        tokens=sum(t.tokens for t in trajectories),
        unscored=sum(t.reward is None for t in trajectories) if rewards else 0,
        topped_up=len(trajectories) - len(first) or None,
    )
