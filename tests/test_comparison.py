"""Two checkpoints compared: paired by prompt and seed, with an interval that can be trusted."""

from dataclasses import replace

import numpy as np
import pytest

from rolloutlab.collection import Collection
from rolloutlab.comparison import Comparison, Pair, pairs_of
from rolloutlab.errors import InputError
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Arrival, NewGroup, Score
from rolloutlab.wire.chat import Choice, UserMessage

BETTER = Pair("0", "Capital of France?", (0.0, 0.5), (1.0, 0.5))
WORSE = Pair("1", "Capital of Peru?", (1.0, 1.0), (0.5, 0.0))
SEEN = replace(BETTER, trained=True)
SAME = Pair("2", "Capital of Chad?", (0.5,), (0.5,))


def compare(*pairs: Pair) -> Comparison:
    return Comparison("capitals", "lab/practice@0", "lab/practice@3", pairs)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def collect(lab: Lab, name: str, *groups: list[float | None]) -> Collection:
    summary = lab.open_collection(name)
    prompts = [NewGroup([UserMessage(role="user", content=f"Question {i}?")], {}) for i in range(len(groups))]
    choice = Choice.model_validate(
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "x"}}
    )
    for group, rewards in zip(lab.add_groups(summary, prompts), groups, strict=True):
        lab.put(group, [Arrival(i, [choice]) for i in range(len(rewards))], model="m", step=0, sampling={})
    collection = Collection(lab, lab.collection(name))
    given = zip(collection.trajectories, [reward for rewards in groups for reward in rewards], strict=True)
    lab.rewards.give([Score(t, reward) for t, reward in given if reward is not None], "function")
    return collection


def test_the_difference_is_the_mean_over_prompts_of_the_difference_of_means():
    found = compare(BETTER, WORSE, SAME)
    assert found.mean_before == pytest.approx((0.25 + 1.0 + 0.5) / 3)
    assert found.mean_after == pytest.approx((0.75 + 0.25 + 0.5) / 3)
    assert found.difference == pytest.approx((0.5 - 0.75 + 0.0) / 3)


def test_the_table_has_a_row_per_prompt_the_largest_loss_first():
    frame = compare(BETTER, WORSE, SAME).to_frame()
    assert list(frame.index) == ["1", "2", "0"]
    assert list(frame.columns) == ["prompt", "before", "after", "difference", "n", "trained"]
    assert frame.loc["0"].to_list() == ["Capital of France?", 0.25, 0.75, 0.5, 2, False]


def test_only_what_has_a_reward_on_both_sides_is_paired_by_its_place(lab):
    before = collect(lab, "a", [0.0, None, 1.0], [None, None], [0.5])
    after = collect(lab, "b", [1.0, 1.0, None], [1.0, 1.0], [0.25])
    assert pairs_of(before, after) == [
        Pair("0", "Question 0?", (0.0,), (1.0,)),
        Pair("2", "Question 2?", (0.5,), (0.25,)),
    ]


def test_without_any_pair_there_is_nothing_to_compare():
    with pytest.raises(InputError, match="no prompt of capitals has rewards on both sides"):
        compare()


def test_the_interval_of_one_prompt_is_over_its_trajectories():
    low, high = compare(Pair("0", "x", (0.0,) * 8, (1.0, 0.0) * 4)).interval()
    assert 0.0 <= low < 0.5 < high <= 1.0


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([BETTER] * 16, "better"),
        ([WORSE] * 16, "worse"),
        ([BETTER, WORSE] * 8, "no clear difference -> more prompts, or a larger -n"),
        ([BETTER] * 15, "no verdict from fewer than 16 prompts -> --over more rows"),
        ([SEEN] * 16, "no verdict, all of these prompts were trained on in between -> --over ROWS that were not"),
        (
            [SEEN] * 3 + [BETTER] * 16,
            "no verdict, 3 of these prompts were trained on in between -> --over ROWS that were not",
        ),
    ],
)
def test_it_says_in_words_what_came_of_it(pairs, said):
    assert compare(*pairs).words()[1].endswith(f": {said}")


def test_one_trajectory_bounds_nothing():
    line = compare(Pair("0", "x", (0.0,), (1.0,))).words()[1]
    assert "(too few for an interval): no verdict" in line


def test_an_interval_for_many_looks_is_wider_and_is_called_so():
    random = np.random.default_rng(1)
    pairs = [Pair(str(i), "x", (0.0,), (float(change),)) for i, change in enumerate(random.normal(0.5, 0.5, 32))]
    once, always = (Comparison("capitals", "a", "b", pairs, anytime=anytime) for anytime in (False, True))
    assert always.interval()[0] < once.interval()[0] < once.interval()[1] < always.interval()[1]
    assert ", valid at every look): better" in always.words()[1]
    assert "every look" not in once.words()[1]


def test_a_level_that_is_none_is_refused():
    with pytest.raises(InputError, match="the level 95 is not between 0 and 1"):
        compare(BETTER).interval(95)


def test_it_shows_the_prompts_as_text_and_as_html_without_scripts():
    hostile = Pair("0", "<script>alert(1)</script>", (0.0,), (1.0,))
    shown = compare(hostile, *[SAME] * 9)
    assert "capitals: lab/practice@0 -> lab/practice@3 on 10 prompts" in repr(shown)
    assert "... and 2 more" in repr(shown)
    assert "<script>" not in shown._repr_html_()
    assert "<svg" in shown._repr_html_()
    assert len(shown.plot().series) == 2
