"""Sample-score-train loop: each round is a generation of one collection."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import InputError, interrupted
from rolloutlab.objective.options import Options, settle
from rolloutlab.objective.preflight import count, preflight
from rolloutlab.sampling.dataset import rows_of
from rolloutlab.sampling.prompt import Row
from rolloutlab.sampling.split import HELD_OUT, TRAIN
from rolloutlab.store.lab import Lab
from rolloutlab.training.loop_steps import LoopSteps, again_name, held_out_name
from rolloutlab.training.submission import checked_config
from rolloutlab.trajectories.collection import Collection, members_of
from rolloutlab.trajectories.judge import Judge
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import loop as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.loop import Round
from rolloutlab.widgets.plot import Plot
from rolloutlab.widgets.progress import Live, ShownLive

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("step", "reward", "spread", "trained", "held_out", "seconds", "tokens")


@dataclass(repr=False, eq=False)
class Loop(ShownLive):
    """The rounds of a loop, shown as a chart and a table.

    Round N is the generation `NAME:N`. Held-out rows are sampled into generations of `held_out.NAME`, a name that no
    pattern which begins like NAME fits, so that they are not trained on by accident. ended: why the loop stopped before
    its last round, if it did. measured: the held-out mean by checkpoint. again: the same, measured once more with other
    seeds: the highest of several means is on average too high, the one of other seeds is not. judged: by a judge, whose
    means do not compare checkpoints.
    """

    name: str
    model: str
    rounds: list[Round]
    ended: str = ""
    measured: dict[int, float] = field(default_factory=dict)
    again: dict[int, float] = field(default_factory=dict)
    judged: bool = False

    @property
    def history(self) -> "pd.DataFrame":
        """One row per round.

        Columns: step (the checkpoint that was sampled), reward (mean), spread (standard deviation), trained (share of
        the groups that trained), held_out (mean reward there, where it was measured), seconds (of this call's rounds),
        tokens (that were sampled to train on). The last row may be the measure after the last round.
        """
        rows = [[getattr(one, column) for column in _COLUMNS] for one in self.rounds]
        kinds = {column: "Int64" if column in {"step", "tokens"} else float for column in _COLUMNS}
        return data_frame(rows, [one.number for one in self.rounds], "round", list(_COLUMNS), kinds)

    @property
    def best(self) -> str | None:
        """The checkpoint with the highest held-out mean, or mean where none was held out, as `%%chat -m` takes it."""
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
        """The held-out mean of `best`, measured again with other seeds than it was chosen by; None where it was not."""
        step = self.best_step
        return None if step is None else self.again.get(step)

    def plot(self) -> Plot:
        """Mean reward by round, of what it trains on and of what is held out."""
        return render.plot(self.name, self.rounds)

    def __repr__(self) -> str:
        return render.text(self.heading(), self.rounds, self.ended)

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self.heading(), self.plot(), self.rounds, self.ended))

    def heading(self) -> str:
        """The result in a line."""
        rounds = count(sum(one.trained is not None for one in self.rounds), "round")
        best = f", best {self.best}" if self.best else ""
        if self.best_mean is not None:
            best += f": held-out {self.best_mean:.3f} with other seeds than it was chosen by"
        return f"loop {self.name} on {self.model}: {rounds}{best}"


def check_counts(**counts: Any) -> None:
    """InputError unless each is a positive integer; `jobs` may be 0."""
    for name, value in counts.items():
        least = 0 if name == "jobs" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={least or 5}")


@dataclass(frozen=True)
class LoopPlan:
    """What a loop repeats. rows: those of a round. every: rounds between two measures. patience: idle rounds in a row
    after which it stops.
    """

    steps: LoopSteps
    rows: Callable[[int], Any]
    options: Options
    jobs: int
    every: int
    patience: int


def run_loop(steps: LoopSteps, lab: Lab, over: Any, live: Live, *, jobs: int, every: int, patience: int) -> Loop:
    """Check everything, then make `jobs` rounds after those that the lab has; after each, `live` shows the loop.

    It ends early when nothing has trained for `patience` rounds in a row. Any other error, an interrupt above all, is
    raised after the finished rounds are shown. Arguments and errors: `Session.loop`.
    """
    options = settle(checked_config(steps.options or {}))
    check_counts(jobs=jobs, every=every, patience=patience)
    limit = steps.sampling.get("limit")
    steps.check()
    lab.check_name(steps.name)
    if jobs:  # once: every round takes the same rows, also of an iterator
        over = over if callable(over) else rows_of(over, limit)
        steps = steps if steps.held_out is None else replace(steps, held_out=rows_of(steps.held_out, limit))
        _check_parts([] if callable(over) else over, steps.held_out)
        steps.check(None if callable(over) else over, steps.held_out)

    def rows(number: int) -> Any:
        if not callable(over):
            return over
        of_round = rows_of(over(number), limit)
        _check_parts(of_round, None)
        return of_round

    loop = so_far(lab, steps.name, steps.calls.selected, options, judged=isinstance(steps.reward, Judge))
    try:
        for line in _rounds(loop, LoopPlan(steps, rows, options, jobs, every, patience)):
            live.update(loop, line)
    except BaseException as error:
        following = _next(loop)
        loop.ended = f"stopped by {type(error).__name__}"
        if not isinstance(error, InputError | TypeError):  # those would stop the same call again
            loop.ended += f"; the same call goes on, at round {following} or the next"
        if isinstance(error, KeyboardInterrupt):
            interrupted(error, "its rounds are kept", f"the same call goes on, at round {following} or the next")
        live.update(loop, loop.ended)
        raise
    return loop


def _check_parts(over: Sequence[Row], held_out: Sequence[Row] | None) -> None:
    """InputError for rows that a split has held out and that a loop would train on, or the other way round."""
    for rows, part, name in ((over, HELD_OUT, "over"), (held_out or [], TRAIN, "held_out")):
        if any(row.part == part for row in rows):
            hint = "lab.loop(..., over=split.train, held_out=split.held_out)"
            raise InputError(f"rows of the part {part} of a split cannot be {name}=", hint=hint)


def so_far(lab: Lab, name: str, model: str, options: Options, *, judged: bool) -> Loop:
    """The loop as the lab has it: a round for each generation of `name`."""

    def rounds(of: str) -> list[Round]:
        stored = [each for each in lab.collections()[::-1] if each.name == of]
        return [_round(each.generation, Collection(lab, each), options) for each in stored]

    held_out, again = (
        {one.step: one for one in rounds(of) if one.step is not None and one.reward is not None}
        for of in (held_out_name(name), again_name(name))
    )
    measured, anew = (
        {step: one.reward for step, one in by.items() if one.reward is not None} for by in (held_out, again)
    )
    return Loop(name, model, _with_measures(rounds(name), held_out), measured=measured, again=anew, judged=judged)


def _with_measures(rounds: list[Round], measured: Mapping[int, Round]) -> list[Round]:
    """Each measure at the first round that samples its checkpoint; a newer checkpoint's is a row of its own."""
    left = dict(measured)
    rounds = [one if one.step is None else _measured(one, left.pop(one.step, None)) for one in rounds]
    last = rounds[-1] if rounds else None
    later = [step for step in left if last and last.step is not None and step > last.step]
    if last and later:
        rounds.append(_measured(Round(last.number + 1, max(later)), left[max(later)]))
    return rounds


def _measured(one: Round, held_out: Round | None) -> Round:
    """A round with the mean of the held-out rows under its checkpoint, where that was measured."""
    return replace(one, held_out=held_out.reward, held_out_unscored=held_out.unscored) if held_out else one


def _rounds(loop: Loop, plan: LoopPlan) -> Iterator[str]:
    """Add each round to the loop; yields a line per round."""
    steps, jobs = plan.steps, plan.jobs
    idle, measured = 0, loop.rounds.pop() if jobs and loop.rounds and loop.rounds[-1].trained is None else None
    for i in range(jobs):
        if i % plan.every == 0:
            measured = measured or _measure(loop, plan)
        begun = perf_counter()
        number = _next(loop)
        collection = steps.sample(plan.rows(number), number)
        number = int(collection.label.rpartition(":")[2])
        why = steps.train(collection.label)
        made = replace(_round(number, collection, plan.options), seconds=perf_counter() - begun)
        if measured and measured.step == made.step:  # not where another process has trained in between
            made = replace(made, held_out=measured.held_out, held_out_unscored=measured.held_out_unscored)
        loop.rounds.append(made)
        measured = None
        idle = idle + 1 if why else 0
        if idle == plan.patience:
            loop.ended = f"nothing trained in {idle} rounds in a row: {why}"
        yield render.line(made)
        if loop.ended:
            yield loop.ended
            break
    if jobs and (measured := _measure(loop, plan)):
        loop.rounds.append(measured)
        yield render.line(measured)
        best = loop.best_step
        if best is not None and best not in loop.again:
            mean = steps.measure_again(best).mean_reward
            loop.again |= {} if mean is None else {best: mean}
            yield loop.heading()


def _measure(loop: Loop, plan: LoopPlan) -> Round | None:
    """The held-out mean under the newest checkpoint, as the beginning of the next round."""
    if plan.steps.held_out is None:
        return None
    made = _round(_next(loop), plan.steps.measure(), plan.options)
    if made.step is not None and made.reward is not None:
        loop.measured[made.step] = made.reward
    return _measured(Round(made.number, made.step), made)


def _next(loop: Loop) -> int:
    return 1 + (loop.rounds[-1].number if loop.rounds else 0)


def _round(number: int, collection: Collection, options: Options) -> Round:
    groups = collection.groups
    check = preflight(members_of(groups), options)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards, steps = [t.reward for t in trajectories if t.reward is not None], {t.step for t in trajectories}
    mean = math.fsum(reward / len(rewards) for reward in rewards) if rewards else None
    spread = None if mean is None else math.hypot(*(reward - mean for reward in rewards)) / math.sqrt(len(rewards))
    return Round(
        number,
        steps.pop() if len(steps) == 1 else None,
        reward=mean,
        spread=spread,
        trained=check.trainable_groups / len(groups) if groups else 0.0,
        tokens=sum(t.tokens for t in trajectories),
        unscored=len(trajectories) - len(rewards) if rewards else 0,
    )
