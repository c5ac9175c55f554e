"""The gateway as programs meet it, over HTTP."""

import asyncio
import json

import pytest

from rolloutlab.capture.rollout import CallSettings
from rolloutlab.errors import BudgetError, NotFoundError, RefusedError, SignInError, UnreachableError
from tests.capture.conftest import Upstream, program, user

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def during(test):
    """Run a coroutine as a test."""

    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    run.__name__ = test.__name__
    run.__pytest_wrapped__ = None
    return run


@during
async def test_a_call_is_answered_and_recorded_with_tokens_that_its_client_did_not_ask_for():
    async with program(upstream := Upstream()) as it:
        answer = await it.chat("hello", model="gpt-4o-mini", temperature=0.5)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "answer 0.0"}
        assert answer["choices"][0]["logprobs"] is None
        [request] = upstream.requests
        assert (request.model, request.logprobs, request.temperature, request.seed) == ("lab/practice", True, 0.5, 1000)
        [history] = it.rollout.histories()
        assert [token.token_id for token in history.messages_and_choices[1].sampled_tokens()] == [100, 7]


@during
async def test_logprobs_are_given_to_a_client_that_asks_for_them():
    async with program(Upstream()) as it:
        answer = await it.chat("hello", logprobs=True)
        assert answer["choices"][0]["logprobs"]["content"][0]["token_id"] == 100
        events = await it.events("hello", logprobs=True)
        assert any("logprobs" in choice for event in events for choice in event["choices"])


@during
async def test_later_turns_are_sent_with_the_tokens_that_were_sampled():
    async with program(upstream := Upstream()) as it:
        first = await it.chat("one")
        await it.chat("one", first["choices"][0]["message"], "two")
        assert upstream.asked()[1]["token_ids"] == [100, 7]
        assert it.shape() == [["user", "sampled", "user", "sampled"]]


@pytest.mark.parametrize(
    "sent",
    [
        {"content": [{"type": "text", "text": "answer 0.0"}]},
        {"content": " answer 0.0\n", "refusal": None, "annotations": [], "name": "agent"},
        {"content": "answer 0.0", "tool_calls": None, "audio": None, "function_call": None},
    ],
)
def test_an_answer_is_found_in_the_forms_in_which_frameworks_send_it_back(sent):
    @during
    async def run():
        async with program(upstream := Upstream()) as it:
            await it.chat({"role": "user", "content": [{"type": "text", "text": "one"}]})
            await it.chat("one", {"role": "assistant", **sent}, "two")
            assert upstream.asked()[1]["token_ids"] == [100, 7]
            assert it.shape() == [["user", "sampled", "user", "sampled"]]

    run()


@during
async def test_reasoning_that_a_framework_drops_is_read_again():
    said = [{"content": "4", "reasoning_content": "2 and 2"}]
    async with program(upstream := Upstream(said)) as it:
        await it.chat("2 + 2?")
        await it.chat("2 + 2?", {"role": "assistant", "content": "4"}, "sure?")
        assert upstream.asked()[1] == {
            "role": "assistant", "content": "4", "reasoning_content": "2 and 2", "token_ids": [100, 7],
        }  # fmt: skip
        assert it.shape() == [["user", "sampled", "user", "sampled"]]


@during
async def test_calls_are_found_with_other_ids_and_other_json_and_results_follow_the_sampled_ids():
    async with program(upstream := Upstream([{"tool_calls": [CALL]}])) as it:
        await it.chat("1 + 2?", tools=[ADD])
        renamed = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"b":2,"a":1}'}}
        sent = [
            user("1 + 2?"),
            {"role": "assistant", "content": "", "tool_calls": [renamed]},
            {"role": "tool", "tool_call_id": "x", "content": "3"},
        ]
        second = await it.chat(*sent, tools=[ADD])
        assert upstream.asked()[1]["tool_calls"] == [CALL]
        assert upstream.asked()[2]["tool_call_id"] == "call_1"
        await it.chat(*sent, second["choices"][0]["message"], "thanks", tools=[ADD])
        assert it.shape() == [["user", "sampled", "tool", "sampled", "user", "sampled"]]


@during
async def test_each_of_n_choices_can_be_continued():
    async with program(upstream := Upstream()) as it:
        first = await it.chat("one", n=3)
        await it.chat("one", first["choices"][2]["message"], "two")
        assert upstream.asked()[1]["token_ids"] == [102, 7]
        assert it.shape() == [["user", "sampled", "user", "sampled"], ["user", "sampled"], ["user", "sampled"]]


@during
async def test_a_service_that_gives_one_choice_per_request_is_asked_for_the_rest():
    async with program(upstream := Upstream(gives=1)) as it:
        answer = await it.chat("one", n=3)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [request.n for request in upstream.requests] == [3, 2, 1]
        assert len({request.seed for request in upstream.requests}) == 3
        assert answer["usage"] == {"prompt_tokens": 15, "completion_tokens": 6, "total_tokens": 21}
        events = await it.events("one", n=2)
        assert {choice["index"] for event in events for choice in event["choices"]} == {0, 1}


@during
async def test_a_stream_is_recorded_as_a_whole_and_has_usage_and_logprobs_only_if_asked_for():
    async with program(Upstream()) as it:
        plain = await it.events("hello")
        assert "".join(c["delta"].get("content", "") for e in plain for c in e["choices"]) == "answer 0.0"
        assert not any("usage" in e or "logprobs" in c for e in plain for c in e["choices"])
        counted = await it.events("hello", stream_options={"include_usage": True})
        assert (counted[-1]["choices"], counted[-1]["usage"]["total_tokens"]) == ([], 7)
        assert it.shape() == [["user", "sampled"], ["user", "sampled"]]


@during
async def test_a_stream_of_a_service_that_does_not_stream_is_the_whole_answer():
    upstream = Upstream([{"content": "so", "tool_calls": [CALL]}])
    async with program(lambda request, _: upstream(request, None)) as it:
        first, last = await it.events("hello", tools=[ADD], stream_options={"include_usage": True})
        assert first["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **CALL}]
        assert last["usage"]["total_tokens"] == 7


@during
async def test_an_answer_that_the_clients_retry_replaced_is_left_out():
    async with program(Upstream()) as it:
        await it.chat("one")
        await it.post(messages=[user("one")], headers={"x-stainless-retry-count": "1"})
        [history] = it.rollout.histories()
        assert history.messages_and_choices[1].message.content == "answer 1.0"


@during
async def test_a_retry_after_an_error_replaces_no_answer():
    async with program(Upstream(["fine", UnreachableError("away")])) as it:
        await it.chat("one")
        assert (await it.post(messages=[user("one")])).status_code == 503
        await it.post(messages=[user("one")], headers={"x-stainless-retry-count": "1"})
        texts = [history.messages_and_choices[1].message.content for history in it.rollout.histories()]
        assert texts == ["fine", "answer 2.0"]


@during
async def test_a_call_whose_client_leaves_is_cancelled_and_not_recorded():
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def hang():
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with program(Upstream(before=hang)) as it:
        for stream in (False, True):
            reached.clear(), cancelled.clear()
            call = asyncio.create_task(it.post(messages=[user("one")], stream=stream))
            await reached.wait()
            call.cancel()
            await asyncio.wait_for(cancelled.wait(), 240)
        assert it.rollout.histories() == []


@during
async def test_a_key_grants_chat_and_the_list_of_its_one_model():
    async with program(Upstream()) as it:
        headers = {"Authorization": f"Bearer {it.rollout.key}"}
        models = (await it.http.get(f"{it.url}/v1/models", headers=headers)).json()
        assert [card["id"] for card in models["data"]] == ["policy"]
        for path in ("embeddings", "preview/training-jobs", "completions"):
            answer = await it.post(path)
            assert answer.status_code == 404
            assert "chat completions" in answer.json()["error"]["message"]


@during
async def test_the_scheme_of_a_key_may_be_in_any_case():
    async with program(Upstream()) as it:
        for scheme in ("bearer ", "BEARER  ", "Bearer "):
            answer = await it.post(messages=[user("x")], headers={"Authorization": scheme + it.rollout.key})
            assert answer.status_code == 200


@during
async def test_a_number_of_tries_that_is_none_is_ignored():
    async with program(Upstream()) as it:
        for count in ("9" * 5000, "many", "-1", "\u0663".encode()):
            answer = await it.post(messages=[user("x")], headers={"x-stainless-retry-count": count})
            assert answer.status_code == 200


@during
async def test_the_address_of_a_rollout_is_enough_whatever_the_key():
    async with program(Upstream()) as it:
        url = f"{it.url}/rollouts/{it.rollout.id}/v1"
        for headers in ({}, {"Authorization": "Bearer EMPTY"}):
            answer = await it.http.post(f"{url}/chat/completions", json={"messages": [user("x")]}, headers=headers)
            assert answer.status_code == 200
        assert (await it.http.get(f"{url}/models")).status_code == 200


@during
async def test_rollouts_are_recorded_apart_and_a_key_ends_with_its_rollout():
    async with program(Upstream()) as it:
        other = it.gateway.open(CallSettings("lab/practice", {}, lambda number: number))
        await it.chat("mine")
        assert other.histories() == []
        it.gateway.close(it.rollout)
        for answer in (
            await it.post(messages=[user("x")]),
            await it.http.post(f"{it.url}/rollouts/{it.rollout.id}/v1/chat/completions", json={}),
            await it.http.post(f"{it.url}/v1/chat/completions", json={}),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "invalid_request_error"


@during
async def test_calls_under_way_end_with_their_rollout():
    reached = asyncio.Event()

    async def hang():
        reached.set()
        await asyncio.Event().wait()

    async with program(Upstream(before=hang)) as it:
        call = asyncio.create_task(it.post(messages=[user("one")]))
        await reached.wait()
        it.gateway.close(it.rollout)
        with pytest.raises(Exception):  # noqa: B017, PT011 - the connection is closed, or an error
            (await asyncio.wait_for(call, 240)).raise_for_status()


def _refused() -> RefusedError:
    error = RefusedError("http://service answered 400 the prompt is too long", status=400)
    error.reported = {"message": "the prompt is too long", "code": "context_length_exceeded"}
    return error


@pytest.mark.parametrize(
    ("error", "status", "message", "code"),
    [
        (_refused(), 400, "the prompt is too long", "context_length_exceeded"),
        (NotFoundError("no such model"), 404, "no such model", None),
        (UnreachableError("nothing answers"), 503, "nothing answers", None),
        (SignInError("http://service refused the token"), 502, "the service refused the key of the lab", None),
        (BudgetError("$2 of $2 is spent"), 429, "$2 of $2 is spent", "insufficient_quota"),
    ],
)
def test_errors_of_the_service_are_passed_on_in_openais_form_and_not_retried(error, status, message, code):
    @during
    async def run():
        async with program(Upstream([error, error])) as it:
            for stream in (False, True):
                answer = await it.post(messages=[user("x")], stream=stream)
                assert (answer.status_code, answer.headers["x-should-retry"]) == (status, "false")
                problem = answer.json()["error"]
                assert (problem["message"], problem["code"]) == (message, code)
            assert it.rollout.histories() == []

    run()


@during
async def test_an_error_in_the_middle_of_a_stream_is_its_last_event():
    async def send(request, on_chunk):
        on_chunk({"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "so"}}]})
        raise UnreachableError("the response broke off")

    async with program(send) as it:
        *_, last = await it.events("hello")
        assert last["error"]["message"] == "the response broke off"
        assert it.rollout.histories() == []


@during
async def test_integers_may_be_floats_and_json_is_no_grammar():
    async with program(upstream := Upstream()) as it:
        await it.chat("x", max_tokens=20.0, seed=3.0, n=1.0, response_format={"type": "json_object"}, model="m")
        request = upstream.requests[0]
        assert (request.max_tokens, request.n, "response_format" in request.to_wire()) == (20, 1, False)
        assert request.seed == 1000 - 1 - 3  # of the rollout, and the same for each call with this seed


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [user("x")], "response_format": {"type": []}}, "response_format [] is not offered"),
        ({"messages": [user("x")], "response_format": {"type": "json_schema"}}, "openai-agents an Agent without"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [user("x")], "max_tokens": 2.5}, "max_tokens: "),
        ({"messages": [{"role": "nobody"}]}, "messages.0.role: role must be one of"),
    ],
)
def test_what_is_refused_names_the_field_and_what_to_type(body, message):
    @during
    async def run():
        async with program(upstream := Upstream()) as it:
            answer = await it.post(**body)
            assert answer.status_code == 400
            assert message in answer.json()["error"]["message"]
            assert upstream.requests == []

    run()


@during
async def test_what_is_no_json_is_refused():
    async with program(Upstream()) as it:
        headers = {"Authorization": f"Bearer {it.rollout.key}"}
        for text in ("{", "[]", json.dumps("x")):
            answer = await it.http.post(f"{it.url}/v1/chat/completions", content=text, headers=headers)
            assert answer.status_code == 400


def test_a_body_that_is_not_compressed_as_it_says_is_refused_without_a_traceback(caplog):
    @during
    async def run():
        async with program(Upstream()) as it:
            for encoding in ("gzip", "deflate"):
                headers = {"Authorization": f"Bearer {it.rollout.key}", "Content-Encoding": encoding}
                url = f"{it.url}/v1/chat/completions"
                answer = await it.http.post(url, content=b'{"messages": []}', headers=headers)
                assert answer.status_code == 400
                assert f"the body cannot be read: Can not decode content-encoding: {encoding}" in answer.text

    run()
    assert caplog.records == []


@during
async def test_arguments_of_any_depth_are_sent_as_they_are():
    deep = {**CALL, "function": {"name": "add", "arguments": "[" * 100_000}}
    async with program(upstream := Upstream()) as it:
        await it.chat("x", {"role": "assistant", "tool_calls": [deep]}, "y")
        assert upstream.asked()[1]["tool_calls"] == [deep]


ODD = [7, -1.5, True, "x", "", None, [], {}, [7], ["x"], [None], [[]], [{}], {"x": 1}, {"type": 7}, {"type": []}]
ODD += [{"type": "function"}, [{"type": "function"}], [{"type": []}], [{"type": "function", "function": 7}]]
ODD += [{"format": 7}, {"format": {"type": 7}}, [{"role": []}], [{"type": "message"}], [{"type": "function_call"}]]
ODD += [[{"type": "reasoning", "content": 7}], [{"type": "function_call_output", "call_id": 7, "output": {}}]]
OF_BOTH = (
    "model n max_tokens top_logprobs temperature top_p stop seed stream tools tool_choice parallel_tool_calls metadata "
)
OF_CHAT = "messages max_completion_tokens logprobs stream_options response_format user logit_bias store"
OF_RESPONSES = "input instructions max_output_tokens text include reasoning previous_response_id conversation prompt"
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
PATHS = {
    "chat/completions": ({"messages": [user("x")]}, OF_BOTH + OF_CHAT),
    "responses": ({"input": "x", "tools": [TOOL]}, OF_BOTH + OF_RESPONSES),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_field_of_any_type_is_answered_or_refused(path, stream, caplog):
    @during
    async def run():
        body, fields = PATHS[path]
        async with program(Upstream()) as it:
            for i, field in enumerate(fields.split()):
                for odd in ODD[(i + stream) % 2 :: 2]:  # each field and each value meets both
                    answer = await it.post(path, **{**body, "stream": stream, field: odd})
                    assert answer.status_code in {200, 400}, (field, odd, answer.text)

    run()
    assert caplog.records == []


@pytest.mark.parametrize(("swapped", "is_known"), [(("call_2", "call_1"), False), (("call_1", "call_2"), True)])
def test_results_are_known_only_if_they_are_of_the_same_calls(swapped, is_known):
    @during
    async def run():
        said = [{"tool_calls": [CALL, {**CALL, "id": "call_2"}]}, "both"]
        async with program(upstream := Upstream(said)) as it:
            first = await it.chat("1 + 2?", tools=[ADD])
            begun = [user("1 + 2?"), first["choices"][0]["message"]]
            await it.chat(*begun, *results("call_1", "call_2"), tools=[ADD])
            await it.chat(*begun, *results(*swapped), assistant("both"), "sure?", tools=[ADD])
            sent = upstream.asked()
            assert [message["tool_call_id"] for message in sent[2:4]] == list(swapped)
            assert [message["content"] for message in sent[2:4]] == ["one", "two"]
            assert ("token_ids" in sent[4]) is is_known
            assert sent[1]["token_ids"] == [100, 7]

    run()


@pytest.mark.parametrize(
    ("of_calls", "of_results"),
    [
        (("x", "y"), ("x", "y")),
        (("call_2", "call_1"), ("call_2", "call_1")),
        (("call_1", "call_2"), ("x", "y")),
        (("x", "y"), ("call_1", "call_2")),
        (("", ""), ("", "")),
        (("x", "x"), ("x", "x")),
    ],
)
def test_results_in_the_order_of_their_calls_are_known_whatever_the_ids_are(of_calls, of_results):
    @during
    async def run():
        said = [{"tool_calls": [CALL, {**CALL, "id": "call_2"}]}, "both"]
        async with program(upstream := Upstream(said)) as it:
            await it.chat("1 + 2?", tools=[ADD])
            called = {"role": "assistant", "tool_calls": [{**CALL, "id": name} for name in of_calls]}
            begun = [user("1 + 2?"), called, *results(*of_results)]
            await it.chat(*begun, tools=[ADD])
            if of_calls == of_results:
                assert [message["tool_call_id"] for message in upstream.asked()[2:4]] == ["call_1", "call_2"]
            await it.chat(*begun, assistant("both"), "sure?", tools=[ADD])
            assert it.shape() == [["user", "sampled", "tool", "tool", "sampled", "user", "sampled"]]

    run()


def results(*names):
    return [
        {"role": "tool", "tool_call_id": name, "content": text}
        for name, text in zip(names, ("one", "two"), strict=True)
    ]


def assistant(text):
    return {"role": "assistant", "content": text}


@during
async def test_settings_of_the_collection_replace_those_of_the_program():
    async with program(upstream := Upstream(), temperature=1.5, max_tokens=9) as it:
        await it.chat("x", temperature=0, max_tokens=500)
        await it.chat("x", max_completion_tokens=500)
        assert [request.temperature for request in upstream.requests] == [1.5, 1.5]
        assert upstream.requests[0].max_tokens == 9
        assert (upstream.requests[1].max_tokens, upstream.requests[1].max_completion_tokens) == (None, 9)
        assert it.rollout.sampling == {"temperature": 1.5}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:8888"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:1234"}, 200),
        ({}, 200),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "models"])
def test_a_web_page_reaches_no_policy_neither_by_its_origin_nor_under_a_name_of_its_own(headers, status, path):
    async def story():
        async with program(upstream := Upstream()) as it:
            body = {"messages": [user("x")], "input": "x", "model": "m"}
            url, key = f"{it.url}/v1/{path}", {"Authorization": f"Bearer {it.rollout.key}"}
            method = "GET" if path == "models" else "POST"
            content = None if method == "GET" else json.dumps(body)
            answer = await it.http.request(method, url, content=content, headers={**key, **headers})
            return answer, upstream.requests

    answer, requests = asyncio.run(story())
    assert answer.status_code == status
    if status == 403:
        assert not requests
        assert "gateway" in answer.json()["error"]["message"]
