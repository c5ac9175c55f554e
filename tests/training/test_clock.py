"""How long a job still takes."""

import pytest

from rolloutlab.training import job as clock
from rolloutlab.training.job import RemainingTime


@pytest.fixture
def at(monkeypatch):
    """Sets the time."""
    return lambda seconds: monkeypatch.setattr(clock, "monotonic", lambda: seconds)


def test_what_was_done_before_it_looked_says_nothing_about_the_pace(at):
    seen = RemainingTime()
    at(100.0), seen.update(40)
    assert seen.seconds_left(40, 60) is None
    at(110.0), seen.update(45)
    assert seen.seconds_left(45, 60) == 30.0


def test_time_without_progress_changes_nothing(at):
    seen = RemainingTime()
    at(0.0), seen.update(1)
    at(2.0), seen.update(2)
    at(9.0), seen.update(2)
    assert seen.seconds_left(2, 3) == 2.0


def test_nobody_knows_before_anything_is_done_or_how_much_there_is(at):
    seen = RemainingTime()
    at(0.0), seen.update(0)
    assert seen.seconds_left(0, 3) is None
    at(1.0), seen.update(1)
    at(2.0), seen.update(2)
    assert seen.seconds_left(2, None) is None


def test_a_part_of_a_step_is_enough_for_a_pace(at):
    seen = RemainingTime()
    at(0.0), seen.update(0.25)
    at(10.0), seen.update(0.5)
    assert seen.seconds_left(0.5, 2) == 60.0
