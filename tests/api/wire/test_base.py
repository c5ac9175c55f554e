"""The three rules every wire object follows: unknown properties, nulls and numbers."""

import importlib
import inspect
import math
import pkgutil
from typing import Any

import pydantic
import pytest
from hypothesis.strategies import SearchStrategy
from pydantic import Field

import rolloutlab.api.wire
from rolloutlab.api.wire.base import Boolean, DateTime, Integer, Number, Wire


class Part(Wire):
    number: Number | None = None


class Record(Wire):
    text: str
    required_or_null: str | None
    number: Number = 0.5
    integer: Integer | None = None
    boolean: Boolean | None = None
    bounded: Number | None = Field(default=None, ge=0)
    part: Part | None = None
    parts: list[Part] = []
    when: DateTime | None = None


def record(**overrides: Any) -> dict[str, Any]:
    return {"text": "t", "required_or_null": "r"} | overrides


@pytest.mark.parametrize("name", ["number", "integer", "boolean", "bounded", "part", "parts", "when"])
def test_a_null_in_an_optional_field_is_absent(name):
    parsed = Record.model_validate(record(**{name: None}))
    assert parsed.to_wire() == record()
    assert getattr(parsed, name) == Record.model_fields[name].default


@pytest.mark.parametrize("name", ["integer", "part"])
def test_a_none_given_in_python_is_absent_too(name):
    assert Record(text="t", required_or_null="r", **{name: None}).to_wire() == record()


def test_a_null_in_an_optional_field_of_an_inner_object_is_absent():
    assert Record.model_validate(record(part={"number": None})).to_wire() == record(part={})


def test_a_null_in_a_required_nullable_field_is_kept():
    assert Record.model_validate(record(required_or_null=None)).to_wire() == record(required_or_null=None)


def test_a_required_nullable_field_may_not_be_missing(refusals):
    assert refusals(Record, {"text": "t"}) == {("required_or_null",)}


def test_what_is_absent_is_not_sent():
    assert Record.model_validate(record()).to_wire() == record()


def test_what_equals_the_default_is_sent_when_it_was_given():
    assert Record.model_validate(record(number=0.5, parts=[])).to_wire() == record(number=0.5, parts=[])


def test_unknown_properties_are_kept_at_every_depth_with_their_nulls():
    sent = record(more={"a": [None, {"b": None}]}, nothing=None, part={"also": None}, parts=[{"also": [1]}])
    assert Record.model_validate(sent).to_wire() == sent


@pytest.mark.parametrize("name", ["to_wire", "copy", "json", "model_fields", "model_config", "__fields_set__", "self"])
@pytest.mark.parametrize("value", ["x", None])
def test_an_unknown_property_may_be_called_like_anything_of_python(survives, name, value):
    survives(Record, record(**{name: value}), record(**{name: value}))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "1", True, [], {}, 10**400])
def test_a_number_is_finite_and_neither_a_string_nor_a_boolean(refusals, bad):
    assert refusals(Record, record(number=bad)) == {("number",)}


@pytest.mark.parametrize("good", [0, -3, 2**53, 1e300, 5e-324, -0.5])
def test_an_integer_is_a_fine_number_and_no_finite_number_changes(good):
    parsed = Record.model_validate(record(number=good))
    assert (parsed.number, parsed.to_wire()["number"], type(parsed.number)) == (good, good, float)


@pytest.mark.parametrize("bad", [1.5, "1", True, []])
def test_an_integer_is_neither_a_fraction_nor_a_string_nor_a_boolean(refusals, bad):
    assert refusals(Record, record(integer=bad)) == {("integer",)}


@pytest.mark.parametrize("bad", [0, 1, "true", "false", []])
def test_a_boolean_is_true_or_false_and_nothing_like_them(refusals, bad):
    assert refusals(Record, record(boolean=bad)) == {("boolean",)}


def test_a_bound_holds_for_what_is_not_null(refusals):
    assert refusals(Record, record(bounded=-1e-9)) == {("bounded",)}


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T12:00:00Z",
        "2026-01-31t12:00:00z",  # RFC 3339 section 5.6 allows lower case
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00:00+01:00",
        "2026-01-31T12:00:00.5-08:30",
        "2026-01-31T12:00:00.123456789Z",
        "2026-01-31T12:00:00.123456",  # what Python's isoformat writes without a zone; real clients send it
        "2024-02-29T23:59:59Z",
    ],
)
def test_a_date_time_is_kept_as_the_text_it_arrived_as(survives, text):
    survives(Record, record(when=text), record(when=text))


@pytest.mark.parametrize(
    "bad",
    [
        "yesterday",
        "",
        "2026-01-31",
        "12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2025-02-29T12:00:00Z",
        "2026-01-31T25:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:00 later",
        "2026-01-31T12:00:00Z\n",
        " 2026-01-31T12:00:00Z",
        "20260131T120000Z",
        1769860800,
        1769860800.5,
        True,
    ],
)
def test_a_bad_date_time_is_refused(refusals, bad):
    assert refusals(Record, record(when=bad)) == {("when",)}


def test_a_wire_object_cannot_be_changed():
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        Record.model_validate(record()).text = "other"


def test_text_and_dictionaries_say_the_same():
    sent = record(part={"number": 1e-7, "x": "é\u2028"}, when="2026-01-31T12:00:00Z")
    parsed = Record.model_validate(sent)
    assert Record.model_validate_json(parsed.to_json()).to_wire() == parsed.to_wire() == sent


def wire_classes() -> set[type[Wire]]:
    modules = [
        importlib.import_module(f"rolloutlab.api.wire.{module.name}")
        for module in pkgutil.iter_modules(rolloutlab.api.wire.__path__)
    ]
    return {
        found
        for module in modules
        for _, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, Wire) and found is not Wire
    }


@pytest.mark.parametrize("model", sorted(wire_classes(), key=lambda found: found.__name__))
def test_every_wire_class_has_a_strategy_of_valid_json(valid, model):
    assert isinstance(valid(model), SearchStrategy)
