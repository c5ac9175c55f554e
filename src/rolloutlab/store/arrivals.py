"""Samples, serialized as the lab stores them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolloutlab.store.models import Arrival, Group, dump_items
from rolloutlab.store.trajectory_summaries import outline_of


class DumpedArrival(NamedTuple):
    """An `Arrival` whose values are serialized. outline: what `outline_of` returns for the arrival."""

    position: int
    items: str
    pending: int
    extra: str
    components: Mapping[str, float]
    outline: tuple[str, str | None, str, str | None]


@dataclass(frozen=True)
class Placed:
    """Samples of one group, with their model, step and sampling settings. usage: their prompt and completion tokens."""

    group: Group
    arrivals: Sequence[DumpedArrival]
    model: str
    step: int | None
    sampling: Mapping[str, Any]
    usage: tuple[int, int] = (0, 0)


def dump_arrival(arrival: Arrival) -> DumpedArrival:
    """Serialize an arrival."""
    outline, extra = outline_of(arrival.items, arrival.extra), json.dumps(arrival.extra)
    return DumpedArrival(
        arrival.position, dump_items(arrival.items), arrival.pending, extra, arrival.components, outline
    )
