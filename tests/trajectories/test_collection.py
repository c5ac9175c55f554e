"""A collection as a notebook holds it: read as a frame, scored by hand, and shown with what would train."""

import math
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.errors import InputError, NotFoundError, RewardError
from rolloutlab.objective.advantages import token_weights
from rolloutlab.objective.options import Options
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Score
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.members import members_of
from tests.labs import completion, lab_with

ANSWERS = {"France": ["Paris", "Lyon", "Paris"], "Peru": ["Lima", "Cusco"]}


def sample(lab: Lab, name: str = "capitals", answers: dict[str, list[str]] = ANSWERS) -> Collection:
    prompts = [NewGroup([UserMessage(role="user", content=f"Capital of {c}?")], {"country": c}) for c in answers]
    groups = [[completion(answer, "a" * i) for i, answer in enumerate(texts, 1)] for texts in answers.values()]
    options = {"name": name, "prompts": prompts, "step": 3, "sampling": {"temperature": 1.0}}
    return Collection(lab, lab_with(lab, *groups, **options))


def give(collection: Collection, lab: Lab, *rewards: float, **components: float) -> None:
    lab.rewards.give(
        [Score(t, r, components) for t, r in zip(collection.trajectories, rewards, strict=False)], "function"
    )


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def collection(lab):
    return sample(lab)


def rewards(collection: Collection) -> list[float | None]:
    return [t.reward for t in collection.trajectories]


def test_a_frame_has_one_row_per_trajectory_under_its_name(collection):
    frame = collection.to_frame()
    assert list(frame.index) == ["capitals/0/0", "capitals/0/1", "capitals/0/2", "capitals/1/0", "capitals/1/1"]
    assert frame.index.name == "trajectory"


def test_a_frame_has_the_columns_that_it_promises(collection, lab):
    give(collection, lab, 1.0, right=0.75, short=0.25)
    frame = collection.to_frame()
    after = ["source", "prompt", "finish_reason", "model", "step", "tokens", "answer", "row.country"]
    assert list(frame.columns) == ["reward", "advantage", "right", "short", *after]
    assert frame.loc["capitals/0/0"].to_dict() == {
        "prompt": "Capital of France?",
        "answer": "Paris",
        "reward": 1.0,
        "right": 0.75,
        "short": 0.25,
        "source": "function",
        "advantage": 0.0,
        "finish_reason": "stop",
        "tokens": 1,
        "model": "lab/practice",
        "step": 3,
        "row.country": "France",
    }


def test_a_frame_of_unscored_trajectories_has_neither_rewards_nor_advantages(collection):
    frame = collection.to_frame()
    assert frame[["reward", "advantage"]].isna().all(axis=None)
    assert set(frame[["reward", "advantage"]].dtypes) == {np.dtype(float)}


def test_the_advantages_are_the_trainers_own(collection, lab):
    give(collection, lab, 1.0, 0.0, 0.25, 10.0, 2.0)
    shares = [share for group in token_weights(members_of(collection.groups), Options()) for share in group]
    advantages = collection.to_frame()["advantage"]
    assert list(advantages) == [share.advantage for share in shares]
    assert len(set(advantages)) == 5


def test_an_unscored_trajectory_counts_in_no_advantage(collection, lab):
    give(collection, lab, 1.0, 0.0)
    assert [[m.name for m in group] for group in members_of(collection.groups)] == [
        ["capitals/0/0", "capitals/0/1"],
        [],
    ]
    assert collection.preflight().unscored == ("capitals/0/2", "capitals/1/0", "capitals/1/1")


def test_a_frame_given_back_as_it_is_changes_nothing(collection, lab):
    give(collection, lab, 1.0, 0.5, right=0.5, short=0.0)
    before = [lab.rewards.history(t) for t in collection.trajectories]
    assert collection.update_rewards(collection.to_frame()) == []
    assert [lab.rewards.history(t) for t in collection.trajectories] == before
    assert collection.trajectories[0].components == {"right": 0.5, "short": 0.0}


def test_an_edited_frame_comes_back_as_it_was_edited(collection):
    frame = collection.to_frame()
    frame["reward"] = [1.0, 0.0, 1.0, 0.5, -2.5]
    collection.update_rewards(frame)
    assert list(collection.to_frame()["reward"]) == [1.0, 0.0, 1.0, 0.5, -2.5]
    assert set(collection.to_frame()["source"]) == {"hand"}


def test_an_edit_is_logged_with_who_when_old_and_new(collection, lab, monkeypatch):
    give(collection, lab, 0.25)
    monkeypatch.setenv("LOGNAME", "ada")
    frame = collection.to_frame()
    frame.loc["capitals/0/0", "reward"] = 0.75
    (edit,) = collection.update_rewards(frame)
    assert (edit.trajectory, edit.who, edit.source, edit.old, edit.new) == ("capitals/0/0", "ada", "hand", 0.25, 0.75)
    assert datetime.fromisoformat(edit.at).utcoffset() == timedelta(0)
    assert datetime.fromisoformat(edit.at) <= datetime.now(UTC)
    assert lab.rewards.history(collection.trajectories[0])[-1] == edit


def test_an_edit_by_hand_drops_the_components_that_no_longer_add_up(collection, lab):
    give(collection, lab, 1.0, 0.5, right=0.5)
    frame = collection.to_frame()
    frame.loc["capitals/0/0", "reward"] = 0.0
    collection.update_rewards(frame)
    first, second, *_ = collection.trajectories
    assert (first.components, second.components) == ({}, {"right": 0.5})


def test_part_of_a_frame_changes_that_part(collection):
    frame = collection.to_frame().loc[["capitals/1/1"]].assign(reward=0.5)
    collection.update_rewards(frame)
    assert rewards(collection) == [None, None, None, None, 0.5]


@pytest.mark.parametrize("unscored", [math.nan, None, pd.NA])
def test_unscored_rows_are_left_alone(collection, unscored):
    frame = collection.to_frame().astype({"reward": object})
    frame["reward"] = pd.Series([1.0, *[unscored] * 4], index=frame.index, dtype=object)
    assert [edit.trajectory for edit in collection.update_rewards(frame)] == ["capitals/0/0"]
    assert rewards(collection) == [1.0, None, None, None, None]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, "1.0", 1j, [1.0], "", pytest.param(10**400, id="huge")])
def test_a_reward_that_is_no_finite_number_is_refused_and_nothing_is_changed(collection, lab, bad):
    give(collection, lab, 0.5, 0.5)
    frame = collection.to_frame().astype({"reward": object})
    frame.at["capitals/0/0", "reward"] = 1.0
    frame.at["capitals/0/1", "reward"] = bad
    with pytest.raises(RewardError, match="capitals/0/1"):
        collection.update_rewards(frame)
    assert rewards(collection) == [0.5, 0.5, None, None, None]
    assert len(lab.rewards.history(collection.trajectories[0])) == 1


def test_a_row_that_names_no_trajectory_of_the_collection_is_refused_and_nothing_is_changed(collection, lab):
    sample(lab, "others")
    frame = collection.to_frame().assign(reward=1.0).rename(index={"capitals/1/1": "others/0/0"})
    with pytest.raises(NotFoundError, match="others/0/0"):
        collection.update_rewards(frame)
    assert rewards(collection) == [None] * 5


def test_a_frame_without_rewards_is_refused(collection):
    with pytest.raises(InputError, match="no column 'reward'"):
        collection.update_rewards(collection.to_frame()[["answer"]])


@pytest.mark.parametrize("column", [[1, 0, 1, 0, 1], [True, False, True, False, True]])
def test_whole_numbers_and_booleans_are_rewards(collection, column):
    collection.update_rewards(collection.to_frame().assign(reward=column))
    assert rewards(collection) == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert {type(reward) for reward in rewards(collection)} == {float}


def test_the_frame_of_an_empty_collection_has_its_columns_and_can_be_given_back(lab, collection):
    empty = sample(lab, "empty", {})
    assert [*empty.to_frame().columns, "row.country"] == list(collection.to_frame().columns)
    assert empty.update_rewards(empty.to_frame()) == []
    assert (len(empty), empty.mean_reward) == (0, None)


def test_the_mean_reward_is_over_what_has_one(collection, lab):
    assert collection.mean_reward is None
    give(collection, lab, 1.0, 0.0, 0.5)
    assert collection.mean_reward == 0.5


def test_a_collection_reads_the_lab_when_asked(collection, lab):
    assert len(collection) == 5
    lab.put(collection.groups[0], [Arrival(3, [completion("Paris")])], model="m", step=None, sampling={})
    assert len(collection) == 6


def test_a_collection_held_while_a_newer_generation_takes_its_name_stays_what_it_was(collection, lab):
    newer = sample(lab, "capitals", {"Chad": ["N'Djamena"]})
    assert (collection.name, newer.name) == ("capitals:1", "capitals")
    assert [t.name for t in collection.trajectories][:1] == ["capitals:1/0/0"]
    assert "capitals:1: 5 completions in 2 groups" in repr(collection)
    collection.update_rewards(collection.to_frame().assign(reward=1.0))
    assert (rewards(collection), rewards(newer)) == ([1.0] * 5, [None])


def test_a_frame_taken_before_a_newer_generation_was_sampled_can_still_be_given_back(collection, lab):
    frame = collection.to_frame().assign(reward=1.0)
    newer = sample(lab, "capitals")
    collection.update_rewards(frame)
    assert (rewards(collection), rewards(newer)) == ([1.0] * 5, [None] * 5)


def test_one_group_is_a_collection_of_one(collection, lab):
    group = Collection(lab, lab.collection("capitals"), position=1)
    assert (group.name, len(group)) == ("capitals/1", 2)
    with pytest.raises(NotFoundError):
        group.update_rewards(collection.to_frame().assign(reward=1.0))


def test_what_a_cell_shows_is_the_view_of_its_groups(collection):
    assert repr(collection).startswith("capitals: 5 completions in 2 groups, not scored yet")
    assert "<script" not in collection._repr_html_()
    assert "Capital of France?" in collection._repr_html_()


def test_the_advantages_of_what_a_cell_shows_are_those_of_the_frame(collection, lab):
    give(collection, lab, 1.0, 0.0, 0.5, 1.0, 0.0)
    shown = [f"{advantage:+.2f}" for advantage in collection.to_frame()["advantage"] if advantage]
    assert set(re.findall(r"[+-]\d\.\d\d", repr(collection))) == set(shown)
    html = collection._repr_html_().replace("\N{MINUS SIGN}", "-")
    assert set(re.findall(r"[+-]\d\.\d\d", html)) == set(shown)


def test_a_row_left_as_it_is_says_nothing_about_its_reward(collection, lab):
    give(collection, lab, 1.0, 1.0)
    frame = collection.to_frame()
    frame.loc["capitals/0/0", "reward"] = 0.0
    collection.update_rewards(frame)
    assert [t.source for t in collection.trajectories[:2]] == ["hand", "function"]


def test_a_collection_that_is_held_may_be_renamed(collection, lab):
    lab.lifecycle.rename("capitals", "cities")
    assert (collection.name, collection.label, len(collection)) == ("cities", "cities:1", 5)
    assert collection.to_frame().index[0] == "cities/0/0"


def test_a_collection_that_is_held_and_was_deleted_says_how_to_have_it_back(collection, lab):
    lab.lifecycle.delete("capitals")
    with pytest.raises(NotFoundError, match="capitals:1 was deleted"):
        len(collection)
