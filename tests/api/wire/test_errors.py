"""The path from a body to the value that is wrong in it, where a body is made to mislead."""

import json
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import Choice
from rolloutlab.api.wire.errors import ChatError, ChatProblem, HTTPValidationError, Problem, ValidationError, locate
from rolloutlab.api.wire.trajectories import History, Trajectory


@pytest.mark.parametrize("model", [ValidationError, HTTPValidationError, Problem, ChatError, ChatProblem])
@given(data=st.data())
@settings(max_examples=20)
def test_a_valid_refusal_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("detail", "no"),
        ("detail.0.loc", "body"),
        ("detail.0.loc.0", 1.5),
        ("detail.0.loc.0", True),
        ("detail.0.loc.0", None),
        ("detail.0.msg", 5),
        ("detail.0.type", None),
    ],
)
def test_a_bad_refusal_is_refused_at_the_path(refusals, changed, steps, path, bad):
    body = {"detail": [{"loc": ["body"], "msg": "m", "type": "t"}]}
    assert refusals(HTTPValidationError, changed(body, path, bad)) == {steps(path)}


@pytest.mark.parametrize("name", ["loc", "msg", "type"])
def test_a_refusal_without_a_required_field_is_refused_at_its_path(refusals, changed, name):
    error = {"loc": ["body"], "msg": "m", "type": "t"}
    assert refusals(HTTPValidationError, {"detail": [changed(error, name)]}) == {("detail", 0, name)}


def located(model: Any, body: Any) -> list[ValidationError]:
    with pytest.raises(pydantic.ValidationError) as refused:
        model.model_validate(body)
    return locate(refused.value.errors(), body, ("body",))


def conversation(item: Any) -> dict[str, Any]:
    return {"messages_and_choices": [{"role": "user", "content": "hi"}, item]}


ITEM = ["body", "messages_and_choices", 1]


def test_a_refusal_says_where_what_and_of_which_type_and_nothing_else():
    (error,) = located(Trajectory, {"messages_and_choices": [], "reward": "high"})
    assert error.to_wire() == {"loc": ["body", "reward"], "msg": "Input should be a valid number", "type": "float_type"}


def test_the_prefix_comes_before_every_path():
    with pytest.raises(pydantic.ValidationError) as refused:
        Trajectory.model_validate({"metrics": 5})
    errors = locate(refused.value.errors(), {"metrics": 5}, ("body", "trajectory_groups", 0, "trajectories", 3))
    assert [error.loc[:5] for error in errors] == [["body", "trajectory_groups", 0, "trajectories", 3]] * 3
    assert sorted(error.loc[5] for error in errors) == ["messages_and_choices", "metrics", "reward"]


def test_a_refusal_of_any_body_can_be_sent():
    errors = located(Trajectory, {"messages_and_choices": [{"role": object()}], "reward": float("nan")})
    text = HTTPValidationError(detail=errors).to_json()
    assert [error["loc"] for error in json.loads(text)["detail"]] == [
        ["body", "messages_and_choices", 0, "role"],
        ["body", "reward"],
    ]


def test_an_unknown_role_is_reported_at_the_role_with_the_roles_there_are():
    (error,) = located(History, conversation({"role": "robot", "content": "hi"}))
    assert error.loc == [*ITEM, "role"]
    assert error.msg == "role must be one of developer, system, user, assistant, tool, function"


def test_an_unknown_part_type_is_reported_at_the_type():
    (error,) = located(History, conversation({"role": "user", "content": [{"type": "video", "video": "x"}]}))
    assert error.loc == [*ITEM, "content", 0, "type"]
    assert "'image_url'" in error.msg


@pytest.mark.parametrize("missing", ["finish_reason", "message"])
def test_a_choice_without_a_required_field_is_reported_as_a_choice(missing):
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "hi"}}
    del choice[missing]
    assert [error.loc for error in located(History, conversation(choice))] == [[*ITEM, missing]]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "tool", "tool": "adder", "content": 5, "tool_call_id": "c"}, ["content"]),
        ({"role": "tool", "tool": {"content": "x"}, "content": 5, "tool_call_id": "c"}, ["content"]),
        ({"role": "tool", "tool": {}, "content": "3"}, ["tool_call_id"]),
        ({"role": "user", "user": {"name": "Ann"}, "content": "hi", "name": 5}, ["name"]),
        (
            {"role": "user", "content": [{"type": "file", "file": {"file": "x", "file_id": 5}}]},
            ["content", 0, "file", "file_id"],
        ),
        ({"role": "user", "content": [{"type": "text", "text": {"text": "hi"}}]}, ["content", 0, "text"]),
        (
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"function": "f", "name": 5, "arguments": ""}}
                ],
            },
            ["tool_calls", 0, "function", "name"],
        ),
        (
            {"finish_reason": "stop", "index": "0", "message": {"role": "assistant"}, "choice": {"index": 1}},
            ["index"],
        ),
    ],
)
def test_a_property_called_like_a_kind_or_a_type_does_not_mislead_the_path(item, path):
    assert [error.loc for error in located(History, conversation(item))] == [[*ITEM, *path]]


@pytest.mark.parametrize("key", ["bool", "int", "float", "str", "length"])
@pytest.mark.parametrize("value", ["x", {"int": 1, "bool": True, "float": 0.5}, [1]])
def test_a_bad_metric_is_reported_at_its_name_whatever_is_inside(key, value):
    body = {"messages_and_choices": [], "reward": 1, "metrics": {key: value}}
    assert {tuple(error.loc) for error in located(Trajectory, body)} == {("body", "metrics", key)}


def test_a_path_into_text_parts_goes_through_no_invented_name():
    item = {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": 5}]}
    assert [error.loc for error in located(History, conversation(item))] == [[*ITEM, "content", 1, "text"]]


def test_without_a_union_the_path_is_pydantics_own():
    body = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "audio": {"id": "a", "data": 5}}}
    errors = located(Choice, body)
    assert sorted(error.loc[-1] for error in errors) == ["data", "expires_at", "transcript"]
    assert {tuple(error.loc[:-1]) for error in errors} == {("body", "message", "audio")}
