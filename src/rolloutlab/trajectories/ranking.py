"""Rewards from a ranking of completions of one group."""

from collections.abc import Sequence

from rolloutlab.errors import InputError
from rolloutlab.sanitize import escape_control_chars

FORMULA = "best 1, worst 0, evenly spaced; ties share the mean of their places; what is not ranked keeps what it has"

Ranking = Sequence[Sequence[int]]
"""Places from the best to the worst; each holds the positions, in the group, of what is equally good."""


def rewards_of(ranking: Ranking) -> dict[int, float]:
    """The reward of each position that is ranked, as `FORMULA` says: of n, the one at place p has 1 - p / (n - 1).

    With one position, or all at one place, none is better or worse: each then has the mean, 0.5.
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
    """The ranking that a caller gave, best first: positions or names of trajectories, lists of them for ties.

    names: those of the group's trajectories, such as `capitals/0/3`.

    Raises:
        InputError: it is not a list, or an item of it is not a trajectory of the group, or is there twice.
    """
    if isinstance(ranking, str) or not isinstance(ranking, Sequence) or not ranking:
        raise InputError("a ranking is a list of positions or names, best first", hint="[2, 0, [1, 3]]")
    known = {int(name.rpartition("/")[2]): name for name in names}
    places = [_tied(place, known) for place in ranking]
    seen: set[int] = set()
    for position in (each for place in places for each in place):
        if position in seen:
            name = escape_control_chars(known[position])
            raise InputError(f"{name} is ranked twice", hint="each position once, ties in a list")
        seen.add(position)
    return places


def _tied(place: object, known: dict[int, str]) -> list[int]:
    items = list(place) if isinstance(place, Sequence) and not isinstance(place, str) else [place]
    if not items:
        raise InputError("a place of the ranking is empty", hint="[2, 0, [1, 3]]")
    return [_position(item, known) for item in items]


def _position(item: object, known: dict[int, str]) -> int:
    for position, name in known.items():
        if item == (name if isinstance(item, str) else position) and not isinstance(item, bool | float):
            return position
    raise InputError(f"{item!r} is not a trajectory of this group", hint=f"one of {', '.join(map(str, known))}")
