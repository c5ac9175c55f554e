"""How episodes ended, in the table of rewards, its text and its frame; and the rewards of turns where one is opened."""

import math

import pandas as pd
import pytest

from rolloutlab.errors import InputError
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.rewards_view import RewardsView
from tests.labs import lab_with

ENDS = ["done", "max_turns", "error"]


@pytest.fixture
def played(lab):
    """Three episodes, one for each end, beside a collection without an environment."""
    for group, end in enumerate(ENDS):
        metrics = {"turn_reward/0": -0.1, "odd": math.nan}
        extra = {"metrics": metrics, "metadata": {"episode_end": end}, "logs": ["ended: x\x1b"] if group else []}
        lab_with(lab, ["7"], name=end, extra=extra)
    lab_with(lab, ["Paris"], name="plain")
    return RewardsView(lab, [lab.find(name) for name in (*ENDS, "plain")])


def test_a_row_has_the_end_of_its_episode_and_rows_are_sorted_and_filtered_by_it(played):
    assert [row.get("episode_end") for row in played.page()["rows"]] == [*ENDS, None]
    assert [row["name"] for row in played.page(sort="-episode_end")["rows"]] == [
        "max_turns/0/0", "error/0/0", "done/0/0", "plain/0/0",
    ]  # fmt: skip
    assert [row["name"] for row in played.page(filter={"episode_end": ["error", "none"]})["rows"]] == [
        "error/0/0", "plain/0/0",
    ]  # fmt: skip
    with pytest.raises(InputError, match="'won' is not one of its values"):
        played.page(filter={"episode_end": "won"})


def test_the_text_and_the_page_without_scripts_have_a_column_of_ends_where_there_are_any(lab, played):
    lines = repr(played).splitlines()
    assert lines[3].split() == ["trajectory", "reward", "advantage", "ended", "source", "completion"]
    assert [line.split()[2] for line in lines[4:]] == [*ENDS, "-"]
    assert ">max_turns<" in played._repr_html_()
    plain = RewardsView(lab, [lab.find("plain")])
    assert "ended" not in repr(plain) + plain._repr_html_()


def test_the_frame_has_the_columns_of_the_frame_of_the_collection(lab, played):
    frames = [RewardsView(lab, [lab.find(name)]).to_frame().drop(columns="reason") for name in (*ENDS, "plain")]
    for name, frame in zip((*ENDS, "plain"), frames, strict=True):
        pd.testing.assert_frame_equal(frame, Collection(lab, lab.find(name)).to_frame())


def test_an_opened_row_has_the_rewards_of_its_turns_and_the_logs(played):
    read = played.answer({"id": 1, "call": "read", "args": {"name": "error/0/0"}})["result"]
    assert read["turns"][1] == {"role": "assistant", "text": "7", "reward": -0.1}
    assert read["logs"] == ["ended: x\N{SYMBOL FOR ESCAPE}"]
