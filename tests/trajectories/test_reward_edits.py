"""Rewards that a person edits in a table: numbers, rewards that are taken away, and files that a spreadsheet saved."""

import csv
import io
import math

import numpy as np
import pandas as pd
import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.errors import InputError, NotFoundError, RewardError
from rolloutlab.store.models import NewGroup
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.files.exchange import ExportFilter, export
from tests.labs import completion, lab_with


@pytest.fixture
def collection(lab, sample) -> Collection:
    """Six trajectories in two groups."""
    sample()
    return Collection(lab, lab.find("capitals"))


@pytest.fixture
def exported(lab, tmp_path):
    """Writes a collection as CSV, and gives its path."""

    def write(name: str = "capitals"):
        path = tmp_path / "labels.csv"
        export(lab, [lab.find(name)], path, None, ExportFilter(), overwrite=True, written=lambda _: None)
        return path

    return write


def rewards(collection: Collection) -> list[float | None]:
    return [t.reward for t in collection.trajectories]


def edited(path, **by_name: str) -> None:
    """Save the file again as a spreadsheet does, with other rewards."""
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    for row in rows:
        row["reward"] = by_name.get(row["trajectory"].partition("/")[2], row["reward"])
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8-sig")


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, np.float32("nan"), pd.NaT])
def test_a_reward_that_is_missing_in_an_edited_frame_is_cleared_and_the_undo_brings_it_back(
    collection, lab, give, missing
):
    give(0.5, 1.0, right=0.25)
    frame = collection.to_frame().astype({"reward": object})
    frame.loc["capitals/0/0", "reward"] = missing
    edits = collection.update_rewards(frame)
    assert repr(edits) == "0 rewards changed, 1 cleared"
    assert rewards(collection)[:2] == [None, 1.0]
    first = collection.trajectories[0]
    assert (first.source, first.components) == (None, {})
    _, cleared = lab.rewards.history(first)
    assert (cleared.old, cleared.new, cleared.source, cleared.note) == (0.5, None, "hand", "cleared")
    lab.rewards.undo(collection.stored)
    again = collection.trajectories[0]
    assert (again.reward, again.components, again.source) == (0.5, {"right": 0.25}, "function")


def test_changed_and_cleared_are_one_change_and_one_undo(collection, lab, give):
    give(0.5, 1.0, 0.25)
    frame = collection.to_frame()
    frame["reward"] = [math.nan, 0.0, 0.25, math.nan, 0.75, math.nan]
    edits = collection.update_rewards(frame)
    assert repr(edits) == "2 rewards changed, 1 cleared"
    assert len({edit.change for edit in edits}) == 1
    lab.rewards.undo(collection.stored)
    assert rewards(collection) == [0.5, 1.0, 0.25, None, None, None]


def test_a_frame_that_lost_its_rewards_clears_nothing(collection, give):
    give(0.5, 1.0)
    lost = collection.to_frame().drop(columns="reward").join(pd.Series({"x": 1.0}, name="reward"))
    with pytest.raises(RewardError, match="no reward any more: 2 would be cleared") as refused:
        collection.update_rewards(lost)
    assert ".clear(" in str(refused.value.hint)
    assert rewards(collection)[:2] == [0.5, 1.0]


def test_one_row_alone_is_cleared(collection, give):
    give(0.5, 1.0)
    collection.update_rewards(collection.to_frame().iloc[:1].assign(reward=None))
    assert rewards(collection)[:2] == [None, 1.0]


def test_what_was_cleared_is_unscored_to_a_function_and_to_the_search(collection, lab, give):
    give(0.5, 1.0)
    collection.update_rewards(collection.to_frame().iloc[:1].assign(reward=None))
    give(0.75)
    assert collection.trajectories[0].source == "function"
    assert collection.preflight().unscored


def test_a_view_clears_rewards_by_name_and_takes_that_back(view, give):
    give(0.5, 1.0, 0.25)
    edits = view.clear(["capitals/0/0", "capitals/0/1", "capitals/1/0"])
    assert [(edit.old, edit.new) for edit in edits] == [(0.5, None), (1.0, None)]
    assert view.page()["summary"]["scored"] == 1
    assert view.history("capitals/0/0")[0].new is None
    view.undo()
    assert view.page()["summary"]["scored"] == 3
    view.clear("capitals/0/2")
    with pytest.raises(NotFoundError, match="nothing to clear"):
        view.clear("capitals/0/2")
    with pytest.raises(InputError, match="is not a trajectory name"):
        view.clear([])


def test_a_browser_gets_the_rows_that_were_cleared(view, give):
    give(0.5, 1.0)
    first, second = (row["id"] for row in view.page(size=2)["rows"])
    clear = view.calls()["clear"]
    answer = clear(names=[first], shown={"ids": [first, second]})
    assert [row["reward"] for row in answer["rows"]] == [None, 1.0]
    assert answer["message"] == "capitals/0/0: reward cleared"
    assert clear(names=[first, second], shown={"ids": [first]})["message"] == "capitals/0/1: reward cleared"
    view.undo()
    view.undo()
    assert clear(names=[first, second], shown={"ids": [first]})["message"] == "2 rewards cleared"


def test_a_file_has_a_line_per_trajectory_as_a_spreadsheet_reads_it(lab, exported, collection, give):
    give(0.5, 1.0, right=0.25)
    data = exported().read_bytes()
    assert data.startswith(b"\xef\xbb\xbftrajectory,prompt,answer,reward,right,source,row.country\r\n")
    first = data.decode("utf-8-sig").splitlines()[1]
    assert first == "capitals:1/0/0,Capital of France?,Paris,0.5,0.25,function,France"
    frame = pd.read_csv(io.BytesIO(data))
    assert list(frame["reward"].dropna()) == [0.5, 1.0]
    assert len(frame) == 6


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+A1", "'+A1"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("  =1", "'  =1"),
        ("\uff1d1", "'\uff1d1"),
        ("-5", "-5"),
        ("+1e3", "+1e3"),
        ("a=b", "a=b"),
        ('"quoted", and\nlines', '"quoted", and\nlines'),
    ],
)
def test_what_a_spreadsheet_would_compute_is_text_there(lab, exported, text, cell):
    prompts = [NewGroup([UserMessage(role="user", content=text)], {"=x": text, "list": [1, {"a": None}], "none": None})]
    lab_with(lab, [completion(text)], name="odd", prompts=prompts)
    [row] = csv.DictReader(io.StringIO(exported("odd").read_bytes().decode("utf-8-sig"), newline=""))
    assert {row["prompt"], row["answer"], row["row.=x"]} == {cell}
    assert (row["row.list"], row["row.none"], row["reward"]) == ('[1, {"a": null}]', "", "")


def test_an_edited_file_comes_back(collection, exported, give, lab):
    give(0.5, 1.0, 1 / 3, right=0.25)
    path = exported()
    edited(path, **{"0/0": "0", "0/1": "", "1/1": " 0.75 "})
    edits = collection.update_rewards_from(path)
    assert repr(edits) == "2 rewards changed, 1 cleared"
    assert rewards(collection) == [0.0, None, 1 / 3, None, None, 0.75]
    assert collection.trajectories[2].source == "function"
    assert repr(collection.update_rewards_from(path)) == "0 rewards changed"
    lab.rewards.undo(collection.stored)
    assert rewards(collection) == [0.5, 1.0, 1 / 3, None, None, None]


@pytest.mark.parametrize(
    "text",
    [
        "trajectory,reward\ncapitals/0/0,0.75\n",
        "\ufeffreward;mine;trajectory\r\n0.75;yes;capitals:1/0/0\r\n;;\r\n",
        "sep=\t\nname\treward\ncapitals:1/0/0\t.75\n",
        "trajectory,reward\n'capitals:1/0/0,7.5e-1\ncapitals:1/0/0,0.75\n",
    ],
)
def test_columns_separators_and_rows_may_be_others(collection, tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    assert repr(collection.update_rewards_from(str(tmp_path / "a.csv"))) == "1 reward changed"
    assert rewards(collection) == [0.75, None, None, None, None, None]


def test_any_data_file_with_these_columns_is_read(collection, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"trajectory": "capitals/0/0", "reward": 1}\n')
    assert repr(collection.update_rewards_from(tmp_path / "a.jsonl")) == "1 reward changed"


@pytest.mark.parametrize(("typed", "reward"), [("TRUE", 1.0), ("false", 0.0), ("-1", -1.0), ("1E2", 100.0)])
def test_what_a_spreadsheet_makes_of_a_number_is_one(collection, tmp_path, typed, reward):
    (tmp_path / "a.csv").write_text(f"trajectory,reward\ncapitals/0/0,{typed}\n")
    collection.update_rewards_from(tmp_path / "a.csv")
    assert rewards(collection)[0] == reward


@pytest.mark.parametrize(
    ("saved", "same"),
    [("0.333333333", True), (" 0.333333333 ", True), ("0.33333333", False), ("0.333333334", False)],
)
def test_a_number_that_a_spreadsheet_has_only_shortened_is_not_changed(collection, give, tmp_path, saved, same):
    give(1 / 3)
    (tmp_path / "a.csv").write_text(f"trajectory,reward\ncapitals/0/0,{saved}\n")
    assert len(collection.update_rewards_from(tmp_path / "a.csv")) == (not same)
    assert (rewards(collection)[0] == 1 / 3) == same


def test_rows_of_other_trajectories_are_counted_and_named(collection, tmp_path):
    names = ["capitals/0/0", "rivers/0/0", "capitals:2/0/0", "", "capitals/0/99"]
    (tmp_path / "a.csv").write_text("\n".join(["trajectory,reward,x", *(f"{name},1,a" for name in names)]))
    edits = collection.update_rewards_from(tmp_path / "a.csv")
    assert repr(edits) == "1 reward changed, 4 rows unknown: rivers/0/0, capitals:2/0/0, , ..."


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("trajectory;reward\ncapitals/0/0;0,5\n", "a.csv, line 2: the reward '0,5' is not a number", "0.5"),
        ("trajectory,reward\ncapitals/0/0,good\n", "a.csv, line 2: the reward 'good' is not a number", "a number such"),
        ("trajectory,reward\ncapitals/0/0,1e999\n", "a.csv, line 2: the reward '1e999' is not a number", "a number"),
        ("trajectory,reward\ncapitals/0/0,50%\n", "a.csv, line 2: the reward '50%' is not a number", "a number such"),
        ("answer,reward\nParis,1\n", "a.csv, line 2: there is no column 'trajectory'", "%export"),
        ("trajectory,score\ncapitals/0/0,1\n", "a.csv, line 2: there is no column 'reward'", "%export"),
        ("trajectory,reward\n", "a.csv has no rows", "%export"),
        (
            "trajectory,reward\ncapitals/0/0,1\ncapitals:1/0/0,0\n",
            "a.csv, line 3: capitals:1/0/0 has another reward in a line before",
            "one line per trajectory",
        ),
        ("trajectory,reward\ncapitals/0/1,1\ncapitals/0/0,x\n", "a.csv, line 3: the reward 'x'", "a number"),
    ],
)
def test_what_cannot_be_taken_is_named_and_nothing_is_changed(collection, give, tmp_path, text, message, hint):
    give(0.5)
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises((InputError, RewardError)) as refused:
        collection.update_rewards_from(tmp_path / "a.csv")
    assert refused.value.message.startswith(message)
    assert str(refused.value.hint).startswith(hint)
    assert rewards(collection) == [0.5, None, None, None, None, None]


def test_a_file_that_lost_its_rewards_clears_nothing(collection, give, exported):
    give(0.5, 1.0)
    path = exported()
    edited(path, **{"0/0": "", "0/1": ""})
    with pytest.raises(RewardError, match="2 would be cleared"):
        collection.update_rewards_from(path)


def _as_polars(frame):
    return pytest.importorskip("polars").from_pandas(frame.reset_index())


def _as_csv(frame, **how):
    return pd.read_csv(io.StringIO(frame.to_csv(**how)))


SAVED = {
    "as it is": lambda frame: frame,
    "polars": _as_polars,
    "polars with another name": lambda frame: _as_polars(frame).rename({"trajectory": "which"}),
    "a column": lambda frame: frame.reset_index(),
    "csv": _as_csv,
    "csv without the name of the index": lambda frame: _as_csv(frame, index_label=""),
    "shuffled": lambda frame: _as_csv(frame.iloc[::-1]),
    "spreadsheet": lambda frame: _as_csv(frame.reset_index().assign(trajectory="'" + frame.index)),
    "generation": lambda frame: frame.rename(index=lambda name: name.replace("/", ":1/", 1)),
}


@pytest.mark.parametrize("saved", SAVED)
def test_an_edited_frame_of_any_kind_comes_back(collection, give, saved):
    give(0.5, 1.0, 1 / 3)
    frame = collection.to_frame()
    frame["reward"] = [0.0, None, 1 / 3, 0.75, None, None]
    edits = collection.update_rewards(SAVED[saved](frame))
    assert (len(edits), edits.cleared) == (3, 1)
    assert rewards(collection) == [0.0, None, 1 / 3, 0.75, None, None]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda frame: frame.reset_index(drop=True), NotFoundError, r"there is no trajectory '\d'"),
        (lambda frame: frame.assign(reward="much"), RewardError, "'much'"),
        (lambda frame: pd.concat([frame.reset_index()] * 2), InputError, "the trajectory 'capitals/0/0' twice"),
        (lambda frame: _as_polars(frame.reset_index(drop=True)).drop("index"), InputError, "no column 'trajectory'"),
        (lambda frame: frame.drop(columns="reward"), InputError, "no column 'reward'"),
    ],
)
def test_a_frame_without_names_or_rewards_changes_nothing(collection, give, change, error, message):
    give(0.5, 1.0)
    with pytest.raises(error, match=message) as refused:
        collection.update_rewards(change(collection.to_frame()))
    assert refused.value.hint
    assert rewards(collection)[:2] == [0.5, 1.0]
