"""Sampled texts of a step of a run: the best, the worst, a random one, or the one that changed most."""

from collections.abc import Sequence
from random import Random
from typing import Literal

from rolloutlab.runs.records import RunStep
from rolloutlab.runs.run import Run
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection, StoredTrajectory, TrajectorySummary
from rolloutlab.widgets.collection import conversation_text
from rolloutlab.widgets.run import StepText

Kind = Literal["best", "worst", "random", "changed"]
KINDS: tuple[Kind, ...] = ("random", "best", "worst", "changed")
Seat = tuple[int, int]
"""The position of a group, and of a trajectory in it."""


def pick_texts(lab: Lab, runs: Sequence[Run], step: int, kind: Kind, place: int = 0) -> list[StepText]:
    """One text of each run at a step; of runs that sampled the same rows there, the same prompt.

    Args:
        lab: The store.
        runs: The runs. The first one that has the step decides which prompt it is.
        step: The checkpoint. Runs that sampled nothing there are left out.
        kind: Which text. `changed` is the one whose reward changed most since the first step with the same rows.
        place: 0 is the first of its kind, 1 the next, and so on, from the beginning again after the last.
    """
    there = [(run, own, made) for run in runs if (own := _step(run, step)) and (made := _sampled(own))]
    if not there:
        return []
    run, first, made = there[0]
    seats = _order(lab, run, first, made, kind)
    if not seats:
        return []
    seat = seats[place % len(seats)]
    rows = lab.rows(made)
    texts = [_text(lab, run, first, made, seat)]
    for other, own, sampled in there[1:]:
        place_of = seat if lab.rows(sampled) == rows else _first(_order(lab, other, own, sampled, kind))
        texts += [_text(lab, other, own, sampled, place_of)] if place_of else []
    return [text for text in texts if text]


def _step(run: Run, step: int) -> RunStep | None:
    return next((each for each in run.steps if each.step == step), None)


def _sampled(step: RunStep) -> StoredCollection | None:
    """What a checkpoint sampled: the held-out rows, which are the same at each step, else what was trained on."""
    return step.held_out or next(iter(step.collections), None)


def _order(lab: Lab, run: Run, step: RunStep, made: StoredCollection, kind: Kind) -> list[Seat]:
    """The seats of a generation: those of a kind first."""
    outlines = lab.outlines.of(made)
    if kind == "random":
        seats = [(each.group, each.position) for each in outlines]
        Random(made.name).shuffle(seats)  # the same prompt while the step changes
        return seats
    if kind == "changed":
        before = _before(lab, run, step)
        order = sorted(outlines, key=lambda each: _change(each, before), reverse=True)
    else:
        scored = [each for each in outlines if each.reward is not None]
        order = sorted(scored, key=lambda each: each.reward or 0.0, reverse=kind == "best")
    return [(each.group, each.position) for each in order]


def _before(lab: Lab, run: Run, step: RunStep) -> dict[Seat, float]:
    """Rewards at the first step of the run that sampled the same rows, by seat."""
    made = _sampled(step)
    for each in run.steps:
        first = _sampled(each)
        if each.step < step.step and first and made and lab.rows(first) == lab.rows(made):
            return {(o.group, o.position): o.reward for o in lab.outlines.of(first) if o.reward is not None}
    return {}


def _change(outline: TrajectorySummary, before: dict[Seat, float]) -> float:
    """How far its reward is from the one before; 0 if there is none of either."""
    earlier = before.get((outline.group, outline.position))
    return 0.0 if earlier is None or outline.reward is None else abs(outline.reward - earlier)


def _first(seats: Sequence[Seat]) -> Seat | None:
    return seats[0] if seats else None


def _text(lab: Lab, run: Run, step: RunStep, made: StoredCollection, seat: Seat) -> StepText | None:
    for group in lab.groups(made, seat[0]):
        for trajectory in group.trajectories:
            if trajectory.position == seat[1]:
                return _shown(run, step, made, group, trajectory, _before(lab, run, step).get(seat))
    return None


def _shown(
    run: Run, step: RunStep, made: StoredCollection, group: Group, trajectory: StoredTrajectory, before: float | None
) -> StepText:
    answer = conversation_text(trajectory.items[len(group.prompt) :]) or "(no text)"
    reward = trajectory.reward
    return StepText(
        run=run.name,
        step=step.step,
        group=f"{made.name}:{made.generation}/{group.position}",
        prompt=trajectory.prompt or conversation_text(group.prompt),
        answer=answer,
        reward=reward,
        change=None if before is None or reward is None else reward - before,
        tokens=trajectory.tokens,
        cut_off=trajectory.finish_reason == "length",
        row={name: str(value) for name, value in group.row.items()},
    )
