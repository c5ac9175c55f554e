"""Settings of a chat that are not offered: what is refused, what passes, and what is named as ignored."""

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rolloutlab.api.wire.chat import ChatRequest

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
    {"num_beams": 4},
    {"min_new_tokens": 2},
    {"logits_processors": ["mine"]},
    {"custom_logit_processor": "{}"},
    {"typical": 0.9},
    {"typical_p": 0.9},
    {"mirostat": 2},
    {"mirostat_tau": 3.0},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"think": True},
    {"guided_decoding": {"regex": "a"}},
    {"guided_json": {"type": "object"}},
    {"guided_choice": ["a", "b"]},
    {"structural_tag": "<a>"},
    {"json_schema": {"type": "object"}},
    {"format": "json"},
    {"penalty_alpha": 0.6},
    {"dry_multiplier": 0.8},
    {"xtc_probability": 0.5},
    {"xtc_threshold": 0.2},
    {"repeat_last_n": 256},
    {"samplers": ["top_k"]},
    {"rep_pen": 1.1},
    {"watermark": True},
    {"truncate": 5},
    {"transforms": ["middle-out"]},
    {"safe_prompt": True},
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_setting_that_would_change_what_is_sampled_is_refused_by_name(service, stream):
    for setting in CHANGING:
        [name] = setting
        refused = answer(service, stream=stream, **setting)
        assert refused.status_code == 400, name
        assert refused.json()["error"]["message"].startswith(f"{name} is not offered by this service (leave {name} out")


EQUALS = {
    "max_new_tokens": (5, "type max_tokens"),
    "max_length": (5, "type max_tokens"),
    "max_output_tokens": (5, "type max_tokens"),
    "n_predict": (5, "type max_tokens"),
    "num_predict": (5, "type max_tokens"),
    "num_return_sequences": (2, "type n"),
    "candidate_count": (2, "type n"),
    "sampling_seed": (5, "type seed"),
    "random_seed": (5, "type seed"),
    "stop_words": (["a"], "type stop"),
    "stop_sequences": (["a"], "type stop"),
    "stop_strings": ("a", "type stop"),
    "temp": (0.5, "type temperature"),
    "p": (0.5, "type top_p"),
    "n_probs": (5, "type top_logprobs"),
    "do_sample": (False, "type temperature: 0"),
    "functions": ([{"name": "f"}], "type tools"),
    "system": ("be quick", "type a message of the role system"),
    "lora_path": ("lab/first@2", "type a checkpoint's name as model"),
    "extra_body": ({"top_k": 5}, "type its fields beside messages"),
    "options": ({"num_ctx": 5}, "type its fields beside messages"),
    "top_k": (5, "top_k: -1"),
    "mirostat_tau": (3, "mirostat_tau: 5"),
    "xtc_threshold": (0.5, "xtc_threshold: 0.1"),
}


def test_a_refusal_names_what_is_offered_in_its_place(service):
    for name, (value, typed) in EQUALS.items():
        refused = answer(service, **{name: value})
        assert refused.status_code == 400, name
        said = refused.json()["error"]["message"]
        assert said == f"{name} is not offered by this service (leave {name} out, or {typed})"


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
    {"do_sample": True},
    {"num_beams": 1},
    {"num_return_sequences": 1},
    {"n_predict": -1},
    {"max_new_tokens": None},
    {"min_new_tokens": 0},
    {"extra_body": {}},
    {"options": {}},
    {"logits_processors": []},
    {"typical": 1.0},
    {"typical_p": 1},
    {"mirostat": 0},
    {"mirostat_tau": 5.0},
    {"mirostat_eta": 0.1},
    {"repeat_last_n": 64},
    {"dry_base": 1.75},
    {"dry_sequence_breakers": ["\n", ":", '"', "*"]},
    {"thinking": {}},
    {"guided_decoding": {}},
    {"stop_words": []},
    {"stop_sequences": ""},
    {"penalty_alpha": 0},
    {"temp": 1},
    {"truncate_prompt_tokens": -1},
    {"stop": ""},
    {"stop": []},
    {"skip_special_tokens": True},
    {"prompt_cache_options": {}},
    {"verbosity": "medium"},
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
    "maxTokens": "max_tokens",
    "MAX_COMPLETION_TOKENS": "max_completion_tokens",
    "N": "n",
    "stopSequences": "stop",
    "max_new_token": "max_tokens",
    "random-seed": "seed",
}
NOT_EITHER = {
    "minp": "min_p",
    "TOP_K": "top_k",
    "topK": "top_k",
    "ignoreeos": "ignore_eos",
    "repetition_penality": "repetition_penalty",
    "frequancy_penality": "frequency_penalty",
    "presence-penalty": "presence_penalty",
    "logit_biass": "logit_bias",
    "guidedJson": "guided_json",
    "responseFormat": "response_format",
    "enableThinking": "enable_thinking",
}
"""Slips in the names of settings that are refused."""
HARMLESS = {
    "step": 3,
    "speed": "fast",
    "tool": "a",
    "steps": 3,
    "stream_id": "s",
    "samples": 5,
    "id": "7",
    "m": 1,
    "_": 1,
    "team": "a",
    "tags": ["a"],
    "text": "a",
    "model_id": "a",
    "session_id": "s",
    "actions": ["a"],
    "questions": [],
    "sessions": [],
    "keep_alive": "5m",
    "reasoning_effort": "low",
    "reasoning": {"effort": "low"},
    "provider": {"order": []},
    "id_slot": 1,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "timings_per_token": True,
    "parallel_tool_calls": False,
}
"""No settings of sampling, however near some are to one: named in the header."""


def test_a_name_with_a_slip_is_refused_with_the_name_that_was_meant(service):
    for typed, meant in SLIPS.items():
        refused = answer(service, **{typed: 0.5})
        assert refused.status_code == 400, typed
        assert refused.json()["error"]["message"] == f"there is no setting {typed!r} ({meant}, or leave it out)"


def test_a_slip_in_the_name_of_a_refused_setting_is_refused_too_but_at_a_value_that_changes_nothing(service):
    for typed, meant in NOT_EITHER.items():
        refused = answer(service, **{typed: 0.05})
        assert refused.status_code == 400, typed
        said = refused.json()["error"]["message"]
        assert said == f"there is no setting {typed!r} (leave it out: {meant} is not offered either)"
    neutral = answer(service, TOP_K=-1, minp=0, repetition_penality=1.0)
    assert neutral.headers["x-rolloutlab-ignored"] == "TOP_K, minp, repetition_penality"


OFFERED = [name for name in ChatRequest.model_fields if name not in {"model", "messages"}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_offered_name_is_known_in_any_letters_and_with_a_slip(service, data):
    name = data.draw(st.sampled_from([name for name in OFFERED if len(name) > 2]))
    written = data.draw(st.sampled_from([name.upper(), name.title(), name.replace("_", "-"), name.replace("_", "")]))
    place = data.draw(st.integers(0, len(written)))
    slip = data.draw(
        st.sampled_from([written, f"{written[:place]}z{written[place:]}", f"{written[:place]}q{written[place + 1 :]}"])
    )
    if slip != name:
        refused = answer(service, **{slip: 0.5})
        assert refused.status_code == 400
        assert f"({name}, or leave it out)" in refused.json()["error"]["message"]


def test_a_name_that_is_merely_short_or_near_to_a_setting_is_ignored_and_named(service):
    for name, value in HARMLESS.items():
        sent = answer(service, **{name: value})
        assert sent.status_code == 200, name
        assert sent.headers["x-rolloutlab-ignored"] == name


DOCUMENTED = {
    "audio": st.none(),
    "frequency_penalty": st.sampled_from([None, 0, 0.0]),
    "function_call": st.sampled_from([None, "none", "auto"]),
    "functions": st.sampled_from([None, []]),
    "logit_bias": st.sampled_from([None, {}]),
    "logprobs": st.sampled_from([None, True]),
    "max_completion_tokens": st.sampled_from([None, 3]),
    "max_tokens": st.just(3),
    "metadata": st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    "modalities": st.sampled_from([None, ["text"]]),
    "moderation": st.none(),
    "n": st.sampled_from([None, 1]),
    "parallel_tool_calls": st.sampled_from([None, True]),
    "prediction": st.none(),
    "presence_penalty": st.sampled_from([None, 0, 0.0]),
    "prompt_cache_key": st.none() | st.text(max_size=5),
    "prompt_cache_options": st.sampled_from([None, {}]),
    "prompt_cache_retention": st.sampled_from([None, "in_memory", "24h"]),
    "reasoning_effort": st.none(),
    "response_format": st.sampled_from([None, {"type": "text"}]),
    "safety_identifier": st.none() | st.text(max_size=5),
    "seed": st.just(1),
    "service_tier": st.sampled_from([None, "auto", "default", "flex", "priority"]),
    "stop": st.sampled_from([None, "", []]),
    "store": st.sampled_from([None, True, False]),
    "stream": st.sampled_from([None, False]),
    "stream_options": st.none(),
    "temperature": st.sampled_from([None, 1, 1.0]),
    "tool_choice": st.sampled_from([None, "none", "auto"]),
    "tools": st.sampled_from([None, []]),
    "top_logprobs": st.sampled_from([None, 0]),
    "top_p": st.sampled_from([None, 1, 1.0]),
    "user": st.none() | st.text(max_size=5),
    "verbosity": st.sampled_from([None, "medium"]),
    "web_search_options": st.sampled_from([None, {}]),
}
"""The fields of OpenAI's chat request beside model and messages, at values that change nothing of what is sampled."""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_documented_field_of_an_openai_chat_passes_where_it_changes_nothing(service, data):
    names = data.draw(st.just(set(DOCUMENTED)) | st.sets(st.sampled_from(sorted(DOCUMENTED)), min_size=1))
    drawn = {name: data.draw(DOCUMENTED[name]) for name in sorted(names)}
    sent = answer(service, **drawn)
    assert sent.status_code == 200, sent.text
    assert "x-rolloutlab-ignored" not in sent.headers
    assert sent.json()["choices"] == answer(service).json()["choices"]


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
