"""Settings of a chat that are not offered: what is refused, what passes, and what is named as ignored."""

import httpx
import pytest

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "seed": 1}


def answer(service, **options):
    """The whole answer, with its headers."""

    async def post():
        headers = {"Authorization": f"Bearer {service.address.token}"}
        async with httpx.AsyncClient(transport=service.http._transport, headers=headers) as client:
            return await client.post(
                f"{service.address.inference_base_url}/chat/completions", json={**ASKED, **options}
            )

    return service.http.run(post())


CHANGING = [
    {"top_k": 50},
    {"min_p": 0.05},
    {"repetition_penalty": 1.1},
    {"frequency_penalty": -0.5},
    {"presence_penalty": 0.5},
    {"length_penalty": 0.8},
    {"ignore_eos": True},
    {"min_tokens": 4},
    {"stop_token_ids": [2]},
    {"bad_words": ["a"]},
    {"allowed_token_ids": [1, 2]},
    {"use_beam_search": True},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"truncate_prompt_tokens": 1},
    {"structured_outputs": {"choice": ["a"]}},
    {"response_format": {"type": "json_object"}},
    {"functions": [{"name": "f"}]},
    {"modalities": ["text", "audio"]},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_setting_that_would_change_what_is_sampled_is_refused_by_name(service, stream):
    for setting in CHANGING:
        [name] = setting
        refused = answer(service, stream=stream, **setting)
        assert refused.status_code == 400, name
        assert refused.json()["error"]["message"].startswith(f"{name} is not offered by this service (leave {name} out")


NEUTRAL = [
    {"top_k": -1},
    {"top_k": 0},
    {"min_p": 0},
    {"min_p": 0.0},
    {"repetition_penalty": 1},
    {"repetition_penalty": 1.0},
    {"frequency_penalty": 0},
    {"presence_penalty": 0.0},
    {"ignore_eos": False},
    {"min_tokens": 0},
    {"stop_token_ids": []},
    {"logit_bias": {}},
    {"response_format": {"type": "text"}},
    {"modalities": ["text"]},
    {"function_call": "none"},
    {"chat_template_kwargs": None},
    {"top_k": None},
    {"store": True},
    {"user": "u"},
    {"metadata": {"run": "1"}},
    {"return_token_ids": True},
    {"return_tokens_as_token_ids": True},
    {"service_tier": "auto"},
    {"safety_identifier": "s"},
    {"prompt_cache_key": "k"},
    {"parallel_tool_calls": True},
    {"cache_salt": "s"},
    {"priority": 0},
    {"request_id": "r"},
]


def test_a_neutral_value_or_a_field_that_is_no_setting_changes_nothing(service):
    plain = answer(service)
    for setting in NEUTRAL:
        sent = answer(service, **setting)
        assert sent.status_code == 200, setting
        assert "x-rolloutlab-ignored" not in sent.headers, setting
        assert sent.json()["choices"] == plain.json()["choices"], setting


SLIPS = {
    "temprature": "temperature",
    "Temperature": "temperature",
    "top-p": "top_p",
    "topp": "top_p",
    "max_token": "max_tokens",
    "sed": "seed",
    "stops": "stop",
    "top_logprob": "top_logprobs",
    "toolchoice": "tool_choice",
}


def test_a_name_with_a_slip_is_refused_with_the_name_that_was_meant(service):
    for typed, meant in SLIPS.items():
        refused = answer(service, **{typed: 0.5})
        assert refused.status_code == 400, typed
        assert refused.json()["error"]["message"] == f"there is no setting {typed!r} ({meant}, or leave it out)"


@pytest.mark.parametrize("stream", [False, True])
def test_a_field_that_has_no_effect_is_named_in_a_header_of_the_answer(service, stream):
    sent = answer(service, stream=stream, reasoning_effort="high", id="7", top_k=-1, store=True, verbosity=None)
    assert sent.status_code == 200
    assert sent.headers["x-rolloutlab-ignored"] == "reasoning_effort, id"


def test_the_header_holds_any_name_whole_and_no_list_too_long_for_it(service):
    odd = answer(service, **{"a\r\nset-cookie: b": 1, "größe": 2, "a,b": 3})
    assert odd.headers["x-rolloutlab-ignored"] == "a%0D%0Aset-cookie%3A%20b, gr%C3%B6%C3%9Fe, a%2Cb"
    nameless = answer(service, **{"0": [], "": []})
    assert nameless.headers["x-rolloutlab-ignored"] == '0, ""'  # a value that ends in a blank is no header
    many = answer(service, **{f"unknown-field-{i}": i for i in range(2000)})
    assert many.status_code == 200
    assert len(many.headers["x-rolloutlab-ignored"]) <= 1000
    assert many.headers["x-rolloutlab-ignored"].split(", ")[-1].startswith("unknown-field-")
