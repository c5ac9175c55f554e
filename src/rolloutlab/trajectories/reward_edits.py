"""Edits of rewards by hand from a table: an edited DataFrame, or a file that a spreadsheet has saved."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rolloutlab.errors import InputError, RewardError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.data_files import read_records
from rolloutlab.store.models import Edit, Score, StoredTrajectory
from rolloutlab.store.rewards import Rewards, finite
from rolloutlab.trajectories.table_query import number_of

_NAMES = ("trajectory", "name")
"""Columns that may hold the name of a trajectory. The first that exists is used."""
_DIGITS = 9
"""The least digits of a number that a spreadsheet may have shortened."""


class RewardEdits(list[Edit]):
    """The edits of one change of rewards, shown as a line. unknown: names in the table that match no trajectory."""

    def __init__(self, edits: Iterable[Edit], unknown: Sequence[str] = ()) -> None:
        super().__init__(edits)
        self.unknown = tuple(unknown)

    @property
    def cleared(self) -> int:
        """The number of rewards that were cleared."""
        return sum(edit.new is None for edit in self)

    def __repr__(self) -> str:
        parts = [f"{count(len(self) - self.cleared, 'reward')} changed"]
        parts += [f"{self.cleared:,} cleared"] if self.cleared else []
        if self.unknown:
            some = ", ".join(self.unknown[:3]) + (", ..." if len(self.unknown) > 3 else "")
            parts.append(f"{count(len(self.unknown), 'row')} unknown: {some}")
        return ", ".join(parts)


def give_edited(
    rewards: Rewards, known: Mapping[str, StoredTrajectory], table: Mapping[str, Any], unknown: Sequence[str] = ()
) -> RewardEdits:
    """Store the rewards of a table by hand, as one change. A missing reward clears the stored one.

    known: the trajectories of the collection by name. table: rewards by name; None or NaN is a missing one.

    Raises:
        RewardError: a reward is not a finite number; or the table has no reward at all and would clear several. That
            looks like a join that has lost the column. Nothing is changed then.
    """
    scores, cleared = [], []
    for name, value in table.items():
        trajectory = known[name]
        if _is_missing(value):
            cleared += [trajectory] if trajectory.reward is not None else []
        elif (reward := finite(value, name)) != trajectory.reward:  # an unchanged row is no edit
            scores.append(Score(trajectory, reward))
    if len(cleared) > 1 and all(map(_is_missing, table.values())):
        what = f"the table has no reward any more: {len(cleared):,} would be cleared"
        raise RewardError(what, hint='lab.rewards("NAME").clear(names) clears them on purpose')
    return RewardEdits(rewards.give(scores, "hand", cleared=cleared), unknown)


def rewards_of_frame(frame: Any, known: Collection[str]) -> dict[str, Any]:
    """Read the rewards of a frame, by the names of trajectories.

    The names are in the index or in a column. A polars frame has no index, and a frame that was saved as CSV and read
    again has the index as a column. That column is `trajectory` or `name`, or any column that has only known names.

    Raises:
        InputError: there is no column of rewards or of names, or a name occurs twice.
    """
    columns = list(frame.columns)
    if "reward" not in columns:
        raise InputError("the frame has no column 'reward'", hint="frame = collection.to_frame()")
    has_index = hasattr(frame, "iloc")  # polars has none
    names = list(map(_tidy, frame.index)) if has_index else []
    if not any(name in known for name in names):
        texts = {column: list(map(_tidy, frame[column])) for column in columns if column != "reward"}
        named = [column for column in _NAMES if column in texts]
        like = [column for column, values in texts.items() if values and all(value in known for value in values)]
        if named or like:
            names = texts[[*named, *like][0]]
        elif not has_index:
            hint = "polars.from_pandas(collection.to_frame().reset_index())"
            raise InputError("the frame has no column 'trajectory'", hint=hint)
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"the frame has the trajectory {twice[0]!r} twice", hint="frame[~frame.index.duplicated()]")
    return dict(zip(names, frame["reward"], strict=True))


def _tidy(name: Any) -> str:
    """Return a name as it is stored, without the apostrophe that keeps a spreadsheet from reading it as a formula."""
    return str(name).strip().removeprefix("'")


def give_from_file(rewards: Rewards, known: Mapping[str, StoredTrajectory], path: Path) -> RewardEdits:
    """Store the columns `trajectory` and `reward` of a file as `give_edited` does. Other columns are ignored.

    Rows of other trajectories are reported as unknown. A trajectory without a row keeps its reward.

    Raises:
        NotFoundError: there is no such file. InputError: it cannot be read, or lacks a column. RewardError: a reward is
            not a number, such as `0,5`, or a trajectory has two rewards; the message has file and line.
    """
    table: dict[str, Any] = {}
    unknown: list[str] = []
    for place, row in read_records(path):
        name = _read_name(place, row)
        if name not in known:
            unknown.append(name)
            continue
        trajectory = known[name]
        reward = _as_stored(_read_reward(place, row["reward"]), row["reward"], trajectory.reward)
        if table.setdefault(trajectory.name, reward) != reward:
            raise RewardError(f"{place}: {name} has another reward in a line before", hint="one line per trajectory")
    if not table and not unknown:
        raise InputError(f"{path.name} has no rows", hint=f"%export NAME {path.name}")
    return give_edited(rewards, known, table, unknown)


def _read_name(place: str, row: Any) -> str:
    column = next((name for name in _NAMES if isinstance(row, Mapping) and name in row), None)
    if column is None or "reward" not in row:
        missing = "trajectory" if column is None else "reward"
        raise InputError(f"{place}: there is no column {missing!r}", hint="%export NAME labels.csv writes both")
    return _tidy(row[column])


def _read_reward(place: str, value: Any) -> float | None:
    """Read the reward of a cell; None for an empty one."""
    if not isinstance(value, str):
        return None if _is_missing(value) else finite(value, place)
    text = value.strip()
    if not text:
        return None
    number = {"true": 1.0, "false": 0.0}.get(text.casefold(), number_of(text))
    if number is None or math.isinf(number):
        with_point = text.replace(",", ".") if "," in text else ""
        hint = with_point if number_of(with_point) is not None else "a number such as 0.5, or an empty cell"
        raise RewardError(f"{place}: the reward {text!r} is not a number", hint=hint)
    return number


def _as_stored(reward: float | None, value: Any, stored: float | None) -> float | None:
    """Return the stored reward if the file has it shortened, else the reward of the file.

    A spreadsheet shortens 0.3333333333333333 to 0.333333333, for example; that is no edit.
    """
    if reward is None or stored is None or not isinstance(value, str):
        return reward
    digits = sum(character.isdigit() for character in value.lower().partition("e")[0].lstrip("+-0. "))
    return stored if digits >= _DIGITS and float(f"{stored:.{digits}g}") == reward else reward


def _is_missing(value: Any) -> bool:
    import pandas as pd

    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def reward_of(value: Any, name: str) -> float:
    """Return the reward that a number or a typed text stands for; raise RewardError if it is not a finite number."""
    typed = number_of(value) if isinstance(value, str) else None
    try:
        return finite(value if typed is None or math.isinf(typed) else typed, name)
    except RewardError as error:
        with_point = value.replace(",", ".") if isinstance(value, str) and "," in value else ""
        hint = with_point if number_of(with_point) is not None else "a number such as 0.5"
        raise RewardError(error.message, hint=hint) from None
