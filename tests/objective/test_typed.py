"""How the value of an option is typed, in a cell and in a field."""

import math

import pytest

from rolloutlab.objective.option_docs import read, written


@pytest.mark.parametrize(
    ("text", "value"),
    [("2e-3", 0.002), (".5", 0.5), ("1", 1), ("True", True), ("false", False), ("None", None), ("'token'", "token")],
)
def test_a_value_is_read_as_json_as_python_or_as_a_bare_word(text, value):
    assert read(text) == value


@pytest.mark.parametrize("value", [0.002, 1, True, False, "token", -0.5, 1e300])
def test_what_is_written_is_read_again(value):
    assert read(written(value)) == value


def test_the_default_is_written_as_nothing():
    assert written(None) == ""


def test_anything_else_is_written_so_that_it_can_be_seen():
    assert written([1, {2}]) == '[1, "{2}"]'
    assert written(math.inf) == "Infinity"
