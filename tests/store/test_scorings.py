"""Scorings: outcomes in several transactions under one change, failures, and results that are remembered."""

import pytest

from rolloutlab.errors import ConflictError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Ref, Score
from rolloutlab.store.scorings import Failure, NewScoring, RewardResult
from tests.labs import lab_with

NEW = NewScoring("function", ["right"], "def right(): ...", {"retries": 1}, "TRL")


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def stored(lab):
    lab_with(lab, ["a", "b"], ["c", "d"])
    return lab.find("capitals")


def refs(lab):
    return [Ref(t.id, t.name) for group in lab.groups(lab.find("capitals")) for t in group.trajectories]


def rewards(lab):
    return [t.reward for group in lab.groups(lab.find("capitals")) for t in group.trajectories]


def test_batches_of_a_scoring_are_one_change_also_with_another_change_in_between(lab, stored):
    first, second, third, _ = refs(lab)
    change = lab.scorings.begin(stored, NEW)
    lab.scorings.store(change, "function", [Score(first, 1.0)], keep_hand=True)
    [edit] = lab.rewards.give([Score(third, 5.0)], "hand")
    lab.scorings.store(change, "function", [Score(second, 2.0), Score(third, 3.0)], keep_hand=False)
    assert edit.change == change + 1
    assert rewards(lab) == [1.0, 2.0, 5.0, None]
    lab.rewards.undo(stored)
    lab.rewards.undo(stored)
    assert rewards(lab) == [None] * 4


def test_two_scorings_that_have_begun_have_numbers_of_their_own(lab, stored):
    assert lab.scorings.begin(stored, NEW) != lab.scorings.begin(stored, NEW)


def test_a_scoring_is_stored_as_it_was_given(lab, stored):
    change = lab.scorings.begin(stored, NEW)
    last = lab.scorings.last(stored)
    assert (last.names, last.code, last.options, last.style) == (["right"], NEW.code, {"retries": 1}, "TRL")
    assert last.change == change


def test_nothing_is_stored_under_a_change_that_was_undone(lab, stored):
    first, second, *_ = refs(lab)
    change = lab.scorings.begin(stored, NEW)
    lab.scorings.store(change, "function", [Score(first, 1.0)], keep_hand=True)
    lab.rewards.undo(stored)
    with pytest.raises(ConflictError):
        lab.scorings.store(change, "function", [Score(second, 1.0)], keep_hand=True)
    assert rewards(lab) == [None] * 4
    assert lab.scorings.last(stored) is None


def test_a_failure_is_of_its_trajectory_until_that_has_a_reward(lab, stored):
    first, second, *_ = refs(lab)
    change = lab.scorings.begin(stored, NEW)
    failures = [Failure(ref, "right", "KeyError", "'town'", "line 2: row['town']") for ref in (first, second)]
    lab.scorings.store(change, "function", [], failures, keep_hand=True)
    assert [(f.trajectory, f.summary, f.line) for f in lab.scorings.failures(stored)] == [
        (first, "KeyError: 'town'", "line 2: row['town']"),
        (second, "KeyError: 'town'", "line 2: row['town']"),
    ]
    lab.rewards.give([Score(first, 1.0)], "hand")
    assert [f.trajectory for f in lab.scorings.failures(stored)] == [second]
    assert lab.scorings.failed(stored) == {"KeyError": 1}
    assert lab.scorings.errors([first.id, second.id]) == {second.id: "KeyError: 'town'"}
    assert lab.scorings.scored(change) == {first.id}


def test_a_failure_does_not_take_a_reward_by_hand_away(lab, stored):
    first, *_ = refs(lab)
    lab.rewards.give([Score(first, 1.0)], "hand")
    change = lab.scorings.begin(stored, NEW)
    lab.scorings.store(change, "function", [], [Failure(first, "", "KeyError", "x")], keep_hand=True)
    assert rewards(lab)[0] == 1.0
    assert lab.scorings.failures(stored) == []


def test_results_come_back_as_they_were_and_those_of_the_newest_functions_are_kept(lab, stored):
    first, second, *_ = refs(lab)
    change = lab.scorings.begin(stored, NEW)
    for i in range(40):
        results = [RewardResult(f"f{i}", first.id, 0.1), RewardResult(f"f{i}", second.id, {"a": 0.2})]
        lab.scorings.store(change, "function", [], [], results, keep_hand=True)
    assert lab.scorings.remembered("f39", [first.id, second.id]) == {first.id: 0.1, second.id: {"a": 0.2}}
    assert not lab.scorings.is_remembered("f0")
    lab.scorings.forget_results("f39")
    assert lab.scorings.remembered("f39", [first.id]) == {}
