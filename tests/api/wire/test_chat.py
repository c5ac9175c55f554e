"""Chat messages, choices and completions."""

import math
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rolloutlab.api.wire import chat

OBJECTS = [
    chat.TextPart,
    chat.ImageUrl,
    chat.ImagePart,
    chat.InputAudio,
    chat.InputAudioPart,
    chat.File,
    chat.FilePart,
    chat.RefusalPart,
    chat.FunctionDefinition,
    chat.FunctionTool,
    chat.FunctionCall,
    chat.FunctionToolCall,
    chat.CustomCall,
    chat.CustomToolCall,
    chat.Audio,
    chat.CompletionAudio,
    chat.UrlCitation,
    chat.Annotation,
    chat.DeveloperMessage,
    chat.SystemMessage,
    chat.UserMessage,
    chat.AssistantMessage,
    chat.ToolMessage,
    chat.FunctionMessage,
    chat.ChoiceLogprobs,  # with tokens, whose nulls are removed in their list
    chat.CompletionMessage,
    chat.Choice,
    chat.Usage,
    chat.NamedFunction,
    chat.NamedToolChoice,
    chat.StreamOptions,
    chat.ToolCallDelta,
    chat.Delta,
    chat.ChunkChoice,
]

ITEM_CLASSES = {
    "developer": chat.DeveloperMessage,
    "system": chat.SystemMessage,
    "user": chat.UserMessage,
    "assistant": chat.AssistantMessage,
    "tool": chat.ToolMessage,
    "function": chat.FunctionMessage,
    "choice": chat.Choice,
}


def token(text: str = "a", **overrides: Any) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "top_logprobs": []} | overrides


def choice(**overrides: Any) -> dict[str, Any]:
    return {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "a"}} | overrides


def request(**overrides: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | overrides


def completion(**overrides: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice()],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    } | overrides


@pytest.mark.parametrize("model", OBJECTS)
@given(data=st.data())
@settings(max_examples=15)
def test_a_valid_object_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


@pytest.mark.parametrize("model", [chat.ChatRequest, chat.ChatCompletion, chat.ChatCompletionChunk])
@given(data=st.data())
@settings(max_examples=15)
def test_a_valid_request_or_completion_survives_the_round_trip(valid, survives, model, data):
    survives(model, *data.draw(valid(model)))


@pytest.mark.parametrize("name", ITEM_CLASSES)
@given(data=st.data())
@settings(max_examples=10)
def test_a_conversation_item_is_read_as_its_own_kind(valid, name, data):
    sent, _ = data.draw(valid(ITEM_CLASSES[name]))
    assert type(TypeAdapter(chat.MessageOrChoice).validate_python(sent)) is ITEM_CLASSES[name]


@pytest.mark.parametrize("name", ITEM_CLASSES)
@given(data=st.data())
@settings(max_examples=10)
def test_kind_is_the_same_before_and_after_parsing(valid, name, data):
    sent, _ = data.draw(valid(ITEM_CLASSES[name]))
    assert chat.kind(sent) == chat.kind(ITEM_CLASSES[name].model_validate(sent)) == name


@pytest.mark.parametrize("item", [None, 5, "user", [], {}, {"role": "robot"}, {"role": None}, {"role": ["user"]}])
def test_what_is_no_conversation_item_has_no_kind(item):
    assert chat.kind(item) is None


def test_a_choice_is_told_from_a_message_by_finish_reason_and_message():
    assert chat.kind(choice(role="user")) == "choice"
    assert chat.kind({"role": "user", "content": "x", "message": "x"}) == "user"
    assert chat.kind({"role": "user", "content": "x", "finish_reason": "x"}) == "user"


def test_a_message_may_have_further_properties_of_those_names():
    both = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    assert chat.kind({"role": "user", "content": "x", **both}) == "user"
    assert chat.kind({"role": "tool", "tool_call_id": "1", "content": "x", **both}) == "tool"
    assert chat.kind({"role": "assistant", "tool_calls": [], **both}) == "assistant"
    assert chat.kind({"index": 0, **both}) == "choice"


WHOLE, CUT, CALLS, FILTERED = "stop", "length", "tool_calls", "content_filter"
ENDINGS = [
    *[(word, WHOLE, None) for word in ("STOP", "eos", "eos_token", "end_turn", "stop_sequence", "COMPLETE")],
    *[(word, CUT, None) for word in ("max_tokens", "MAX_TOKENS", "model_length", "maxTokens", "ERROR_LIMIT")],
    *[(word, CUT, None) for word in ("model_context_window_exceeded", "FinishReason.MAX_TOKENS", {"type": "length"})],
    *[(word, CALLS, None) for word in ("tool_use", "TOOL_CALL")],
    *[(word, CUT, f"broke off this answer ({word})") for word in ("abort", "cancelled", "timeout", "repetition")],
    *[(word, CUT, f"broke off this answer ({word})") for word in ("insufficient_system_resource", "OTHER")],
    *[(word, CUT, "broke off") for word in ("function_call_filter: MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")],
    *[(word, FILTERED, f"filter ended this answer ({word})") for word in ("SAFETY", "RECITATION", "SPII", "refusal")],
    *[(word, FILTERED, "filter") for word in ("guardrail_intervened", "sensitive", "ERROR_TOXIC")],
    *[(word, FILTERED, "filter") for word in ("content_filter: SAFETY", "content_filtered")],
    *[(word, WHOLE, f"{word!r}, whose meaning is not known") for word in ("because", "FINISH_REASON_UNSPECIFIED")],
    *[(word, WHOLE, "does not say why") for word in (None, "")],
]  # fmt: skip


@pytest.mark.parametrize(("reported", "read", "note"), ENDINGS)
def test_any_finish_reason_of_an_answer_is_kept_beside_the_nearest_of_a_job_and_what_is_odd_is_said(
    changed, reported, read, note
):
    answered = chat.ChatCompletion.model_validate(changed(completion(), "choices.0.finish_reason", reported))
    [sent] = answered.to_wire()["choices"]
    assert (sent["finish_reason"], sent["reported_finish_reason"]) == (read, reported)
    stored = chat.Choice.model_validate(sent)
    assert stored.to_wire() == sent
    assert stored.ending_note is None if note is None else note in str(stored.ending_note)


@pytest.mark.parametrize("known", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_a_finish_reason_of_the_specification_is_left_as_it_is(changed, known):
    answered = chat.ChatCompletion.model_validate(changed(completion(), "choices.0.finish_reason", known))
    assert answered.choices[0].to_wire()["finish_reason"] == known
    assert "reported_finish_reason" not in answered.choices[0].to_wire()


def test_the_null_content_of_a_function_message_is_kept(survives):
    message = {"role": "function", "content": None, "name": "f"}
    survives(chat.FunctionMessage, message, message)


@pytest.mark.parametrize("tokens", ["content", "refusal"])
def test_nulls_in_optional_fields_of_any_token_are_absent_and_others_are_kept(survives, tokens):
    likely = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5, "bytes": [98], "x": None}]
    nulls = {"bytes": None, "token_id": None, "forced": None, "x": None}
    sent = [token(), token("b", **nulls), token("c", top_logprobs=[{**likely[0], "bytes": None}, likely[1]])]
    kept = [token(), token("b", x=None), token("c", top_logprobs=likely)]
    survives(chat.ChoiceLogprobs, {tokens: sent}, {tokens: kept})


@pytest.mark.parametrize("wrong", [None, 5, "a", [], {"token": None}, token(top_logprobs=None), token(logprob=None)])
def test_what_is_no_token_is_refused_where_it_is(refusals, wrong):
    fields = refusals(chat.ChoiceLogprobs, {"content": [token(), wrong]})
    assert all(field[:2] == ("content", 1) for field in fields)
    assert fields


def test_no_python_is_called_for_each_token():
    def calls(count: int) -> int:
        sent, seen = {"content": [token(bytes=[97], token_id=i) for i in range(count)]}, []

        def called(frame, event, _argument):
            if event == "call" and frame.f_globals["__name__"].startswith("rolloutlab"):
                seen.append(frame.f_code.co_qualname)

        sys.setprofile(called)
        try:
            chat.ChoiceLogprobs.model_validate(sent)
        finally:
            sys.setprofile(None)
        return len(seen)

    assert 0 < calls(1000) == calls(1)


def test_the_null_content_of_an_assistant_message_is_absent(survives):
    survives(chat.AssistantMessage, {"role": "assistant", "content": None}, {"role": "assistant"})


@pytest.mark.parametrize(
    ("logprobs", "tokens"),
    [
        (None, []),
        ({}, []),
        ({"content": None, "refusal": None}, []),
        ({"content": []}, []),
        ({"content": [token("a"), token("b")]}, ["a", "b"]),
        ({"content": [token("a")], "refusal": [token("r")]}, ["a"]),
        ({"content": [], "refusal": [token("r")]}, ["r"]),
        ({"refusal": [token("r")]}, ["r"]),
    ],
)
def test_the_sampled_tokens_are_the_content_logprobs_or_else_those_of_the_refusal(logprobs, tokens):
    parsed = chat.Choice.model_validate(choice(logprobs=logprobs))
    assert [entry.token for entry in parsed.sampled_tokens()] == tokens


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("model", 5),
        ("model", None),
        ("messages", None),
        ("messages", {}),
        ("messages", []),
        ("messages.0", "hi"),
        ("messages.0.role", "robot"),
        ("messages.0.content", 5),
        ("n", 0),
        ("n", 1025),
        ("n", 1.5),
        ("n", "2"),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("max_completion_tokens", "9"),
        ("seed", 0.5),
        ("logprobs", 1),
        ("tools", {}),
        ("tools", [5]),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["a"] * 5),
        ("stop", [5]),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("tool_choice", "sometimes"),
        ("tool_choice", 5),
        ("stream", 1),
        ("stream_options", True),
    ],
)
def test_a_bad_chat_request_is_refused_at_the_path(refusals, changed, steps, path, bad):
    assert refusals(chat.ChatRequest, changed(request(), path, bad)) == {
        (*steps(path), 0) if bad in ([5], [""]) else steps(path)
    }


@pytest.mark.parametrize("path", ["model", "messages", "messages.0.role", "messages.0.content"])
def test_a_chat_request_without_a_required_field_is_refused_at_its_path(refusals, changed, steps, path):
    assert refusals(chat.ChatRequest, changed(request(), path)) == {steps(path)}


@pytest.mark.parametrize("name", ["n", "temperature", "top_p", "max_tokens", "seed", "logprobs", "tools"])
def test_a_null_option_of_a_chat_request_is_absent(survives, name):
    survives(chat.ChatRequest, request(**{name: None}), request())


def test_a_choice_is_not_a_message_of_a_chat_request(refusals):
    assert refusals(chat.ChatRequest, request(messages=[choice()])) == {("messages", 0, "role")}


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))])
def test_one_stop_string_is_a_list_of_one(stop, strings):
    assert chat.ChatRequest.model_validate(request(stop=stop)).stops() == strings


def test_options_of_a_chat_request_that_have_no_field_are_kept(survives):
    sent = request(user="me", logit_bias={"1": 5}, service_tier="auto")
    survives(chat.ChatRequest, sent, sent)


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("id", 5),
        ("object", "chat.completion.chunk"),
        ("created", 1.5),
        ("model", None),
        ("choices", None),
        ("choices.0.finish_reason", 5),
        ("choices.0.index", "0"),
        ("choices.0.message", None),
        ("choices.0.message.role", "user"),
        ("usage.prompt_tokens", "1"),
        ("usage.completion_tokens", None),
        ("usage.total_tokens", 1.5),
    ],
)
def test_a_bad_completion_is_refused_at_the_path(refusals, changed, steps, path, bad):
    assert refusals(chat.ChatCompletion, changed(completion(), path, bad)) == {steps(path)}


@pytest.mark.parametrize(
    "path", ["id", "object", "created", "model", "choices", "choices.0.index", "usage.total_tokens"]
)
def test_a_completion_without_a_required_field_is_refused_at_its_path(refusals, changed, steps, path):
    assert refusals(chat.ChatCompletion, changed(completion(), path)) == {steps(path)}
