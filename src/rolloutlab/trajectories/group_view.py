"""Widget of the groups of a collection, which a person reads, ranks and scores; rewards from a ranking."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rolloutlab.api.wire.trajectories import History, ScoredHistories
from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Edit, Group, Score, StoredCollection, StoredTrajectory, TrajectorySummary
from rolloutlab.trajectories.overview import order_groups, summarize_job
from rolloutlab.trajectories.reward_edits import reward_of
from rolloutlab.trajectories.rewards_data import RewardsData, shared_rewards, without_garbage_collection
from rolloutlab.widgets import group as render
from rolloutlab.widgets import overview
from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.kit.tree import Tree, tree
from rolloutlab.widgets.rewards import undoable_message

FORMULA = "best 1, worst 0, evenly spaced; ties share the mean of their places; what is not ranked keeps what it has"

Ranking = Sequence[Sequence[int]]
"""Ranks from best to worst. Each is a list of positions in the group; several positions in one list are a tie."""


def rewards_of(ranking: Ranking) -> dict[int, float]:
    """Compute the reward of each ranked position: of n positions, the one with rank p, from 0, gets 1 - p / (n - 1).

    Tied positions share the mean of their ranks. If there is only one position, or all are tied, each gets 0.5.
    """
    total = sum(map(len, ranking))
    rewards: dict[int, float] = {}
    before = 0
    for tied in ranking:
        mean = before + (len(tied) - 1) / 2
        reward = 1 - mean / (total - 1) if total > 1 else 0.5
        rewards |= dict.fromkeys(tied, reward)
        before += len(tied)
    return rewards


def read_ranking(ranking: object, names: Sequence[str]) -> list[list[int]]:
    """Read the positions of a ranking, best first. Its items are positions or names of trajectories; a list is a tie.

    names: the names of the group's trajectories, such as `capitals/0/3`.

    Raises:
        InputError: the ranking is not a list, or an item is not a trajectory of the group, or is ranked twice.
    """
    if isinstance(ranking, str) or not isinstance(ranking, Sequence) or not ranking:
        raise InputError("a ranking is a list of positions or names, best first", hint="[2, 0, [1, 3]]")
    known = {int(name.rpartition("/")[2]): name for name in names}
    places = [_read_tie(place, known) for place in ranking]
    seen: set[int] = set()
    for position in (each for place in places for each in place):
        if position in seen:
            name = escape_control_chars(known[position])
            raise InputError(f"{name} is ranked twice", hint="each position once, ties in a list")
        seen.add(position)
    return places


def _read_tie(place: object, known: dict[int, str]) -> list[int]:
    items = list(place) if isinstance(place, Sequence) and not isinstance(place, str) else [place]
    if not items:
        raise InputError("a place of the ranking is empty", hint="[2, 0, [1, 3]]")
    return [_find_position(item, known) for item in items]


def _find_position(item: object, known: dict[int, str]) -> int:
    if isinstance(item, int) and not isinstance(item, bool) and item in known:
        return item
    for position, name in known.items():
        if isinstance(item, str) and item == name:
            return position
    raise InputError(f"{item!r} is not a trajectory of this group", hint=f"one of {', '.join(map(str, known))}")


AskLogprobs = Callable[[str, Sequence[History]], ScoredHistories]
"""A function that requests the logprobs of histories under a model's newest checkpoint."""


class GroupView(NotebookView):
    """The widget of a collection's groups, or of the group at `position`. It reads one group at a time.

    It shows the advantages that a job on the whole collection would have with default options.

    Args:
        lab: The lab.
        number: The id of the collection.
        position: The position of the only group to show.
        ask_logprobs: Requests logprobs; without it the view has none to compare.
    """

    module = "group"

    def __init__(
        self, lab: Lab, number: int, position: int | None = None, ask_logprobs: AskLogprobs | None = None
    ) -> None:
        self._lab = lab
        self._number = number
        self._position = position
        self._ask_logprobs = ask_logprobs
        self._lock = threading.Lock()
        self._read: Group | None = None
        self._order: list[int] = []
        self._version: object = None
        self._ids = range(0)
        lab.rewards.listen(self._on_edit)

    def state(self) -> Mapping[str, Any]:
        """Return what the browser shows first: the figures, and the group with the most to learn from."""
        self._order = []
        shown = self.group(0)
        return {"formula": FORMULA, "gap": self._ask_logprobs is not None, "above": self.overview(), "shown": shown}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "overview": self.overview,
            "group": self.group,
            "find": self.find,
            "text": self.text,
            "tokens": self.tokens,
            "gap": self.gap,
            "standing": self.reward_state,
            "rank": self.rank,
            "give": self.give,
            "undo": self.undo,
        }

    def read(self, position: int) -> Group:
        """Read a group with its present rewards. Its conversations are cached until a trajectory is added."""
        group = self._group(position)
        now = {outline.id: outline for outline in self._outlines(group)}
        members = [
            replace(t, reward=now[t.id].reward, components=now[t.id].components, source=now[t.id].source)
            for t in group.trajectories
            if t.id in now
        ]
        return replace(group, trajectories=tuple(members))

    def overview(self) -> Tree | None:
        """Return the title and the figures of the whole collection; None if the view has only one group."""
        if self._position is not None:
            return None
        stored = self._stored
        with self.job() as job:
            whole = summarize_job(job, self._lab)
        return tree(overview.heading(stored.label, whole) + overview.html(whole))

    def group(self, at: int, order: str = "learning") -> dict[str, Any]:
        """Return the group at index `at` of the view, and the number of groups in the view.

        order: `learning` begins with the groups that had the most to learn from when the page was loaded; `sampled`
        keeps the order of the rows.
        """
        positions = self._positions() if order == "sampled" else self._order_positions()
        if not positions:
            return {"at": 0, "of": 0, "name": escape_control_chars(self._stored.label), "group": None}
        index = min(_check_index(at), len(positions) - 1)
        group = self._group(positions[index])
        described = {**render.describe(group), **self._reward_states(group)}
        return {"at": index, "of": len(positions), "name": escape_control_chars(self._stored.label), "group": described}

    def find(self, position: int, order: str = "learning") -> dict[str, Any]:
        """Return the group at a position as `group` does. position: the number after the slash in its name."""
        positions = self._positions() if order == "sampled" else self._order_positions()
        if _check_index(position) not in positions:
            hint = f"0 to {max(positions, default=0)}"
            raise NotFoundError(f"there is no group {self._stored.label}/{position}", hint=hint)
        return self.group(positions.index(position), order)

    def text(self, position: int, seat: int | None, number: int, start: int) -> dict[str, Any]:
        """Return more of a long text, from the character `start`.

        position: the position of the group. seat: the position of the trajectory in it; None for the prompt. number:
        the index of the text among those of the trajectory or prompt.
        """
        group = self._group(position)
        texts = render.ConversationTexts()
        if seat is None:
            render.prompt_of(group, texts)
        else:
            render.conversation(_find_seat(group, seat), texts)
        if not _check_index(number) < len(texts.whole):
            raise NotFoundError(f"there is no text {number} there")
        return render.piece(texts.whole[number], _check_index(start))

    def tokens(self, position: int, seat: int, start: int) -> dict[str, Any]:
        """Return a page of the sampled tokens of a trajectory, from the token `start`."""
        return render.tokens_of(_find_seat(self._group(position), seat), _check_index(start))

    def gap(self, position: int, seat: int) -> dict[str, Any]:
        """Request how the logprob of each sampled token has changed from sampling to the newest checkpoint.

        `turns` has a list of differences for each turn.
        """
        trajectory = _find_seat(self._group(position), seat)
        if self._ask_logprobs is None:
            raise NotFoundError("this view has no service for logprobs", hint="lab.collection(...)")
        scored = self._ask_logprobs(trajectory.model, trajectory.histories())
        return {"model": escape_control_chars(scored.model), "turns": render.gaps_of(trajectory, scored)}

    def reward_state(self, position: int) -> dict[str, Any]:
        """Return the present rewards of a group, and the advantages that it would train with."""
        return self._reward_states(self._group(position))

    def rank(self, position: int, ranking: object) -> dict[str, Any]:
        """Turn a ranking, best first, into rewards given by hand, as one change."""
        group = self._group(position)
        return self._answer(group, rank(self._lab, group, ranking))

    def give(self, position: int, seats: Sequence[int], reward: Any) -> dict[str, Any]:
        """Give some trajectories of a group the same reward by hand: a finite number, or such a number as text."""
        group = self._group(position)
        given = [_find_seat(group, seat) for seat in seats]
        scores = [Score(trajectory, reward_of(reward, trajectory.name)) for trajectory in given]
        return self._answer(group, self._lab.rewards.give(scores, source="hand"))

    def undo(self, position: int, seen: int | None = None) -> dict[str, Any]:
        """Undo the newest change of the collection, if it was made by hand and only in this group.

        seen: the change that the browser's button shows; 0 if it shows none.

        Raises:
            NotFoundError: the newest change has another source or is in another group, or nothing is left to undo.
            ConflictError: the newest change is no longer the one that the button shows.
        """
        stored, group = self._stored, self._group(position)

        def take_back() -> list[Edit]:
            source, groups = self._lab.rewards.newest(stored)
            if why_not := _why_no_undo(source, groups, position):
                hint = f"%rewards {stored.label} {'--undo' if source else '--history'}"
                raise NotFoundError(f"nothing by hand to undo here: {why_not}", hint=hint)
            newest = self._undoable(stored, position)
            if seen is not None and seen != newest["change"]:
                message = f"another change is the newest by now: {newest['what']}"
                raise ConflictError(message, hint="the button names it: press it again, or leave it")
            return self._lab.rewards.undo(stored)

        return self._answer(group, self._lab.at_once(take_back))

    def _undoable(self, stored: StoredCollection, position: int) -> dict[str, Any]:
        """Return the number of the change that `undo` would revert in a group, 0 if none, and its description."""
        if _why_no_undo(*self._lab.rewards.newest(stored), position):
            return {"change": 0, "what": ""}
        return {
            "change": self._lab.rewards.undoable(stored),
            "what": undoable_message(self._lab.rewards.next_undo(stored)),
        }

    @property
    def _stored(self) -> StoredCollection:
        return self._lab.by_id(self._number)

    def _positions(self) -> list[int]:
        return self._lab.outlines.positions(self._stored) if self._position is None else [self._position]

    def _order_positions(self) -> list[int]:
        """Return the positions, beginning with the groups that have the most to learn from.

        The order stays while a page is open, even if rewards are edited. It is computed again when groups are added.
        """
        positions = self._positions()
        if len(self._order) != len(positions):
            with self.job() as job:
                order = [job.rows.groups[g].position for g in order_groups(job.rows)]
            self._order = [position for position in order if position in set(positions)]
        return self._order

    def _group(self, position: int) -> Group:
        """Read a group with its conversations. The last one is cached until a trajectory is added to it."""
        stored = self._stored
        with self._lock:
            name, read = f"{stored.label}/{_check_index(position)}", self._read
            if read is None or read.name != name or not self._is_current(read):
                with without_garbage_collection():
                    groups = self._lab.groups(stored, position)
                if not groups:
                    raise NotFoundError(f"there is no group {name}", hint=f"%group {stored.label}/0")
                self._read = read = groups[0]
            return read

    def _is_current(self, group: Group) -> bool:
        return [t.id for t in group.trajectories] == [outline.id for outline in self._outlines(group)]

    def _outlines(self, group: Group) -> list[TrajectorySummary]:
        return self._lab.outlines.of(self._stored, group.position)

    def _reward_states(self, group: Group) -> dict[str, Any]:
        with self.job() as job:
            rows = job.rows
            g = rows.group(group.position)
            places, shares = (rows.groups[g].rows, rows.shares(g)) if g is not None else (range(0), {})
            former = self._lab.rewards.before_hand(
                rows.outlines[i].id for i in places if rows.outlines[i].source == "hand"
            )
            standing = [
                render.reward_state(rows.outlines[i], shares.get(i), former.get(rows.outlines[i].id)) for i in places
            ]
            trains = rows.summary()["trainable_groups"] if self._position is None else None
            undo = self._undoable(self._stored, group.position)
            return {"standing": standing, "largest": rows.largest, "trains": trains, "undo": undo}

    @contextmanager
    def job(self) -> Iterator[RewardsData]:
        """Run a block with the present rewards of the whole collection as one job, under their lock."""
        shared = shared_rewards(self._lab, [self._stored], None)
        with shared.lock:
            shared.refresh()
            if shared.version is not self._version:
                self._version, ids = shared.version, shared.rows.index
                self._ids = range(min(ids, default=0), max(ids, default=-1) + 1)
            yield shared

    def _answer(self, group: Group, edits: Sequence[Edit]) -> dict[str, Any]:
        return {**self._reward_states(group), "message": _summarize(edits)}

    def _on_edit(self, ids: Set[int]) -> None:
        """Tell browsers that rewards changed. It may be called on any thread.

        A reward of another group counts too, because the figures and advantages depend on all groups.
        """
        if any(each in self._ids for each in ids):
            self.push("changed")


def rank(lab: Lab, group: Group, ranking: object) -> list[Edit]:
    """Turn a ranking of a group, best first, into rewards given by hand, as one change.

    Raises:
        InputError: the ranking is invalid.
    """
    members = {render.seat_of(trajectory): trajectory for trajectory in group.trajectories}
    places = read_ranking(ranking, [trajectory.name for trajectory in group.trajectories])
    scores = [Score(members[seat], reward) for seat, reward in rewards_of(places).items()]
    return lab.rewards.give(scores, source="hand")


def _why_no_undo(source: str | None, groups: Set[int], position: int) -> str | None:
    """Return why the newest change cannot be undone in the view of this group; None if it can."""
    if source is None:
        return "nothing is left"
    if source != "hand":
        return f"the newest change was given by {'an' if source.startswith('e') else 'a'} {source}"
    others = groups - {position}
    return f"the newest change was in group {min(others)}" if others else None


def _summarize(edits: Sequence[Edit]) -> str:
    if not edits:
        return "every reward is as it was"
    groups = dict.fromkeys(escape_control_chars(edit.trajectory.rpartition("/")[0]) for edit in edits)
    some = f"{count(len(edits), 'reward')} in {', '.join(list(groups)[:3])}"
    return f"taken back: {some}" if edits[0].undoes else f"given by hand: {some}"


def _find_seat(group: Group, seat: int) -> StoredTrajectory:
    for trajectory in group.trajectories:
        if render.seat_of(trajectory) == _check_index(seat):
            return trajectory
    raise NotFoundError(f"there is no trajectory {group.name}/{seat}", hint=f"%group {group.name}")


def _check_index(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise InputError(f"a position must be an integer ≥ 0, not {number!r}", hint="0")
    return number
