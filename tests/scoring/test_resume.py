"""A resume goes on with the scoring that it resumes, whatever was scored, given by hand or undone in between."""

import threading
from collections import Counter
from unittest.mock import ANY

import pytest

from rolloutlab.errors import InputError
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import Score
from rolloutlab.store.scorings import NewScoring

PATIENCE = 30.0
"""Seconds after which a test that waits for something is a test that fails."""


def silent(_line: str) -> None:
    """For what is said."""


class Constant:
    """A reward function of a number, which fails for some countries and has a log of its calls."""

    def __init__(self, number: float, *fails: int) -> None:
        self.number, self.fails, self.calls = number, set(fails), Counter[int]()

    def __call__(self, country: int) -> float:
        self.calls[country] += 1
        if country in self.fails:
            raise ValueError(f"no score for {country}\nas it is too far")
        return self.number


def by_hand(lab, name: str, reward: float) -> None:
    lab.rewards("capitals").set(name, reward)


def undo(lab) -> str:
    lines: list[str] = []
    lab.collection("capitals").undo_rewards(say=lines.append)
    return lines[0]


def test_a_resume_after_an_undo_uses_the_functions_and_the_outcomes_of_what_is_left(lab, collect, rewards):
    collect(4, 2)
    first, second = Constant(1.0, 3), Constant(2.0)
    lab.reward("capitals", first, say=silent)
    lab.reward("capitals", second, say=silent)
    undo(lab)
    first.fails.clear()
    first.calls.clear()
    lab.reward("capitals", resume=True, say=silent)
    assert rewards() == [1.0] * 8
    assert first.calls == {3: 2}
    assert second.calls.total() == 8


def test_a_failure_is_shown_again_after_the_undo_of_what_came_later(lab, collect):
    collect(4, 2)
    lab.reward("capitals", Constant(1.0, 3), say=silent)
    lab.reward("capitals", Constant(2.0), say=silent)
    assert "reward_error" not in lab.rewards("capitals").to_frame()
    undo(lab)
    errors = lab.rewards("capitals").to_frame()["reward_error"].dropna()
    assert list(errors.index) == ["capitals/3/0", "capitals/3/1"]
    assert all(error.startswith("ValueError: no score for 3") for error in errors)


def test_a_resume_takes_the_weights_and_options_that_are_not_given(lab, collect, rewards):
    collect(4, 2)
    first = {"a": Constant(1.0, 3), "b": Constant(10.0)}
    lab.reward("capitals", first, {"b": 2.0}, concurrency=1, retries=1, backoff=0.0, cache=True, say=silent)
    lab.reward("capitals", {"a": Constant(3.0), "b": Constant(10.0)}, resume=True, concurrency=2, say=silent)
    assert rewards() == [*[21.0] * 6, *[23.0] * 2]
    now, before = lab.store.scorings.history(lab.store.find("capitals"))
    assert now.options == {**before.options, "concurrency": 2, "resume": True, "parts": ANY}
    changed = {part for part, digest in now.options["parts"].items() if before.options["parts"][part] != digest}
    assert {part for part in changed if part.endswith(".number")} == {"reward|['a'].number"}  # `a` is another one
    assert before.options["weights"] == {"b": 2.0}
    assert (before.options["retries"], before.options["cache"]) == (1, True)


def test_a_resume_of_a_resume_has_the_functions_that_were_given_last(lab, collect, rewards):
    collect(4, 2)
    lab.reward("capitals", Constant(1.0, 2, 3), say=silent)
    mended = Constant(5.0, 3)
    lab.reward("capitals", mended, resume=True, say=silent)
    mended.fails.clear()
    lab.reward("capitals", resume=True, say=silent)
    assert rewards() == [*[1.0] * 4, *[5.0] * 4]
    assert mended.calls == {2: 2, 3: 4}


def test_the_undo_of_a_resume_undoes_what_it_stored_and_edits_by_hand_stay(lab, collect, rewards):
    collect(4, 2)
    function = Constant(1.0, 3)
    lab.reward("capitals", function, say=silent)
    by_hand(lab, "capitals/0/0", 7.0)
    function.fails.clear()
    lab.reward("capitals", resume=True, say=silent)
    assert undo(lab).startswith("change 3 is undone: 2 rewards as before, 2 of them unscored again")
    assert rewards() == [7.0, *[1.0] * 5, None, None]
    assert undo(lab).startswith("change 2 is undone: 1 reward as before")
    assert undo(lab).startswith("change 1 is undone: 8 rewards as before")
    assert rewards() == [None] * 8


def test_a_resume_keeps_what_was_given_by_hand_also_where_its_scoring_overwrote(lab, collect, rewards):
    collect(4, 2)
    by_hand(lab, "capitals/3/0", 7.0)
    by_hand(lab, "capitals/0/0", 7.0)
    function = Constant(1.0, 3)
    lab.reward("capitals", function, overwrite=True, say=silent)
    assert rewards() == [*[1.0] * 6, None, None]
    by_hand(lab, "capitals/3/1", 9.0)
    function.fails.clear()
    function.calls.clear()
    lab.reward("capitals", resume=True, say=silent)
    assert rewards() == [*[1.0] * 7, 9.0]
    assert function.calls == {3: 1}


def test_the_history_names_the_functions_that_made_each_edit(lab, collect):
    collect(4, 2)

    def strict(country):
        return Constant(1.0, 3)(country)

    def lenient(country):
        return 0.5

    lab.reward("capitals", [strict], say=silent)
    lab.reward("capitals", [lenient], resume=True, say=silent)
    history = lab.collection("capitals").reward_history()
    assert set(history.loc[1, "by"]) == {"strict"}
    assert set(history.loc[2, "by"]) == {"lenient"}
    assert list(history.loc[2, "trajectory"]) == ["capitals/3/0", "capitals/3/1"]
    assert all("def strict" in code for code in history.loc[1, "code"])


def test_a_scoring_of_the_same_values_is_a_change_and_its_undo_leaves_the_edit_by_hand_before_it(lab, collect, rewards):
    collect(2, 2)

    def strict(answer):
        return 1.0

    def lenient(answer):
        return float(len(answer) > 0)

    lab.reward("capitals", strict, say=silent)
    by_hand(lab, "capitals/0/0", 5.0)
    lab.reward("capitals", lenient, say=silent)
    newest = lab.collection("capitals").reward_history().loc[3]
    assert list(newest["trajectory"]) == ["capitals/0/1", "capitals/1/0", "capitals/1/1"]
    assert set(newest["by"]) == {"lenient"}
    assert (set(newest["old"]), set(newest["new"])) == ({1.0}, {1.0})
    assert all("def lenient" in code for code in newest["code"])
    assert undo(lab) == "change 3 is undone: 3 rewards as before -> %rewards capitals --history"
    assert rewards() == [5.0, 1.0, 1.0, 1.0]
    assert lab.store.scorings.last(lab.store.find("capitals")).names == ["strict"]
    assert undo(lab).startswith("change 2 is undone: 1 reward as before")
    assert rewards() == [1.0] * 4


def test_of_a_scoring_that_changes_some_values_every_reward_is_by_its_function(lab, collect, rewards):
    collect(2, 2)

    def first(answer):
        return 1.0

    def second(answer):
        return 0.5 if answer == "wrong" else 1.0

    lab.reward("capitals", first, say=silent)
    lab.reward("capitals", second, say=silent)
    assert set(lab.collection("capitals").reward_history().loc[2, "by"]) == {"second"}
    assert len(lab.collection("capitals").reward_history().loc[2]) == 4
    undo(lab)
    assert rewards() == [1.0] * 4
    undo(lab)
    assert rewards() == [None] * 4


def test_a_scoring_of_another_notebook_is_not_resumed_with_a_function_of_this_one(lab, collect, rewards, tmp_path):
    collect(4, 2)
    lab.reward("capitals", Constant(1.0), say=silent)
    with_other_function = Session(Settings(home=tmp_path))
    with_other_function.reward("capitals", Constant(2.0, 3), say=silent)
    with_other_function.close()
    with pytest.raises(InputError, match="what scored capitals is not known in this notebook"):
        lab.reward("capitals", resume=True)
    lab.reward("capitals", Constant(2.0), resume=True, say=silent)
    assert rewards() == [2.0] * 8


def test_a_resume_after_a_judge_has_nothing_to_go_on_with(lab, collect):
    collect(1, 2)
    lab.reward("capitals", Constant(1.0), say=silent)
    lab.store.scorings.begin(lab.store.find("capitals"), NewScoring("judge", ["lab/judge"], "", {}))
    with pytest.raises(InputError, match="a judge scored capitals last: there is nothing to resume"):
        lab.reward("capitals", resume=True)


class Stored:
    """Listens to a lab; `wait` until some number of rewards is stored."""

    def __init__(self, lab) -> None:
        self._ids: set[int] = set()
        self._changed = threading.Condition()
        lab.store.rewards.listen(self.edited)

    def edited(self, ids) -> None:
        with self._changed:
            self._ids |= ids
            self._changed.notify_all()

    def wait(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self._ids) >= number, PATIENCE)


def test_of_a_slow_judge_all_is_stored_but_what_is_running(lab, collect):
    collect(3, 4)
    stored = Stored(lab)
    seen: list[bool] = []

    def slow(trajectory):
        if trajectory.name.endswith("2/2"):
            seen.append(stored.wait(10))
        return 1.0

    lab.reward("capitals", slow, concurrency=1)
    assert seen == [True]


def test_with_a_weight_that_no_component_has_yet_nothing_is_stored_before_it_is_known_to_be_wrong(
    lab, collect, rewards
):
    collect(1, 4)
    with pytest.raises(InputError, match="a weight is given for 'c'"):
        lab.reward("capitals", {"a": Constant(1.0), "b": Constant(1.0)}, {"c": 2.0}, say=silent)
    assert rewards() == [None] * 4


def test_the_results_of_a_function_of_a_group_are_not_stored(lab, collect):
    collect(2, 2)

    def lengths(completions, **columns):
        return [float(len(each)) for each in completions]

    lines: list[str] = []
    lab.reward("capitals", lengths, say=lines.append)
    assert lines == ["the reward function looks like a reward function of TRL, and is called like one"]
    assert lab.store._database.read("SELECT count(*) FROM reward_results")[0][0] == 0


def test_a_reward_that_was_given_and_undone_meanwhile_is_no_later_one(lab, collect, rewards):
    collect(5, 4)
    lab.reward("capitals", lambda answer: 3.0)
    stored = Stored(lab)

    def function(trajectory):
        if trajectory.name.endswith("4/3"):
            assert stored.wait(1)
            lab.store.rewards.give([Score(trajectory, 9.0)], "hand")
            lab.store.rewards.undo(lab.store.find("capitals"))
        return 1.0

    lab.reward("capitals", function, concurrency=1)
    assert rewards() == [1.0] * 20
