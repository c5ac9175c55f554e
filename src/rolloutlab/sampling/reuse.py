"""Samples of earlier comparisons: what a run would sample again is taken from them, and only the rest is sampled."""

from collections.abc import Sequence
from typing import Any

from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.store.lab import Lab, texts_of
from rolloutlab.store.models import Group, NewGroup, StoredCollection

_OF_RUN: dict[str, Any] = {"step": None, "total": 0}
"""Settings that sampling changes, and what they are before it."""
_OF_ROWS: dict[str, Any] = {"parts": {}, "types": {}, "template": [], "prompt_column": None}
"""Settings of all rows together, which no group depends on."""


def find_samples(
    lab: Lab, name: str, plan: SamplingConfig, groups: Sequence[NewGroup | Group], *, unscored: bool
) -> StoredCollection | None:
    """The generation of `name` in which a run goes on, as an earlier comparison has sampled some of it; else None.

    An earlier generation of the same groups is that itself. Of one with some of them, in the same places and so with
    the same seeds, what it has is copied into a new generation. unscored: no functions score the run, so that the
    rewards must be those of an environment or a program, which functions have not replaced.
    """
    if plan.checkpoint is None:
        return None
    wanted = [_key(plan, texts_of(NewGroup(group.prompt, group.row, group.script))) for group in groups]
    samples: dict[int, int] = {}
    for each in lab.generations(name):
        earlier = SamplingConfig.model_validate(each.plan)
        if not _equal(plan, earlier, _OF_RUN | _OF_ROWS) or (unscored and lab.scorings.last(each)):
            continue
        there = [(group_id, _key(plan, texts)) for group_id, texts in lab.group_texts(each)]
        if [key for _, key in there] == wanted and _equal(plan, earlier, _OF_RUN):
            return each
        for place, (key, (group_id, other)) in enumerate(zip(wanted, there, strict=False)):
            if key == other:
                samples.setdefault(place, group_id)
    if not samples:
        return None
    new = [NewGroup(group.prompt, group.row, group.script) for group in groups]
    return lab.copy_groups(name, plan.model_dump(mode="json", exclude_defaults=True), new, samples)


def _equal(one: SamplingConfig, other: SamplingConfig, but: dict[str, Any]) -> bool:
    return one.model_copy(update=but) == other.model_copy(update=but)


def _key(plan: SamplingConfig, texts: tuple[str, str, str]) -> tuple[str, ...]:
    """What a group is sampled from: its prompt, row and script; with a program, which writes the prompt, its row."""
    return texts[1:2] if plan.program else texts
