"""The official `openai` SDK: the practice policy calls a calculator, reads its result and answers."""

import json

import pytest


def tool(name, about, **parameters):
    properties = {parameter: {"type": kind} for parameter, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


CALCULATOR = [tool("calculator", "A small calculator.", expression="string")]
ARITHMETIC = [
    tool(name, f"{name.capitalize()} two numbers.", a="integer", b="integer")
    for name in ("add", "subtract", "multiply")
]
QUESTION = {"role": "user", "content": "What is 12 + 30?"}
ASK = {"model": "practice", "messages": [QUESTION], "temperature": 0}


def only_call(completion):
    """The one tool call of the one answer."""
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id
    return call


def test_an_answer_is_a_tool_call_with_arguments_in_json(client):
    completion = client.chat.completions.create(**ASK, tools=CALCULATOR)
    call = only_call(completion)
    assert call.function.name == "calculator"
    assert json.loads(call.function.arguments) == {"expression": "12 + 30"}
    assert not completion.choices[0].message.content
    assert completion.choices[0].logprobs.content


def test_the_result_of_a_tool_is_read_and_answered(client):
    completion = client.chat.completions.create(**ASK, tools=CALCULATOR)
    result = {"role": "tool", "tool_call_id": only_call(completion).id, "content": "42"}
    messages = [QUESTION, completion.choices[0].message, result]
    [choice] = client.chat.completions.create(**{**ASK, "messages": messages}, tools=CALCULATOR).choices
    assert choice.finish_reason == "stop"
    assert "42" in choice.message.content


def test_of_several_tools_the_fitting_one_is_called(client):
    call = only_call(client.chat.completions.create(**ASK, tools=ARITHMETIC))
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 12, "b": 30})


def test_the_ids_of_calls_differ(client):
    ids = {only_call(client.chat.completions.create(**ASK, tools=CALCULATOR)).id for _ in range(3)}
    assert len(ids) == 3


def test_with_tool_choice_none_no_tool_is_called(client):
    [choice] = client.chat.completions.create(**ASK, tools=CALCULATOR, tool_choice="none").choices
    assert not choice.message.tool_calls
    assert choice.finish_reason in {"stop", "length"}


def test_with_tool_choice_required_a_tool_is_called(client):
    call = only_call(client.chat.completions.create(**ASK, tools=CALCULATOR, tool_choice="required"))
    assert json.loads(call.function.arguments) == {"expression": "12 + 30"}
    greeting = {**ASK, "messages": [{"role": "user", "content": "hello"}]}
    call = only_call(client.chat.completions.create(**greeting, tools=CALCULATOR, tool_choice="required"))
    assert call.function.name == "calculator"


@pytest.mark.parametrize(("name", "sign"), [("add", "+"), ("multiply", "*")])
def test_a_tool_that_is_named_is_the_one_called(client, name, sign):
    fitting = {**ASK, "messages": [{"role": "user", "content": f"What is 12 {sign} 30?"}]}
    named = {"type": "function", "function": {"name": name}}
    call = only_call(client.chat.completions.create(**fitting, tools=ARITHMETIC, tool_choice=named))
    assert (call.function.name, json.loads(call.function.arguments)) == (name, {"a": 12, "b": 30})


def test_a_streamed_call_is_put_together_from_its_pieces(client):
    name, arguments, ids, reason = "", "", [], None
    for chunk in client.chat.completions.create(**ASK, tools=CALCULATOR, stream=True):
        [choice] = chunk.choices
        assert not choice.delta.content
        reason = choice.finish_reason or reason
        for piece in choice.delta.tool_calls or []:
            assert piece.index == 0
            ids += [piece.id] if piece.id else []
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, json.loads(arguments)) == ("calculator", {"expression": "12 + 30"})
    assert len(ids) == 1
    assert reason == "tool_calls"


def test_the_event_helper_of_the_sdk_assembles_a_call(client):
    with client.chat.completions.stream(**ASK, tools=CALCULATOR) as stream:
        kinds = {event.type for event in stream}
        call = only_call(stream.get_final_completion())
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert (call.function.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "12 + 30"})
