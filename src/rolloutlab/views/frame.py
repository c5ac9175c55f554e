"""Trajectories as a DataFrame: the same columns wherever one is made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

BEFORE = ("reward", "advantage")
"""Columns of a frame before those of the components. A narrow terminal leaves out columns in the middle."""
AFTER = ("source", "prompt", "finish_reason", "model", "step", "tokens", "answer")
"""Columns of a frame after those of the components."""


def frame(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    components: Sequence[Mapping[str, float]],
    more: Sequence[str] = (),
) -> "pd.DataFrame":
    """One row per trajectory, indexed by name. rows: their columns but for the components. more: columns at the end."""
    import pandas as pd

    from rolloutlab.widgets.frame import Frame

    parts = dict.fromkeys(part for each in components for part in each)
    columns = [*BEFORE, *parts, *AFTER, *more]
    told = [{**row, **each} for row, each in zip(rows, components, strict=True)]
    index = pd.Index(names, name="trajectory")
    return Frame(told, index=index, columns=columns).astype({"reward": float, "advantage": float})
