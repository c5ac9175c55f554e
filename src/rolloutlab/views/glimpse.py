"""The first rows of collections that are too large to be read before anything of them is shown."""

import math
from collections.abc import Sequence
from typing import Any

from rolloutlab.store.lab import Lab
from rolloutlab.store.records import StoredCollection
from rolloutlab.views.reading import Reading

AT_ONCE = 20_000
"""Trajectories that are read in a tenth of a second or so; of more, some are shown before all are read."""
_UNKNOWN = {"advantage": None, "reason": None, "why": None}


def glimpse(lab: Lab, collections: Sequence[StoredCollection], size: int, at_once: int) -> dict[str, Any] | None:
    """The first page as `RewardsView.page` tells it, but for what depends on all rows: advantages, and what trains.

    None where there are no more than `at_once` trajectories.
    """
    counted = [lab.collection(lab.kept(each.id).label) for each in collections]
    trajectories, scored = sum(each.trajectories for each in counted), sum(each.scored for each in counted)
    if trajectories <= at_once:
        return None
    first = Reading(lab, collections, None, size)
    means = [each.mean_reward * (each.scored / scored) for each in counted if each.mean_reward is not None]
    summary = {
        "trajectories": trajectories,
        "scored": scored,
        "mean_reward": math.fsum(means) if scored else None,
        "groups": sum(each.groups for each in counted),
        "trainable": None,
    }
    return {
        "title": first.title,
        "components": first.components,
        "rows": [{**row, **_UNKNOWN} for row in first.page(range(len(first.rows)))],
        "offset": 0,
        "total": trajectories,
        "filtered": trajectories,
        "summary": summary,
    }
