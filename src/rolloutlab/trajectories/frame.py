"""DataFrames with escaped text and typed columns. This module imports pandas, so it is imported late itself."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd

from rolloutlab.sanitize import escape_control_chars
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.listing import terminal_width

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

    from rolloutlab.widgets.kit.listing import Listing


def with_rows(frame: pd.DataFrame, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """The frame with the columns of rows after its own, as `row.x`. types: of values that JSON has as text."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {f"row.{name}": _column([row.get(name) for row in rows], types.get(name)) for name in names}
    return Frame(pd.concat([frame, Frame(columns, index=frame.index)], axis=1)) if columns else frame


def _column(values: list[Any], kind: str | None) -> Any:
    """Values of JSON as pandas has them: whole numbers and booleans stay that where some are missing."""
    if kind is not None:
        with suppress(ValueError, ArithmeticError, TypeError, KeyError):  # of another program, or a newer version
            return _typed(values, kind)
    types = {type(value) for value in values if value is not None}
    if None in values and types in ({int}, {bool}):
        with suppress(OverflowError, TypeError):  # larger than 64 bits
            return pd.array(values, dtype="Int64" if types == {int} else "boolean")
    return pd.Series(values, dtype=None if types <= {int, float} or types in ({str}, {bool}) else object).array


def _typed(values: list[Any], kind: str) -> Any:
    if kind == "datetime":
        stamps = [None if value is None else pd.Timestamp(value) for value in values]
        offsets = {stamp.utcoffset() for stamp in stamps if stamp is not None}
        if None in offsets and len(offsets) > 1:  # some without a time zone: they are not UTC
            return pd.Series(stamps, dtype=object).array
        texts = pd.Series(values, dtype=object)
        return pd.Series(pd.to_datetime(texts, format="ISO8601", utc=len(offsets) > 1)).array
    made = {"date": date.fromisoformat, "time": time.fromisoformat, "decimal": Decimal}[kind]
    return pd.Series([None if value is None else made(value) for value in values], dtype=object).array


class Frame(pd.DataFrame):
    """Every `to_frame()` and every table of rolloutlab, and the frames that pandas slices or copies from it.

    A Series, and `describe()`, are those of pandas, which escape HTML but show invisible characters as they are.
    """

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    @property
    def style(self) -> "Styler":
        """A Styler of pandas that escapes HTML in cells, index and columns; a `format` of your own replaces that."""
        shown = self.map(_visible).rename(index=_visible, columns=_visible)
        styler: Styler = super(Frame, shown).style.format(escape="html")
        return styler.format_index(escape="html").format_index(escape="html", axis=1)

    def __repr__(self) -> str:
        return escape_control_chars(super().__repr__())

    def _repr_html_(self) -> str | None:
        """None where pandas is told to show text."""
        html: str | None = super()._repr_html_()  # type: ignore[misc]  # which the stubs of pandas leave out
        return html and for_notebook(html)


class ListingFrame(Frame):
    """A table of a lab that is shown as its listing; what pandas slices or copies from it is shown by pandas."""

    _metadata = ["_listing", "_listed"]
    _listing: "Listing"
    _listed: tuple[int, int]

    @classmethod
    def of(cls, frame: pd.DataFrame, listing: "Listing") -> "ListingFrame":
        """The frame, shown so until a column or a row is added to it or taken away."""
        made = cls(frame)
        made._listing, made._listed = listing, frame.shape
        return made

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    def __repr__(self) -> str:
        return self._listing.text(terminal_width()) if self.shape == self._listed else super().__repr__()

    def _repr_html_(self) -> str | None:
        html = super()._repr_html_()
        return for_notebook(self._listing.html()) if html and self.shape == self._listed else html


def _visible(value: Any) -> Any:
    return escape_control_chars(value) if isinstance(value, str) else value
