"""The rows of prompts: frames and lists, with what pandas and NumPy put into them made plain."""

import numpy as np
import pandas as pd
import pytest

from rolloutlab.errors import InputError
from rolloutlab.sampling.rows import rows_of


def test_without_rows_there_is_one_empty_row():
    assert rows_of(None) == [{}]


def test_a_frame_gives_one_row_per_row():
    frame = pd.DataFrame({"country": ["France", "Peru"], "n": [1, 2]}, index=[7, 7])
    assert rows_of(frame) == [{"country": "France", "n": 1}, {"country": "Peru", "n": 2}]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_mappings_gives_their_columns_and_any_other_value_is_the_item(kind):
    assert rows_of(kind([{"country": "France"}, "Peru", 3])) == [{"country": "France"}, {"item": "Peru"}, {"item": 3}]


def test_the_names_of_columns_are_texts():
    assert rows_of(pd.DataFrame([[1, 2]])) == [{"0": 1, "1": 2}]


@pytest.mark.parametrize(("scalar", "plain"), [(np.int64(2), 2), (np.float32(1.5), 1.5), (np.bool_(True), True)])
@pytest.mark.parametrize("over", [lambda x: [{"item": x}], lambda x: [x], lambda x: pd.DataFrame({"item": [x]})])
def test_scalars_of_numpy_become_pythons(over, scalar, plain):
    (row,) = rows_of(over(scalar))
    assert row == {"item": plain}
    assert type(row["item"]) is type(plain)


@pytest.mark.parametrize("missing", [float("nan"), np.float64("nan"), None])
def test_what_is_missing_is_none(missing):
    (row,) = rows_of([{"country": "France", "population": missing}])
    assert row == {"country": "France", "population": None}


@pytest.mark.parametrize("dtype", ["float", "Int64", "string", "datetime64[ns]"])
def test_what_a_frame_calls_missing_is_none_for_every_type_of_column(dtype):
    (row,) = rows_of(pd.DataFrame({"x": pd.Series([None], dtype=dtype)}))
    assert row == {"x": None}


@pytest.mark.parametrize(
    "over", ["countries", {"country": "France"}, 3, np.array([1, 2]), pd.Series(["France"]), (c for c in "ab")]
)
def test_rows_of_another_kind_are_refused(over):
    with pytest.raises(InputError, match=f"cannot sample over a {type(over).__name__}"):
        rows_of(over)


@pytest.mark.parametrize("over", [[], (), pd.DataFrame({"country": []})])
def test_no_rows_are_refused(over):
    with pytest.raises(InputError, match="no rows"):
        rows_of(over)
