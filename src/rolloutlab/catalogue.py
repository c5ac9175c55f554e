"""Every collection in a table: what it holds, what it has cost."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from rolloutlab.settings_file import Price
from rolloutlab.store.notation import minute
from rolloutlab.store.records import CollectionSummary, StoredCollection

if TYPE_CHECKING:
    import pandas as pd

_COUNTS = ("mean_reward", "scored", "trajectories", "prompt_tokens", "completion_tokens", "groups", "missing")
"""A narrow terminal leaves out columns in the middle."""


def cost(collection: StoredCollection, prices: Mapping[str, Price]) -> float | None:
    """What a collection has cost in dollars, a judge at its model's price; None where that price is not known."""
    model = str(collection.plan.get("model"))
    price = prices.get(model) or prices.get(model.partition("@")[0])
    if price is None:
        return None
    return (collection.prompt_tokens * price.prompt + collection.completion_tokens * price.completion) / 1e6


def catalogue(found: Sequence[CollectionSummary], pattern: str | None, prices: Mapping[str, Price]) -> "pd.DataFrame":
    """One row per generation whose name or label fits the pattern (`cap*`), in the order given.

    Columns: mean_reward, scored, trajectories, prompt_tokens and completion_tokens (what sampling and judging took),
    groups, missing (what its plan still wants), cost in dollars where any price is known, created (UTC).
    """
    import pandas as pd

    from rolloutlab.widgets.frame import Frame

    listed = [each for each in found if pattern is None or _fits(each, pattern)]
    costs = [cost(each, prices) for each in listed]
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in listed] for name in _COUNTS}
    if any(dollars is not None for dollars in costs):
        columns["cost ($)"] = costs
    columns["created (UTC)"] = [minute(each.created_at) for each in listed]
    return Frame(columns, index=pd.Index([each.label for each in listed], name="collection"))


def _fits(collection: StoredCollection, pattern: str) -> bool:
    return fnmatchcase(collection.name, pattern) or fnmatchcase(collection.label, pattern)
