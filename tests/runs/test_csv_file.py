"""CSV of a run: every number comes back exactly."""

import csv
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutlab.errors import InputError, LabError
from rolloutlab.runs.csv_file import write_csv
from tests.runs.tables import BEGIN, table


def read(path) -> pd.DataFrame:
    is_exact = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)  # by default, and the option is deprecated
    return pd.read_csv(path) if is_exact else pd.read_csv(path, float_precision="round_trip")


def test_a_row_per_step_with_its_time_and_empty_cells_for_what_is_not_known(tmp_path):
    run = table(2, steps=[3, 7], times=[BEGIN, None], numbers={"reward": [0.1, None], "held_out": [None, 2]})
    assert write_csv(run, tmp_path / "run.csv") == tmp_path / "run.csv"
    assert (tmp_path / "run.csv").read_text(encoding="utf-8").splitlines() == [
        "step,time,reward,held_out", "3,2026-11-29T12:00:00.250000+00:00,0.1,", "7,,,2",
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_the_name_of_a_file_is_refused(path):
    with pytest.raises((InputError, LabError)):
        write_csv(table(2), path)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=50))
def test_pandas_reads_equal_numbers(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "run.csv"
    write_csv(table(steps=range(len(values)), times=[None] * len(values), numbers={"reward": values}), path)
    assert list(read(path)["reward"]) == values


def test_large_ints_keep_their_digits_and_nan_is_no_empty_cell(tmp_path):
    run = table(2, numbers={"tokens": [2**53 + 1, 3], "kl": [math.nan, -math.inf]})
    frame = read(write_csv(run, tmp_path / "run.csv"))
    assert list(frame["tokens"]) == [2**53 + 1, 3]
    with (tmp_path / "run.csv").open(newline="") as file:
        assert [row["kl"] for row in csv.DictReader(file)] == ["nan", "-inf"]


def test_names_with_commas_quotes_and_other_scripts_are_columns(tmp_path):
    names = ['reward.a,b "c"', "reward.größe", "reward.長さ"]
    frame = read(write_csv(table(numbers={name: [1.5, 2.5, 3.5] for name in names}), tmp_path / "run.csv"))
    assert list(frame.columns) == ["step", "time", *names]


def test_a_file_that_cannot_be_written_leaves_the_older_one(tmp_path):
    (tmp_path / "run.csv").mkdir()
    with pytest.raises(LabError, match="cannot be written"):
        write_csv(table(), tmp_path / "run.csv")
    assert [each.name for each in tmp_path.iterdir()] == ["run.csv"]


def test_a_text_that_is_no_path_is_named(tmp_path):
    with pytest.raises(InputError, match="NUL"):
        write_csv(table(), "a\0.csv")
