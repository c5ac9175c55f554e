"""DataFrames with escaped text and typed columns. Other modules import this one late, because it imports pandas."""

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


def add_row_columns(frame: pd.DataFrame, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """Add the columns of rows to a frame, as `row.x`.

    types: the original types of values that JSON stores as text, by column.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {f"row.{name}": _make_column([row.get(name) for row in rows], types.get(name)) for name in names}
    return Frame(pd.concat([frame, Frame(columns, index=frame.index)], axis=1)) if columns else frame


def _make_column(values: list[Any], kind: str | None) -> Any:
    """Make a pandas array of JSON values. Integers and booleans keep their type even if some values are missing.

    kind: the original type of the values, if JSON stores it as text.
    """
    if kind is not None:
        # another program or version may have written a value or a kind that cannot be read
        with suppress(ValueError, ArithmeticError, TypeError, KeyError):
            return _restore_type(values, kind)
    types = {type(value) for value in values if value is not None}
    if None in values and types in ({int}, {bool}):
        with suppress(OverflowError, TypeError):  # larger than 64 bits
            return pd.array(values, dtype="Int64" if types == {int} else "boolean")
    return pd.Series(values, dtype=None if types <= {int, float} or types in ({str}, {bool}) else object).array


def _restore_type(values: list[Any], kind: str) -> Any:
    """Convert texts to their original type: `datetime`, `date`, `time` or `decimal`."""
    if kind == "datetime":
        stamps = [None if value is None else pd.Timestamp(value) for value in values]
        offsets = {stamp.utcoffset() for stamp in stamps if stamp is not None}
        if None in offsets and len(offsets) > 1:  # some times have no time zone: `utc=True` would read them as UTC
            return pd.Series(stamps, dtype=object).array
        texts = pd.Series(values, dtype=object)
        return pd.Series(pd.to_datetime(texts, format="ISO8601", utc=len(offsets) > 1)).array
    made = {"date": date.fromisoformat, "time": time.fromisoformat, "decimal": Decimal}[kind]
    return pd.Series([None if value is None else made(value) for value in values], dtype=object).array


class Frame(pd.DataFrame):
    """A DataFrame that escapes text: each `to_frame()`, each table, and the frames that pandas makes of these.

    A Series and the result of `describe()` are plain pandas objects: they escape HTML, but not invisible characters.
    """

    @property
    def _constructor(self) -> "type[Frame]":
        return Frame

    @property
    def style(self) -> "Styler":
        """A pandas Styler that escapes HTML in cells, index and columns. Calling `format` replaces the escaping."""
        shown = self.map(_escape).rename(index=_escape, columns=_escape)
        styler: Styler = super(Frame, shown).style.format(escape="html")
        return styler.format_index(escape="html").format_index(escape="html", axis=1)

    def __repr__(self) -> str:
        return escape_control_chars(super().__repr__())

    def _repr_html_(self) -> str | None:
        """Return the frame as HTML; None if pandas is set to show frames as text."""
        html: str | None = super()._repr_html_()  # type: ignore[misc]  # which the stubs of pandas leave out
        return html and for_notebook(html)


class ListingFrame(Frame):
    """A frame that is shown as a listing. Frames that pandas slices or copies from it are shown as ordinary tables."""

    _metadata = ["_listing", "_listed"]
    _listing: "Listing"
    _listed: tuple[int, int]

    @classmethod
    def of(cls, frame: pd.DataFrame, listing: "Listing") -> "ListingFrame":
        """Show a frame as a listing, until a column or a row is added or removed."""
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


def _escape(value: Any) -> Any:
    return escape_control_chars(value) if isinstance(value, str) else value
