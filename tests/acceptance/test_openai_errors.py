"""The official `openai` SDK: every refusal is the error that its users catch."""

import pytest
from openai import AuthenticationError, BadRequestError, NotFoundError

HELLO = {"model": "practice", "messages": [{"role": "user", "content": "hello"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def test_a_wrong_key_is_an_authentication_error(client):
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(AuthenticationError, match="bearer token"):
        stranger.models.list()
    with pytest.raises(AuthenticationError, match="bearer token"):
        stranger.chat.completions.create(**HELLO)


@pytest.mark.parametrize("name", ["nobody", "lab/nobody", "wandb-artifact:///local/lab/nobody:step3"])
def test_an_unknown_model_is_not_found_and_named(client, name):
    with pytest.raises(NotFoundError, match=name) as caught:
        client.chat.completions.create(**{**HELLO, "model": name})
    assert caught.value.body["message"]


def test_a_prompt_that_is_too_long_is_known_by_its_code(client):
    messages = [{"role": "user", "content": "word " * 4000}]
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**{**HELLO, "messages": messages})
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"
    assert "1024" in caught.value.message


def test_an_image_is_refused_as_something_this_policy_cannot_read(client):
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE]}]
    with pytest.raises(BadRequestError, match="image"):
        client.chat.completions.create(**{**HELLO, "messages": messages})


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1), ("top_p", 2), ("n", 0), ("max_tokens", 0), ("top_logprobs", 21), ("stop", ["x"] * 5)],
)
def test_a_setting_out_of_range_is_refused_by_name(client, name, value):
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**HELLO, **{name: value})
    assert caught.value.param.startswith(name)


def test_an_error_before_a_stream_begins_is_an_error_and_not_a_stream(client):
    with pytest.raises(NotFoundError):
        client.chat.completions.create(**{**HELLO, "model": "nobody"}, stream=True)
