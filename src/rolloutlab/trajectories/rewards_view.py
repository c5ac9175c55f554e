"""Rewards view: the rewards of collections as a table to sort, filter and edit, in a browser and in Python."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from rolloutlab.api.wire.endings import FinishReason
from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.objective.advantages import Reason
from rolloutlab.objective.preflight import WHY, WHY_NOT, count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Edit, Score, StoredCollection
from rolloutlab.trajectories.overview import summarize_job
from rolloutlab.trajectories.reward_edits import reward_of
from rolloutlab.trajectories.rewards_data import (
    AT_ONCE,
    ENDS,
    SOURCES,
    TRAINS,
    RewardsData,
    first_page,
    shared_rewards,
    title,
)
from rolloutlab.trajectories.rewards_rows import RewardsRows
from rolloutlab.trajectories.table_query import NONE, Filter, Sort
from rolloutlab.widgets import overview
from rolloutlab.widgets import rewards as render
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.html import Html, for_notebook
from rolloutlab.widgets.kit.tree import Tree, tree

if TYPE_CHECKING:
    import pandas as pd

PAGE = 100
"""Rows of a page by default."""
_MAX_PAGE = 1000
MAX_VALUE = 2000
"""Characters of a value of a row, where it is opened."""


class RewardsView(NotebookView):
    """The rewards of collections as one table, with what they would train with as one job with default options.

    It is as the lab is: what is changed elsewhere, in this kernel or another, is there at the next call. Sort and
    filter are those of the last page that was shown; an edit moves no row until the next call of `page`.

    at_once: of more trajectories than these a browser sees the first page before all are read.
    """

    module: ClassVar[str] = "rewards"

    def __init__(
        self, lab: Lab, collections: Sequence[StoredCollection], group: int | None = None, *, at_once: int = AT_ONCE
    ) -> None:
        self._lab = lab
        self._of = list(collections), group
        self._at_once = at_once
        self._lock = threading.RLock()
        self._origin: tuple[int, str | None] | None = None
        self._sort: Sort = ()
        self._filter: Filter = {}
        self._shown: Sequence[int] = ()
        self._version: object = None
        self._ids = range(0)
        self._first_of: tuple[tuple[int, int], dict[str, Any] | None] | None = None
        lab.rewards.listen(self._edited)

    def page(self, offset: int = 0, size: int = PAGE, sort: Sort = (), filter: Filter | None = None) -> dict[str, Any]:  # noqa: A002
        """A page of rows in order, as JSON: `rows`, how many there are (`total`), how many fit (`filtered`), `summary`,
        and the names of the `components` of their rewards.

        sort: a column, or several; `-` before it is descending. Ties stay as they were, what has no value is last.
        filter: a condition for each of some columns: `{"reward": "> 0.5", "completion": "paris", "source": ["hand"]}`.
        Numbers take `> 0.5`, `<= 1`, `= 0`, `0..1`, `empty` and `not empty`; texts what they contain, in whatever case
        and the completion as a whole; source, finish_reason, episode_end, reason and group one value or several.

        Raises:
            InputError: there is no such column, or a condition is not one that it takes.
        """
        offset, size = _whole("offset", offset, 0), _whole("size", size, 1)
        with self._current():
            shown = self._arranged(sort, filter or {})
            self._sort, self._filter, self._shown = sort, filter or {}, shown
            return self._page(offset, min(size, _MAX_PAGE))

    def set(self, names: str | Sequence[str], reward: Any) -> list[Edit]:
        """Give one reward by hand to one trajectory or to several: one change, logged with who, when, old and new.

        reward: a finite number, or a text that is one, written with a point; True is 1 and False is 0.

        Raises:
            RewardError: it is not a finite number. NotFoundError: a name is not of a trajectory in this view.
        """
        with self._current():
            rows = self._named(names)
            name = self._rows.name(rows[0]) if len(rows) == 1 else count(len(rows), "trajectory")
            return self._give(rows, reward_of(reward, name))

    def clear(self, names: str | Sequence[str]) -> list[Edit]:
        """Take the rewards of one trajectory or of several away: one change by hand, logged and undone like any other.

        Raises:
            NotFoundError: a name is not of a trajectory in this view, or none of them has a reward.
        """
        with self._current():
            refs = [self._rows.ref(i) for i in self._named(names)]
            edits = self._lab.rewards.give([], "hand", cleared=refs)
            self._refresh()
            if not edits:
                raise NotFoundError(f"{count(len(refs), 'trajectory')} without a reward: nothing to clear", hint="view")
        return edits

    def set_all(self, reward: Any) -> list[Edit]:
        """As `set`, for every row that was shown last, all pages of them: without a filter, for all there are.

        Raises:
            RewardError: it is not a finite number. NotFoundError: no row is shown.
        """
        with self._current():
            if not self._shown:
                raise NotFoundError(f"no trajectory of {self.title} fits the filter", hint="view.page(filter={})")
            return self._give(self._shown, reward_of(reward, count(len(self._shown), "trajectory")))

    def undo(self) -> list[Edit]:
        """Take back the newest change in these collections, of any user and source; NotFoundError when none is left."""
        with self._current():
            edits = self._lab.rewards.undo(*self._read.stored)
            self._refresh()
            if not edits:
                raise NotFoundError(f"no reward of {self.title} is left to undo", hint="%rewards NAME --history")
        return edits

    def history(self, name: str | int) -> list[Edit]:
        """Every change of a trajectory's reward, newest first; NotFoundError when it is not in this view."""
        with self._current():
            return self._lab.rewards.history(self._rows.ref(self._rows.find(name)))[::-1]

    def to_frame(self) -> "pd.DataFrame":
        """The rows shown last, all pages of them, in that order and as they are now; without sort and filter, all.

        The columns of `Collection.to_frame`, and `reason`: why it would not train, missing where it would. Where a
        reward function failed on some, `reward_error` has the type of the error and its message.
        """
        with self._current():
            return self._read.frame(self._shown)

    @property
    def _read(self) -> RewardsData:
        """All rows, read on first use, and again where other views have been used since."""
        return shared_rewards(self._lab, *self._of)

    @property
    def _rows(self) -> RewardsRows:
        return self._read.rows

    @property
    def title(self) -> str:
        """What is shown: the names of the collections, or of the group."""
        return self._read.title if self._is_read else title(*self._of)

    def state(self) -> Mapping[str, Any]:
        """What a browser shows first: the first page, neither sorted nor filtered.

        Of large collections it is shown before they are read, without what depends on all rows: `summary["trainable"]`
        is then None, and the browser requests the page again.
        """
        with self._lock:
            page = self._first_page() or self.page()
            return {
                "above": self._overview() if self._is_read else None,
                "undoable": self._undoable() if self._is_read else "",
                "title": page["title"],
                "names": self._names(),
                "page": page,
                "summary": page["summary"],
                "components": page["components"],
                "row_columns": page["row_columns"],
                "reasons": {TRAINS: TRAINS} | {str(reason): WHY_NOT.get(reason, "no reward yet") for reason in WHY},
                "sources": list(SOURCES),
                "finish_reasons": [*get_args(FinishReason), NONE],
                "episode_ends": list(ENDS),
            }

    def _names(self) -> str | list[str]:
        """What `lab.rewards` takes for this view."""
        collections, group = self._of
        labels = [self._lab.by_id(each.id).label for each in collections]
        return labels if len(labels) > 1 else title([self._lab.by_id(collections[0].id)], group)

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "page": self.page,
            "overview": self._overview,
            "outlook": self._outlook,
            "set": self._set_for_browser,
            "set_all": self._set_all_for_browser,
            "clear": self._clear_for_browser,
            "undo": self._undo_for_browser,
            "undoable": self._undoable,
            "read": self._conversation,
        }

    def __repr__(self) -> str:
        with self._lock:
            page = self._first(render.MAX_TEXT_ROWS)
            notes = summarize_job(self._read, self._lab).hints if self._is_read else ()
            return render.text(page["title"], page["summary"], page["rows"], page["filtered"], notes)

    def _repr_html_(self) -> str:
        with self._lock:
            page = self._first(render.MAX_HTML_ROWS)
            parts = page["title"], page["summary"], page["rows"], page["components"], page["filtered"]
            return for_notebook(render.html(*parts, self._figures() if self._is_read else None))

    def _first(self, size: int) -> dict[str, Any]:
        """The first rows as they are shown; before a large view is read, where a browser will show the rest soon."""
        if self.can_be_seen() and (page := self._first_page(size)):
            return page
        with self._current():
            return self._page(0, size)

    def _first_page(self, size: int = PAGE) -> dict[str, Any] | None:
        collections, group = self._of
        if self._is_read or group is not None:
            return None
        changes = self._lab.changes()
        if self._first_of is None or self._first_of[0] != changes:  # a cell shows it as text, as HTML and as state
            self._first_of = changes, first_page(self._lab, collections, PAGE, self._at_once)
        page = self._first_of[1]
        return page and {**page, "rows": page["rows"][:size]}

    @property
    def _is_read(self) -> bool:
        return self._version is not None

    def _set_for_browser(
        self, names: Sequence[str], reward: Any, shown: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """As `set`, for a browser that shows a page: that page as it is now, and what was done, in words."""
        with self._by_browser(shown):
            return self._again(shown or {}, render.given(self.set(names, reward)))

    def _set_all_for_browser(self, reward: Any, rows: int, shown: Mapping[str, Any]) -> dict[str, Any]:
        """As `set_all`, for a browser that has confirmed so many rows with a person; NotFoundError for other rows."""
        with self._by_browser(shown), self._current():
            if (rows, shown.get("filter", {})) != (len(self._shown), self._filter):
                raise NotFoundError("other rows are shown by now", hint="look at the page again, then set")
            return self._again(shown, render.given(self.set_all(reward)))

    def _clear_for_browser(self, names: Sequence[str], shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._by_browser(shown):
            return self._again(shown or {}, render.given(self.clear(names)))

    def _undo_for_browser(self, shown: Mapping[str, Any] | None = None, named: str | None = None) -> dict[str, Any]:
        """As `undo`, for a browser whose button names what it would take back; ConflictError for another change."""
        with self._by_browser(shown):
            what = self._undoable()
            if named is not None and named != what:
                message = f"another change is the newest by now: {what or 'none is left'}"
                raise ConflictError(message, hint="the button names it: press it again, or leave it")
            return self._again(shown or {}, render.undone(self.undo(), what))

    def _undoable(self) -> str:
        """What `undo` would take back, in words."""
        with self._current():
            return render.undoable(self._lab.rewards.next_undo(*self._read.stored))

    def _conversation(self, name: str | int) -> dict[str, Any]:
        """The turns of a trajectory, why a reward function failed on it, its logs, and each change of its reward."""
        with self._current():
            i = self._rows.find(name)
            outline, group = self._rows.outlines[i], self._rows.groups[self._rows.group_of[i]]
            [stored] = self._lab.groups(group.collection, group.position)
            [trajectory] = [each for each in stored.trajectories if each.id == outline.id]
            failure = self._lab.scorings.errors([trajectory.id]).get(trajectory.id, ())
            row = {
                escape_control_chars(str(k)): escape_control_chars(str(v))[:MAX_VALUE] for k, v in stored.row.items()
            }
            parts = {escape_control_chars(name): value for name, value in outline.components.items()}
            failed = [escape_control_chars(part) for part in failure if part]
            history = list(map(render.line, self.history(name)))
            logs = [escape_control_chars(str(log)) for log in trajectory.extra.get("logs") or ()]
            about = {"row": row, "components": parts, "turns": render.turns(trajectory)}
            return {**about, "failed": failed, "logs": logs, "history": history}

    def _named(self, names: str | Sequence[str]) -> list[int]:
        """The rows of names, each once."""
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, Sequence) or not listed:
            raise InputError(f"{names!r} is not a trajectory name", hint='view.set("capitals/0/3", 1.0)')
        return list(dict.fromkeys(map(self._rows.find, listed)))

    def _give(self, rows: Iterable[int], reward: float) -> list[Edit]:
        edits = self._lab.rewards.give([Score(self._rows.ref(i), reward) for i in rows], "hand")
        self._refresh()
        return edits

    def _again(self, shown: Mapping[str, Any], message: str) -> dict[str, Any]:
        """The present rewards of the rows that a browser shows, and whether they fit its filter; it has their texts.

        And what an undo would take back now.
        """
        index = self._rows.index
        rows = [index[row_id] for row_id in shown.get("ids", ()) if row_id in index]
        rewards = self._read.rewards_of(rows)
        fits = self._read.fitting(rewards, self._conditions(shown.get("filter", {})))
        marked = [{**row, "fits": i in fits} for i, row in enumerate(rewards)]
        summary, undoable = self._rows.summary(), self._undoable()
        return {"rows": marked, "summary": summary, "message": message, "undoable": undoable}

    def _page(self, offset: int, size: int) -> dict[str, Any]:
        return {
            "title": self.title,
            "rows": self._read.page(self._shown[offset : offset + size]),
            "offset": offset,
            "total": len(self._rows),
            "filtered": len(self._shown),
            "summary": self._rows.summary(),
            "components": self._read.components,
            "row_columns": self._read.row_columns,
        }

    def _overview(self) -> Tree:
        """The first line of the view, and the figures of all rows and of those that fit the filter."""
        return tree(self._figures())

    def _figures(self) -> Html:
        with self._current():
            some = None if len(self._shown) == len(self._rows) else self._shown
            whole = summarize_job(self._read, self._lab, some)
            return Html(overview.heading(self.title, whole) + overview.html(whole))

    def _outlook(self, reward: Any) -> dict[str, Any]:
        """What `set_all` would change: how many rows in how many groups, their mean before and after, edits by hand."""
        with self._current():
            if not self._shown:
                raise NotFoundError(f"no trajectory of {self.title} fits the filter", hint="view.page(filter={})")
            new = reward_of(reward, count(len(self._shown), "trajectory"))
            outlines = [self._rows.outlines[i] for i in self._shown]
            before = self._rows.summary()
            scored, mean = before["scored"], before["mean_reward"] or 0.0
            added = sum(each.reward is None for each in outlines)
            change = math.fsum(new - (each.reward or 0.0) for each in outlines)
            return {
                "reward": new,
                "rows": len(outlines),
                "groups": len({self._rows.group_of[i] for i in self._shown}),
                "before": before["mean_reward"],
                "after": (mean * scored + change) / (scored + added),
                "by_hand": sum(each.source == "hand" for each in outlines),
            }

    def _conditions(self, filter: Filter) -> Filter:  # noqa: A002
        """The conditions by column: in place of an advantage the table shows a reason, which filters that column.

        A group of this view with a slash after it is that group: as a part of a name, `letters/1/` would also be in
        those of `more-letters/1`.
        """
        if not isinstance(filter, Mapping):
            raise InputError(f"{filter!r} is not a filter", hint='filter={"reward": "> 0.5"}')
        condition = filter.get("advantage")
        if isinstance(condition, str) and condition in (TRAINS, *WHY) and "reason" not in filter:
            filter = {"reason" if name == "advantage" else name: value for name, value in filter.items()}  # noqa: A001
        name = str(filter.get("name"))
        if name.endswith("/") and self._rows.is_group(name[:-1]) and "group" not in filter:
            filter = {**{key: value for key, value in filter.items() if key != "name"}, "group": name[:-1]}  # noqa: A001
        return {name: _with_kinds(value) if name == "reason" else value for name, value in filter.items()}

    @contextmanager
    def _current(self) -> Iterator[None]:
        """With the lock, in sync with the lab."""
        with self._lock, self._read.lock:
            self._refresh()
            yield

    @contextmanager
    def _by_browser(self, shown: Mapping[str, Any] | None) -> Iterator[None]:
        """With the lock, for a browser that gets the response: other pages get its origin with the event."""
        with self._lock, self._read.lock:
            self._origin = threading.get_ident(), (shown or {}).get("origin")
            try:
                yield
            finally:
                self._origin = None

    def _refresh(self) -> None:
        """Read what was changed in the lab; where other trajectories are there now, sort and filter them again."""
        read = self._read
        read.refresh()
        if read.version is self._version:
            return
        self._version, ids = read.version, read.rows.index
        self._ids = range(min(ids, default=0), max(ids, default=-1) + 1)
        try:
            self._shown = self._arranged(self._sort, self._filter)
        except InputError:  # a component that is gone
            self._sort, self._filter, self._shown = (), {}, range(len(self._rows))

    def _arranged(self, sort: Sort, filter: Filter) -> Sequence[int]:  # noqa: A002
        return self._read.arranged(sort, self._conditions(filter))

    def _edited(self, edited: Set[int]) -> None:
        """Rewards were changed in this process; on any thread, so the view itself is left alone."""
        # ids of several collections may overlap: a page that looks again needlessly sees no change
        if not self._is_read or any(each in self._ids for each in edited):
            # listeners run on the thread of the edit: an edit of another thread meanwhile is not of this browser
            thread, origin = self._origin or (None, None)
            self.push("changed", origin=origin if thread == threading.get_ident() else None)


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={max(least, 50)}")
    return value


def _with_kinds(condition: Any) -> Any:
    """Reasons to filter by: `equal_rewards` stands for its two kinds too, which had that name in earlier versions."""
    reasons = [condition] if isinstance(condition, str) else condition
    if isinstance(reasons, list | tuple) and Reason.EQUAL_REWARDS in reasons:
        return [*reasons, Reason.ALL_FAILED, Reason.ALL_PASSED]
    return condition
