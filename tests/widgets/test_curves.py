"""The curves of a training job: which there are, and what is odd about them."""

from typing import Any

import pytest

from rolloutlab.widgets.curves import CURVES, drawn, numbers, oddities
from rolloutlab.wire.events import Event


def steps(*told: dict[str, Any]) -> list[Event]:
    return [Event(id=str(i), type="gradient_step", data=data) for i, data in enumerate(told)]


def titles(*told: dict[str, Any]) -> list[str]:
    return [curve.title for curve in drawn(numbers(steps(*told)))]


def test_numbers_have_a_place_for_every_step_also_where_a_step_does_not_tell_one():
    found = numbers(steps({"loss": 1.0}, {"loss": 2, "entropy": 0.123456789}, {"entropy": True}))
    assert found == {"loss": [1.0, 2.0, None], "entropy": [None, 0.123457, None]}


def test_only_the_steps_from_one_on_can_be_asked_for():
    assert numbers(steps({"loss": 1.0}, {"loss": 2.0}, {"kl": 3.0}), 2) == {"kl": [3.0]}


def test_there_is_a_curve_for_what_there_are_numbers_of():
    assert titles({"loss": 1.0, "grad_norm": 2.0, "unheard_of": 3.0}) == ["loss", "gradient norm"]
    assert titles() == []


def test_a_reward_that_is_the_whole_jobs_is_no_curve():
    assert titles({"reward": 0.5}, {"reward": 0.5}) == []
    assert titles({"reward": 0.5}, {"reward": 0.6}) == ["reward"]


@pytest.mark.parametrize(
    ("title", "name", "healthy", "odd"),
    [
        ("importance ratio", "ratio_mean", [1.004, 1.3], [1.2, 1.0]),
        ("entropy", "entropy", [0.9, 0.5], [0.9, 0.001]),
        ("distance (kl)", "kl", [0.0, 0.2], [0.0, 2.0]),
        ("clipped tokens", "clipped", [0.0, 0.1], [0.0, 0.5]),
        ("old/new correlation", "old_new_correlation", [0.999, 0.7], [0.6, 0.9]),
    ],
)
def test_what_is_odd_about_a_curve_is_told_and_what_is_healthy_is_not(title, name, healthy, odd):
    assert oddities({name: healthy}) == {}
    assert list(oddities({name: odd})) == [title]


def test_every_curve_says_in_a_sentence_what_is_healthy():
    assert all(curve.healthy for curve in CURVES)
