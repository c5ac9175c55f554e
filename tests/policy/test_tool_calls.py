"""The form of a tool call is learned from the chat template, and read back from whatever was written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from rolloutlab.api.wire.chat import FunctionTool
from rolloutlab.policy.call_forms import infer_call_form
from rolloutlab.policy.tool_calls import Call, call_example

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


def example(form):
    environment = Environment(autoescape=False)
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False, "ensure_ascii": False}
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.replace("FORM", form))
    return call_example(lambda messages, begin: template.render(messages=messages, begin=begin))


def learned(form):
    written_as = example(form)
    return written_as and infer_call_form(written_as, "<end>")


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
    found = example(form)
    text = written(form, {"name": "sum", "arguments": {"a": 1}})
    assert text.startswith(found.beginning("sum")[0])
    assert text.startswith(found.beginning(None)[0])
    assert found.beginning("sum")[0].endswith(('arguments": ', 'parameters": ', 'args": '))


@pytest.mark.parametrize("form", ["", "call({{ f.name }})", "<f={{ f.name }}><a>1</a></f>"])
def test_a_form_that_is_not_json_is_not_guessed_at(form):
    assert learned(form) is None


XML = "<tool_call>\n<function=f>\n{}\n</function>\n</tool_call>"
PARAMETER, TAG = "<parameter={}>\n{}\n</parameter>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>"
TAGS = "<tool_call>f\n{}\n</tool_call>"
PYTHON = "<|tool_call_start|>[{}]<|tool_call_end|>"
ARGUMENT = "{% for k, v in f.arguments.items() %}PART{% endfor %}"
OTHERS = {
    "xml": XML.replace("=f>", "={{ f.name }}>").replace(
        "{}", ARGUMENT.replace("PART", "<parameter={{ k }}>\n{{ v }}\n</parameter>")
    ),
    "tags": TAGS.replace(">f", ">{{ f.name }}").replace(
        "{}", ARGUMENT.replace("PART", "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>")
    ),
    "python": PYTHON.replace("{}", "{{ f.name }}(" + ARGUMENT.replace("PART", "{{ k }}={{ v | tojson }}") + ")"),
}
TYPES = {
    "s": {"type": "string"},
    "i": {"type": "integer"},
    "b": {"type": "boolean"},
    "o": {"type": "object"},
    "n": {"anyOf": [{"type": "number"}, {"type": "null"}]},
}
TOOL = FunctionTool.model_validate(
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": TYPES}}}
)
VALUES = {"s": "5", "i": 5, "b": True, "o": {"z": [None]}, "n": None}
AS_TEXT = {"s": "5", "i": "5", "b": "true", "o": '{"z": [null]}', "n": "null"}


def arguments(form, text, *tools):
    content, calls = learned(OTHERS[form]).parse(text, tools)
    return content, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("form", "whole", "part"), [("xml", XML, PARAMETER), ("tags", TAGS, TAG)])
def test_values_in_xml_have_the_types_of_the_parameters(form, whole, part):
    text = whole.format("\n".join(part.format(*pair) for pair in AS_TEXT.items()))
    assert arguments(form, text, TOOL) == ("", [("f", VALUES)])
    assert arguments(form, text) == ("", [("f", AS_TEXT)])
    lines = whole.format(part.format("s", " two\nlines "))
    assert arguments(form, lines, TOOL) == ("", [("f", {"s": " two\nlines "})])


def test_values_in_python_are_literals_of_python_or_json():
    text = PYTHON.format("f(s='it\\'s', i=-5, b=True, o={'z': [None, false]}), g.h(n=null)")
    expected = [("f", {"s": "it's", "i": -5, "b": True, "o": {"z": [None, False]}}), ("g.h", {"n": None})]
    assert arguments("python", text) == ("", expected)


@pytest.mark.parametrize("form", OTHERS)
def test_several_calls_of_other_forms_and_text_around_them_are_told_apart(form):
    call = written(OTHERS[form], {"name": "f", "arguments": {"s": "a"}})
    content, calls = arguments(form, f"Let me see. {call}\n{call} there", TOOL)
    assert calls == [("f", {"s": "a"})] * 2
    assert content == "Let me see.  there"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("xml", "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>"),
        ("xml", XML.format("<parameter=s>\na")),
        ("xml", XML.format("a")),
        ("xml", XML.format(PARAMETER.format("s", "a") * 2)),
        ("xml", XML.format(PARAMETER.format("s", "\ud800"))),
        ("tags", TAGS.format("<arg_key>s</arg_key>")),
        ("tags", '<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
        ("python", PYTHON.format("f(1)")),
        ("python", PYTHON.format("f(**{'a': 1})")),
        ("python", PYTHON.format("f(a=1, a=2)")),
        ("python", PYTHON.format("f(a=g())")),
        ("python", PYTHON.format("f(a=b'x')")),
        ("python", PYTHON.format("f(a=" + "[" * 500 + "]" * 500 + ")")),
        ("python", PYTHON.format("f(a=1")),
        ("python", PYTHON.format("")),
        ("python", "<|tool_call_start|>[f(a=1)]"),
    ],
)
def test_a_malformed_call_of_another_form_stays_text(form, text):
    assert arguments(form, text, TOOL) == (text, [])


@given(st.text(alphabet="<tool_cal>/functi=param[]( )|sed1,'\n", max_size=60))
def test_whatever_was_written_in_other_forms_is_read_without_an_error(text):
    for form, opening, closing in (
        ("xml", "<tool_call>", "</tool_call>"),
        ("tags", "<tool_call>", "</tool_call>"),
        ("python", "<|tool_call_start|>", "<|tool_call_end|>"),
    ):
        whole = f"{opening}{text}{closing}"
        content, calls = learned(OTHERS[form]).parse(whole, [TOOL])
        assert calls or content == whole


@pytest.mark.parametrize("form", OTHERS)
def test_the_beginning_of_a_call_of_another_form_ends_before_its_arguments(form):
    begins = example(OTHERS[form])
    text = written(OTHERS[form], {"name": "sum", "arguments": {"a": "1"}})
    for name, last in ((None, "sum"), ("sum", "sum")):
        beginning = begins.beginning(name)[0]
        assert text.startswith(beginning)
        assert (last in beginning) == (name is not None)
        assert "a" not in beginning.partition("sum")[2]
