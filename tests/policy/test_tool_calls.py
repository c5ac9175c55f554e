"""The form of a tool call is learned from the chat template, and read back from whatever was written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from rolloutlab.policy.tool_calls import Call, infer_format

FORMS = {
    "hermes": "<tool_call>\n{{ f | tojson }}\n</tool_call>",
    "list": "[TOOL_CALLS] [{{ f | tojson }}]",
    "bare": '{"name": {{ f.name | tojson }}, "parameters": {{ f.arguments | tojson }}}',
    "nested": '<|call|>{"function": {{ f.name | tojson }}, "args": {{ f.arguments | tojson }}}<|done|>',
}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}{% set f = c.function %}"
    "FORM{% endfor %}{% else %}{{ m.content }}{% endif %}<end>{% endfor %}{% if begin %}<assistant>{% endif %}"
)


def learned(form):
    environment = Environment(autoescape=False)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.replace("FORM", form))
    return infer_format(lambda messages, begin: template.render(messages=messages, begin=begin), "<end>")


def written(form, *calls):
    environment = Environment(autoescape=False)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return "".join(environment.from_string(form).render(f=call) for call in calls)


CALL = {"name": "f", "arguments": {"x": "ü", "y": [1, {"z": None}]}}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_call_is_read_back_as_the_template_writes_it(form):
    said, [call] = learned(form).parse(written(form, CALL))
    assert (said, call.name, json.loads(call.arguments)) == ("", "f", CALL["arguments"])


@pytest.mark.parametrize("form", [FORMS["hermes"], FORMS["list"], FORMS["nested"]])
def test_several_calls_and_text_around_them_are_told_apart(form):
    said, calls = learned(form).parse("Let me see. " + written(form, CALL, CALL) + " there")
    assert [call.name for call in calls] == ["f", "f"]
    assert said == "Let me see. there"


def test_an_object_without_marks_and_text_after_it_are_an_answer():
    text = written(FORMS["bare"], CALL) + " is how it is called"
    assert learned(FORMS["bare"]).parse(text) == (text, [])


def test_a_list_of_calls_is_several_calls():
    text = '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a": 1}}]'
    assert learned(FORMS["list"]).parse(text) == ("", [Call("f", "{}"), Call("g", '{"a": 1}')])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        '<tool_call>{"name": "f", "argum',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"na',
        "<tool_call>" + '{"a":' * 5000,
        '{"name": "f", "arguments": {}}',
    ],
)
def test_a_malformed_call_stays_text(text):
    assert learned(FORMS["hermes"]).parse(text) == (text, [])


@given(st.text(alphabet='<tool_cal>/{}":,namergus[] f1\n', max_size=60))
def test_whatever_was_written_is_read_without_an_error(text):
    for form in FORMS.values():
        said, calls = learned(form).parse(text)
        assert calls or said == text


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_beginning_of_a_call_is_what_the_template_begins_it_with(form):
    found = learned(form)
    text = written(form, {"name": "sum", "arguments": {"a": 1}})
    assert text.startswith(found.beginning("sum")[0])
    assert text.startswith(found.beginning(None)[0])
    assert found.beginning("sum")[0].endswith(('arguments": ', 'parameters": ', 'args": '))


@pytest.mark.parametrize("form", ["", "call({{ f.name }})", "<f={{ f.name }}><a>1</a></f>"])
def test_a_form_that_is_not_json_is_not_guessed_at(form):
    assert learned(form) is None
