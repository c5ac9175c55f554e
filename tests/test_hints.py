"""A line of a report is read as a hint."""

import pytest

from rolloutlab.hints import Hint, as_hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("no reward yet -> %%reward x", Hint("no reward yet", cell="%%reward x")),
        ("plain", Hint("plain")),
        ("the mean -> nothing: this is expected", Hint("the mean: this is expected")),
        ("too short -> %%chat x, or easier rows", Hint("too short", "-> %%chat x, or easier rows")),
    ],
)
def test_what_to_type_is_a_cell_unless_it_is_advice_in_words(line: str, hint: Hint) -> None:
    assert as_hint(line) == hint


@pytest.mark.parametrize("line", ["no reward yet -> %%reward x", "plain", "too short -> easier rows"])
def test_a_hint_is_written_as_the_line_that_it_was_read_from(line: str) -> None:
    assert as_hint(line).line() == line
