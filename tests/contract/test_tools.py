"""Tool calls: offered through the chat template, read back from what the policy wrote, forced when wanted."""

import json

import pytest

from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.errors import RefusedError

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOL = {
    "type": "function",
    "function": {"name": "calculator", "description": "A small calculator.", "parameters": PARAMETERS},
}
OTHER = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
QUESTION = "What is 27 + 35?"


def ask(service, **options):
    [choice] = service.chat(QUESTION, **{"tools": [TOOL], "max_tokens": 48, "temperature": 0, **options}).choices
    return choice


def test_a_call_is_parsed_and_its_arguments_are_json(practice_service):
    choice = ask(practice_service)
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "calculator")
    assert json.loads(call.function.arguments).keys() == {"expression"}
    assert choice.message.content is None


def test_a_stream_brings_the_same_call_whole(practice_service):
    chunks = practice_service.stream(QUESTION, tools=[TOOL], max_tokens=48, temperature=0)
    [delta] = [c.delta for chunk in chunks for c in chunk.choices if c.delta.tool_calls]
    assert delta.tool_calls[0].function == ask(practice_service).message.tool_calls[0].function
    assert not any(c.delta.content for chunk in chunks for c in chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_result_of_a_call_can_be_sent_back_and_the_whole_conversation_trains(practice_service):
    first = ask(practice_service)
    [call] = first.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "62"}
    asked = [{"role": "user", "content": QUESTION}, first.message.to_wire(), result]
    second = practice_service.chat(messages=asked, tools=[TOOL], max_tokens=32).choices[0]
    items = [asked[0], first.to_wire(), result, second.to_wire()]
    model = practice_service.register()
    trajectories = [{"messages_and_choices": items, "reward": float(i), "tools": [TOOL]} for i in range(2)]
    job = CreateTrainingJob.model_validate(
        {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    )
    step = next(e for e in practice_service.ended(practice_service.train(job)) if e.type == "gradient_step")
    assert step.data["ratio_max"] == pytest.approx(1, abs=1e-3)
    assert step.data["row_tokens"] == 2 * (len(first.sampled_tokens()) + len(second.sampled_tokens()))


def test_with_tool_choice_none_the_policy_does_not_see_the_tools(practice_service):
    with_none = ask(practice_service, tool_choice="none")
    assert with_none.message.tool_calls is None
    assert (
        with_none.message.content
        == practice_service.chat(QUESTION, max_tokens=48, temperature=0).choices[0].message.content
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calculator"}}])
def test_a_call_can_be_forced_on_a_policy_that_would_rather_talk(practice_service, choice):
    answer = practice_service.chat("hello", tools=[TOOL], tool_choice=choice, max_tokens=64, temperature=0).choices[0]
    [call] = answer.message.tool_calls
    assert (answer.finish_reason, call.function.name) == ("tool_calls", "calculator")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "abacus"}}}, "names 'abacus', which is not among"),
        ({"tool_choice": "required", "tools": []}, "there are no tools"),
        ({"tool_choice": "sometimes"}, "400 tool_choice"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(practice_service, options, said):
    with pytest.raises(RefusedError, match=said):
        practice_service.call(
            "POST",
            "/v1/chat/completions",
            json={
                "model": "practice",
                "messages": [{"role": "user", "content": "a"}],
                "tools": [TOOL, OTHER],
                **options,
            },
        )


def test_a_policy_whose_template_knows_no_tools_says_so(service):
    with pytest.raises(RefusedError, match="400 the policy's chat template does not render tools"):
        service.chat(tools=[TOOL])


def test_what_a_tool_choice_forces_is_marked_and_does_not_train(practice_service):
    model = practice_service.register("forced")
    named = {"type": "function", "function": {"name": "calculator"}}
    settings = {"tools": [TOOL], "tool_choice": named, "max_tokens": 40, "n": 2, "seed": 1}
    choices = practice_service.chat("hello", **settings).choices
    marks = [[bool(token.forced) for token in choice.sampled_tokens()] for choice in choices]
    assert all(mark[0] and not mark[-1] and mark == sorted(mark, reverse=True) for mark in marks)
    asked = {"role": "user", "content": "hello"}
    trajectories = [
        {"messages_and_choices": [asked, choice.to_wire()], "tools": [TOOL], "reward": float(i)}
        for i, choice in enumerate(choices)
    ]
    job = CreateTrainingJob.model_validate(
        {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    )
    step = next(e.data for e in practice_service.ended(practice_service.train(job)) if e.type == "gradient_step")
    assert step["row_tokens"] == sum(not forced for mark in marks for forced in mark)
    assert step["ratio_max"] == pytest.approx(1, abs=1e-3)  # the forced ones are spliced in: the rest reads them


def test_a_stream_marks_the_same_tokens_as_forced(practice_service):
    settings = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40, "seed": 1}
    [choice] = practice_service.chat("hello", **settings).choices
    chunks = practice_service.stream("hello", **settings)
    streamed = [t for c in chunks for part in c.choices if part.logprobs for t in part.logprobs.content]
    assert [token.forced for token in streamed] == [token.forced for token in choice.sampled_tokens()]
    assert streamed[0].forced


def test_a_job_names_conversations_whose_tools_the_template_does_not_render(service, trajectory):
    model = service.register()
    groups = [{"trajectories": [trajectory(float(i), tools=[TOOL]) for i in range(2)]}]
    job = CreateTrainingJob.model_validate({"model_id": str(model.id), "trajectory_groups": groups})
    [check] = [event.data for event in service.ended(service.train(job)) if event.type == "preflight"]
    assert [*check["unreadable"]] == ["the policy's chat template does not render tools"]
