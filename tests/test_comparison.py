"""Two checkpoints compared: paired by prompt and seed, with an interval that can be trusted."""

import numpy as np
import pytest

from rolloutlab.collection import Collection
from rolloutlab.comparison import Comparison, Pair, bootstrap, pairs_of
from rolloutlab.errors import InputError
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Arrival, NewGroup, Score
from rolloutlab.wire.chat import Choice, UserMessage

BETTER = Pair("0", "Capital of France?", (0.0, 0.5), (1.0, 0.5))
WORSE = Pair("1", "Capital of Peru?", (1.0, 1.0), (0.5, 0.0))
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
    assert list(frame.columns) == ["prompt", "before", "after", "difference", "n"]
    assert frame.loc["0"].to_list() == ["Capital of France?", 0.25, 0.75, 0.5, 2]


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


def test_the_same_pairs_give_the_same_interval():
    assert compare(BETTER, WORSE, SAME).interval() == compare(BETTER, WORSE, SAME).interval()


def test_equal_differences_leave_no_doubt():
    assert bootstrap([0.25] * 20) == (0.25, 0.25)


def test_a_wider_level_gives_a_wider_interval():
    values = list(np.random.default_rng(1).normal(size=30))
    (low, high), (lower, higher) = bootstrap(values, 0.5), bootstrap(values, 0.99)
    assert lower < low < high < higher


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    draws = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        low, high = bootstrap(draws.normal(0.3, 1.0, size=40))
        held += low <= 0.3 <= high
    assert 0.90 <= held / 200 <= 0.99


def test_the_interval_is_that_of_the_normal_approximation_where_there_are_many_prompts():
    values = np.random.default_rng(3).normal(0.1, 0.5, size=2000)
    low, high = bootstrap(values)
    error = values.std() / np.sqrt(len(values))
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_one_prompt_is_resampled_by_its_trajectories():
    low, high = compare(Pair("0", "x", (0.0,) * 8, (1.0, 0.0) * 4)).interval()
    assert 0.0 <= low < 0.5 < high <= 1.0


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([BETTER] * 12, "better"),
        ([WORSE] * 12, "worse"),
        ([BETTER, WORSE] * 6, "no clear difference -> more prompts, or a larger -n"),
    ],
)
def test_it_says_in_words_what_came_of_it(pairs, said):
    assert compare(*pairs).words()[1].endswith(f": {said}")


def test_from_almost_nothing_no_verdict_is_given():
    assert compare(Pair("0", "x", (0.0,), (1.0,))).words()[1].endswith(": too few to say")


def test_a_level_that_is_none_is_refused():
    with pytest.raises(InputError, match="the level 95 is not between 0 and 1"):
        compare(BETTER).interval(95)


def test_it_says_that_few_prompts_are_few():
    assert "an interval from 3 prompts is too narrow" in compare(BETTER, WORSE, SAME).words()[-1]
    assert len(compare(*[BETTER] * 10).words()) == 3


def test_it_shows_the_prompts_as_text_and_as_html_without_scripts():
    hostile = Pair("0", "<script>alert(1)</script>", (0.0,), (1.0,))
    shown = compare(hostile, *[SAME] * 9)
    assert "capitals: lab/practice@0 -> lab/practice@3 on 10 prompts" in repr(shown)
    assert "... and 2 more" in repr(shown)
    assert "<script>" not in shown._repr_html_()
    assert "<svg" in shown._repr_html_()
    assert len(shown.plot().series) == 2
