"""The Responses API of the gateway, over HTTP."""

import json
from typing import Any

import pytest

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.capture.responses import ResponseEvents
from tests.capture.conftest import Upstream, program
from tests.capture.test_gateway import CALL, during

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}


async def streamed(it: Any, **body: Any) -> list[dict[str, Any]]:
    answer = await it.post("responses", stream=True, **body)
    assert answer.status_code == 200, answer.text
    events = [json.loads(event.partition("data: ")[2]) for event in answer.text.split("\n\n") if "type" in event]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@during
async def test_a_text_is_answered_by_a_message_with_usage():
    async with program(upstream := Upstream()) as it:
        made = (await it.post("responses", input="hello", instructions="be brief", max_output_tokens=9)).json()
        assert upstream.asked() == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        assert upstream.requests[0].max_tokens == 9
        [item] = made["output"]
        assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "answer 0.0")
        assert item["content"][0]["logprobs"] == []
        assert (made["status"], made["usage"]["total_tokens"], made["object"]) == ("completed", 7, "response")
        assert len(it.rollout.histories()) == 1


@during
async def test_calls_and_their_results_continue_a_conversation_with_the_sampled_tokens():
    said = [{"content": "so", "reasoning_content": "hm", "tool_calls": [CALL, {**CALL, "id": "call_2"}]}]
    async with program(upstream := Upstream(said)) as it:
        first = (await it.post("responses", input="1 + 2?", tools=[TOOL], tool_choice="required")).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call", "function_call"]
        assert upstream.requests[0].tool_choice == "required"
        results = [
            {"type": "function_call_output", "call_id": name, "output": value}
            for name, value in (("call_1", "3"), ("call_2", [{"type": "input_text", "text": "3"}]))
        ]
        whole = [{"role": "user", "content": "1 + 2?"}, *first["output"], *results]
        await it.post("responses", input=whole, tools=[TOOL])
        assert [message["role"] for message in upstream.asked()] == ["user", "assistant", "tool", "tool"]
        assert upstream.asked()[1]["token_ids"] == [100, 7]
        assert upstream.asked()[3] == {"role": "tool", "tool_call_id": "call_2", "content": "3"}
        assert it.shape() == [["user", "sampled", "tool", "tool", "sampled"]]


@during
async def test_a_stream_has_the_items_of_its_last_event():
    said = [{"content": "so", "reasoning_content": "hm", "tool_calls": [CALL]}]
    async with program(Upstream(said)) as it:
        events = await streamed(it, input="1 + 2?", tools=[TOOL])
        whole = events[-1]["response"]
        assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
        assert whole["id"] == events[0]["response"]["id"]
        done = [(event["output_index"], event["item"]) for event in events if event["type"].endswith("item.done")]
        assert [item for _, item in sorted(done, key=lambda pair: pair[0])] == whole["output"]
        added = [event["output_index"] for event in events if event["type"].endswith("item.added")]
        assert added == [0, 1, 2]
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        arguments = "".join(event["delta"] for event in events if "arguments.delta" in event["type"])
        assert (text, arguments) == ("so", CALL["function"]["arguments"])


@pytest.mark.parametrize("chunks", [["hm"], ["h", "m"], []])
@pytest.mark.parametrize("content", ["", "so"])
def test_a_stream_has_its_reasoning_once_and_before_its_message(chunks, content):
    events: list[dict[str, Any]] = []
    stream = ResponseEvents({}, events.append)
    for chunk in chunks:
        delta = {"reasoning_content": chunk}
        stream.take_chunk({"id": "c", "model": "m", "created": 1, "choices": [{"delta": delta}]})
    message = {"role": "assistant", "content": content, "reasoning_content": "hm"}
    choice = {"index": 0, "finish_reason": "length", "message": message}
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    stream.end(ChatCompletion.model_validate(whole))
    for kind in ("response.output_item.added", "response.output_item.done"):
        items = [(event["output_index"], event["item"]["type"]) for event in events if event["type"] == kind]
        assert items == [(0, "reasoning"), (1, "message")]
    assert {event["output_index"] for event in events if event.get("content_index") == 0} == {1}


def events_of(*chunks: dict[str, Any], reasoning: str | None = None) -> list[dict[str, Any]]:
    """The events of a response of these chunks, whose answer is `so`."""
    events: list[dict[str, Any]] = []
    stream = ResponseEvents({}, events.append)
    for chunk in chunks:
        stream.take_chunk(chunk)
    message = {"role": "assistant", "content": "so", "reasoning_content": reasoning}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    whole = {"id": "", "object": "chat.completion", "created": 0, "model": "", "choices": [choice]}
    stream.end(ChatCompletion.model_validate(whole))
    return events


@pytest.mark.parametrize("head", [{}, {"id": "", "model": ""}, {"id": None, "model": None, "created": None}])
def test_a_stream_of_a_service_whose_chunks_name_nothing_is_one_response(head):
    events = events_of(*({**head, "choices": [{"delta": {"content": text}}]} for text in "so"))
    assert [event["type"] for event in events].count("response.created") == 1
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["s", "o"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_in_the_field_of_any_service_comes_before_the_message(field):
    deltas = [{field: "hm"}, {"content": "so"}]
    events = events_of(*({"choices": [{"delta": delta}]} for delta in deltas), reasoning="hm")
    added = [(event["output_index"], event["item"]["type"]) for event in events if event["type"].endswith("item.added")]
    assert added == [(0, "reasoning"), (1, "message")]


def test_reasoning_that_is_known_after_the_text_leaves_the_message_its_place():
    events = events_of({"choices": [{"delta": {"content": "<think>hm</think>so"}}]}, reasoning="hm")
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]


@pytest.mark.parametrize("said", [{"content": ""}, {"tool_calls": [CALL]}, {"content": "x"}])
def test_a_stream_of_an_empty_answer_or_calls_alone_has_its_items(said):
    @during
    async def run():
        async with program(Upstream([said])) as it:
            events = await streamed(it, input="hello", tools=[TOOL])
            [item] = events[-1]["response"]["output"]
            assert item["type"] == ("function_call" if "tool_calls" in said else "message")
            assert [event["item"] for event in events if event["type"].endswith("item.done")] == [item]

    run()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "without auto_previous_response_id"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "'web_search' is not offered"),
        (
            {"input": "x", "tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice of type 'allowed_tools' is not offered",
        ),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0 of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0 of type"),
        ({"input": "x", "include": 5}, "include must be a list"),
        ({"input": "x", "tools": {"type": "function"}}, "tools must be a list"),
        ({"input": 3}, "input must be a text or a list"),
        ({}, "input must be a text or a list"),
        ({"input": [], "instructions": "x", "text": {"format": {"type": "json_schema"}}}, "without output_type"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "role must be one of"),
    ],
)
def test_what_is_refused_says_what_to_change(body, message):
    @during
    async def run():
        async with program(upstream := Upstream()) as it:
            answer = await it.post("responses", **body)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]
            assert upstream.requests == []

    run()


@during
async def test_a_response_may_be_json_and_its_logprobs_are_given_if_included():
    async with program(upstream := Upstream()) as it:
        include = ["message.output_text.logprobs"]
        body = {"input": "x", "text": {"format": {"type": "json_object"}}, "include": include, "store": False}
        made = (await it.post("responses", **body)).json()
        assert made["output"][0]["content"][0]["logprobs"][0]["token_id"] == 100
        assert "response_format" not in upstream.requests[0].to_wire()


@during
async def test_an_answer_that_was_cut_is_incomplete():
    reason = ""

    async def cut(request, on_chunk):
        whole = await Upstream()(request, None)
        choices = [choice.model_copy(update={"finish_reason": reason}) for choice in whole.choices]
        return whole.model_copy(update={"choices": choices})

    for reason, told in [("length", "max_output_tokens"), ("content_filter", "content_filter")]:  # noqa: B007 - of `cut`
        async with program(cut) as it:
            made = (await it.post("responses", input="x")).json()
            assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": told})
            assert (await streamed(it, input="x"))[-1]["type"] == "response.incomplete"
