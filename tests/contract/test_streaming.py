"""A streamed completion is the same completion, token by token."""

import pytest


def text(chunks, index=0):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


def entries(chunks, index=0):
    found = [c for chunk in chunks for c in chunk.choices if c.index == index]
    return [entry for c in found if c.logprobs for entry in c.logprobs.content]


def ends(chunks):
    return {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_says_what_a_whole_completion_says(service, seed):
    whole = service.chat(seed=seed, n=3, max_tokens=30)
    chunks = service.stream(seed=seed, n=3, max_tokens=30)
    for choice in whole.choices:
        assert text(chunks, choice.index) == choice.message.content
        assert entries(chunks, choice.index) == choice.sampled_tokens()
    assert ends(chunks) == {choice.index: choice.finish_reason for choice in whole.choices}


def test_every_chunk_carries_the_name_and_the_model_and_the_first_the_role(service):
    service.register()
    chunks = service.stream(model="lab/first")
    assert {(chunk.object, chunk.model) for chunk in chunks} == {("chat.completion.chunk", "lab/first@0")}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].model_extra["policy_version"] == 0


def test_usage_comes_last_when_it_is_asked_for(service):
    *_, last = service.stream(stream_options={"include_usage": True}, seed=1)
    whole = service.chat(seed=1)
    assert (last.choices, last.usage) == ([], whole.usage)


def test_logprobs_can_be_left_out_of_a_stream(service):
    assert entries(service.stream(logprobs=False)) == []


def test_a_stop_string_that_comes_in_pieces_is_never_shown(service):
    whole = service.chat(seed=3, max_tokens=40).choices[0].message.content
    stop = whole[5:9]
    chunks = service.stream(seed=3, max_tokens=40, stop=stop)
    assert text(chunks) == whole[: whole.index(stop)]
    assert ends(chunks) == {0: "stop"}


def test_what_cannot_be_answered_is_refused_before_the_stream_begins(service):
    body = {"model": "nobody", "messages": [{"role": "user", "content": "a"}], "stream": True}
    assert "there is no model 'nobody'" in service.text("/v1/chat/completions", body)
