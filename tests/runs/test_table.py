"""The numbers of a run by step."""

import numpy as np
import pytest

from tests.runs.tables import table


def test_a_step_has_the_numbers_that_are_known():
    run = table(steps=[3, 7], times=[None, None], numbers={"reward": [0.5, None], "tokens": [np.int64(2**60 + 1), 5.0]})
    assert run.by_step() == {3: {"reward": 0.5, "tokens": 2**60 + 1}, 7: {"tokens": 5.0}}


def test_numbers_of_numpy_become_pythons_own():
    run = table(1, numbers={"a": [np.float64(0.1)], "b": [np.int32(2)], "c": [True], "d": [np.float32(0.1)]})
    assert [(type(each), each) for each in run.by_step()[0].values()] == [
        (float, 0.1), (int, 2), (int, 1), (float, float(np.float32(0.1))),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"steps": [0, 0, 1]}, "do not increase"),
        ({"steps": [2, 1, 3]}, "do not increase"),
        ({"numbers": {"reward": [1.0]}}, "another number of values"),
        ({"times": [None]}, "another number of values"),
        ({"numbers": {"step": [1, 2, 3]}}, "cannot be named 'step'"),
    ],
)
def test_a_table_whose_columns_do_not_fit_is_refused(fields, why):
    with pytest.raises(ValueError, match=why):
        table(**fields)
