"""The rewards of collections as a table: what is shown, what an edit does, and that it is always as the lab is."""

import json
import re
import threading
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlab.errors import InputError, NotFoundError, RewardError
from rolloutlab.objective.advantages import token_weights
from rolloutlab.objective.options import Options
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Ref, Score
from rolloutlab.store.scorings import Failure, NewScoring
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.members import members_of
from rolloutlab.trajectories.rewards_view import RewardsView

NAMES = [*(f"capitals/0/{i}" for i in range(4)), "capitals/1/0", "capitals/1/1"]


def names(view: RewardsView, **asked: Any) -> list[str]:
    return [row["name"] for row in view.page(**asked)["rows"]]


def row(view: RewardsView, name: str) -> dict[str, Any]:
    (result,) = view.page(filter={"name": name})["rows"]
    return result


def ask(view: RewardsView, call: str, **args: Any) -> Any:
    """What a browser is answered, through the way of its messages."""
    answer = view.answer(json.loads(json.dumps({"id": 1, "call": call, "args": args})))
    assert json.loads(json.dumps(answer)) == answer
    return answer.get("result", answer.get("error"))


def pushed(view: RewardsView) -> list[tuple[str, str | None]]:
    """The events that its browsers will hear of, and from which of them each comes."""
    events: list[tuple[str, str | None]] = []
    view.push = lambda event, origin: events.append((event, origin))  # type: ignore[method-assign]
    return events


def assert_as_the_lab_is(lab: Lab, view: RewardsView) -> None:
    fresh = RewardsView(lab, [lab.find("capitals")])
    assert view.page() == fresh.page()
    groups = lab.groups(lab.find("capitals"))
    expected = [share for group in token_weights(members_of(groups), Options()) for share in group]
    shown = [row for row in view.page()["rows"] if row["reward"] is not None]
    assert [(r["name"], r["advantage"], r["reason"]) for r in shown] == [
        (s.member.name, s.advantage, s.reason and str(s.reason)) for s in expected
    ]
    pd.testing.assert_frame_equal(
        view.to_frame().drop(columns="reason"), Collection(lab, lab.find("capitals")).to_frame()
    )


def test_a_row_tells_all_about_its_trajectory(view, give):
    give(1.0, 0.0, 0.5, right=0.25)
    first, second, _, long, *_ = view.page()["rows"]
    assert first == {
        "id": first["id"],
        "name": "capitals/0/0",
        "group": "capitals/0",
        "prompt": "Capital of France?",
        "completion": "Paris",
        "reward": 1.0,
        "was": None,
        "source": "function",
        "advantage": pytest.approx(1.0, abs=0.1),
        "reason": None,
        "why_not": None,
        "why": None,
        "tokens": 1,
        "finish_reason": "stop",
        "component:right": 0.25,
    }
    assert second["advantage"] < 0
    assert (long["reason"], long["why"], long["source"], long["advantage"]) == ("unscored", "no reward yet", None, None)
    assert long["completion"].endswith("very ...")
    assert len(long["completion"]) < 210


def test_a_page_says_how_many_rows_there_are_how_many_fit_and_what_would_train(view, give):
    give(1.0, 0.0, 0.5, 0.5, 1.0)
    page = view.page(offset=1, size=2, filter={"reward": "not empty"})
    assert (page["components"], page["total"], page["filtered"], [r["name"] for r in page["rows"]]) == (
        [],
        6,
        5,
        NAMES[1:3],
    )
    assert page["summary"] == {
        "trajectories": 6,
        "scored": 5,
        "mean_reward": pytest.approx(0.6),
        "groups": 2,
        "collections": 1,
        "trainable": 2,
        "trainable_groups": 1,
        "tokens": 3,
        "largest": pytest.approx(1.0, abs=0.2),
        "reasons": {"unscored": 1, "mean_reward": 2, "equal_rewards": 1},
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"sort": "-reward"}, [4, 0, 2, 1, 3, 5]),
        ({"sort": ["advantage", "-name"]}, [1, 4, 2, 0, 5, 3]),
        ({"sort": "-name"}, [5, 4, 3, 2, 1, 0]),
        ({"sort": "completion"}, [5, 3, 4, 1, 0, 2]),
        ({"sort": "-tokens"}, [3, 2, 1, 5, 0, 4]),
        ({"sort": ["-group", "tokens"]}, [4, 5, 0, 1, 2, 3]),
        ({"sort": "-component:right"}, [0, 1, 2, 4, 3, 5]),
        ({"sort": "-right"}, [0, 1, 2, 4, 3, 5]),
        ({"filter": {"completion": "PARIS"}}, [0, 2, 3]),
        ({"filter": {"prompt": "peru"}}, [4, 5]),
        ({"filter": {"group": "capitals/1"}}, [4, 5]),
        ({"filter": {"name": "0/1"}}, [1]),
        ({"filter": {"source": "none"}}, [3, 5]),
        ({"filter": {"advantage": "trains"}}, [0, 1, 2]),
        ({"filter": {"advantage": "unscored"}}, [3, 5]),
        ({"filter": {"advantage": "> 0"}}, [0, 2]),
        ({"filter": {"reason": ["equal_rewards", "unscored"]}}, [3, 4, 5]),
        ({"filter": {"tokens": "2..3", "finish_reason": "stop"}}, [1, 2, 5]),
        ({"filter": {"right": "= 0.5", "reward": "< 3"}}, [0, 1, 2]),
    ],
)
def test_the_table_is_sorted_and_filtered_by_every_column(view, lab, give, asked, expected):
    give(1.0, 0.0, 0.75, right=0.5)
    (trajectory, _) = lab.groups(lab.find("capitals"), 1)[0].trajectories
    lab.rewards.give([Score(trajectory, 3.0, {"right": 0.5})], "judge")
    assert names(view, **asked) == [NAMES[i] for i in expected]


@pytest.mark.parametrize(
    "asked",
    [
        {"offset": -1},
        {"size": 0},
        {"size": "many"},
        {"offset": True},
        {"sort": "rewards"},
        {"filter": ["reward"]},
        {"filter": {"nothing": ""}},
        {"filter": {"finish_reason": "stopped"}},
    ],
)
def test_a_page_that_cannot_be_is_refused_and_what_is_shown_stays(view, asked):
    view.page(sort="-name")
    with pytest.raises(InputError):
        view.page(**asked)
    assert list(view.to_frame().index) == NAMES[::-1]


def test_an_edit_is_logged_as_given_by_hand_and_everything_that_follows_from_it_is_shown(view, lab, give):
    give(1.0, 0.0, 0.5, 0.5, 1.0, 0.0)
    (edit,) = view.set("capitals/0/1", 0.75)
    assert (edit.trajectory, edit.source, edit.old, edit.new) == ("capitals/0/1", "hand", 0.0, 0.75)
    assert view.history("capitals/0/1")[0] == edit
    assert_as_the_lab_is(lab, view)


def test_one_reward_for_several_rows_is_one_change_and_undone_as_one(view, lab, give):
    give(1.0, 0.0, 0.5, 0.5, 1.0, 0.0)
    edits = view.set(["capitals/0/0", "capitals:1/1/1", "capitals/0/0"], "2.5e-1")
    assert {edit.change for edit in edits} == {2}
    assert [row(view, name)["reward"] for name in ("capitals/0/0", "capitals/1/1")] == [0.25, 0.25]
    view.undo()
    assert [row(view, name)["reward"] for name in ("capitals/0/0", "capitals/1/1")] == [1.0, 0.0]
    assert_as_the_lab_is(lab, view)


@pytest.mark.parametrize("wrong", ["0,5", "abc", "nan", "", "1e999", "inf", None, float("nan"), [1.0], {}, 10**400])
def test_what_is_no_finite_number_is_refused_with_the_name_and_changes_nothing(view, lab, wrong):
    with pytest.raises(RewardError, match=r"the reward of capitals/0/0 is .*, which is no finite number") as raised:
        view.set("capitals/0/0", wrong)
    assert raised.value.hint == ("0.5" if wrong == "0,5" else "a number such as 0.5")
    assert lab.rewards.newest_edit() == 0


@pytest.mark.parametrize(("given", "reward"), [(True, 1.0), (False, 0.0), (2, 2.0), (" -.5 ", -0.5), ("1e-3", 0.001)])
def test_numbers_truth_values_and_numbers_as_texts_are_rewards(view, given, reward):
    view.set("capitals/0/0", given)
    assert row(view, "capitals/0/0")["reward"] == reward


def test_one_reward_for_all_that_fit_a_filter_is_one_change(view, lab, give):
    give(1.0, 0.0, 0.5)
    view.page(size=1, filter={"reward": "empty"})
    assert [edit.trajectory for edit in view.set_all(2)] == NAMES[3:]
    assert [row(view, name)["reward"] for name in NAMES] == [1.0, 0.0, 0.5, 2.0, 2.0, 2.0]
    assert len(view.undo()) == 3
    view.page()
    assert len(view.set_all(7)) == 6
    view.page(filter={"reward": "> 7"})
    with pytest.raises(NotFoundError, match="no trajectory of capitals fits the filter"):
        view.set_all(1)


def test_a_browser_sets_all_the_rows_that_it_has_told_of_and_no_others(view, lab, give):
    give(1.0, 0.0, 0.5)
    shown = {"offset": 0, "size": 10, "sort": [], "filter": {"reward": "empty"}}
    shown["ids"] = [row["id"] for row in ask(view, "page", **shown)["rows"]]
    assert len(shown["ids"]) == 3
    assert ask(view, "set_all", reward="2", rows=4, shown=shown)["message"] == "other rows are shown by now"
    other = {**shown, "filter": {}}
    assert ask(view, "set_all", reward="2", rows=3, shown=other)["message"] == "other rows are shown by now"
    assert "'two', which is no finite number" in ask(view, "set_all", reward="two", rows=3, shown=shown)["message"]
    assert lab.rewards.newest_edit() == 3
    answer = ask(view, "set_all", reward="2", rows=3, shown=shown)
    assert (answer["message"], [r["reward"] for r in answer["rows"]]) == ("3 rewards set to 2", [2.0] * 3)


@pytest.mark.parametrize("wrong", ["capitals/0/9", "capitals/7/0", "rivers/0/0", "capitals", "", "capitals/0/x", 5.5])
def test_a_name_of_no_trajectory_in_the_view_is_refused_and_nothing_is_changed(view, lab, wrong):
    with pytest.raises((NotFoundError, InputError)):
        view.set(["capitals/0/0", wrong], 1.0)
    with pytest.raises((NotFoundError, InputError)):
        view.set([], 1.0)
    assert lab.rewards.newest_edit() == 0


def test_a_hand_that_disagrees_with_a_function_is_told_with_what_that_had_given(view, give):
    give(1.0, 0.0)
    view.set(["capitals/0/0", "capitals/0/2"], 0.0)
    view.set("capitals/0/0", 0.25)
    view.set("capitals/0/1", 0.0)
    assert [r["was"] for r in view.page()["rows"]] == [1.0, None, None, None, None, None]
    view.set("capitals/0/0", 1.0)
    assert row(view, "capitals/0/0")["was"] is None


def test_what_a_function_gave_and_an_undo_took_back_is_no_disagreement(view, give):
    view.set("capitals/0/0", 0.0)
    give(1.0)
    view.undo()
    assert (row(view, "capitals/0/0")["source"], row(view, "capitals/0/0")["was"]) == ("hand", None)


def test_undo_takes_back_the_newest_change_of_any_collection_of_the_view(lab, sample, give):
    sample()
    sample("rivers", {"Peru": ["Amazon", "Ucayali"]})
    view = RewardsView(lab, [lab.find("capitals"), lab.find("rivers")])
    give(1.0)
    view.set(["capitals/0/0", "rivers/0/0"], 0.5)
    give(0.0, name="rivers", source="judge")
    assert [edit.trajectory for edit in view.undo()] == ["rivers/0/0"]
    assert sorted(edit.trajectory for edit in view.undo()) == ["capitals/0/0", "rivers/0/0"]
    assert [edit.new for edit in view.undo()] == [None]
    with pytest.raises(NotFoundError, match="no reward of capitals, rivers is left to undo"):
        view.undo()


def test_several_collections_are_one_job_and_one_group_is_a_job_of_its_own(lab, sample, give):
    sample()
    sample("rivers", {"Peru": ["Amazon", "Ucayali"]})
    give(1.0, 0.0)
    give(3.0, 1.0, name="rivers")
    groups = [group for name in ("capitals", "rivers") for group in lab.groups(lab.find(name))]
    shares = [share for group in token_weights(members_of(groups), Options()) for share in group]
    rows = RewardsView(lab, [lab.find("capitals"), lab.find("rivers")]).page()["rows"]
    assert [r["advantage"] for r in rows if r["reward"] is not None] == [share.advantage for share in shares]
    group = RewardsView(lab, [lab.find("capitals")], 0)
    assert (group.title, names(group)) == ("capitals/0", NAMES[:4])


def test_a_group_is_shown_alone_by_its_name_and_a_slash(lab, sample):
    sample()
    sample("more-capitals", {"Peru": ["Lima", "Cusco"]})
    view = RewardsView(lab, [lab.find("more-capitals"), lab.find("capitals")])
    assert names(view, filter={"name": "capitals/0/"}) == NAMES[:4]
    assert names(view, filter={"name": "apitals/0/"}) == ["more-capitals/0/0", "more-capitals/0/1", *NAMES[:4]]


@pytest.mark.parametrize("group", [None, 0])
def test_a_browser_knows_by_which_names_python_shows_the_same_rows(lab, sample, group):
    sample()
    sample("rivers", {"Peru": ["Amazon", "Ucayali"]})
    assert RewardsView(lab, [lab.find("capitals")], group).state()["names"] == f"capitals{'/0' if group == 0 else ''}"
    assert RewardsView(lab, [lab.find("rivers"), lab.find("capitals")]).state()["names"] == ["rivers", "capitals"]


def test_components_that_no_reward_has_any_more_are_no_columns(view, lab):
    first = view.page()["rows"][0]
    ref = Ref(first["id"], first["name"])
    lab.rewards.give([Score(ref, 1.0, {"a": 1.0, "b": 0.0})], "function")
    assert view.page()["components"] == ["a", "b"]
    lab.rewards.give([Score(ref, 1.0, {"c": 1.0, "b": 0.0})], "function")
    assert sorted(view.page()["components"]) == ["b", "c"]


EDITS = st.lists(
    st.tuples(st.sets(st.sampled_from(NAMES), min_size=1), st.sampled_from([0.0, 1.0, 0.1, -3.0, 1e300])) | st.none(),
    max_size=6,
)


@given(EDITS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_edits_and_undos_the_view_is_what_a_new_one_would_be(view, lab, edits):
    for edit in edits:
        if edit:
            view.set(sorted(edit[0]), edit[1])
        elif lab.rewards.undoable(lab.find("capitals")):
            view.undo()
    assert_as_the_lab_is(lab, view)


def test_what_another_cell_or_another_kernel_changes_is_there_the_next_time(view, lab, give, tmp_path):
    give(1.0, 0.0, right=0.5)
    assert_as_the_lab_is(lab, view)
    other = Lab(tmp_path / "lab.db")
    RewardsView(other, [other.find("capitals")]).set(NAMES[2:], 0.3)
    assert_as_the_lab_is(lab, view)
    (group, *_) = other.groups(other.find("capitals"))
    other.put(group, [Arrival(9, group.trajectories[0].items[1:])], model="m", step=None, sampling={})
    assert names(view)[4] == "capitals/0/9"
    other.lifecycle.rename("capitals", "cities")
    assert names(view)[0] == "cities/0/0"
    other.lifecycle.delete("cities")
    other.close()
    with pytest.raises(NotFoundError, match="cities:1 was deleted"):
        view.page()


def test_what_was_cut_short_appears_when_it_is_finished(view, lab):
    (group, *_) = lab.groups(lab.find("capitals"))
    items = group.trajectories[0].items[1:]
    lab.put(group, [Arrival(9, items, pending=1)], model="m", step=None, sampling={})
    assert "capitals/0/9" not in names(view)
    lab.put(group, [Arrival(9, items)], model="m", step=None, sampling={})
    assert "capitals/0/9" in names(view)


def test_every_browser_is_told_of_a_change_in_this_process_and_whose_it_was(view, lab, give, sample):
    heard = pushed(view)
    give(1.0)
    ask(view, "set", names=["capitals/0/0"], reward="0.5", shown={"origin": "mine"})
    view.set("capitals/0/1", 1.0)
    ask(view, "undo", shown={"origin": "another"})
    assert heard == [("changed", None), ("changed", "mine"), ("changed", None), ("changed", "another")]
    sample("rivers", {"Peru": ["Amazon"]})
    give(1.0, name="rivers")
    assert len(heard) == 4


def test_two_browsers_that_show_other_rows_are_each_answered_with_theirs(view, give):
    give(1.0, 0.0, 0.5, 0.5, 1.0, 0.0)
    mine = [row["id"] for row in ask(view, "page", size=2, sort=["-name"])["rows"]]
    ask(view, "page", size=2)
    answer = ask(view, "set", names=mine[:1], reward="9", shown={"ids": mine})
    assert [(row["id"], row["reward"]) for row in answer["rows"]] == [(mine[0], 9.0), (mine[1], 1.0)]


def test_a_view_that_is_open_goes_on_when_its_collection_is_sampled_again(view, sample):
    first = ask(view, "page")["rows"][0]["id"]
    sample()
    assert ask(view, "set", names=[first], reward="1")["message"] == "capitals:1/0/0: - → 1"
    assert ask(view, "page")["title"] == "capitals:1"


def test_a_component_of_any_name_is_shown_and_found(view, give):
    give(1.0, 0.0, **{"half \ud800": 0.5})
    page = ask(view, "page", filter={"component:half \u27e8d800\u27e9": "= 0.5"})
    assert (page["filtered"], page["components"]) == (2, ["half \u27e8d800\u27e9"])


def test_the_mean_follows_when_another_group_is_scored_and_when_it_is_not_any_more(view, give):
    give(1.0, 0.0)
    assert ask(view, "set", names=NAMES[:1], reward="0.5")["summary"]["mean_reward"] == pytest.approx(0.25)
    several = ask(view, "set", names=NAMES[3:6], reward="2")["summary"]
    assert (several["scored"], several["mean_reward"]) == (5, pytest.approx(6.5 / 5))
    fewer = ask(view, "undo")["summary"]
    assert (fewer["scored"], fewer["mean_reward"]) == (2, pytest.approx(0.25))


def test_a_browser_that_edits_is_answered_with_its_page_the_figures_and_what_was_done(view, give):
    give(1.0, 0.0, 0.5, 0.5, 1.0, 0.0)
    shown = {"offset": 0, "size": 3, "sort": [["reward", "desc"]], "filter": {}}
    rows = ask(view, "page", **shown)["rows"]
    assert [r["name"] for r in rows] == [NAMES[0], NAMES[4], NAMES[2]]
    shown = {"ids": [row["id"] for row in rows]}
    answer = ask(view, "set", names=[rows[0]["id"]], reward="-1", shown=shown)
    response = zip(shown["ids"], [-1.0, 1.0, 0.5], strict=True)
    assert [(r["id"], r["reward"]) for r in answer["rows"]] == list(response)
    texts = {"name", "group", "prompt", "completion", "tokens", "finish_reason"}  # which the browser has
    assert all(row.keys() == (rows[0].keys() - texts) | {"fits"} for row in answer["rows"])
    assert (answer["message"], answer["rows"][0]["was"]) == ("capitals/0/0: 1 → -1", 1.0)
    assert answer["summary"]["mean_reward"] == pytest.approx(1 / 6)
    assert list(view.to_frame()["reward"])[:3] == [-1.0, 1.0, 0.5]
    assert ask(view, "set", names=NAMES[:2], reward="2", shown=shown)["message"] == "2 rewards set to 2"
    assert ask(view, "set", names=NAMES[:2], reward="2", shown=shown)["message"] == "that is its reward already"
    assert ask(view, "undo", shown=shown)["message"] == "change 3 (2 rewards set to 2) is undone: 2 rewards as before"


def test_rows_are_sorted_by_the_size_of_their_advantage(view, give):
    give(0.5, 0.75, -9.0)
    page = view.page(sort="-|advantage|")["rows"]
    sizes = [abs(r["advantage"]) for r in page if r["advantage"] is not None]
    assert sizes == sorted(sizes, reverse=True)
    assert page[0]["name"] == "capitals/0/2"
    assert {r["advantage"] for r in page[len(sizes) :]} == {None}


@pytest.mark.parametrize(
    ("filter_", "stays"),
    [
        ({"reward": "< 0.5"}, False),
        ({"reward": "> 0.5"}, True),
        ({"source": "function"}, False),
        ({"source": ["hand", "function"]}, True),
        ({"advantage": "< 0"}, False),
        ({"advantage": "trains"}, True),
        ({"component:right": "0..1"}, False),
        ({"right": "0..1"}, False),
        ({"completion": "nothing like it"}, True),  # an edit of rewards changes no text
        ({}, True),
    ],
)
def test_a_browser_is_told_which_rows_no_longer_fit_its_filter(view, give, filter_, stays):
    give(0.0, 1.0, right=0.0)
    ids = [r["id"] for r in view.page(size=2)["rows"]]
    shown = {"ids": ids, "filter": filter_}
    answer = ask(view, "set", names=[ids[0]], reward="2", shown=shown)
    assert answer["rows"][0]["fits"] == stays


def test_a_browser_is_told_what_an_undo_would_take_back(view, give):
    assert ask(view, "undoable") == ""
    give(1.0, 0.5)
    assert ask(view, "undoable") == "2 rewards by function"
    view.set(NAMES[:3], 2)
    assert ask(view, "undoable") == view.state()["undoable"] == "3 rewards set to 2"
    view.clear(NAMES[0])
    assert ask(view, "undoable") == "1 reward cleared"
    view.undo()
    view.undo()
    assert ask(view, "undoable") == "2 rewards by function"


def test_an_undo_takes_back_nothing_but_what_the_button_names(view, lab, give):
    give(1.0, 0.5)
    named = ask(view, "undoable")
    RewardsView(lab, [lab.find("capitals")]).set(NAMES[0], 0.25)
    error = ask(view, "undo", named=named)
    assert error["message"] == "another change is the newest by now: 1 reward set to 0.25"
    assert view.to_frame()["reward"].iloc[0] == 0.25
    ask(view, "undo", named="1 reward set to 0.25")
    assert view.to_frame()["reward"].iloc[0] == 1.0


def test_an_undo_of_several_collections_is_told_of_all_that_it_takes_back(lab, sample):
    sample()
    sample("rivers", {"Peru": ["Amazon", "Ucayali"]})
    view = RewardsView(lab, [lab.find("capitals"), lab.find("rivers")])
    view.set(["capitals/0/0", "rivers/0/0"], 1)
    assert ask(view, "undoable") == "2 rewards set to 1"
    lab.rewards.undo(lab.find("rivers"))
    assert ask(view, "undoable") == "1 reward set to 1"


def test_a_browser_is_told_what_was_wrong_with_what_it_asked(view):
    assert ask(view, "set", names=["capitals/0/0"], reward="0,5") == {
        "message": "the reward of capitals/0/0 is '0,5', which is no finite number",
        "hint": "0.5",
    }
    assert ask(view, "undo")["message"] == "no reward of capitals is left to undo"
    assert ask(view, "page", sort=[["nothing", "asc"]])["message"] == "there is no column 'nothing'"


def test_a_browser_that_loads_the_page_gets_the_first_rows_with_what_it_can_choose_from(view, give):
    give(1.0, right=0.5)
    view.page(sort="-name", filter={"source": "hand"})
    state = view.state()
    assert [r["name"] for r in state["page"]["rows"]] == NAMES
    assert (state["title"], state["components"]) == ("capitals", ["right"])
    assert {"stop", "length", "none"} <= set(state["finish_reasons"])
    assert state["sources"] == ["function", "hand", "judge", "tool", "environment", "none"]
    assert {"unscored", "equal_rewards"} <= set(state["reasons"])
    assert json.loads(json.dumps(state)) == state


def test_all_that_was_said_and_how_its_reward_came_to_be_is_read_of_one_trajectory(view, give, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    give(1.0)
    view.undo()
    read = ask(view, "read", name="capitals/0/0")
    assert read["turns"] == [{"role": "user", "text": "Capital of France?"}, {"role": "assistant", "text": "Paris"}]
    assert [re.sub(r"^[\d-]+ [\d:]+ ", "", line) for line in read["history"]] == [
        "ada, undo of change 1: 1 → -",
        "ada, function: - → 1",
    ]


def test_the_text_fits_80_columns_and_shows_the_first_rows(lab, sample, give):
    sample("c" * 60, {f"country {i}": ["東京" * 100, "x\x1b[31mred\r\n\ny"] for i in range(20)})
    view = RewardsView(lab, [lab.find("c" * 60)])
    lines = repr(view).splitlines()
    assert max(len(line) + sum(c in "東京" for c in line) for line in lines if "->" not in line) <= 80
    assert lines[-1] == "... and 28 more: .to_frame() has them"
    assert "\x1b" not in repr(view)
    assert "␛[31mred" in repr(view)


def test_the_text_of_a_small_view_is_stable(view, give):
    give(1.0, 0.0, 0.5, 0.5)
    assert repr(view).splitlines()[:6] == [
        "capitals: 6 trajectories in 2 groups, mean reward 0.500 (4 scored)",
        "2 will train: 3 tokens in 1 of 2 groups",
        'The same answer has different rewards in 1 group. In capitals/0 "Paris" has 1 and 0.5. -> %group capitals/0',
        "",
        "  trajectory    reward     advantage source    completion",
        "  capitals/0/0       1         +1.00 function  Paris",
    ]


def test_the_html_reads_without_scripts_and_hostile_text_is_only_text(lab, sample):
    hostile = {"<script>a</script>": ["<script>alert(1)</script>\x1b[2J\u202e", "x" * 1_000_000]}
    sample("capitals", hostile)
    view = RewardsView(lab, [lab.find("capitals")])
    html = view._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert not re.search("[\x1b\u202e]", html)
    assert len(re.sub("<style>.*?</style>", "", html)) < 6000
    assert len(repr(view)) < 1000
    assert len(json.dumps(view.state())) < 5000


def test_the_frame_is_what_is_shown_with_whole_answers(view, give):
    give(1.0, 0.0, right=0.5)
    view.page(sort="-name", filter={"completion": "paris"}, size=1)
    frame = view.to_frame()
    assert list(frame.index) == [NAMES[3], NAMES[2], NAMES[0]]
    assert frame.loc[NAMES[3], "answer"].endswith("Paris")
    assert frame["reason"].tolist()[:2] == ["unscored", "unscored"]
    assert frame["reason"].isna().tolist() == [False, False, True]
    assert list(frame.columns)[:3] == ["reward", "advantage", "right"]


def test_an_empty_collection_is_an_empty_table(lab, sample):
    sample("empty", {})
    view = RewardsView(lab, [lab.find("empty")])
    assert (view.page(sort="-advantage")["rows"], len(view.to_frame())) == ([], 0)
    assert "empty: 0 trajectories in 0 groups, not scored yet" in repr(view)
    assert view._repr_html_()


def test_edits_of_several_threads_are_all_there(view, lab):
    def edit(name: str) -> None:
        for i in range(20):
            ask(view, "set", names=[name], reward=str(i), shown={"offset": 0, "size": 10})

    threads = [threading.Thread(target=edit, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r["reward"] for r in view.page()["rows"]] == [19.0] * 6
    assert_as_the_lab_is(lab, view)


def test_a_row_that_a_function_failed_on_shows_the_message_and_the_line_of_the_function(lab, view, give):
    give(1.0, 0.0)
    failed = Ref(lab.groups(lab.find("capitals"))[0].trajectories[1].id, "capitals/0/1")
    message = "no unit in <b>the</b> answer \x1b[31m" + "x" * 200 + "\nand more"
    failure = Failure(failed, "exact", "ValueError", message, 'line 12: raise ValueError(f"no unit in {answer}")')
    change = lab.scorings.begin(lab.find("capitals"), NewScoring("function", ["exact"], "", {}))
    lab.scorings.store(change, "function", [], [failure], keep_hand=True)

    shown = row(view, "capitals/0/1")
    assert shown["error"] == "ValueError: no unit in <b>the</b> answer ␛[31m" + "x" * 200 + "\nand more"
    assert shown["place"] == 'exact, line 12: raise ValueError(f"no unit in {answer}")'
    assert ask(view, "read", name="capitals/0/1")["failed"] == [shown["error"], shown["place"]]
    assert ask(view, "read", name="capitals/0/0")["failed"] == []

    lines = repr(view).splitlines()
    assert [line for line in lines if "failed: ValueError: no unit in <b>the</b> answer ␛[31mxxx" in line]
    assert '  exact, line 12: raise ValueError(f"no unit in {answer}")' in lines
    assert max(len(line) for line in lines if "->" not in line) <= 80
    html = view._repr_html_()
    assert ">failed: ValueError: no unit in &lt;b&gt;the&lt;/b&gt; answer ␛[31mxxx" in html
    assert "x" * 100 not in re.sub(r'title="[^"]*"', "", html)
    assert "line 12: raise ValueError(f&quot;no unit in {answer}&quot;)" in html

    view.set("capitals/0/1", 0.5)
    assert not row(view, "capitals/0/1").keys() & {"error", "place"}
    assert "no unit" not in repr(view)
    view.undo()
    assert row(view, "capitals/0/1")["error"] == shown["error"]
