"""DataFrames of trajectories, collections and reward history, shown with escaped text."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pandas as pd

from rolloutlab.errors import InputError
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import Price
from rolloutlab.store.models import CollectionSummary, StoredCollection, minute
from rolloutlab.store.rewards import Rewards
from rolloutlab.store.scorings import StoredScoring
from rolloutlab.widgets.html import for_notebook

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

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


def with_rows(frame: pd.DataFrame, rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """The frame with the columns of rows after its own, as `row.x`. types: of values that JSON has as text."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {f"row.{name}": _column([row.get(name) for row in rows], types.get(name)) for name in names}
    return Frame(pd.concat([frame, pd.DataFrame(columns, index=frame.index)], axis=1)) if columns else frame


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
        with suppress(ValueError):  # of several time zones
            return pd.Series(pd.to_datetime(pd.Series(values, dtype=object), format="ISO8601")).array
        return pd.Series(pd.to_datetime(pd.Series(values, dtype=object), format="ISO8601", utc=True)).array
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


def _visible(value: Any) -> Any:
    return escape_control_chars(value) if isinstance(value, str) else value


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
    listed = [
        c for c in collections if pattern is None or fnmatchcase(c.name, pattern) or fnmatchcase(c.label, pattern)
    ]
    costs = [cost(each, prices) for each in listed]
    columns: dict[str, list[Any]] = {name: [getattr(each, name) for each in listed] for name in _COUNTS}
    if any(dollars is not None for dollars in costs):
        columns["cost ($)"] = costs
    columns["created (UTC)"] = [minute(each.created_at) for each in listed]
    return Frame(columns, index=pd.Index([each.label for each in listed], name="collection"))


def reward_history(rewards: Rewards, scorings: Sequence[StoredScoring], collection: StoredCollection) -> pd.DataFrame:
    """One row per changed reward, newest first, indexed by the number of the change.

    Columns: trajectory, when (UTC, whole seconds), who, source, old, new, note, by (the names of the functions, or of
    the judge's model), code (their source text, or the rubric). scorings: of the collection, newest first.
    """
    edits = rewards.history_of(collection)
    columns = ["trajectory", "when", "who", "source", "old", "new", "note", "by", "code"]
    by = {s.change: (", ".join([*([s.style] if s.style else []), *s.names]), s.code) for s in scorings[::-1]}
    none = "", ""
    rows = [[e.trajectory, e.at, e.who, e.source, e.old, e.new, e.note or "", *by.get(e.change, none)] for e in edits]
    frame = Frame(rows, columns=columns, index=pd.Index([e.change for e in edits], name="change"))
    when = pd.to_datetime(frame["when"], format="ISO8601", utc=True).dt.floor("s")
    return frame.assign(when=when).astype({"old": float, "new": float})
