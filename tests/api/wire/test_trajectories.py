"""Recorded conversations with a reward."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.api.wire.trajectories import History, Trajectory, TrajectoryGroup

USER = {"role": "user", "content": "hi"}
CHOICE = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}}


def trajectory(**overrides: Any) -> dict[str, Any]:
    return {"messages_and_choices": [USER, CHOICE], "reward": 1.0} | overrides


@pytest.mark.parametrize("model", [History, Trajectory, TrajectoryGroup])
@given(data=st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_valid_record_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


def test_messages_and_choices_are_read_as_what_they_are():
    parsed = Trajectory.model_validate(trajectory())
    assert [type(item) for item in parsed.messages_and_choices] == [UserMessage, Choice]


def test_absent_fields_have_the_defaults_of_the_specification():
    parsed = Trajectory.model_validate(trajectory())
    assert (parsed.additional_histories, parsed.metrics, parsed.auto_metrics) == ([], {}, {})
    assert (parsed.metadata, parsed.logs, parsed.start_time, parsed.tools) == ({}, [], None, None)
    assert (parsed.initial_policy_version, parsed.final_policy_version) == (None, None)


@pytest.mark.parametrize("name", ["additional_histories", "metrics", "auto_metrics", "metadata", "logs"])
def test_a_null_in_a_field_with_an_empty_default_is_absent(survives, name):
    survives(Trajectory, trajectory(**{name: None}), trajectory())
    assert getattr(Trajectory.model_validate(trajectory(**{name: None})), name) in ([], {})


def test_the_histories_are_the_main_one_then_the_additional_ones():
    further = [{"messages_and_choices": [{"role": "user", "content": text}]} for text in ("b", "c")]
    parsed = Trajectory.model_validate(trajectory(additional_histories=further))
    assert parsed.histories()[0] is parsed
    assert [h.to_wire() for h in parsed.histories()[1:]] == further


def test_metric_values_keep_their_json_type():
    values = {"a": True, "b": 1, "c": 1.0, "d": False, "e": 0, "f": 2**60}
    out = Trajectory.model_validate(trajectory(metrics=values, auto_metrics=values)).to_wire()
    assert [type(value) for value in out["metrics"].values()] == [bool, int, float, bool, int, int]
    assert out["metrics"] == out["auto_metrics"] == values


def test_metadata_values_keep_their_json_type_and_their_nulls(survives):
    values = {"a": "1", "b": None, "c": True, "d": 1, "e": 1.5}
    survives(Trajectory, trajectory(metadata=values), trajectory(metadata=values))


def test_empty_arrays_are_valid(survives):
    empty = trajectory(messages_and_choices=[], tools=[], additional_histories=[], logs=[])
    survives(TrajectoryGroup, {"trajectories": [empty]}, {"trajectories": [empty]})
    survives(TrajectoryGroup, {"trajectories": []}, {"trajectories": []})
