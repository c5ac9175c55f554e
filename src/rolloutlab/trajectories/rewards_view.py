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
    read_first_page,
    shared_rewards,
    title_of,
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
"""The most rows of a page."""
MAX_VALUE = 2000
"""The most characters of a row's value that are shown when a trajectory is opened."""


class RewardsView(NotebookView):
    """The rewards of collections as one table, with the advantages of one job on all of them with default options.

    Every call shows the lab as it is now, including changes by other views and other kernels. The view keeps the sort
    and the filter of the last call of `page`. An edit moves no row until the next call of `page`.

    Args:
        lab: The lab.
        collections: The collections.
        group: The position of the only group to show.
        at_once: If there are more trajectories, a browser gets the first page before all are read.
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
        lab.rewards.listen(self._on_edit)

    def page(self, offset: int = 0, size: int = PAGE, sort: Sort = (), filter: Filter | None = None) -> dict[str, Any]:  # noqa: A002
        """Return a page of rows, as JSON.

        It has `rows`, the number of all rows (`total`) and of those that match the filter (`filtered`), `summary`, and
        the names of the reward `components`.

        Args:
            offset: The number of rows to skip.
            size: The most rows of the page.
            sort: A column, or several; `-` before a name sorts it in descending order. Rows with equal values keep
                their order. Rows without a value come last.
            filter: Conditions by column, such as `{"reward": "> 0.5", "completion": "paris", "source": ["hand"]}`. All
                must hold. See the table.

        | column | condition |
        |---|---|
        | numbers | `> 0.5`, `<= 1`, `= 0`, `0..1`, `empty`, `not empty` |
        | texts | a part of the text, in upper or lower case; of a completion, anywhere in it |
        | source, finish_reason, episode_end, reason, group | one value, or a list of values |

        Raises:
            InputError: there is no such column, or the column does not take the condition.
        """
        offset, size = _check_integer("offset", offset, 0), _check_integer("size", size, 1)
        with self._in_sync():
            shown = self._arrange(sort, filter or {})
            self._sort, self._filter, self._shown = sort, filter or {}, shown
            return self._page(offset, min(size, _MAX_PAGE))

    def set(self, names: str | Sequence[str], reward: Any) -> list[Edit]:
        """Give one reward by hand to one or several trajectories. The log has who, when, old and new.

        reward: a finite number, or such a number as text with a decimal point. True is 1 and False is 0.

        Raises:
            RewardError: the reward is not a finite number. NotFoundError: a trajectory is not in this view.
        """
        with self._in_sync():
            rows = self._find_rows(names)
            name = self._rows.name(rows[0]) if len(rows) == 1 else count(len(rows), "trajectory")
            return self._give(rows, reward_of(reward, name))

    def clear(self, names: str | Sequence[str]) -> list[Edit]:
        """Clear the rewards of one or several trajectories. It is logged, and can be undone, like any other change.

        Raises:
            NotFoundError: a trajectory is not in this view, or none of them has a reward.
        """
        with self._in_sync():
            refs = [self._rows.ref(i) for i in self._find_rows(names)]
            edits = self._lab.rewards.give([], "hand", cleared=refs)
            self._refresh()
            if not edits:
                raise NotFoundError(f"{count(len(refs), 'trajectory')} without a reward: nothing to clear", hint="view")
        return edits

    def set_all(self, reward: Any) -> list[Edit]:
        """Set the reward of every row that fits the filter of the last call of `page`, on all of its pages.

        Raises:
            RewardError: the reward is not a finite number. NotFoundError: no row fits the filter.
        """
        with self._in_sync():
            if not self._shown:
                raise NotFoundError(f"no trajectory of {self.title} fits the filter", hint="view.page(filter={})")
            return self._give(self._shown, reward_of(reward, count(len(self._shown), "trajectory")))

    def undo(self) -> list[Edit]:
        """Undo the newest change in these collections, by any user and any source; NotFoundError if none is left."""
        with self._in_sync():
            edits = self._lab.rewards.undo(*self._read.stored)
            self._refresh()
            if not edits:
                raise NotFoundError(f"no reward of {self.title} is left to undo", hint="%rewards NAME --history")
        return edits

    def history(self, name: str | int) -> list[Edit]:
        """Every change of a trajectory's reward, newest first; NotFoundError if the trajectory is not in this view."""
        with self._in_sync():
            return self._lab.rewards.history(self._rows.ref(self._rows.find(name)))[::-1]

    def to_frame(self) -> "pd.DataFrame":
        """Return the rows of all pages, with the sort and filter of the last call of `page` and the present rewards.

        Its columns are those of `Collection.to_frame`, and:

        - `reason`: why the trajectory would not train; missing if it would.
        - `reward_error`, if a reward function failed on any trajectory: type and message of the error.
        """
        with self._in_sync():
            return self._read.frame(self._shown)

    @property
    def _read(self) -> RewardsData:
        """The data of all rows. It is read on first use, and again if other views have taken its place in the cache."""
        return shared_rewards(self._lab, *self._of)

    @property
    def _rows(self) -> RewardsRows:
        return self._read.rows

    @property
    def title(self) -> str:
        """What is shown: the names of the collections, or of the group."""
        return self._read.title if self._is_read else title_of(*self._of)

    def state(self) -> Mapping[str, Any]:
        """Return what a browser shows first: the first page, neither sorted nor filtered.

        Large collections are not read completely for it. Figures that depend on all rows are then left out:
        `summary["trainable"]` is None, and the browser requests the page again.
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
        """Return the names with which `lab.rewards` makes this view."""
        collections, group = self._of
        labels = [self._lab.by_id(each.id).label for each in collections]
        return labels if len(labels) > 1 else title_of([self._lab.by_id(collections[0].id)], group)

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
            "read": self._read_conversation,
        }

    def __repr__(self) -> str:
        with self._lock:
            page = self._read_first(render.MAX_TEXT_ROWS)
            notes = summarize_job(self._read, self._lab).hints if self._is_read else ()
            return render.text(page["title"], page["summary"], page["rows"], page["filtered"], notes)

    def _repr_html_(self) -> str:
        with self._lock:
            page = self._read_first(render.MAX_HTML_ROWS)
            parts = page["title"], page["summary"], page["rows"], page["components"], page["filtered"]
            return for_notebook(render.html(*parts, self._figures() if self._is_read else None))

    def _read_first(self, size: int) -> dict[str, Any]:
        """Read the first rows. If a browser will show the rest soon, a large view is not read completely for them."""
        if self.can_be_seen() and (page := self._first_page(size)):
            return page
        with self._in_sync():
            return self._page(0, size)

    def _first_page(self, size: int = PAGE) -> dict[str, Any] | None:
        """Return the first page of a large view before all its rows are read; None if they are read, or are few."""
        collections, group = self._of
        if self._is_read or group is not None:
            return None
        changes = self._lab.changes()
        # cached, because one cell asks for it three times: for text, HTML and state
        if self._first_of is None or self._first_of[0] != changes:
            self._first_of = changes, read_first_page(self._lab, collections, PAGE, self._at_once)
        page = self._first_of[1]
        return page and {**page, "rows": page["rows"][:size]}

    @property
    def _is_read(self) -> bool:
        """Whether all rows have been read once."""
        return self._version is not None

    def _set_for_browser(
        self, names: Sequence[str], reward: Any, shown: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Set rewards for a browser; return the rows of the page that it shows, as they are now, and a message."""
        with self._for_browser(shown):
            return self._answer_browser(shown or {}, render.given_message(self.set(names, reward)))

    def _set_all_for_browser(self, reward: Any, rows: int, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Set the rewards of all rows that fit the filter, for a browser.

        rows: the number of rows that a person has confirmed. Raise NotFoundError if other rows fit by now.
        """
        with self._for_browser(shown), self._in_sync():
            if (rows, shown.get("filter", {})) != (len(self._shown), self._filter):
                raise NotFoundError("other rows are shown by now", hint="look at the page again, then set")
            return self._answer_browser(shown, render.given_message(self.set_all(reward)))

    def _clear_for_browser(self, names: Sequence[str], shown: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._for_browser(shown):
            return self._answer_browser(shown or {}, render.given_message(self.clear(names)))

    def _undo_for_browser(self, shown: Mapping[str, Any] | None = None, named: str | None = None) -> dict[str, Any]:
        """Undo the newest change for a browser. named: the change on its button.

        Raise ConflictError if that is not the newest change any more.
        """
        with self._for_browser(shown):
            what = self._undoable()
            if named is not None and named != what:
                message = f"another change is the newest by now: {what or 'none is left'}"
                raise ConflictError(message, hint="the button names it: press it again, or leave it")
            return self._answer_browser(shown or {}, render.undone_message(self.undo(), what))

    def _undoable(self) -> str:
        """Say in words what `undo` would take back."""
        with self._in_sync():
            return render.undoable_message(self._lab.rewards.next_undo(*self._read.stored))

    def _read_conversation(self, name: str | int) -> dict[str, Any]:
        """Read the turns of a trajectory, its failed reward functions, its logs, and each change of its reward."""
        with self._in_sync():
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

    def _find_rows(self, names: str | Sequence[str]) -> list[int]:
        """Find the rows of trajectories by their names, each once."""
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, Sequence) or not listed:
            raise InputError(f"{names!r} is not a trajectory name", hint='view.set("capitals/0/3", 1.0)')
        return list(dict.fromkeys(map(self._rows.find, listed)))

    def _give(self, rows: Iterable[int], reward: float) -> list[Edit]:
        edits = self._lab.rewards.give([Score(self._rows.ref(i), reward) for i in rows], "hand")
        self._refresh()
        return edits

    def _answer_browser(self, shown: Mapping[str, Any], message: str) -> dict[str, Any]:
        """Answer a browser after an edit: the rewards of the rows that it shows, and whether each row fits the filter.

        The texts of the rows are left out, because the browser has them. The answer has what an undo would revert now.

        shown: what the browser shows. message: what was done.
        """
        index = self._rows.index
        rows = [index[row_id] for row_id in shown.get("ids", ()) if row_id in index]
        rewards = self._read.rewards_of(rows)
        fits = self._read.find_fitting(rewards, self._conditions(shown.get("filter", {})))
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
        """Return the first line of the view, and the figures of all rows and of those that fit the filter."""
        return tree(self._figures())

    def _figures(self) -> Html:
        with self._in_sync():
            some = None if len(self._shown) == len(self._rows) else self._shown
            whole = summarize_job(self._read, self._lab, some)
            return Html(overview.heading(self.title, whole) + overview.html(whole))

    def _outlook(self, reward: Any) -> dict[str, Any]:
        """Tell what `set_all` would change: the numbers of rows, groups and rewards by hand, and the mean reward."""
        with self._in_sync():
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
        """Replace conditions by those that a person meant.

        - A reason as the condition on `advantage` filters by `reason`, because the column shows a reason if there is
          no advantage.
        - The name of a group with a slash after it, such as `letters/1/`, selects that group. As a part of a name it
          would also match `more-letters/1/0`.
        """
        if not isinstance(filter, Mapping):
            raise InputError(f"{filter!r} is not a filter", hint='filter={"reward": "> 0.5"}')
        condition = filter.get("advantage")
        if isinstance(condition, str) and condition in (TRAINS, *WHY) and "reason" not in filter:
            filter = {"reason" if name == "advantage" else name: value for name, value in filter.items()}  # noqa: A001
        name = str(filter.get("name"))
        if name.endswith("/") and self._rows.is_group(name[:-1]) and "group" not in filter:
            filter = {**{key: value for key, value in filter.items() if key != "name"}, "group": name[:-1]}  # noqa: A001
        return {name: _expand_reasons(value) if name == "reason" else value for name, value in filter.items()}

    @contextmanager
    def _in_sync(self) -> Iterator[None]:
        """Run a block under the lock, with rows that are in sync with the lab."""
        with self._lock, self._read.lock:
            self._refresh()
            yield

    @contextmanager
    def _for_browser(self, shown: Mapping[str, Any] | None) -> Iterator[None]:
        """Run a block for a call of a browser. The event of a change tells the other pages which page made it."""
        with self._lock, self._read.lock:
            self._origin = threading.get_ident(), (shown or {}).get("origin")
            try:
                yield
            finally:
                self._origin = None

    def _refresh(self) -> None:
        """Read what has changed in the lab. If trajectories were added or removed, sort and filter again."""
        read = self._read
        read.refresh()
        if read.version is self._version:
            return
        self._version, ids = read.version, read.rows.index
        self._ids = range(min(ids, default=0), max(ids, default=-1) + 1)
        try:
            self._shown = self._arrange(self._sort, self._filter)
        except InputError:  # a component of the sort or the filter is gone
            self._sort, self._filter, self._shown = (), {}, range(len(self._rows))

    def _arrange(self, sort: Sort, filter: Filter) -> Sequence[int]:  # noqa: A002
        return self._read.arrange(sort, self._conditions(filter))

    def _on_edit(self, edited: Set[int]) -> None:
        """Tell browsers that rewards changed. It runs on any thread, so it does not touch the view's state."""
        # the range may include ids of other collections: a page that looks again for nothing does no harm
        if not self._is_read or any(each in self._ids for each in edited):
            # listeners run on the thread of the edit, so an edit on another thread is not one of this browser
            thread, origin = self._origin or (None, None)
            self.push("changed", origin=origin if thread == threading.get_ident() else None)


def _check_integer(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={max(least, 50)}")
    return value


def _expand_reasons(condition: Any) -> Any:
    """Add `all_failed` and `all_passed` to `equal_rewards`, which had both in earlier versions."""
    reasons = [condition] if isinstance(condition, str) else condition
    if isinstance(reasons, list | tuple) and Reason.EQUAL_REWARDS in reasons:
        return [*reasons, Reason.ALL_FAILED, Reason.ALL_PASSED]
    return condition
