"""The official `openai` SDK: chat completions, their logprobs, models, and many requests at once."""

import asyncio
import inspect

import pytest
from openai import APITimeoutError, AsyncOpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

HELLO = {"model": "practice", "messages": [{"role": "user", "content": "Say hello 3 times"}]}
CHOOSE = {"model": "practice", "messages": [{"role": "user", "content": "Respond with yes, no or maybe."}]}
LONG = {**CHOOSE, "n": 1024, "temperature": 2}


def test_an_answer_is_of_the_sdk_s_own_type_to_the_letter(client):
    raw = client.chat.completions.with_raw_response.create(**HELLO, n=2, logprobs=True, top_logprobs=2)
    completion = ChatCompletion.model_validate_json(raw.content, strict=True)
    assert completion.object == "chat.completion"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == "practice"
    assert completion.model_dump(exclude_unset=True) == raw.parse().model_dump(exclude_unset=True)


def test_n_answers_come_from_one_request_and_usage_counts_them_all(client):
    completion = client.chat.completions.create(**CHOOSE, n=8, seed=1)
    assert [choice.index for choice in completion.choices] == list(range(8))
    assert all(choice.message.role == "assistant" and choice.message.content for choice in completion.choices)
    usage = completion.usage
    assert isinstance(usage, CompletionUsage)
    assert usage.completion_tokens == sum(len(choice.logprobs.content) for choice in completion.choices)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_the_same_seed_gives_the_same_answers_and_another_seed_others(client):
    def answers(seed):
        return [choice.message.content for choice in client.chat.completions.create(**CHOOSE, n=8, seed=seed).choices]

    assert answers(1) == answers(1)
    assert answers(1) != answers(2)


def test_every_token_carries_its_logprob_its_bytes_and_its_id(client):
    [choice] = client.chat.completions.create(**HELLO, logprobs=True, temperature=0).choices
    tokens = choice.logprobs.content
    assert all(token.logprob <= 0 and isinstance(token.token_id, int) for token in tokens)
    *said, end = tokens  # the token that ends the turn was sampled too, and is not part of the text
    assert b"".join(bytes(token.bytes) for token in said).decode() == choice.message.content == "hello hello hello"
    assert end.token == "<|im_end|>"
    assert choice.finish_reason == "stop"


def test_logprobs_come_without_being_asked_for_and_can_be_left_out(client):
    [by_default] = client.chat.completions.create(**HELLO).choices
    [without] = client.chat.completions.create(**HELLO, logprobs=False).choices
    assert by_default.logprobs.content
    assert without.logprobs is None


def test_top_logprobs_are_the_likeliest_tokens_best_first(client):
    [choice] = client.chat.completions.create(**CHOOSE, logprobs=True, top_logprobs=5, temperature=0).choices
    for token in choice.logprobs.content:
        likeliest = [top.logprob for top in token.top_logprobs]
        assert len(likeliest) == 5
        assert likeliest == sorted(likeliest, reverse=True)
        assert token.top_logprobs[0].token == token.token  # at temperature 0 the likeliest is what is sampled
        assert token.top_logprobs[0].logprob == pytest.approx(token.logprob, abs=1e-5)


def test_an_answer_ends_before_a_stop_string(client):
    [whole] = client.chat.completions.create(**HELLO, temperature=0).choices
    for stop in (" hello", ["never said", "lo h"]):
        [stopped] = client.chat.completions.create(**HELLO, temperature=0, stop=stop).choices
        [said] = [text for text in ([stop] if isinstance(stop, str) else stop) if text in whole.message.content]
        assert stopped.message.content == whole.message.content.partition(said)[0]
        assert stopped.finish_reason == "stop"


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_an_answer_that_is_cut_off_says_so(client, limit):
    [choice] = client.chat.completions.create(**HELLO, **{limit: 1}).choices
    assert choice.finish_reason == "length"
    assert len(choice.logprobs.content) == 1


def test_system_developer_and_earlier_turns_are_read(client):
    messages = [
        {"role": "developer", "content": "Answer with one word."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "Say that again"},
    ]
    [choice] = client.chat.completions.create(model="practice", messages=messages, temperature=0).choices
    assert choice.message.content == "Paris"


CHANGES_NOTHING = {
    "frequency_penalty": 0,
    "function_call": "none",
    "functions": [],
    "logit_bias": {},
    "logprobs": True,
    "metadata": {"run": "1"},
    "modalities": ["text"],
    "n": 1,
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "response_format": {"type": "text"},
    "safety_identifier": "s",
    "service_tier": "auto",
    "stop": [],
    "store": True,
    "stream": False,
    "temperature": 1,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1,
    "user": "u",
    "verbosity": "medium",
    "web_search_options": {},
}
"""Of the parameters of a chat; the others change nothing as None."""


def test_every_parameter_of_the_sdk_passes_at_a_value_that_changes_nothing(client):
    own = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    names = set(inspect.signature(client.chat.completions.create).parameters) - own
    given = {**dict.fromkeys(names), **CHANGES_NOTHING, **HELLO, "max_tokens": 8, "seed": 1}
    assert given.keys() == names
    sent = client.chat.completions.with_raw_response.create(**given)
    assert "x-rolloutlab-ignored" not in sent.headers
    plain = client.chat.completions.create(**HELLO, max_tokens=8, seed=1)
    assert sent.parse().choices[0].message == plain.choices[0].message


def test_the_models_that_can_be_sampled_are_listed(client):
    listed = list(client.models.list())
    assert listed[0].id == "practice"
    assert all(model.object == "model" for model in listed)


def test_thirty_two_requests_at_once_are_all_answered(served):
    async def ask_all():
        async with AsyncOpenAI(base_url=served.inference_base_url, api_key=served.token) as client:
            requests = [client.chat.completions.create(**CHOOSE, seed=seed, n=2) for seed in range(32)]
            return await asyncio.gather(*requests)

    answers = [[choice.message.content for choice in completion.choices] for completion in asyncio.run(ask_all())]
    assert len(answers) == 32
    assert len({tuple(pair) for pair in answers}) > 4


def test_the_service_goes_on_after_a_client_s_time_out(client):
    with pytest.raises(APITimeoutError):
        client.with_options(timeout=0.05, max_retries=0).chat.completions.create(**LONG)
    assert client.chat.completions.create(**HELLO).choices


def test_the_service_goes_on_after_a_cancelled_request(served, client):
    async def ask_and_leave():
        async with AsyncOpenAI(base_url=served.inference_base_url, api_key=served.token) as asynchronous:
            asking = asyncio.create_task(asynchronous.chat.completions.create(**LONG))
            await asynchronous.models.list()  # by now the other request is on its way
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return asking.cancelled()

    assert asyncio.run(ask_and_leave())
    assert client.chat.completions.create(**HELLO).choices
