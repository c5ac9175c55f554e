"""A DataFrame that is shown as it is written, whatever a completion or a name in it looks like."""

import pandas as pd

from rolloutlab.visible import as_written, visible


class Frame(pd.DataFrame):
    """What every `to_frame()` and every table of ours is, and what is made of it by selecting or sorting."""

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    def __repr__(self) -> str:
        return visible(super().__repr__())

    def _repr_html_(self) -> str | None:
        """None where pandas is told to show text."""
        html: str | None = super()._repr_html_()  # type: ignore[misc]  # which the stubs of pandas leave out
        return html and as_written(html)
