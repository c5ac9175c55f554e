"""The official `openai` SDK: answers that arrive token by token, read raw and through its event helper."""

from collections import defaultdict

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

HELLO = {"model": "practice", "messages": [{"role": "user", "content": "Say hello 3 times"}], "temperature": 0}
CHOOSE = {"model": "practice", "messages": [{"role": "user", "content": "Respond with yes, no or maybe."}], "seed": 1}


@pytest.fixture
def whole(client):
    """The answer to HELLO in one piece."""
    return client.chat.completions.create(**HELLO, logprobs=True, top_logprobs=2)


def test_the_pieces_of_a_stream_are_the_answer(client, whole):
    chunks = list(client.chat.completions.create(**HELLO, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert len([delta for delta in deltas if delta.content]) > 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_the_logprobs_of_a_stream_are_those_of_the_answer(client, whole):
    chunks = client.chat.completions.create(**HELLO, stream=True, logprobs=True, top_logprobs=2)
    entries = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or []
    ]
    expected = whole.choices[0].logprobs.content
    assert [(e.token, e.bytes, e.token_id) for e in entries] == [(e.token, e.bytes, e.token_id) for e in expected]
    assert [e.logprob for e in entries] == pytest.approx([e.logprob for e in expected], abs=1e-4)
    assert [len(e.top_logprobs) for e in entries] == [2] * len(expected)


def test_a_stream_carries_logprobs_by_default_and_none_when_they_are_not_wanted(client):
    def has_logprobs(**options):
        return any(chunk.choices[0].logprobs for chunk in client.chat.completions.create(**HELLO, **options))

    assert has_logprobs(stream=True)
    assert not has_logprobs(stream=True, logprobs=False)


def test_usage_is_the_last_chunk_where_it_is_asked_for(client, whole):
    *others, last = client.chat.completions.create(**HELLO, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.model_dump(exclude_unset=True) == whole.usage.model_dump(exclude_unset=True)
    assert all(chunk.usage is None and chunk.choices for chunk in others)
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**HELLO, stream=True))


def test_several_answers_arrive_side_by_side(client):
    answers, reasons = defaultdict(str), {}
    for chunk in client.chat.completions.create(**CHOOSE, n=4, stream=True):
        for choice in chunk.choices:
            answers[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    whole = client.chat.completions.create(**CHOOSE, n=4)
    assert answers == {choice.index: choice.message.content for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}


def test_no_part_of_a_stop_string_is_streamed(client, whole):
    chunks = client.chat.completions.create(**HELLO, stream=True, stop="lo hello h")
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content.partition("lo hello h")[0]


def test_the_event_helper_of_the_sdk_assembles_the_answer(client, whole):
    expected = whole.choices[0]
    with client.chat.completions.stream(**HELLO, logprobs=True, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.done"} <= {event.type for event in events}
    assert "".join(event.delta for event in events if event.type == "content.delta") == expected.message.content
    [done] = [event for event in events if event.type == "logprobs.content.done"]
    assert [entry.token for entry in done.content] == [entry.token for entry in expected.logprobs.content]
    assert final.choices[0].message.content == expected.message.content
    assert final.choices[0].finish_reason == expected.finish_reason
    assert final.usage.model_dump(exclude_unset=True) == whole.usage.model_dump(exclude_unset=True)


def test_the_sdk_s_accumulator_of_chunks_gives_the_answer(client, whole):
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**HELLO, stream=True):
        state.handle_chunk(chunk)
    assert state.get_final_completion().choices[0].message.content == whole.choices[0].message.content


def test_the_service_goes_on_after_a_stream_that_was_left(client, whole):
    with client.chat.completions.create(**CHOOSE, n=64, stream=True) as stream:
        next(iter(stream))
    assert client.chat.completions.create(**HELLO).choices[0].message.content == whole.choices[0].message.content
