"""Numbers of the views as text."""

import pytest

from rolloutlab.widgets.text import signed, with_minus


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
