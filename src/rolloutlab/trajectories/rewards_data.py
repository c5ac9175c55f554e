"""Data of the rewards view: collections in sync with the lab, as table columns, pages of JSON and a DataFrame."""

import gc
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from rolloutlab.environments.record import End
from rolloutlab.objective.advantages import Reason, TokenWeight
from rolloutlab.objective.preflight import WHY, WHY_NOT
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection
from rolloutlab.store.trajectory_summaries import PREVIEW
from rolloutlab.trajectories.rewards_rows import CollectionRows, RewardsRows
from rolloutlab.trajectories.table_query import NONE, Filter, Sort, TableColumn, arrange
from rolloutlab.trajectories.tables import EPISODE_END, REASONING, trajectory_frame

if TYPE_CHECKING:
    import pandas as pd

Derived = TypeVar("Derived")
Value = TypeVar("Value")

_FIRST_GROUPS = 8
"""Groups whose rows decide which columns are shown."""
_MOST_ROW_COLUMNS = 3
"""The most columns of rows that are shown."""
_LONG_BEGINNING = 30
"""The least characters of a beginning that all prompts of a page share. It is left out, to show what differs."""
TRAINS = "trains"
"""The choice of the column `reason` for rows that would train."""
_EDITED = ("reward", "source", "advantage", "reason")
"""Columns that an edit of rewards changes, in addition to the components."""
SOURCES = ("function", "hand", "judge", "tool", "environment", NONE)
ENDS = (*get_args(End), NONE)


class RewardsData:
    """Collections, or one group of a collection. `refresh` brings `rows` and `stored` up to date with the lab.

    The advantages of one group are those of a job on its whole collection. Several views share one such object, and
    hold its `lock` while they read or refresh it.

    limit: the number of rows to read; by default all. version: a new object each time that all rows were read again,
    because older indices of rows are then invalid.
    """

    def __init__(
        self, lab: Lab, collections: Sequence[StoredCollection], group: int | None, limit: int | None = None
    ) -> None:
        self.lock = threading.RLock()
        self.version = object()
        self._whole = None if group is None else shared_rewards(lab, collections, None)
        self._lab = lab
        self._group = group
        self._limit = limit
        self._prompts: dict[int, dict[int, str]] = {}
        self._prompt_rows: dict[int, dict[int, dict[str, Any]]] = {}
        self._changes: tuple[int, int]
        self._newest_outline: tuple[int, int]
        self._newest_edit: int
        self._derived: tuple[tuple[int, int], Sequence[int] | None, Any] | None = None
        self.rows: RewardsRows
        self.stored: list[StoredCollection]
        self._load([collection.id for collection in collections])

    @property
    def title(self) -> str:
        """The names of the collections, or of the group."""
        return title_of(self.stored, self._group)

    @property
    def components(self) -> list[str]:
        """The names of the reward components, as they are shown."""
        return list(map(escape_control_chars, self.rows.components))

    @property
    def row_columns(self) -> list[str]:
        """Columns of the prompts' rows that no prompt shows, such as a target: at most three, from the first groups."""
        first = range(min(_FIRST_GROUPS, len(self.rows.groups)))
        prompts, rows = self._read_prompts(first), self._read_prompt_rows(first)
        values = {g: {name: str(value) for name, value in rows[g].items() if _is_shown(value)} for g in first}
        names = dict.fromkeys(name for g in first for name in values[g])
        hidden = [name for name in names if any(values[g].get(name, "") not in prompts[g] for g in first)]
        return hidden[:_MOST_ROW_COLUMNS]

    def refresh(self) -> bool:
        """Read what has changed. Return whether all rows were read again, because trajectories or names have changed.

        Raises:
            NotFoundError: a collection was deleted.
        """
        changes = self._lab.changes()
        if changes == self._changes:
            return False
        if self._whole:
            with self._whole.lock:
                self._whole.refresh()
        # cursors are read before the rows: a change in between is read twice rather than missed
        stored = [self._lab.by_id(each.id) for each in self.stored]
        labels, there = [each.label for each in stored], self._lab.outlines.newest()
        other = (there != self._newest_outline and self._read_sizes() != self._loaded_sizes) or self._is_of_older_rows()
        if labels != [each.label for each in self.stored] or other:
            self._load([each.id for each in self.stored])
            return True
        newest = self._lab.rewards.newest_edit()
        edited = self._lab.rewards.edited_since(self._newest_edit)
        known = {i: self.rows.outlines[self.rows.index[i]] for i in edited if i in self.rows.index}
        if known:
            self.rows.put(self._lab.outlines.refresh(known).values())
        self._changes, self._newest_outline, self._newest_edit = changes, there, newest
        return False

    def _is_of_older_rows(self) -> bool:
        """Whether the whole collection was read again, so that indices of its rows are invalid."""
        return self._whole is not None and self._whole.version is not self._version_of_whole

    def _load(self, numbers: Sequence[int]) -> None:
        changes, there = self._lab.changes(), self._lab.outlines.newest()
        edit = self._lab.rewards.newest_edit()
        self.stored = [self._lab.by_id(number) for number in numbers]
        self._loaded_sizes = self._read_sizes() if self._limit is None else []
        with without_garbage_collection():
            self.rows = RewardsRows(list(self._read_parts()), self._whole.rows if self._whole else None)
            if len(self.rows) > AT_ONCE:
                gc.collect()  # without it, each of the next three calls waits 0.1 to 0.2 s for a scan of all rows
        self.version = object()
        self._version_of_whole = self._whole.version if self._whole else None
        self._changes, self._newest_outline, self._newest_edit = changes, there, edit

    def _read_parts(self) -> Iterator[CollectionRows]:
        left = self._limit
        for stored in self.stored:
            outlines = self._lab.outlines.of(stored, self._group, left)
            if left is not None:
                left -= len(outlines)
                positions = sorted({outline.group for outline in outlines})
            else:
                positions = self._lab.outlines.positions(stored) if self._group is None else [self._group]
            yield CollectionRows(stored, positions, outlines)

    def _read_sizes(self) -> list[int]:
        return [self._lab.outlines.count(each) for each in self.stored]

    def _find_holding(self, part: str) -> set[int]:
        ids = (row_id for stored in self.stored for row_id in self._lab.outlines.find_holding(stored, part))
        return {self.rows.index[row_id] for row_id in ids if row_id in self.rows.index}

    def _list_advantages(self) -> list[float | None]:
        return [_advantage_of(share) for share in self.rows.all_shares()]

    def _list_component(self, name: str) -> list[float | None]:
        return [row.components.get(name) for row in self.rows.outlines]

    def _read_previews(self) -> list[str]:
        previews = self._lab.outlines.previews(self.rows.index)
        return [previews[row.id][0] for row in self.rows.outlines]

    def _read_ends(self) -> list[str | None]:
        ends = self._lab.outlines.ends(self.rows.index)
        return [ends.get(row.id) for row in self.rows.outlines]

    def _list_prompts(self) -> list[str]:
        prompts = self._read_prompts(range(len(self.rows.groups)))
        return [prompts[g] for g in self.rows.group_of]

    def _read_prompts(self, groups: Collection[int]) -> dict[int, str]:
        """Read the prompts of groups of this view."""
        self._read_missing(self._prompts, self._lab.outlines.prompts, groups)
        places = ((g, self.rows.groups[g]) for g in groups)
        return {g: self._prompts[group.collection.id][group.position] for g, group in places}

    def _read_prompt_rows(self, groups: Collection[int]) -> dict[int, dict[str, Any]]:
        """Read the rows that the prompts of groups were made of."""
        self._read_missing(self._prompt_rows, self._lab.outlines.rows, groups)
        places = ((g, self.rows.groups[g]) for g in groups)
        return {g: self._prompt_rows[group.collection.id].get(group.position, {}) for g, group in places}

    def _read_missing(
        self,
        known: dict[int, dict[int, Value]],
        read: Callable[[StoredCollection, Sequence[int]], Mapping[int, Value]],
        groups: Collection[int],
    ) -> None:
        """Read what is not known yet of groups. Prompts and their rows never change, so each is read once.

        Args:
            known: What is known, by the id of the collection and the position of the group. It is added to.
            read: Reads it for some positions of a collection.
            groups: The groups, by their indices.
        """
        missing: dict[int, list[int]] = {}
        for g in groups:
            group = self.rows.groups[g]
            if group.position not in known.setdefault(group.collection.id, {}):
                missing.setdefault(group.collection.id, []).append(group.position)
        for stored in self.stored:
            if stored.id in missing:
                known[stored.id] |= read(stored, missing[stored.id])

    def _list_row_values(self, name: str) -> list[str | None]:
        rows = self._read_prompt_rows(range(len(self.rows.groups)))
        shown = {
            g: escape_control_chars(str(row[name])) if _is_shown(row.get(name)) else None for g, row in rows.items()
        }
        return [shown[g] for g in self.rows.group_of]

    def derive(self, shown: Sequence[int] | None, make: Callable[[], Derived]) -> Derived:
        """Return the result of `make`, which depends on all rows and the rows shown. It is kept until these change."""
        if self._derived is None or self._derived[:2] != (self._changes, shown):
            self._derived = self._changes, shown, make()
        made: Derived = self._derived[2]
        return made

    def arrange(self, sort: Sort, filter: Filter) -> Sequence[int]:  # noqa: A002
        """Return the rows to show, in order; raise InputError for an unknown column or condition."""
        with without_garbage_collection():
            return arrange(self._make_columns(), len(self.rows), sort, filter)

    def _make_columns(self) -> dict[str, TableColumn]:
        """Make the columns, by name.

        A component is called `component:NAME`, and also by its own name if no other column has that.
        """
        rows = self.rows
        outlines = rows.outlines
        places = range(len(rows))
        own = {
            "name": TableColumn("text", lambda: list(map(rows.name, places)), order=lambda: places),
            "group": TableColumn(
                "choice", lambda: [rows.groups[g].name for g in rows.group_of], order=lambda: rows.group_of
            ),
            "prompt": TableColumn("text", self._list_prompts),
            "completion": TableColumn("text", self._read_previews, holding=self._find_holding),
            "reward": TableColumn("number", lambda: [row.reward for row in outlines]),
            "source": TableColumn("choice", lambda: [row.source for row in outlines], choices=SOURCES),
            "advantage": TableColumn("number", self._list_advantages),
            "|advantage|": TableColumn("number", lambda: [a if a is None else abs(a) for a in self._list_advantages()]),
            "reason": TableColumn(
                "choice", lambda: [_reason_of(share) or TRAINS for share in rows.all_shares()], choices=(TRAINS, *WHY)
            ),
            "tokens": TableColumn("number", lambda: [sum(row.tokens_H) for row in outlines]),
            "finish_reason": TableColumn("choice", lambda: [row.finish_reason for row in outlines]),
            EPISODE_END: TableColumn("choice", self._read_ends, choices=ENDS),
        }
        parts = {name: TableColumn("number", partial(self._list_component, name)) for name in rows.components}
        given = {f"row:{name}": TableColumn("text", partial(self._list_row_values, name)) for name in self.row_columns}
        return {
            **parts,
            **given,
            **own,
            **{f"component:{escape_control_chars(name)}": column for name, column in parts.items()},
        }

    def page(self, shown: Sequence[int]) -> list[dict[str, Any]]:
        """Return rows as JSON for a browser."""
        rows = self.rows
        ids = [rows.outlines[i].id for i in shown]
        previews, ends = self._lab.outlines.previews(ids), self._lab.outlines.ends(ids)
        groups = {rows.group_of[i] for i in shown}
        prompts, given, columns = self._read_prompts(groups), self._read_prompt_rows(groups), self.row_columns
        begins = _common_beginning([prompts[g] for g in groups])
        page = []
        for i, rewards in zip(shown, self.rewards_of(shown), strict=True):
            row = rows.outlines[i]
            prompt, (completion, goes_on) = prompts[rows.group_of[i]], previews[row.id]
            prompt = ("... " if begins else "") + prompt[begins:]
            of_row = given[rows.group_of[i]]
            page.append(
                {
                    **rewards,
                    "name": rows.name(i),
                    "group": rows.groups[rows.group_of[i]].name,
                    "prompt": escape_control_chars(prompt[:PREVIEW]) + (" ..." if len(prompt) > PREVIEW else ""),
                    "completion": escape_control_chars(completion) + (" ..." if goes_on else ""),
                    "tokens": sum(row.tokens_H),
                    "finish_reason": row.finish_reason,
                    **{f"row:{name}": _shorten(of_row.get(name)) for name in columns},
                    **({EPISODE_END: escape_control_chars(ends[row.id])} if row.id in ends else {}),
                }
            )
        return page

    def rewards_of(self, shown: Sequence[int]) -> list[dict[str, Any]]:
        """Return what an edit of rewards can change in these rows, as JSON for a browser. No texts are read."""
        rows = self.rows
        outlines = [rows.outlines[i] for i in shown]
        former = self._lab.rewards.before_hand(row.id for row in outlines if row.source == "hand")
        errors = self._lab.scorings.errors(row.id for row in outlines if row.reward is None)
        shares = {i: share for g in {rows.group_of[i] for i in shown} for i, share in rows.shares(g).items()}
        values = []
        for i, row in zip(shown, outlines, strict=True):
            share, reason, was = shares.get(i), _reason_of(shares.get(i)), former.get(row.id)
            failure = errors.get(row.id)
            error = failure and escape_control_chars(failure.summary)
            values.append(
                {
                    "id": row.id,
                    "reward": row.reward,
                    "was": None if was == row.reward else was,
                    "source": row.source and escape_control_chars(row.source),
                    "advantage": _advantage_of(share),
                    "reason": reason,
                    "why_not": reason and WHY_NOT.get(Reason(reason), "no reward yet"),
                    "why": error or (reason and WHY[Reason(reason)]),
                    **({"error": error, "place": escape_control_chars(failure.place)} if failure else {}),
                    **{f"component:{escape_control_chars(name)}": value for name, value in row.components.items()},
                }
            )
        return values

    def find_fitting(self, rewards: Sequence[Mapping[str, Any]], filter: Filter) -> set[int]:  # noqa: A002
        """Find the rows that fit a filter, as far as an edit of rewards can change that: other columns do not count.

        rewards: the rows, as `rewards_of` returns them. Returns indices in these.
        """
        columns, given, changing = self._make_columns(), {}, {}
        for name, condition in filter.items():
            of_part = name not in _EDITED and name in self.rows.components
            field = f"component:{escape_control_chars(name)}" if of_part else name
            if field in _EDITED or field.startswith("component:"):
                values = [row.get(field) for row in rewards]
                values = [value or TRAINS for value in values] if name == "reason" else values
                given[name], changing[name] = condition, replace(columns[name], values=partial(list, values))
        return set(arrange(changing, len(rewards), (), given))

    def frame(self, shown: Sequence[int]) -> "pd.DataFrame":
        """Make a DataFrame of rows, with whole prompts and answers. The last columns are those of the prompts' rows."""
        rows, shares, prompts = [self.rows.outlines[i] for i in shown], self.rows.all_shares(), self._list_prompts()
        answers = self._lab.outlines.answers(row.id for row in rows)
        reasonings = self._lab.outlines.reasonings(row.id for row in rows)
        ends = self._lab.outlines.ends(row.id for row in rows)
        errors = self._lab.scorings.errors(row.id for row in rows if row.reward is None)
        origins = {key: of for stored in self.stored for key, of in self._lab.outlines.origins(stored).items()}
        cells = [
            {
                "reward": row.reward,
                "advantage": _advantage_of(shares[i]),
                "source": row.source,
                "prompt": prompts[i],
                "finish_reason": row.finish_reason,
                "model": origins[row.id][0],
                "step": origins[row.id][1],
                "tokens": sum(row.tokens_H),
                "answer": answers[row.id],
                REASONING: reasonings.get(row.id),
                EPISODE_END: ends.get(row.id),
                "reason": _reason_of(shares[i]),
                "reward_error": errors[row.id].summary if row.id in errors else None,
            }
            for i, row in zip(shown, rows, strict=True)
        ]
        more = ["reason", *(["reward_error"] if errors else [])]
        given = {stored.id: self._lab.outlines.rows(stored) for stored in self.stored}
        groups = [self.rows.groups[self.rows.group_of[i]] for i in shown]
        kinds = [stored.plan.get("types") or {} for stored in self.stored]
        types = {name: kind for name, kind in kinds[0].items() if all(each.get(name) == kind for each in kinds)}
        names, components = [self.rows.name(i) for i in shown], [row.components for row in rows]
        prompt_rows = [given[group.collection.id][group.position] for group in groups]
        return trajectory_frame(names, cells, components, prompt_rows, types, more)


def _is_shown(value: Any) -> bool:
    """Whether a value of a row fits into a cell of a table."""
    return value is not None and not isinstance(value, dict | list)


def _shorten(value: Any) -> str | None:
    return escape_control_chars(str(value))[:PREVIEW] if _is_shown(value) else None


def _common_beginning(prompts: Sequence[str]) -> int:
    """Count the characters, up to the end of a word, that all of several prompts begin with; 0 if they are few."""
    if len(prompts) < 2:
        return 0
    least, most = min(prompts), max(prompts)  # in the order of texts: what these two share, all share
    same = next((i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), min(len(least), len(most)))
    words = max(least.rfind(blank, 0, same) for blank in " \n") + 1
    return words if words >= _LONG_BEGINNING else 0


def shared_rewards(lab: Lab, collections: Sequence[StoredCollection], group: int | None) -> RewardsData:
    """Return the data of collections, or of one group, that all views of the lab in this process share."""
    key = ("rewards", tuple(each.id for each in collections), group)
    shared: RewardsData = lab.recent.get(key, lambda: RewardsData(lab, collections, group))
    return shared


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Run a block without the garbage collector, which would scan hundreds of thousands of new objects repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def title_of(collections: Sequence[StoredCollection], group: int | None) -> str:
    """Return the names of collections, or of one group."""
    labels = [stored.label for stored in collections]
    if group is not None:
        return f"{labels[0]}/{group}"
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def _advantage_of(share: TokenWeight | None) -> float | None:
    return None if share is None else share.advantage


def _reason_of(share: TokenWeight | None) -> str | None:
    if share is None:
        return str(Reason.UNSCORED)
    return None if share.reason is None else str(share.reason)


AT_ONCE = 20_000
"""Trajectories that are read in about 0.1 s. If there are more, the first page is shown before all are read."""
_UNKNOWN = {"advantage": None, "reason": None, "why_not": None, "why": None}


def read_first_page(
    lab: Lab, collections: Sequence[StoredCollection], size: int, at_once: int
) -> dict[str, Any] | None:
    """Read the first page in the form of `RewardsView.page`, without the figures that depend on all rows.

    Advantages and what trains are missing. None if there are no more than `at_once` trajectories.
    """
    counted = [lab.collection(lab.by_id(each.id).label) for each in collections]
    trajectories, scored = sum(each.trajectories for each in counted), sum(each.scored for each in counted)
    if trajectories <= at_once:
        return None
    first = RewardsData(lab, collections, None, size)
    means = [each.mean_reward * (each.scored / scored) for each in counted if each.mean_reward is not None]
    summary = {
        "trajectories": trajectories,
        "scored": scored,
        "mean_reward": math.fsum(means) if scored else None,
        "groups": sum(each.groups for each in counted),
        "trainable": None,
    }
    return {
        "title": first.title,
        "components": first.components,
        "row_columns": first.row_columns,
        "rows": [{**row, **_UNKNOWN} for row in first.page(range(len(first.rows)))],
        "offset": 0,
        "total": trajectories,
        "filtered": trajectories,
        "summary": summary,
    }
