"""What a training job reports while it runs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire.training import ENDINGS, Event, EventList


def events(**overrides: Any) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "1", "type": "heartbeat", "data": {}}], "has_more": False} | overrides


@pytest.mark.parametrize("model", [Event, EventList])
@given(data=st.data())
@settings(max_examples=20)
def test_a_valid_event_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


def test_an_event_without_data_has_none():
    assert Event.model_validate({"id": "1", "type": "training_ended"}).data == {}


def test_types_nobody_knows_yet_are_accepted():
    assert Event.model_validate({"id": "1", "type": "comet_sighted"}).type == "comet_sighted"


def test_a_job_ends_in_success_failure_or_cancellation():
    assert {"training_ended", "training_failed", "training_cancelled"} == ENDINGS


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("object", "set"),
        ("data", None),
        ("data", {}),
        ("data.0.id", 5),
        ("data.0.type", None),
        ("data.0.data", []),
        ("has_more", "yes"),
        ("has_more", 1),
        ("has_more", None),
    ],
)
def test_a_bad_list_of_events_is_refused_at_the_path(refusals, changed, steps, path, bad):
    assert refusals(EventList, changed(events(), path, bad)) == {steps(path)}


@pytest.mark.parametrize("path", ["object", "data", "has_more", "data.0.id", "data.0.type"])
def test_a_list_of_events_without_a_required_field_is_refused_at_its_path(refusals, changed, steps, path):
    assert refusals(EventList, changed(events(), path)) == {steps(path)}
