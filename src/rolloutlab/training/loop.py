"""Sample, score, train, and again: a loop of rounds, each of which is a generation of one collection."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rolloutlab.collection import Collection, members_of
from rolloutlab.errors import NothingTrainsError
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import count, preflight
from rolloutlab.store.lab import Lab
from rolloutlab.widgets import loop as view
from rolloutlab.widgets.live import Live
from rolloutlab.widgets.loop import Round
from rolloutlab.widgets.plot import Plot

if TYPE_CHECKING:
    import pandas as pd

SEEDS_PER_ROUND = 1_000_000
"""A row of a round has a seed of its own; rounds of so many rows do not share any."""

_COLUMNS = ("step", "reward", "spread", "trained", "held_out", "seconds", "tokens")


class Loop:
    """What the rounds of a loop came to; shown, a chart and a table of them.

    Round N is the generation `NAME:N`. What was held out is sampled into generations of `held_out.NAME`, a name that
    no pattern which begins like NAME fits, so that it is not trained on by accident. ended: why the loop stopped
    before its last round, if it did.
    """

    def __init__(self, name: str, model: str, rounds: list[Round], ended: str = "") -> None:
        self.name = name
        self.model = model
        self.rounds = rounds
        self.ended = ended

    @property
    def history(self) -> "pd.DataFrame":
        """One row per round.

        Columns: step (the checkpoint that was sampled), reward (mean), spread (standard deviation), trained (share of
        the groups that trained), held_out (mean reward there, where it was measured), seconds (of this call's rounds),
        tokens (that were sampled to train on). The last row may be the measure after the last round.
        """
        import pandas as pd

        rows = [[getattr(one, column) for column in _COLUMNS] for one in self.rounds]
        index = pd.Index([one.number for one in self.rounds], name="round")
        kinds = {column: "Int64" if column in {"step", "tokens"} else float for column in _COLUMNS}
        return pd.DataFrame(rows, columns=list(_COLUMNS), index=index, dtype=object).astype(kinds)

    @property
    def best(self) -> str | None:
        """The checkpoint with the highest held-out mean, or mean where none was held out, as `%%chat -m` takes it."""
        held = [(one.held_out, one.step) for one in self.rounds if one.held_out is not None and one.step is not None]
        own = [(one.reward, one.step) for one in self.rounds if one.reward is not None and one.step is not None]
        found = max(held or own, key=lambda pair: pair[0], default=None)
        return f"{self.model}@{found[1]}" if found else None

    def plot(self) -> Plot:
        """Mean reward by round, of what it trains on and of what is held out."""
        return view.plot(self.name, self.rounds)

    def __repr__(self) -> str:
        return view.text(self._heading(), self.rounds, self.ended)

    def _repr_html_(self) -> str:
        return view.html(self._heading(), self.plot(), self.rounds, self.ended)

    def _heading(self) -> str:
        played = count(sum(one.trained is not None for one in self.rounds), "round")
        best = f", best {self.best}" if self.best else ""
        return f"loop {self.name} on {self.model}: {played}{best}"


@dataclass(frozen=True)
class Plan:
    """What a loop does in a round.

    sample: from a collection's name, rows and the round to a scored collection; the round is None for the held-out
    rows, which are sampled alike each time. rows: those of a round. train: takes a collection's label.
    """

    sample: Callable[[str, Any, int | None], Collection]
    rows: Callable[[int], Any]
    train: Callable[[str], object]
    held_out: Any = None
    every: int = 5
    patience: int = 3


def so_far(lab: Lab, name: str, model: str, options: Options) -> Loop:
    """The loop as the lab's collections tell it: a round for each generation of `name`."""
    found = lab.collections()[::-1]
    rounds = [_round(s.generation, Collection(lab, s), options) for s in found if s.name == name]
    measured = [_round(0, Collection(lab, s), options) for s in found if s.name == _held_out(name)]
    held: dict[int | None, float | None] = {one.step: one.reward for one in measured if one.step is not None}
    rounds = [replace(one, held_out=held.pop(one.step, None)) for one in rounds]
    last = rounds[-1] if rounds else None
    later = [step for step in held if step is not None and last and last.step is not None and step > last.step]
    if last and later:
        rounds.append(Round(last.number + 1, max(later), held_out=held[max(later)]))
    return Loop(name, model, rounds)


def play(loop: Loop, plan: Plan, jobs: int, options: Options, live: Live) -> Loop:
    """Make up to `jobs` more rounds; after each, `live` shows the loop.

    It ends early, and says why, when nothing has trained for `plan.patience` rounds in a row. Whatever else stops it,
    an interrupt above all, is raised after the rounds that are there are shown.
    """
    try:
        for said in _rounds(loop, plan, jobs, options):
            live.update(loop, said)
    except BaseException as error:
        following = 1 + (loop.rounds[-1].number if loop.rounds else 0)
        loop.ended = f"stopped by {type(error).__name__}; the same call goes on, at round {following} or the next"
        live.update(loop, loop.ended)
        raise
    return loop


def _rounds(loop: Loop, plan: Plan, jobs: int, options: Options) -> Iterator[str]:
    """Each round is added to the loop, and told in a line."""
    idle, loop.rounds = 0, [one for one in loop.rounds if one.trained is not None] if jobs else loop.rounds
    for i in range(jobs):
        measured = _measure(loop, plan, options) if i % plan.every == 0 else None
        begun = perf_counter()
        number = _next(loop)
        collection = plan.sample(loop.name, plan.rows(number), number)
        number = int(collection.label.rpartition(":")[2])
        why = _trained(plan, collection)
        seconds, held_out = perf_counter() - begun, measured.held_out if measured else None
        made = replace(_round(number, collection, options), seconds=seconds, held_out=held_out)
        loop.rounds.append(made)
        idle = idle + 1 if why else 0
        if idle == plan.patience:
            loop.ended = f"nothing trained in {idle} rounds in a row: {why}"
        yield view.line(made)
        if loop.ended:
            yield loop.ended
            break
    if jobs and (measured := _measure(loop, plan, options)):
        loop.rounds.append(measured)
        yield view.line(measured)


def _trained(plan: Plan, collection: Collection) -> str:
    """Train on a round; why nothing of it trained, or nothing."""
    try:
        plan.train(collection.label)
    except NothingTrainsError as error:
        return error.message.partition(": ")[2] or error.message
    return ""


def _measure(loop: Loop, plan: Plan, options: Options) -> Round | None:
    """The held-out mean under the newest checkpoint, as the beginning of the next round."""
    if plan.held_out is None:
        return None
    made = _round(_next(loop), plan.sample(_held_out(loop.name), plan.held_out, None), options)
    return Round(made.number, made.step, held_out=made.reward)


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
    )


def _held_out(name: str) -> str:
    return f"held_out.{name}"
