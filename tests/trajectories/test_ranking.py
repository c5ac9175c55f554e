"""Ranks become rewards."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError
from rolloutlab.trajectories.group_view import read_ranking, rewards_of

NAMES = [f"capitals/0/{i}" for i in range(5)]


@pytest.mark.parametrize(
    ("ranking", "rewards"),
    [
        ([[2], [0], [1]], {2: 1.0, 0: 0.5, 1: 0.0}),
        ([[3], [1]], {3: 1.0, 1: 0.0}),
        ([[0, 1], [2]], {0: 0.75, 1: 0.75, 2: 0.0}),
        ([[0], [1, 2, 3], [4]], {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.5, 4: 0.0}),
        ([[4, 2]], {4: 0.5, 2: 0.5}),
        ([[1]], {1: 0.5}),
    ],
)
def test_the_best_has_1_the_worst_0_and_ties_share_the_mean(
    ranking: list[list[int]], rewards: dict[int, float]
) -> None:
    assert rewards_of(ranking) == rewards


@given(st.permutations(range(7)), st.lists(st.integers(1, 6), unique=True))
def test_ties_never_change_the_mean_nor_the_order(order: list[int], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), 7]
    ranking = [order[start:end] for start, end in pairwise(edges)]
    rewards = rewards_of(ranking)
    assert sum(rewards.values()) == pytest.approx(3.5)
    by_place = [{rewards[seat] for seat in tied} for tied in ranking]
    assert all(len(each) == 1 for each in by_place)
    flat = [reward for each in by_place for reward in each]
    assert flat == sorted(flat, reverse=True)


def test_positions_names_and_ties_are_read() -> None:
    assert read_ranking([2, "capitals/0/0", [1, "capitals/0/3"]], NAMES) == [[2], [0], [1, 3]]
    assert read_ranking((2, (0, 1)), NAMES) == [[2], [0, 1]]


@pytest.mark.parametrize(
    "wrong", ["2,0", None, [], [[]], [7], [-1], [True], [1.0], ["rivers/0/1"], ["1"], [{}], {0: 1}]
)
def test_what_is_no_ranking_is_refused_in_words(wrong: object) -> None:
    with pytest.raises(InputError) as refused:
        read_ranking(wrong, NAMES)
    assert refused.value.hint


def test_what_is_ranked_twice_is_refused() -> None:
    with pytest.raises(InputError, match="capitals/0/1 is ranked twice"):
        read_ranking([1, [0, "capitals/0/1"]], NAMES)
