"""Collection of trajectory groups: selection by name, rewards, preflight check, DataFrame, and its view."""

import math
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.hints import Hint
from rolloutlab.objective.advantages import TokenWeight
from rolloutlab.objective.options import Options
from rolloutlab.objective.preflight import Preflight, count, preflight
from rolloutlab.sampling.split import positions_in
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection, StoredTrajectory, TrajectorySummary, is_asked_for
from rolloutlab.trajectories.files import file_path
from rolloutlab.trajectories.group_view import AskLogprobs, GroupView, rank
from rolloutlab.trajectories.members import members_of, unscored_names
from rolloutlab.trajectories.overview import order_groups, summarize_job
from rolloutlab.trajectories.reward_edits import RewardEdits, give_edited, give_from_file, rewards_of_frame
from rolloutlab.trajectories.rewards_rows import RewardsRows
from rolloutlab.trajectories.tables import AFTER, EPISODE_END, REASONING, reward_history, trajectory_frame
from rolloutlab.widgets import collection as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.pages import Bundle
from rolloutlab.widgets.progress import Progress
from rolloutlab.widgets.rewards import undone_message

if TYPE_CHECKING:
    import pandas as pd

_CHANGE_SECONDS = 5e-5
"""About how many seconds it takes to read the changes of one trajectory. It tells whether to show a progress line."""


class Collection:
    """One generation of a collection. It reads the lab on every access, so it is never out of date.

    At the end of a cell it shows its groups with their completions, rewards and advantages. The advantages are those of
    a training job on the whole collection with default options, even if this is only one group of it. In a browser the
    groups are read one at a time, and can be scored by hand.
    """

    def __init__(
        self, lab: Lab, summary: StoredCollection, position: int | None = None, ask_logprobs: AskLogprobs | None = None
    ) -> None:
        self._lab = lab
        self._ask_logprobs = ask_logprobs
        self._number = summary.id
        self._position = position

    @property
    def stored(self) -> StoredCollection:
        """Its record as it is now: it may have been renamed. Raises NotFoundError if it was deleted."""
        return self._lab.by_id(self._number)

    @property
    def name(self) -> str:
        """Its name in `%%reward`, `%%train` and `lab.collection`."""
        return self.stored.label if self._position is None else f"{self.stored.label}/{self._position}"

    @property
    def label(self) -> str:
        """`NAME:N`, which stays valid if newer generations are sampled."""
        return f"{self.stored.name}:{self.stored.generation}"

    @property
    def missing(self) -> int:
        """The number of planned trajectories that are not sampled yet."""
        return self._lab.collection(self.label).missing

    @property
    def captured(self) -> bool:
        """Whether a program has sampled it, instead of prompts."""
        return bool(self.stored.plan.get("program"))

    def part(self, name: str) -> set[int]:
        """Return the positions of the groups whose rows are in `train` or in `held_out` of a split."""
        return positions_in(self.stored.plan, name)

    @property
    def groups(self) -> list[Group]:
        """Its groups with their trajectories, as stored now."""
        return self._lab.groups(self.stored, self._position)

    @property
    def trajectories(self) -> list[StoredTrajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    def group(self, position: int) -> Group:
        """Return the group at a position, as stored now. Raises NotFoundError if there is none."""
        for group in self._lab.groups(self.stored, position):
            return group
        raise NotFoundError(f"there is no group {self.stored.label}/{position}", hint=f"%group {self.stored.label}/0")

    def each_group(self) -> Iterator[Group]:
        """Yield the groups, read some at a time, for collections larger than memory."""
        return self._lab.each_group(self.stored) if self._position is None else iter(self.groups)

    def each_trajectory(self) -> Iterator[StoredTrajectory]:
        """Yield the trajectories, read some groups at a time."""
        return (trajectory for group in self.each_group() for trajectory in group.trajectories)

    @property
    def mean_reward(self) -> float | None:
        """Mean reward of the trajectories that have one."""
        rewards = [outline.reward for outline in self.outlines() if outline.reward is not None]
        return math.fsum(r / len(rewards) for r in rewards) if rewards else None

    def scoring_notes(self) -> list[str]:
        """Report failures of the last scoring, and how many rewards it did not reach because it ended early."""
        stored = self.stored
        failed, older = self._lab.scorings.failed(stored, self._position), self._lab.scorings.count_unreached(stored)
        lines = [render.failures(self.name, failed)] if failed else []
        resume = f"%%reward {self.name} --resume"
        which = f"{count(older, 'reward')} of {self.name} {'is' if older == 1 else 'are'} older"
        older_line = f"{which} than its last scoring, which ended early -> {resume}"
        return [*lines, *([older_line] if older else [])]

    def warnings(self) -> list[Hint]:
        """List what you should know before training, for example that many answers were cut off."""
        with self._view.job() as job:
            hints = summarize_job(job, self._lab).hints
        # the report of a job, which knows the service, says what has no logprobs
        return [hint for hint in hints if hint.kind == "warn" and not hint.cell.startswith("%logprobs")]

    def weights_of(self, component: str) -> dict[int, float]:
        """Return the weight of a component in each reward that functions gave, by the id of the trajectory."""
        return self._lab.scorings.weights_of(component, self.stored)

    def preflight(self, options: Options | None = None) -> Preflight:
        """Report which trajectories would train, computed by the trainer's own code."""
        return _check(self.groups, options)

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per trajectory, indexed by name (`capitals/0/3`).

        Its columns:

        - `reward`: NaN without one.
        - `advantage`: with the default training options.
        - one column per reward component.
        - `source` of the reward: function, hand, judge, tool or environment.
        - `prompt`, `finish_reason`, `model`, `step`, `tokens`, `answer`.
        - `reasoning` and `episode_end`, if any trajectory has one.
        - `row.x` for each column x of the rows. A column that had only dates, times or decimals has these types again.
        """
        groups = self.groups
        if self._position is None:
            advantages = {share.member.name: share.advantage for share in _check(groups).all_shares()}
        else:
            with self._view.job() as job:
                g = job.rows.group(self._position)
                own = [] if g is None else _named_shares(job.rows, g)
            advantages = {share.member.name: share.advantage for share in own}
        trajectories = [t for group in groups for t in group.trajectories]
        rows = [{name: getattr(t, name) for name in ("reward", *AFTER)} for t in trajectories]
        for t, row in zip(trajectories, rows, strict=True):
            row["advantage"] = advantages.get(t.name)
            row |= {REASONING: t.reasoning or None, EPISODE_END: t.episode_end}
        names, components = [t.name for t in trajectories], [t.components for t in trajectories]
        return trajectory_frame(
            names, rows, components, [t.row for t in trajectories], self.stored.plan.get("types", {})
        )

    def update_rewards(self, frame: "pd.DataFrame") -> RewardEdits:
        """Store the rewards of an edited `to_frame()`: all changes or none. The log has who, when, old and new.

        frame: a DataFrame of pandas or polars, perhaps read from a file. Its index, or a column such as `trajectory`,
        has the names of the trajectories. None or NaN clears a reward. The result counts the cleared rewards, and an
        undo of the change brings them back.

        Raises:
            NotFoundError: a row is not a trajectory of this collection.
            RewardError: a reward is not a finite number, or the frame has no reward any more.
        """
        known = self._by_name()
        table = rewards_of_frame(frame, known)
        for name in table.keys() - known.keys():
            hint = "collection.to_frame().index"
            raise NotFoundError(f"there is no trajectory {name!r} in this collection", hint=hint)
        return give_edited(self._lab.rewards, known, table)

    def update_rewards_from(self, path: str | PathLike[str]) -> RewardEdits:
        """Store the rewards of a file, such as a CSV of `lab.files.export` that was edited in a spreadsheet.

        The file needs the columns `trajectory` and `reward`, in any order; others are ignored. An empty cell clears a
        reward. Rows of other trajectories are reported. All changes are stored, or none.

        Raises:
            NotFoundError: there is no such file. InputError: it cannot be read, or lacks a column.
            RewardError: a reward is not a number; the message has file and line.
        """
        return give_from_file(self._lab.rewards, self._by_name(), file_path(path))

    def _by_name(self) -> dict[str, StoredTrajectory]:
        """Return the trajectories by their names, without and with the generation."""
        stored = self.stored
        places = {t.name.partition("/")[2]: t for t in self.trajectories}
        return {f"{label}/{place}": t for label in (stored.name, self.label) for place, t in places.items()}

    def rank(self, ranking: Sequence[int | str | Sequence[int | str]]) -> RewardEdits:
        """Rank completions of one group (`lab.collection("capitals/0")`), best first, and store the ranks as rewards.

        ranking: positions in the group, or names of trajectories. A list inside it is a tie: `[2, 0, [1, 3]]`. Rewards
        are evenly spaced from 1 for the best to 0 for the worst; ties share the mean of their ranks. Completions that
        are not ranked keep their rewards. The new rewards count as given by hand; `undo_rewards` reverts all at once.

        Raises:
            InputError: this is not a single group, or the ranking has an unknown completion, or one twice.
        """
        groups = self.groups
        if len(groups) != 1:
            raise InputError(f"{self.name} has {len(groups)} groups: one is ranked at a time", hint=f"{self.name}/0")
        return RewardEdits(rank(self._lab, groups[0], ranking))

    def undo_rewards(self, *, say: Callable[[str], None] = print) -> "Collection":
        """Revert the newest change of the collection's rewards that is not reverted yet; `say` gets a description.

        A trajectory that had no reward before the change has none again. The undo is logged like any other change.

        Raises:
            NotFoundError: no change is left to undo.
        """
        stored = self.stored
        edits = self._lab.rewards.undo(stored)
        history = f"%rewards {stored.label} --history"
        if not edits:
            raise NotFoundError(f"no reward of {stored.label} is left to undo", hint=history)
        say(f"{undone_message(edits)} -> {history}")
        return self

    def reward_history(self) -> "pd.DataFrame":
        """List every change of its rewards, newest first: trajectory, when, who, source, old, new, note, by, code.

        The index is the number of the change; rewards that were given at once have the same number.
        """
        stored = self.stored
        with Progress(f"rewards of {stored.label}") as shown:
            shown.begin("reading every change", self._lab.collection(self.label).trajectories * _CHANGE_SECONDS)
            frame = reward_history(self._lab.rewards, self._lab.scorings.history(stored), stored)
        if self._position is None:
            return frame
        return frame[frame["trajectory"].str.split("/").str[1] == str(self._position)]

    def __len__(self) -> int:
        return len(self.outlines())

    def outlines(self) -> list[TrajectorySummary]:
        """Return the stored summary of each trajectory. This is fast, because no conversation is read."""
        return self._lab.outlines.of(self.stored, self._position)

    @cached_property
    def _view(self) -> GroupView:
        view = GroupView(self._lab, self._number, self._position, self._ask_logprobs)
        view.printed = self
        return view

    @property
    def widget(self) -> Any:
        """The anywidget that shows it; marimo takes it as `mo.ui.anywidget(collection.widget)`."""
        return self._view.widget

    def _repr_mimebundle_(self, **options: Any) -> Bundle:
        return self._view._repr_mimebundle_(**options)

    def _read_shown(self) -> tuple[str, list[Group], Preflight, render.Counts]:
        """Read what a cell shows: the first groups in full, and only the counts and rewards of the others."""
        stored = self.stored
        with self._view.job() as job:
            rows = job.rows
            ordered = order_groups(rows) if self._position is None else range(len(rows.groups))
            places = [g for g in ordered if self._position in (None, rows.groups[g].position)]
            positions = [rows.groups[g].position for g in places]
            outlines = [rows.outlines[i] for g in places for i in rows.groups[g].rows]
            shares = [_named_shares(rows, g) for g in places[: render.MAX_GROUPS]]
            whole = summarize_job(job, self._lab) if self._position is None else None
        rewards = [outline.reward for outline in outlines if outline.reward is not None]
        first, rest = positions[: render.MAX_GROUPS], positions[render.MAX_GROUPS :]
        after = f"{stored.label}/{rest[0]}" if rest else ""
        failed = self._lab.scorings.failed(stored, self._position) if len(rewards) < len(outlines) else {}
        counts = render.Counts(len(positions), len(outlines), rewards, after, failed, whole)
        return self.name, self._read(stored, first), Preflight(shares), counts

    def _read(self, stored: StoredCollection, positions: Sequence[int]) -> list[Group]:
        """Read groups. A single one is cached, because a cell shows it as text, as HTML and as a widget."""
        if len(positions) == 1:
            return [self._view.read(positions[0])]
        return [group for position in positions for group in self._lab.groups(stored, position)]

    def __repr__(self) -> str:
        return render.text(*self._read_shown())

    def _repr_html_(self) -> str:
        return for_notebook(render.html(*self._read_shown()))


def _named_shares(rows: RewardsRows, g: int) -> list[TokenWeight]:
    """Return the token weights of a group in its job, with the names of its trajectories."""
    return [share._replace(member=share.member._replace(name=rows.name(i))) for i, share in rows.shares(g).items()]


def _check(groups: Sequence[Group], options: Options | None = None) -> Preflight:
    return preflight(members_of(groups), options or Options(), unscored_names(groups))


_WILD = frozenset("*?[")


def select(lab: Lab, names: str | Sequence[str]) -> list[Collection]:
    """Find the collections with these names (`capitals`, `capitals:1`) or patterns (`cap*`), each once.

    A pattern is compared with names without a generation. A match is the generation that the name alone stands for.
    The matches of a pattern are sorted by name.

    Raises:
        InputError: a name is given twice. NotFoundError: no such collection, or no match; with the closest names.
    """
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else [names]
    named = {i: Collection(lab, lab.find(name)) for i, name in enumerate(listed) if not _is_pattern(name)}
    if len({each.label for each in named.values()}) < len(named):
        raise InputError("a collection is given twice", hint=" ".join(dict.fromkeys(listed)))
    matches = [[named[i]] if i in named else _match(lab, name) for i, name in enumerate(listed)]
    return list({collection.label: collection for some in matches for collection in some}.values())


def _is_pattern(name: str) -> bool:
    return isinstance(name, str) and bool(_WILD & set(name))


def _match(lab: Lab, pattern: str) -> list[Collection]:
    names = sorted({summary.name for summary in lab.collections()})
    asked = (name for name in names if is_asked_for(name, pattern))
    matches = [Collection(lab, lab.find(name)) for name in asked if fnmatchcase(name, pattern)]
    if not matches:
        plain = "".join(character for character in pattern if character not in "*?[]")
        close = get_close_matches(plain, names, n=3, cutoff=0.3)
        hint = ", ".join(close) if close else "%collections lists them"
        raise NotFoundError(f"no collection's name fits {pattern!r}", hint=hint)
    return matches


def rows_to_show(lab: Lab, names: str | Sequence[str]) -> tuple[list[StoredCollection], int | None]:
    """Find the collections of names and patterns, or the collection and the position of one group (`capitals/0`)."""
    if isinstance(names, str) and "/" in names:
        stored, position = group_of(lab, names)
        return [stored], position
    return [collection.stored for collection in select(lab, names)], None


def group_of(lab: Lab, name: str) -> tuple[StoredCollection, int]:
    """Find the collection and the position of a group (`capitals/0`).

    Raises:
        InputError: this is not the name of a group. NotFoundError: there is no such group.
    """
    label, _, position = str(name).rpartition("/")
    if not label or not position.isdecimal():
        group = name.rstrip("/") if isinstance(name, str) else "NAME"
        raise InputError(f"{name!r} is not a group name", hint=f"%group {group}/0")
    stored = lab.find(label)
    if int(position) not in lab.outlines.positions(stored):
        raise NotFoundError(f"there is no group {name!r}", hint=f"%group {label}/0")
    return stored, int(position)
