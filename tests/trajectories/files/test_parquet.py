"""Parquet: for pandas to read, and the logs of openpipe-art. That nothing is lost is in test_columns."""

import json
import sys

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rolloutlab.errors import InputError


def test_pandas_reads_what_was_written(desk, recorded, tmp_path):
    desk.add(recorded(reward=0.5, components={"right": 0.5}), recorded("Lyon"))
    desk.write(tmp_path / "a.parquet")
    frame = pd.read_parquet(tmp_path / "a.parquet")
    assert frame["collection"].tolist() == ["capitals", "capitals"]
    assert frame["reward"].isna().tolist() == [False, True]
    assert [json.loads(row) for row in frame["components"]] == [{"right": 0.5}, {}]
    assert json.loads(frame["messages_and_choices"][1])[-1]["message"]["content"] == "Lyon"


def test_a_file_that_is_no_parquet_says_so(desk, tmp_path):
    (tmp_path / "a.parquet").write_text("{}")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet"):
        desk.read(tmp_path / "a.parquet")


def test_a_column_that_is_not_json_is_named_with_its_row(desk, tmp_path):
    pd.DataFrame({"messages_and_choices": ["[]", "[{"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet, row 2: messages_and_choices: not JSON"):
        desk.read(tmp_path / "a.parquet", "sums")
    assert desk.lab.collections() == []


def test_without_pyarrow_the_error_says_what_to_install(desk, recorded, tmp_path, monkeypatch):
    desk.add(recorded())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError) as error:
        desk.write(tmp_path / "a.parquet")
    assert error.value.hint == "pip install 'rolloutlab[parquet]'"
    assert list(tmp_path.glob("*parquet*")) == []


def test_a_log_of_openpipe_art_is_read_as_groups(desk, tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}

    def message(role, content, calls=None, call_id=None):
        return {"role": role, "content": content, "tool_calls": calls, "tool_call_id": call_id, "trainable": False}

    asked = [message("user", "2 + 2?")]
    used = [message("assistant", None, json.dumps([call])), message("tool", "4", None, "1")]
    rows = [
        {"group_index": 0, "group_metadata": '{"sum": 4}', "reward": 1.0, "logs": ["x"], "messages": asked + used},
        {"group_index": 0, "reward": 0.0, "metrics": '{"n": 1}', "messages": [*asked, message("assistant", "5")]},
        {"group_index": 1, "reward": 0.5, "messages": [message("user", "?"), message("assistant", "!")]},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert desk.read(tmp_path / "a.parquet", "sums") == ["sums:1"]
    first, second = desk.groups("sums")
    assert [t.reward for t in first.trajectories] == [1.0, 0.0]
    assert first.row == {"sum": 4}
    assert first.trajectories[0].messages[1]["tool_calls"] == [call]
    assert first.trajectories[0].extra == {"logs": ["x"]}
    assert second.trajectories[0].answer == "!"


def test_messages_of_a_log_may_be_json_text(desk, tmp_path):
    messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    rows = [{"group_index": 0, "reward": 1.0, "messages": json.dumps(messages)}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert desk.read(tmp_path / "a.parquet", "sums") == ["sums:1"]
    assert desk.groups("sums")[0].trajectories[0].answer == "4"
    for wrong in ("no JSON", "3", "[3]"):
        pq.write_table(pa.Table.from_pylist([{**rows[0], "messages": wrong}]), tmp_path / "b.parquet")
        with pytest.raises(InputError, match=r"b\.parquet, row 1: .*messages"):
            desk.read(tmp_path / "b.parquet", "others")
