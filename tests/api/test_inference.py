"""A completion that comes in chunks: what is shown on the way, and that its end is as if it had come whole."""

import asyncio
import dataclasses
import json
import traceback
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import aiohttp
import httpx
import pytest

from rolloutlab.api import training
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.inference import StreamedCompletion, complete, models, score_histories, stream
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.api.wire.training import RegisterModel
from rolloutlab.errors import BrokenOffError, RefusedError, RolloutlabError, ServiceError
from rolloutlab.settings import Address

ADDRESS = Address("http://chat.example", "http://chat.example/v1", None)
REQUEST = ChatRequest.model_validate({"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": True})
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """A chunk of one choice, as OpenAI's service words it."""
    choices = [{"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish, **choice}]
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "system_fingerprint": None}
    return {**head, "service_tier": "default", "choices": choices, "usage": None}


def logprobs(token: str) -> dict[str, Any]:
    content = [{"token": token, "bytes": list(token.encode()), "logprob": -0.5, "top_logprobs": []}]
    return {"content": content, "refusal": None}


def told(*chunks: dict[str, Any], end: str = "\n") -> bytes:
    """The events of a stream, and its end."""
    lines = [f"data: {json.dumps(each, ensure_ascii=False)}{end}{end}" for each in chunks]
    return ("".join(lines) + f"data: [DONE]{end}{end}").encode()


HELLO = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"content": "Hel"}, logprobs=logprobs("Hel")),
    chunk({"content": "lo"}, logprobs=logprobs("lo")),
    chunk(finish="stop"),
    {**chunk(), "choices": [], "usage": USAGE},
]


class Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces of so many bytes and may break off."""

    def __init__(self, body: bytes, size: int, trouble: Exception | None = None) -> None:
        self._body, self._size, self._trouble = body, size, trouble

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for i in range(0, len(self._body), self._size):
            yield self._body[i : i + self._size]
        if self._trouble:
            raise self._trouble


@pytest.fixture
def listen():
    """Streams a completion from a service that answers so; gives it, and the texts that were shown."""
    made: list[HttpClient] = []

    def go(body: bytes, size: int = 7, trouble: Exception | None = None, kind: str = "text/event-stream", status=200):
        def answer(request: httpx.Request) -> httpx.Response:
            assert json.loads(request.content)["stream"] is True
            return httpx.Response(status, headers={"Content-Type": kind}, stream=Pieces(body, size, trouble))

        made.append(HttpClient(httpx.MockTransport(answer), backoff=0))
        shown: list[str] = []
        return made[-1].run(stream(made[-1], ADDRESS, REQUEST, shown.append)), shown

    yield go
    for http in made:
        http.close()


@pytest.mark.parametrize("size", [1, 5, 10_000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_stream_is_shown_as_it_comes_and_is_whole_at_the_end(listen, size, end):
    completion, shown = listen(told(*HELLO, end=end), size)
    assert shown == ["Hel", "Hello"]
    (choice,) = completion.choices
    assert (completion.id, completion.model, completion.created) == ("c", "m-1", 1)
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello", "stop")
    assert [entry.token for entry in choice.sampled_tokens()] == ["Hel", "lo"]
    assert completion.usage.to_wire() == USAGE
    assert completion.model_extra["service_tier"] == "default"


def test_comments_other_fields_and_the_space_after_a_colon_mean_nothing(listen):
    body = told(*HELLO).replace(b"data: ", b": OPENROUTER PROCESSING\n\nid: 1\nevent: message\ndata:")
    assert listen(body)[0].choices[0].message.content == "Hello"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_character_that_python_takes_for_the_end_of_a_line_is_text(listen, separator):
    text = f"a{separator}b"
    completion, _ = listen(told(chunk({"content": text}), chunk(finish="stop")), size=3)
    assert completion.choices[0].message.content == text


def _events(end="\n\n", **style):
    return [f"data: {json.dumps(each, **style)}{end}" for each in HELLO]


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    "body",
    [
        "\ufeff" + "".join(_events()) + "data: [DONE]\n\n",
        "data:\n\n" + "data: \n\n".join(_events()) + "data:\n\n",
        "".join(_events(indent=1)).replace("\n ", "\ndata:  ").replace("\n}", "\ndata: }") + "data: [DONE]\n\n",
        "".join(_events("\r\r")) + "data: [DONE]\r\r",
        "".join(_events("\n")) + "data: [DONE]\n",
        "".join(_events("\r\n")) + "data: [DONE]\r\n",
        "".join(_events()) + "data: [DONE]\n\n" + "data: {\n\n",
    ],
    ids=["a mark", "empty data", "many lines", "CR", "one LF", "one CRLF", "more after the end"],
)
def test_every_form_of_an_event_stream_is_read(listen, body, size):
    completion, shown = listen(body.encode(), size)
    assert (completion.choices[0].message.content, shown) == ("Hello", ["Hel", "Hello"])
    assert [entry.token for entry in completion.choices[0].sampled_tokens()] == ["Hel", "lo"]


def test_the_type_of_an_event_stream_may_be_in_capitals(listen):
    assert listen(told(*HELLO), kind="TEXT/Event-Stream; charset=utf-8")[0].choices[0].message.content == "Hello"


@pytest.mark.parametrize("trouble", [httpx.ReadError("reset"), httpx.RemoteProtocolError("no last chunk")])
def test_a_stream_that_breaks_off_after_its_end_is_whole(listen, trouble):
    assert listen(told(*HELLO), trouble=trouble)[0].choices[0].message.content == "Hello"


def test_a_server_that_holds_the_connection_after_the_end_is_not_waited_for(listen, monkeypatch):
    class Held(Pieces):
        async def __aiter__(self):
            async for piece in super().__aiter__():
                yield piece
            await asyncio.Event().wait()

    monkeypatch.setattr("tests.api.test_inference.Pieces", Held)
    assert listen(told(*HELLO))[0].choices[0].message.content == "Hello"


def test_halves_of_an_emoji_in_two_chunks_are_one_and_a_lone_half_is_replaced(listen):
    texts = ["first \ud83d", "\ude00, then \ud83d"]
    body = "".join(f"data: {json.dumps(chunk({'content': text}))}\n\n" for text in texts)
    end = f"data: {json.dumps(chunk(finish='stop'))}\n\ndata: [DONE]\n\n"
    whole, _ = listen((body + end).encode())
    assert whole.choices[0].message.content == "first 😀, then \ufffd"


@pytest.mark.parametrize("as_event", [True, False])
def test_half_of_an_emoji_in_a_completion_that_comes_whole_is_replaced(listen, as_event):
    message = {"role": "assistant", "content": "hi \ud83d"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    kind = "text/event-stream" if as_event else "application/json"
    whole, _ = listen(f"data: {body}\n\n".encode() if as_event else body.encode(), kind=kind)
    assert whole.choices[0].message.content == "hi \ufffd"


def test_no_chunk_is_shown_with_half_of_a_character():
    shown = []
    answer = StreamedCompletion(lambda chunk: shown.append(chunk["choices"][0]["delta"]["content"]))
    for text in ("first \ud83d", "\ude00, then \ud83d", " and \ud83d"):
        answer.add(json.dumps(chunk({"content": text})))
    assert shown == ["first ", "😀, then ", "\ufffd and "]
    answer.add(json.dumps(chunk({"content": ""}, finish="stop")))
    assert answer.whole()["choices"][0]["message"]["content"] == "first 😀, then \ufffd and \ufffd"


def test_a_chunk_that_is_nested_too_deep_is_the_services_error(listen):
    with pytest.raises(ServiceError, match="invalid chunk"):
        listen(b"data: " + b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n", size=1_000_000)


def call(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    """A piece of a tool call; id, type and name come with its first."""
    function = {"arguments": arguments, **({"name": first.pop("name")} if first else {})}
    return {"index": index, "function": function, **first}


def test_the_arguments_of_tool_calls_come_in_pieces(listen):
    completion, shown = listen(
        told(
            chunk({"role": "assistant", "content": None}),
            chunk({"tool_calls": [call(0, "", id="a", type="function", name="weather")]}),
            chunk({"tool_calls": [call(0, '{"city": ')]}),
            chunk({"tool_calls": [call(0, '"Paris"}')]}),
            chunk({"tool_calls": [call(1, "{}", id="b", type="function", name="time")]}),
            chunk(finish="tool_calls"),
        )
    )
    (choice,) = completion.choices
    assert [(c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [
        ("a", "weather", '{"city": "Paris"}'),
        ("b", "time", "{}"),
    ]
    assert (choice.message.content, choice.finish_reason, shown) == (None, "tool_calls", [])


def test_text_may_come_in_parts_and_arguments_as_an_object(listen):
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    body = told(chunk({"content": parts}), chunk({"tool_calls": [call]}, finish="tool_calls"))
    completion, shown = listen(body)
    assert (completion.choices[0].message.content, shown) == ("Hello", ["Hello"])
    assert completion.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'


def test_a_refusal_is_shown_and_kept(listen):
    completion, shown = listen(told(chunk({"refusal": "I can"}), chunk({"refusal": "not"}), chunk(finish="stop")))
    assert (completion.choices[0].message.refusal, shown[-1]) == ("I cannot", "I cannot")


@pytest.mark.parametrize("trouble", [None, httpx.ReadError("connection lost"), httpx.ReadTimeout("late")])
def test_a_stream_that_breaks_off_is_no_completion(listen, trouble):
    with pytest.raises(ServiceError, match="broke off") as broken:
        listen(told(*HELLO[:2]).replace(b"data: [DONE]\n\n", b""), trouble=trouble)
    assert isinstance(broken.value, BrokenOffError) == (trouble is not None)


@pytest.mark.parametrize(
    ("error", "said"), [({"message": "out of memory", "code": 500}, "out of memory"), ("out of memory", "out of mem")]
)
def test_an_error_in_the_middle_is_told_in_the_services_words(listen, error, said):
    with pytest.raises(ServiceError, match=f"the response broke off: {said}"):
        listen(told(*HELLO[:2], {"error": error}, *HELLO[2:]))


@pytest.mark.parametrize("nonsense", ["{", "[]", '"text"', "null", '{"choices": [1]}', '{"choices": {"a": 1}}'])
def test_a_chunk_that_is_none_is_the_services_error(listen, nonsense):
    with pytest.raises(ServiceError, match="the response has an invalid chunk") as caught:
        listen(f"data: {nonsense}\n\n".encode() + told(*HELLO))
    assert caught.value.hint == "%model selects another model, %connect another service"


def test_a_service_that_ignores_the_wish_for_a_stream_is_understood(listen):
    message = {"role": "assistant", "content": "Hello"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
    completion, shown = listen(json.dumps(whole, indent=1).encode(), kind="application/json")
    assert (completion.choices[0].message.content, shown) == ("Hello", [])


def test_a_refused_stream_is_told_as_any_refusal(listen):
    with pytest.raises(RefusedError, match="no streams here"):
        listen(b'{"error": {"message": "no streams here"}}', kind="application/json", status=400)


@pytest.mark.parametrize("body", [b"", b"data: [DONE]\n\n", b": nothing\n\n"])
def test_a_stream_of_nothing_is_no_completion(listen, body):
    with pytest.raises(ServiceError, match="broke off before its end"):
        listen(body)


@pytest.mark.parametrize("seed", range(3))
def test_the_embedded_service_streams_what_it_would_have_said_whole(service, seed):
    messages = [{"role": "user", "content": "hello"}]
    sent = {"model": service.policy, "messages": messages, "seed": seed, "max_tokens": 20, "logprobs": True}
    request, shown = ChatRequest.model_validate(sent), []
    streamed = service.http.run(stream(service.http, service.address, request, shown.append))
    whole = service.http.run(complete(service.http, service.address, request))
    assert same(streamed) == same(whole)
    assert shown[-1] == whole.choices[0].message.content
    assert all(after.startswith(before) for before, after in pairwise(shown))


def same(completion: ChatCompletion) -> dict[str, Any]:
    """All of it but its name and time."""
    return {name: value for name, value in completion.to_wire().items() if name not in {"id", "created"}}


def test_the_arguments_of_a_call_may_be_an_object():
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"city": "Köln"}}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    with closing(HttpClient(httpx.MockTransport(lambda _: httpx.Response(200, json={"choices": [choice]})))) as http:
        completion = http.run(complete(http, ADDRESS, REQUEST))
    assert completion.choices[0].message.tool_calls[0].function.arguments == '{"city": "Köln"}'


@pytest.mark.parametrize(("created", "kept"), [("1.5", 1), ("NaN", 0), ("1e400", 0), ('"now"', 0)])
def test_a_time_of_any_form_is_no_reason_to_lose_a_completion(created, kept):
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    body = f'{{"created": {created}, "choices": [{json.dumps(choice)}]}}'
    with closing(HttpClient(httpx.MockTransport(lambda _: httpx.Response(200, content=body)))) as http:
        completion = http.run(complete(http, ADDRESS, REQUEST))
    assert (completion.created, completion.choices[0].message.content) == (kept, "yes")


def test_a_response_that_is_cut_off_is_said_to_have_come():
    def cut(request):
        text = "Response payload is not completed: <ContentLengthError: 400, message='Not enough data'>"
        raise httpx.ReadError(text) from aiohttp.ClientPayloadError(text)

    with closing(HttpClient(httpx.MockTransport(cut), backoff=0)) as http, pytest.raises(BrokenOffError) as caught:
        http.run(http.request("GET", "http://chat.example/v1/models"))
    assert caught.value.message == (
        "http://chat.example answered, but the connection was closed before the end of the response"
    )


KEY = "sk-a-key-that-is-secret"
MALFORMED = {
    "another form": {"id": KEY, "choices": [{"index": KEY, "message": {"role": KEY}}], "model": KEY},
    "an error": {"error": {"message": f"bad key {KEY}", "code": KEY}},
    "an error with a status": {"error": {"message": f"bad key {KEY}", "type": KEY, "param": KEY, "code": 400}},
    "no JSON": f"<html>{KEY}</html>",
    "a failed choice": {"choices": [{"index": 0, "finish_reason": "error", "error": {"message": f"key {KEY}"}}]},
    "nothing": {"choices": [], "key": KEY},
    "a chunk": [KEY],
}


class Source:
    """A token source as of a sign-in."""

    def of(self, url):
        return self

    async def token(self):
        return KEY

    async def after(self, *_):
        return False


def everything_in(error: BaseException | None) -> list[str]:
    """All texts of an error and of those in its chain, which front ends show and logs keep."""
    if error is None:
        return []
    shown = [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
    return [*shown, *everything_in(error.__cause__), *everything_in(error.__context__)]


@pytest.mark.parametrize("status", [200, 400, 401, 404, 422, 500])
@pytest.mark.parametrize("token", [KEY, Source()], ids=["key", "sign-in"])
@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("answer", MALFORMED)
def test_a_key_that_a_service_repeats_is_nowhere_in_the_error_and_its_chain(answer, streamed, token, status):
    body = MALFORMED[answer] if isinstance(MALFORMED[answer], str) else json.dumps(MALFORMED[answer])
    kind = {"Content-Type": "text/event-stream"} if streamed and answer == "a chunk" else {}
    content = f"data: {body}\n\n" if kind else body
    http = HttpClient(httpx.MockTransport(lambda _: httpx.Response(status, text=content, headers=kind)), tries=1)
    address = dataclasses.replace(
        ADDRESS, token=token, base_url="https://s.example", inference_base_url="https://s.example/v1"
    )
    work = stream(http, address, REQUEST, lambda _: None) if streamed else complete(http, address, REQUEST)
    with pytest.raises(RolloutlabError) as caught:
        http.run(work)
    http.close()
    assert not [text for text in everything_in(caught.value) if KEY in text]


CALLS = {
    "logprobs": lambda http, at: score_histories(http, at, "m", []),
    "register": lambda http, at: training.register_model(http, at, RegisterModel(name="m", project="p")),
    "checkpoints": lambda http, at: training.checkpoints(http, at, "m"),
    "lost": training.lost_checkpoints,
    "job": lambda http, at: training.job(http, at, "j"),
    "events": lambda http, at: training.events(http, at, "j"),
    "upload": lambda http, at: training.upload(http, at, [b"{}"]),
}


@pytest.mark.parametrize("body", [{"data": [{"id": KEY}]}, {"data": KEY, "model": KEY, "turns": KEY}, [KEY], KEY])
@pytest.mark.parametrize("call", CALLS)
def test_a_key_in_an_answer_of_another_form_is_nowhere_in_the_error_and_its_chain(call, body):
    http = HttpClient(httpx.MockTransport(lambda _: httpx.Response(200, json=body)), tries=1)
    with pytest.raises(ServiceError, match="answered in another form") as caught:
        http.run(CALLS[call](http, dataclasses.replace(ADDRESS, base_url="https://s.example", token=KEY)))
    http.close()
    assert not [text for text in everything_in(caught.value) if KEY in text]


@pytest.mark.parametrize("data", [[], [{"id": "1", "type": "gradient_step", "data": {}}]])
def test_a_list_whose_next_page_has_nothing_new_ends(data):
    pages = iter([{"object": "list", "data": [{"id": "1", "type": "heartbeat", "data": {}}], "has_more": True}])
    same = {"object": "list", "data": data, "has_more": True}
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.params))
        assert len(asked) < 9
        return httpx.Response(200, json=next(pages, same))

    with closing(HttpClient(httpx.MockTransport(answer), tries=1)) as http:
        assert [each.type for each in http.run(training.events(http, ADDRESS, "j"))] == ["heartbeat"]


def test_a_list_of_models_that_is_refused_for_now_is_not_taken_for_none():
    with (
        closing(HttpClient(httpx.MockTransport(lambda _: httpx.Response(429)), tries=1)) as http,
        pytest.raises(RefusedError, match="429") as caught,
    ):
        http.run(models(http, ADDRESS))
    assert caught.value.status == 429


def test_reasoning_under_both_of_its_names_is_shown_once():
    streamed = StreamedCompletion()
    streamed.add(json.dumps(chunk({"reasoning": "so", "reasoning_content": "so"})))
    streamed.add(json.dumps(chunk({"content": "yes"}, finish="stop")))
    assert streamed.text == "soyes"
    assert streamed.whole()["choices"][0]["message"]["reasoning_content"] == "so"


@pytest.mark.parametrize("header", ["X-Chroma-Token", "X-API-Key", "Authorization"])
def test_a_key_in_any_header_is_masked_in_errors(header):
    http = HttpClient(httpx.MockTransport(lambda _: httpx.Response(400, json={"error": {"message": KEY, "type": KEY}})))
    with pytest.raises(RolloutlabError) as caught:
        http.run(http.request("GET", "https://s.example/x", headers={header: KEY}))
    http.close()
    assert not [text for text in everything_in(caught.value) if KEY in text]
