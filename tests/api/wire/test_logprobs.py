"""Requests for logprobs, and their answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire import trajectories as logprobs


@pytest.mark.parametrize(
    "model", [logprobs.LogprobsRequest, logprobs.ScoredTurn, logprobs.ScoredHistory, logprobs.ScoredHistories]
)
@given(data=st.data())
@settings(max_examples=15)
def test_a_valid_object_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("model", None),
        ("histories", {}),
        ("histories.0", []),
        ("histories.0.messages_and_choices", None),
        ("histories.0.messages_and_choices.0.content", 5),
    ],
)
def test_a_bad_request_is_refused_at_the_path(refusals, changed, steps, path, bad):
    body = {"model": "m", "histories": [{"messages_and_choices": [{"role": "user", "content": "a"}]}]}
    assert refusals(logprobs.LogprobsRequest, changed(body, path, bad)) == {steps(path)}
