"""Views of runs with numbers that have no end, or hundreds of digits: nothing raises, and the numbers stay short."""

import math
import re
from datetime import UTC, datetime

import pytest

from rolloutlab.widgets.run import Overlay, RunCourse, RunRow, format_exactly, format_value, html, text
from rolloutlab.widgets.run_list import ListedRun, option_whole, run_listing
from rolloutlab.widgets.run_numbers import RunNumber, known_numbers

BEYOND = (math.inf, -math.inf, math.nan, 1e300, -1e308)
NAMES = ("reward", "cut_off", "loss", "cost")


def shown(values):
    """A run whose numbers all have these values by step, with a band of the same ones."""
    name, numbers = "lab/practice", dict.fromkeys(NAMES, values)
    course = RunCourse(name, [name], range(len(values)), [0.0] * len(values), numbers, numbers, numbers)
    best = values[-1]
    row = RunRow(name, values[0], best, best, [1], "lab/practice@1", best, {}, [], [], "")
    return Overlay([course], [row], known_numbers(NAMES), [], "letters")


def listed(values):
    best, when = values[-1], "2026-01-01T00:00:00+00:00"
    return ListedRun(
        "lab/practice", False, values[0], best, best, 1, values, len(values), 1.0, best, when, {}, [], "", []
    )  # fmt: skip


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("steps", [2, 4])
def test_a_value_without_an_end_or_with_hundreds_of_digits_is_written_short(beyond, steps):
    values = [0.5] * (steps - 1) + [beyond]
    listing = run_listing([listed(values)], datetime(2026, 1, 2, tzinfo=UTC))
    for page in (html(shown(values)), text(shown(values)), listing.html(), listing.text()):
        without_style = re.sub("<style>.*?</style>", "", page)
        assert not re.search(r"\d{20}|\d(,\d{3}){4}", without_style), page[-9000:]


def test_a_chart_leaves_out_what_has_no_place_on_an_axis_and_draws_the_rest():
    page = html(shown([0.25, 0.5, math.nan, math.inf, 0.75]))
    assert page.count('<figure class="rl-chart">') == len(NAMES)
    assert "0.25 to 0.75" in page


@pytest.mark.parametrize(
    ("unit", "value", "shape"),
    [("", 999_999.0, "999,999"), ("", 1e6, "1e+06"), ("", -1e300, "-1e+300"), ("$", 1e300, "$1e+300"),
     ("", math.inf, "inf"), ("$", math.inf, "$inf"), ("share", math.inf, "inf%"), ("", math.nan, "nan")],
)  # fmt: skip
def test_a_large_number_has_three_digits(unit, value, shape):
    assert format_value(RunNumber("loss", "Loss", "", unit), value) == shape


@pytest.mark.parametrize(
    ("unit", "value", "shape"),
    [("", 1e-11, "1e-11"), ("", 1 / 3, "0.333333"), ("", 1234567.0, "1,234,567"), ("", 1e300, "1e+300"),
     ("", math.inf, "inf"), ("", math.nan, "nan"), ("share", 1 / 3, "33.3333%"), ("$", 0.0001, "$0.0001")],
)  # fmt: skip
def test_a_report_writes_a_number_in_six_digits_and_a_whole_number_in_all(unit, value, shape):
    assert format_exactly(RunNumber("loss", "Loss", "", unit), value) == shape


@pytest.mark.parametrize(
    ("value", "whole"),
    [(0.000123456789, "0.000123456789"), (2e-05, "2e-05"), (1.0, "1"), (None, "default"), (["a", 1], "a, 1"),
     (["\n"], "['\\n']"), ("", "''"), ("x" * 60, "x" * 60), (math.nan, "nan"), (True, "True")],
)  # fmt: skip
def test_an_option_is_written_whole(value, whole):
    assert option_whole(value) == whole
