"""Common prompts are encoded once where that pays, and padding at most doubles a batch."""

from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.policy.packing import Bundle, batches, bundles, collate, parts
from rolloutlab.policy.token_sequence import TokenSequence


def sequence(prompt: int, rest: int, first: int = 7) -> TokenSequence:
    """A prompt that is known by its first token, and `rest` trained tokens."""
    length = prompt + rest
    ids = array("i", [first, *range(10, 9 + length)])
    return TokenSequence(ids, bytearray(prompt) + bytearray([1]) * rest, array("f", [0.0] * length))


def members(sequences: list[TokenSequence], limit: int = 1024, shares: bool = True) -> list[list[int]]:
    return [bundle.members for bundle in bundles(sequences, limit, lambda length: shares)]


def test_sequences_of_one_prompt_are_one_bundle_and_others_are_not():
    sequences = [sequence(30, 10), sequence(30, 10, first=8), sequence(30, 12), sequence(29, 10), sequence(30, 9)]
    packed = bundles(sequences, 1024, lambda length: True)
    assert packed == [Bundle(30, [0, 2, 4], 61), Bundle(30, [1], 40), Bundle(29, [3], 39)]


def test_a_model_that_cannot_keep_them_apart_gets_each_by_itself():
    asked: list[int] = []
    packed = bundles([sequence(30, 10), sequence(30, 20)], 1024, lambda length: bool(asked.append(length)))
    assert [bundle.members for bundle in packed] == [[0], [1]]
    assert asked == [60]


def test_a_short_prompt_before_long_answers_is_not_worth_sharing():
    assert members([sequence(2, 200), sequence(2, 200)]) == [[0], [1]]
    assert members([sequence(100, 10), sequence(100, 10)]) == [[0, 1]]


def test_a_large_group_is_several_bundles_within_the_limit():
    group = [sequence(100, 60) for _ in range(12)]
    packed = bundles(group, 1024, lambda length: True)
    assert [i for bundle in packed for i in bundle.members] == list(range(12))
    assert len(packed) > 1
    assert all(bundle.length == 100 + 60 * len(bundle.members) for bundle in packed)
    assert max(bundle.length for bundle in bundles(group, 240, lambda length: True)) == 220


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 600))
def test_padding_at_most_doubles_a_batch_and_a_batch_is_within_its_limit_or_one(lengths, limit):
    packed = [Bundle(1, [i], length) for i, length in enumerate(lengths)]
    made = list(batches(packed, limit))
    assert sorted(b.members[0] for batch in made for b in batch) == list(range(len(lengths)))
    for batch in made:
        padded = len(batch) * max(b.length for b in batch)
        assert padded <= limit or len(batch) == 1
        assert padded <= 2 * sum(b.length for b in batch)


def test_a_bundle_is_laid_out_as_its_prompt_once_and_the_rest_of_each_where_it_would_have_been():
    first, second, other = sequence(3, 2), sequence(3, 1), sequence(2, 2, first=8)
    batch = collate([Bundle(3, [0, 1], 6), Bundle(2, [2], 4)], [first, second, other], torch.float32)
    assert batch.order == [0, 1, 2]
    assert batch.ids_BL.tolist() == [[7, 10, 11, 12, 13, 12], [8, 10, 11, 12, 0, 0]]
    assert batch.positions_BL.tolist() == [[0, 1, 2, 3, 4, 3], [0, 1, 2, 3, 0, 0]]
    assert batch.target_T.tolist() == [12, 13, 12, 11, 12]
    assert batch.before_T.tolist() == [2, 3, 2, 7, 8]
    sees = [[int(seen == 0) for seen in row] for row in batch.mask_B1LL[0, 0].tolist()]
    assert sees == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]


def test_sequences_by_themselves_need_no_mask_and_no_positions():
    batch = collate([Bundle(3, [0], 5), Bundle(3, [1], 4)], [sequence(3, 2), sequence(3, 1)], torch.float32)
    assert set(batch.read(torch.device("cpu"))) == {"input_ids"}


@pytest.mark.parametrize("count", [0, 1])
def test_there_may_be_nothing_to_bundle(count):
    assert members([sequence(3, 2)] * count) == [[0]] * count
    assert list(batches(bundles([], 10, lambda length: True), 10)) == []


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_everyone_who_works_gets_about_as_many_tokens(workers):
    group = [sequence(5, n) for n in (30, 2, 9, 14, 1, 25, 3, 8)]
    packed = parts(group, workers)
    assert [i for part in packed for i in part] == list(range(8))
    assert len(packed) <= workers
    total = sum(map(len, group))
    assert all(sum(len(group[i]) for i in part) <= total / workers + 35 for part in packed)


def test_a_border_cuts_no_few_members_off_a_group():
    groups = [[sequence(5, 4, first) for _ in range(8)] for first in (1, 2, 3)]
    shorter = [sequence(5, 2, 4) for _ in range(8)]
    four = [*groups[0], *groups[1], *groups[2], *shorter]  # of whose tokens half is reached within the second group
    assert [len(part) for part in parts(four, 2)] == [16, 16]
    assert [len(part) for part in parts(groups[0], 2)] == [4, 4]  # one group alone is divided


def test_there_are_no_parts_of_nothing():
    assert parts([], 2) == []
