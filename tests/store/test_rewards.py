"""Rewards that come and go: what is kept of hand edits, what a history tells, and what an undo takes back."""

import json
import math
import sqlite3
import subprocess
import sys

import pytest

from rolloutlab.store.lab import Lab
from rolloutlab.store.models import NewGroup, Score, StoredTrajectory
from tests.labs import lab_with


@pytest.fixture
def lab(tmp_path, choice, question):
    lab = Lab(tmp_path / "lab.db")
    for name in ("capitals", "rivers"):
        groups, prompts = [["Answer 0", "Answer 1"]] * 2, [NewGroup(question(), {})] * 2
        lab_with(lab, *groups, name=name, prompts=prompts, make=choice, step=2)
    yield lab
    lab.close()


def members(lab: Lab, name: str = "capitals") -> list[StoredTrajectory]:
    return [t for group in lab.groups(lab.collection(name)) for t in group.trajectories]


def give(lab: Lab, *rewards: float | None, source: str = "function", name: str = "capitals", **options) -> list:
    scores = [Score(t, r) for t, r in zip(members(lab, name), rewards, strict=False) if r is not None]
    return lab.rewards.give(scores, source, **options)


def rewards(lab: Lab, name: str = "capitals") -> list[tuple[float | None, str | None]]:
    return [(t.reward, t.source) for t in members(lab, name)]


def undo(lab: Lab, name: str = "capitals") -> list:
    return lab.rewards.undo(lab.collection(name))


UNSCORED = (None, None)


def test_what_was_given_by_hand_can_be_kept_also_when_the_giver_has_not_seen_it(lab):
    scores = [Score(t, 0.5) for t in members(lab)]
    give(lab, 1.0, source="hand")
    assert len(lab.rewards.give(scores, "function", keep_hand=True)) == 3
    assert rewards(lab) == [(1.0, "hand"), *[(0.5, "function")] * 3]
    assert lab.rewards.by_hand(lab.collection("capitals")) == 1
    assert lab.rewards.by_hand(lab.collection("rivers")) == 0


def test_what_was_given_by_hand_is_overwritten_where_that_is_wanted(lab):
    give(lab, 1.0, source="hand")
    give(lab, 1.0)
    assert rewards(lab)[0] == (1.0, "function")


def test_a_hand_that_confirms_what_a_function_gave_is_the_source_from_then_on(lab):
    give(lab, 1.0, 0.0)
    (edit,) = give(lab, 1.0, source="hand")
    assert (edit.old, edit.new, edit.source) == (1.0, 1.0, "hand")
    assert rewards(lab)[:2] == [(1.0, "hand"), (0.0, "function")]
    give(lab, 0.5, 0.5, keep_hand=True)
    assert rewards(lab)[:2] == [(1.0, "hand"), (0.5, "function")]


def test_what_is_given_at_once_is_one_change_and_keeps_its_notes(lab):
    first, second, *_ = members(lab)
    edits = lab.rewards.give([Score(first, 1.0, {"judge": 1.0}, "It is right."), Score(second, 0.0)], "judge")
    assert [(e.change, e.note) for e in edits] == [(edits[0].change, "It is right."), (edits[0].change, None)]
    assert lab.rewards.history_of(lab.collection("capitals")) == edits


def test_another_note_on_the_same_reward_is_remembered(lab):
    first = members(lab)[0]
    for note in ("It is right.", "It is right.", "It is short."):
        lab.rewards.give([Score(first, 1.0, note=note)], "judge")
    assert [e.note for e in lab.rewards.history(first)] == ["It is right.", "It is short."]


def test_the_history_of_a_collection_is_its_own_with_the_newest_change_first(lab):
    give(lab, 1.0, 0.0)
    give(lab, 1.0, name="rivers")
    give(lab, 0.5, source="hand")
    told = lab.rewards.history_of(lab.collection("capitals"))
    assert [(e.trajectory, e.old, e.new, e.source) for e in told] == [
        ("capitals/0/0", 1.0, 0.5, "hand"),
        ("capitals/0/0", None, 1.0, "function"),
        ("capitals/0/1", None, 0.0, "function"),
    ]


def test_undo_takes_back_one_change_after_the_other_until_nothing_is_left(lab):
    give(lab, 1.0, 0.0, 1.0, 0.0)
    give(lab, 0.5, source="hand")
    give(lab, *[0.25] * 4, source="judge")
    before_judge, before_hand = [(0.5, "hand"), *rewards_of(0.0, 1.0, 0.0)], rewards_of(1.0, 0.0, 1.0, 0.0)
    assert len(undo(lab)) == 4
    assert rewards(lab) == before_judge
    assert [(e.trajectory, e.old, e.new) for e in undo(lab)] == [("capitals/0/0", 0.5, 1.0)]
    assert rewards(lab) == before_hand
    assert [e.new for e in undo(lab)] == [None] * 4
    assert rewards(lab) == [UNSCORED] * 4
    assert undo(lab) == []


def rewards_of(*values: float) -> list[tuple[float, str]]:
    return [(value, "function") for value in values]


def test_an_undo_brings_components_and_source_back_and_is_logged_as_a_change_of_its_own(lab):
    first = members(lab)[0]
    (given,) = lab.rewards.give([Score(first, 1.0, {"right": 0.75, "short": 0.25})], "function")
    (hand,) = lab.rewards.give([Score(first, 0.0)], "hand")
    (edit,) = undo(lab)
    again = members(lab)[0]
    assert (again.reward, again.components, again.source) == (1.0, {"right": 0.75, "short": 0.25}, "function")
    assert (edit.source, edit.old, edit.new, edit.undoes) == ("undo", 0.0, 1.0, hand.change)
    assert edit.change not in {given.change, hand.change}
    assert lab.rewards.history(first) == [given, hand, edit]


def test_what_is_given_after_an_undo_is_undone_first(lab):
    give(lab, 1.0)
    give(lab, 2.0)
    undo(lab)
    give(lab, 3.0)
    undo(lab)
    assert rewards(lab)[0] == (1.0, "function")
    undo(lab)
    assert rewards(lab)[0] == UNSCORED


def test_the_same_reward_can_be_given_again_after_an_undo(lab):
    give(lab, 1.0)
    undo(lab)
    assert len(give(lab, 1.0)) == 1
    assert rewards(lab)[0] == (1.0, "function")


def test_an_undo_touches_no_other_collection(lab):
    give(lab, 1.0)
    give(lab, 1.0, name="rivers")
    scores = [Score(members(lab, name)[0], 2.0) for name in ("capitals", "rivers")]
    lab.rewards.give(scores, "hand")
    undo(lab)
    assert (rewards(lab)[0], rewards(lab, "rivers")[0]) == ((1.0, "function"), (2.0, "hand"))
    undo(lab, "rivers")
    assert rewards(lab, "rivers")[0] == (1.0, "function")


def test_a_trajectory_scored_twice_in_one_change_is_as_before_after_its_undo(lab):
    first = members(lab)[0]
    lab.rewards.give([Score(first, 1.0), Score(first, 2.0)], "hand")
    undo(lab)
    assert rewards(lab)[0] == UNSCORED


@pytest.mark.parametrize("reward", [0.1, -1e300, 5e-324, math.pi])
def test_an_undone_reward_is_the_same_to_the_last_bit(lab, reward):
    give(lab, reward)
    give(lab, 1.0)
    undo(lab)
    assert rewards(lab)[0][0] == reward


UNDO = """
import json, sys
from pathlib import Path
from rolloutlab.store.lab import Lab
lab = Lab(Path(sys.argv[1]))
done = []
for _ in range(5):
    done += [[edit.undoes, edit.trajectory] for edit in lab.rewards.undo(lab.collection("capitals"))]
print(json.dumps(done))
"""


def test_processes_that_undo_at_once_take_back_each_change_whole_and_once(lab, tmp_path):
    for value in range(10):
        give(lab, *[float(value)] * 4)
    command = [sys.executable, "-c", UNDO, str(tmp_path / "lab.db")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    done = [tuple(edit) for process in running for edit in json.loads(process.communicate()[0])]
    assert len(done) == len(set(done)) == 40
    assert rewards(lab) == [UNSCORED] * 4
    assert undo(lab) == []


def test_an_undo_that_fails_halfway_changes_nothing(lab, tmp_path):
    give(lab, 1.0, 0.0, 1.0, 0.0)
    last = members(lab)[-1].id
    file = sqlite3.connect(tmp_path / "lab.db")
    file.execute(
        f"CREATE TRIGGER stop BEFORE UPDATE OF reward ON trajectories WHEN NEW.id = {last}"
        " BEGIN SELECT raise(ABORT, 'stopped'); END"
    )
    file.close()
    with pytest.raises(sqlite3.IntegrityError, match="stopped"):
        undo(lab)
    assert [reward for reward, _ in rewards(lab)] == [1.0, 0.0, 1.0, 0.0]
    assert len(lab.rewards.history_of(lab.collection("capitals"))) == 4


class Listener:
    def __init__(self) -> None:
        self.heard: list[set[int]] = []

    def told(self, edited) -> None:
        self.heard.append(set(edited))


def test_who_listens_is_told_which_rewards_changed_until_it_is_gone(lab):
    listener, gone = Listener(), Listener()
    lab.rewards.listen(listener.told)
    lab.rewards.listen(gone.told)
    heard = gone.heard
    del gone
    first, second, *_ = members(lab)
    give(lab, 1.0, 0.0)
    give(lab, 1.0, 0.5)
    give(lab, 1.0, 0.5)
    undo(lab)
    assert listener.heard == [{first.id, second.id}, {second.id}, {second.id}]
    assert heard == []


def test_what_fails_is_told_to_nobody(lab):
    listener = Listener()
    lab.rewards.listen(listener.told)
    with pytest.raises(TypeError):
        lab.rewards.give([Score(members(lab)[0], 1.0, {"right": object()})], "function")
    assert listener.heard == []


def test_one_undo_over_several_collections_takes_back_their_newest_change(lab):
    give(lab, 1.0)
    lab.rewards.give([Score(members(lab, name)[0], 0.5) for name in ("capitals", "rivers")], "hand")
    give(lab, 2.0, name="rivers")
    both = [lab.find(name) for name in ("capitals", "rivers")]
    assert lab.rewards.undoable(both[0]) == 2
    undone = [[(e.trajectory, e.new) for e in lab.rewards.undo(*both)] for _ in range(4)]
    assert undone == [
        [("rivers/0/0", 0.5)],
        [("rivers/0/0", None), ("capitals/0/0", 1.0)],
        [("capitals/0/0", None)],
        [],
    ]
    assert lab.rewards.undoable(both[0]) is None


def test_what_was_given_before_a_hand_is_known_unless_it_was_taken_back(lab):
    first, second, third, _ = members(lab)
    give(lab, 1.0, 0.5, source="judge")
    give(lab, 0.0, source="hand")
    give(lab, 0.25, None, 0.75, source="hand")
    assert lab.rewards.before_hand([first.id, second.id, third.id]) == {first.id: 1.0}
    undo(lab)
    assert lab.rewards.before_hand([first.id]) == {first.id: 1.0}
    give(lab, 3.0)
    undo(lab)
    assert lab.rewards.before_hand([first.id]) == {first.id: 1.0}


def test_edits_are_found_that_came_after_another(lab):
    first, second, *_ = members(lab)
    assert lab.rewards.newest_edit() == 0
    give(lab, 1.0)
    seen = lab.rewards.newest_edit()
    assert lab.rewards.edited_since(seen) == set()
    give(lab, None, 1.0)
    assert lab.rewards.edited_since(seen) == {second.id}
    assert lab.rewards.edited_since(0) == {first.id, second.id}
