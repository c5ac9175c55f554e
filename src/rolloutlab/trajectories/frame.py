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
    """The frame, followed by the columns of the rows as `row.x`.

    types: by column, the original type of values that JSON stores as text.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {f"row.{name}": _column([row.get(name) for row in rows], types.get(name)) for name in names}
    return Frame(pd.concat([frame, Frame(columns, index=frame.index)], axis=1)) if columns else frame


def _column(values: list[Any], kind: str | None) -> Any:
    """JSON values as a pandas array. Integers and booleans keep their type even if some values are missing."""
    if kind is not None:
        with suppress(ValueError, ArithmeticError, TypeError, KeyError):  # written by another program or version
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
        if None in offsets and len(offsets) > 1:  # some times have no time zone: do not read those as UTC
            return pd.Series(stamps, dtype=object).array
        texts = pd.Series(values, dtype=object)
        return pd.Series(pd.to_datetime(texts, format="ISO8601", utc=len(offsets) > 1)).array
    made = {"date": date.fromisoformat, "time": time.fromisoformat, "decimal": Decimal}[kind]
    return pd.Series([None if value is None else made(value) for value in values], dtype=object).array


class Frame(pd.DataFrame):
    """Every `to_frame()` and every table of rolloutlab, and the frames that pandas slices or copies from it.

    A Series and the result of `describe()` are plain pandas objects: they escape HTML, but not invisible characters.
    """

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    @property
    def style(self) -> "Styler":
        """A pandas Styler that escapes HTML in cells, index and columns. Calling `format` replaces the escaping."""
        shown = self.map(_visible).rename(index=_visible, columns=_visible)
        styler: Styler = super(Frame, shown).style.format(escape="html")
        return styler.format_index(escape="html").format_index(escape="html", axis=1)

    def __repr__(self) -> str:
        return escape_control_chars(super().__repr__())

    def _repr_html_(self) -> str | None:
        """None if pandas is set to show frames as text."""
        html: str | None = super()._repr_html_()  # type: ignore[misc]  # which the stubs of pandas leave out
        return html and for_notebook(html)


class ListingFrame(Frame):
    """A frame that is shown as a listing. Frames that pandas slices or copies from it are shown as ordinary tables."""

    _metadata = ["_listing", "_listed"]
    _listing: "Listing"
    _listed: tuple[int, int]

    @classmethod
    def of(cls, frame: pd.DataFrame, listing: "Listing") -> "ListingFrame":
        """The frame, which is shown as the listing until a column or a row is added or removed."""
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
