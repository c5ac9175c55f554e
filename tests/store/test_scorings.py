"""Scorings: outcomes in several transactions under one change, failures, and results that are remembered."""

import sqlite3

import pytest

from rolloutlab.errors import ConflictError
from rolloutlab.store.lab import Lab
from rolloutlab.store.migrations import MIGRATIONS
from rolloutlab.store.models import Ref, Score
from rolloutlab.store.scorings import Failure, FailureNote, NewScoring, RewardResult
from rolloutlab.store.sqlite import Database
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
    assert lab.scorings.errors([first.id, second.id]) == {
        second.id: FailureNote("KeyError: 'town'", "right, line 2: row['town']")
    }


def test_a_resume_leaves_alone_what_its_scoring_has_scored_and_what_was_given_by_hand_since(lab, stored):
    before, first, second, third = refs(lab)
    lab.rewards.give([Score(before, 9.0)], "hand")
    change = lab.scorings.begin(stored, NEW)
    failure = Failure(second, "right", "KeyError", "'town'")
    lab.scorings.store(change, "function", [Score(first, 1.0)], [failure], keep_hand=True)
    lab.rewards.give([Score(third, 5.0)], "hand")
    assert lab.scorings.settled(stored, change, hand_since=change) == {first.id, third.id}
    assert lab.scorings.settled(stored, change, hand_since=None) == {first.id}
    assert lab.scorings.settled(stored, change, hand_since=0) == {before.id, first.id, third.id}
    resumed = lab.scorings.begin(stored, NEW, change)
    lab.scorings.store(resumed, "function", [Score(second, 2.0), Score(third, 2.0)], keep_hand=False, since=change)
    assert rewards(lab) == [9.0, 1.0, 2.0, 5.0]
    assert second.id in lab.scorings.settled(stored, change, hand_since=None)
    assert (lab.scorings.last(stored).change, lab.scorings.last(stored).first) == (resumed, change)


def test_the_failures_of_a_scoring_are_back_when_a_later_change_is_undone(lab, stored):
    first, second, *_ = refs(lab)
    change = lab.scorings.begin(stored, NEW)
    failures = [Failure(ref, "right", "KeyError", "'town'") for ref in (first, second)]
    lab.scorings.store(change, "function", [], failures, keep_hand=True)
    later = lab.scorings.begin(stored, NEW)
    lab.scorings.store(later, "function", [Score(first, 1.0)], [Failure(second, "", "OSError", "")], keep_hand=True)
    assert lab.scorings.failed(stored) == {"OSError": 1}
    lab.rewards.undo(stored)
    assert lab.scorings.failed(stored) == {"KeyError": 2}
    lab.rewards.give([Score(first, 1.0)], "hand")
    lab.rewards.give([], "hand", cleared=[first])
    assert [f.trajectory for f in lab.scorings.failures(stored)] == [second]  # a person took the other away
    lab.rewards.undo(stored)
    lab.rewards.undo(stored)
    lab.rewards.undo(stored)
    assert lab.scorings.failed(stored) == {}


def test_an_undo_is_an_edit_for_each_trajectory_of_the_change(lab, stored):
    first, second, *_ = refs(lab)
    lab.rewards.give([Score(first, 1.0), Score(second, 1.0), Score(first, 2.0)], "hand")
    assert sorted((edit.trajectory, edit.old, edit.new) for edit in lab.rewards.undo(stored)) == [
        ("capitals/0/0", 2.0, None),
        ("capitals/0/1", 1.0, None),
    ]
    assert rewards(lab) == [None] * 4


def test_a_lab_of_one_outcome_for_each_trajectory_goes_on(tmp_path):
    path = tmp_path / "lab.db"
    Database(path, MIGRATIONS[:5], durable=False).close()
    connection = sqlite3.connect(path)
    connection.executescript("""
        INSERT INTO collections (id, name, generation, created_at) VALUES (1, 'capitals', 1, '2026-11-22T22:30:00Z');
        INSERT INTO groups (id, collection_id, position, prompt, row) VALUES (1, 1, 0, '[]', '{}');
        INSERT INTO trajectories (id, group_id, position, items, model, sampling, created_at, reward, source)
            VALUES (1, 1, 0, '[]', 'lab/practice', '{}', '', 1.0, 'function'),
                (2, 1, 1, '[]', 'lab/practice', '{}', '', NULL, NULL);
        INSERT INTO scorings VALUES (1, 1, 1, '2026-11-22T22:31:00Z', 'me', 'function', '["right"]', '', '{}', '');
        INSERT INTO edits VALUES (1, 1, 1, '', 'me', 'function', NULL, NULL, NULL, '{}', NULL, 1.0, '{}'),
            (2, 2, 1, '', 'me', 'function', 'failed', NULL, NULL, '{}', NULL, NULL, '{}');
        INSERT INTO reward_outcomes VALUES (1, 1, NULL, NULL, NULL, NULL, ''), (2, 1, '', 'KeyError', 'town', '', '');
    """)
    connection.close()
    lab = Lab(path)
    stored = lab.find("capitals")
    assert lab.scorings.failed(stored) == {"KeyError": 1}
    assert lab.scorings.settled(stored, lab.scorings.last(stored).first, 0) == {1}
    lab.rewards.undo(stored)
    assert (rewards(lab), lab.scorings.failed(stored)) == ([None, None], {})
    lab.close()


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
