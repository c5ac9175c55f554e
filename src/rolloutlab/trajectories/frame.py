"""DataFrames of trajectories, with the same columns everywhere, that a notebook shows escaped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import for_notebook

BEFORE = ("reward", "advantage")
"""Columns of a frame before those of the components. A narrow terminal leaves out columns in the middle."""
AFTER = ("source", "prompt", "finish_reason", "model", "step", "tokens", "answer")
"""Columns of a frame after those of the components."""


def frame(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    components: Sequence[Mapping[str, float]],
    more: Sequence[str] = (),
) -> pd.DataFrame:
    """One row per trajectory, indexed by name. rows: their columns but for the components. more: columns at the end."""
    parts = dict.fromkeys(part for each in components for part in each)
    columns = [*BEFORE, *parts, *AFTER, *more]
    cells = [{**row, **each} for row, each in zip(rows, components, strict=True)]
    index = pd.Index(names, name="trajectory")
    return Frame(cells, index=index, columns=columns).astype({"reward": float, "advantage": float})


class Frame(pd.DataFrame):
    """Every `to_frame()` and every table of rolloutlab, and what pandas derives from it."""

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    def __repr__(self) -> str:
        return escape_control_chars(super().__repr__())

    def _repr_html_(self) -> str | None:
        """None where pandas is told to show text."""
        html: str | None = super()._repr_html_()  # type: ignore[misc]  # which the stubs of pandas leave out
        return html and for_notebook(html)
