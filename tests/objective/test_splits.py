"""Marks of a service on its choices, as numbers of sequences and as words."""

import pytest

from rolloutlab.api.wire.trajectories import History
from rolloutlab.objective.preflight import Seat
from rolloutlab.objective.splits import sequences_of, split_note, split_warnings

ASKED = {"role": "user", "content": "a"}
REWRITES = "the template does not keep earlier turns as they were sampled"
DROPS = "the template drops earlier reasoning"


def choice(content="yes", tokens=1, reasoning=None, **more):
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * tokens}
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    return {"finish_reason": "stop", "index": 0, "message": message, "logprobs": logprobs, **more}


def history(*items):
    return History.model_validate({"messages_and_choices": [ASKED, *items]})


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], 0),
        ([choice(tokens=0)], 0),
        ([choice()], 1),
        ([choice(), choice()], 1),
        ([choice(), choice(continues=False)], 2),
        ([choice(), choice(continues=False), choice(), choice(continues=False)], 3),
        ([choice(continues=False), choice()], 1),
        ([choice(), choice(continues=None), choice(continues="no"), choice(continues=True)], 1),
        ([choice(), choice(tokens=0, continues=False)], 1),
    ],
)
def test_a_marked_choice_begins_a_sequence(items, expected):
    assert sequences_of([history(*items)]) == expected
    assert sequences_of([history(*items), history(choice())]) == expected + 1


@pytest.mark.parametrize(
    ("histories", "note"),
    [
        ([history(choice(), choice())], ""),
        ([history(choice()), history(choice())], ""),
        ([history(choice(), choice(continues=False))], f"2 sequences: {REWRITES}"),
        ([history(choice(reasoning="hm"), choice(continues=False))], f"2 sequences: {DROPS}"),
        ([history(choice("<think>hm</think>yes"), choice(continues=False))], f"2 sequences: {DROPS}"),
        ([history(choice(), choice(reasoning="hm", continues=False))], f"2 sequences: {REWRITES}"),
        ([history(choice(), choice(continues=False)), history(choice())], f"3 sequences: {REWRITES}"),
    ],
)
def test_a_split_is_explained_by_the_reasoning_of_the_turns_before_it(histories, note):
    assert split_note(histories) == note


def test_trajectories_are_counted_by_their_reason():
    seats = [Seat("a", 1.0, 5), Seat("b", 1.0, 5, 3, f"3 sequences: {DROPS}")]
    seats += [Seat("c", 0.0, 5, 2, f"2 sequences: {DROPS}"), Seat("d", 0.0, 5, 2, f"2 sequences: {REWRITES}")]
    assert split_warnings(seats) == [
        f"2 trajectories in 5 sequences: {DROPS}",
        f"1 trajectory in 2 sequences: {REWRITES}",
    ]
