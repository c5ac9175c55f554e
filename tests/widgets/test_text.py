"""Numbers of the views as text."""

import pytest

from rolloutlab.widgets.text import decimals, distinct, number, signed, with_minus


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [
        (0.25, ".2f", "+0.25"),
        (-0.25, ".2f", "\N{MINUS SIGN}0.25"),
        (0.004, ".2f", "0.00"),
        (-0.004, ".2f", "0.00"),
        (-0.0, ".2f", "0.00"),
        (-0.004, ".1g", "\N{MINUS SIGN}0.004"),
        (0.0, "g", "0"),
    ],
)
def test_a_change_that_rounds_to_0_has_no_sign(value, form, shown):
    assert with_minus(signed(value, form)) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0.00"), (0.003, "0.003"), (0.0075, "0.0075"), (0.25, "0.25"), (1234.5, "1234.50"), (1e60, "1e+60")],
)
def test_a_mean_is_never_0_without_being_it_and_never_a_row_of_digits(value, shown):
    assert decimals(value, ".2f") == shown


@pytest.mark.parametrize(("value", "shown"), [(1 / 3, "0.333"), (1500, "1500"), (1234.5, "1234.5"), (1e60, "1e+60")])
def test_rewards_of_thousands_keep_the_digits_in_which_they_differ(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("pair", "shown"),
    [((1, 0), ("1", "0")), ((1234.5, 1233.9), ("1234.5", "1233.9")), ((1, 1 - 1e-8), ("1", "0.99999999"))],
)
def test_numbers_that_differ_are_shown_so_that_they_do(pair, shown):
    assert distinct(*pair) == shown
