"""Tables of a lab: its collections with counts and cost, and the history of a collection's rewards."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from rolloutlab.errors import InputError
from rolloutlab.settings import Price
from rolloutlab.store.models import CollectionSummary, StoredCollection, minute
from rolloutlab.store.rewards import Rewards
from rolloutlab.trajectories.frame import Frame

_COUNTS = ("mean_reward", "scored", "trajectories", "prompt_tokens", "completion_tokens", "groups", "missing")
"""A narrow terminal leaves out columns in the middle."""


def cost(collection: StoredCollection, prices: Mapping[str, Price]) -> float | None:
    """What a collection has cost in dollars, a judge at its model's price; None where that price is not known."""
    model = str(collection.plan.get("model"))
    price = prices.get(model) or prices.get(model.partition("@")[0])
    if price is None:
        return None
    return (collection.prompt_tokens * price.prompt + collection.completion_tokens * price.completion) / 1e6


def catalogue(
    collections: Sequence[CollectionSummary], pattern: str | None, prices: Mapping[str, Price]
) -> pd.DataFrame:
    """One row per generation whose name or label fits the pattern (`cap*`), in the order given.

    Columns: mean_reward, scored, trajectories, prompt_tokens and completion_tokens (what sampling and judging took),
    groups, missing (trajectories of its plan that are not sampled yet), cost in dollars where any price is known,
    created (UTC).

    Raises:
        InputError: the pattern is not a text.
    """
    if pattern is not None and not isinstance(pattern, str):
        raise InputError(f"a {type(pattern).__name__} is not a pattern", hint="%collections 'cap*'")
    listed = [c for c in collections if not pattern or fnmatchcase(c.name, pattern) or fnmatchcase(c.label, pattern)]
    costs = [cost(each, prices) for each in listed]
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in listed] for name in _COUNTS}
    if any(dollars is not None for dollars in costs):
        columns["cost ($)"] = costs
    columns["created (UTC)"] = [minute(each.created_at) for each in listed]
    return Frame(columns, index=pd.Index([each.label for each in listed], name="collection"))


def reward_history(rewards: Rewards, collection: StoredCollection) -> pd.DataFrame:
    """One row per changed reward, newest first, indexed by the number of the change.

    Columns: trajectory, when (UTC, whole seconds), who, source, old, new, note.
    """
    edits = rewards.history_of(collection)
    columns = ["trajectory", "when", "who", "source", "old", "new", "note"]
    rows = [[e.trajectory, e.at, e.who, e.source, e.old, e.new, e.note or ""] for e in edits]
    frame = Frame(rows, columns=columns, index=pd.Index([e.change for e in edits], name="change"))
    when = pd.to_datetime(frame["when"], format="ISO8601", utc=True).dt.floor("s")
    return frame.assign(when=when).astype({"old": float, "new": float})
