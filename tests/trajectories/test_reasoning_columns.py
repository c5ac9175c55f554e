"""Reasoning in tables, files and the rewards view: apart from the answer, a column only where there is some."""

import csv

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import Score
from tests.labs import completion, lab_with

FIELD = {"role": "assistant", "content": "Paris", "reasoning_content": "hm"}
TEXT = {"role": "assistant", "content": "<think>hm</think>Lyon"}


@pytest.fixture
def lab(tmp_path):
    """A session without any service, on a lab with a collection of answers with and without reasoning."""
    session = Session(Settings(home=tmp_path, policy="/nowhere"))
    answers = [completion("Paris", message=FIELD), completion("Lyon", message=TEXT), "Lima"]
    lab_with(session.store, answers, name="reasoned", rewards=[1.0, 0.0, 0.0])
    lab_with(session.store, ["Paris", "Lima"], name="plain", rewards=[1.0, 0.0])
    yield session
    session.close()


@pytest.mark.parametrize("frame_of", ["collection", "rewards"])
def test_a_frame_has_the_reasoning_beside_the_answer(lab, frame_of):
    frame = getattr(lab, frame_of)("reasoned").to_frame()
    assert frame["answer"].tolist() == ["Paris", "Lyon", "Lima"]
    assert frame["reasoning"].tolist()[:2] == ["hm", "hm"]
    assert frame["reasoning"].isna().tolist() == [False, False, True]
    columns = frame.columns.tolist()
    assert columns.index("reasoning") == columns.index("answer") + 1
    assert "reasoning" not in getattr(lab, frame_of)("plain").to_frame().columns


@pytest.mark.parametrize("frame_of", ["collection", "rewards"])
def test_a_part_of_a_reward_of_that_name_stays_the_part(lab, frame_of):
    scores = [Score(t, 0.5, {"reasoning": 0.5}) for t in lab.collection("reasoned").trajectories]
    lab.store.rewards.give(scores, "function")
    frame = getattr(lab, frame_of)("reasoned").to_frame()
    assert frame["reasoning"].tolist() == [0.5] * 3


def test_a_spreadsheet_has_the_reasoning_in_a_column(lab, tmp_path):
    def head_and_rows(name):
        path = tmp_path / f"{name}.csv"
        lab.files.export(name, path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return list(csv.reader(file))

    head, *rows = head_and_rows("reasoned")
    assert head[:5] == ["trajectory", "prompt", "answer", "reasoning", "reward"]
    assert [row[2:4] for row in rows] == [["Paris", "hm"], ["Lyon", "hm"], ["Lima", ""]]
    assert head_and_rows("plain")[0][:4] == ["trajectory", "prompt", "answer", "reward"]
    lab.collection("reasoned").update_rewards_from(tmp_path / "reasoned.csv")


def test_the_rewards_view_shows_answers_and_opens_the_reasoning(lab):
    view = lab.rewards("reasoned")
    assert [row["completion"] for row in view.page()["rows"]] == ["Paris", "Lyon", "Lima"]
    assert "hm" not in repr(view) + view._repr_html_()
    turns = [
        view.answer({"id": 1, "call": "read", "args": {"name": f"reasoned/0/{i}"}})["result"]["turns"] for i in range(3)
    ]
    assert [each[-1] for each in turns] == [
        {"role": "assistant", "text": "Paris", "reasoning": "hm"},
        {"role": "assistant", "text": "Lyon", "reasoning": "hm"},
        {"role": "assistant", "text": "Lima"},
    ]
