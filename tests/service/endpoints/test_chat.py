"""Completions whose clients leave, whose sampler fails and whose service stops, in process and on a real server."""

import asyncio
import json
import threading

import pytest
import uvicorn

from rolloutlab.errors import LabError, PolicyError, ServiceError
from rolloutlab.policy.decode import Decoder
from rolloutlab.service.endpoints.chat import Completer, Ledger
from rolloutlab.service.serve import Server

PATIENCE = 240.0


@pytest.fixture
def service(start):
    """One for each test: these train, stop or break it."""
    return start()


@pytest.fixture
def held(monkeypatch):
    """Decoding, stopped before the third token until it is released; how many steps there were."""

    class Held:
        def __init__(self):
            self.steps, self.reached, self.released = 0, threading.Event(), threading.Event()

    held, step = Held(), Decoder.step

    def held_step(decoder):
        held.steps += 1
        if held.steps == 3:
            held.reached.set()
            assert held.released.wait(PATIENCE)
        return step(decoder)

    monkeypatch.setattr(Decoder, "step", held_step)
    yield held
    held.released.set()


@pytest.fixture
def failing(monkeypatch):
    """Makes the third step of decoding raise an error, once."""

    def fail(error):
        step, steps = Decoder.step, iter([None, None, error])

        def failing_step(decoder):
            if found := next(steps, None):
                raise found
            return step(decoder)

        monkeypatch.setattr(Decoder, "step", failing_step)

    return fail


@pytest.fixture
def live(service):
    """The port of a real server of the service, which logs where the tests read."""
    config = uvicorn.Config(service.http._transport.app, port=0, lifespan="off", log_config=None)
    server = Server(config, service.jobs.end_streams)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


def body(service, **options):
    return {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 60, "seed": 3, **options}


async def ask(service, port, **options):
    """A chat on a connection of its own, left open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body(service, **options))
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(text)}"]
    writer.write("\r\n".join([*lines, f"Authorization: Bearer {service.address.token}", "", text]).encode())
    return reader, writer


def events(service, **options):
    """The parts of a stream, parsed but for its end."""
    text = service.text("/v1/chat/completions", body(service, stream=True, **options))
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part.startswith("data: {")], text


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


@pytest.mark.parametrize("stream", [True, False])
def test_decoding_stops_when_the_client_leaves_and_nothing_is_complained_about(
    service, live, held, monkeypatch, caplog, stream
):
    left = threading.Event()

    answer, streamed = Completer.complete, Completer.stream

    async def watched_answer(*values):
        try:
            return await answer(*values)
        finally:
            left.set()

    async def watched_stream(*values):
        pieces = streamed(*values)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()
            left.set()

    monkeypatch.setattr(Completer, "complete", watched_answer)
    monkeypatch.setattr(Completer, "stream", watched_stream)

    async def ask_and_leave():
        _, writer = await ask(service, live, stream=stream)
        await asyncio.to_thread(held.reached.wait, PATIENCE)
        writer.close()

    service.http.run(asyncio.wait_for(ask_and_leave(), PATIENCE))
    assert left.wait(PATIENCE)
    held.released.set()
    assert service.chat(max_tokens=1).choices  # the sampler has taken the step after the held one, and goes on
    assert held.steps < 30  # of the 60 that were asked for
    assert errors(caplog) == []


def test_a_policy_that_fails_half_way_ends_the_stream_with_what_happened(service, failing, caplog):
    failing(PolicyError("the policy gives no finite probabilities"))
    found, text = events(service)
    assert found[-1] == {"error": {"message": "the policy gives no finite probabilities", "type": "server_error"}}
    assert "[DONE]" not in text
    assert len(found) == 4  # the opening, and two tokens
    assert errors(caplog) == []
    assert service.chat().choices


def test_a_failure_that_nobody_foresaw_ends_the_stream_and_is_in_the_log(service, failing, caplog):
    failing(ZeroDivisionError("secret"))
    found, text = events(service)
    assert found[-1]["error"]["message"] == "the service failed; its log has the details"
    assert "secret" not in text
    assert errors(caplog) == ["a streamed completion failed"]
    assert service.chat().choices


@pytest.mark.parametrize("stream", [True, False])
def test_a_service_that_stops_says_so_to_those_who_wait(service, held, stream):
    engine = next(close.__self__ for close in service.closing if type(close.__self__).__name__ == "LocalEngine")
    answers = []

    def wait():
        try:
            answers.append(
                events(service)[0][-1]["error"]["message"] if stream else service.chat("a", max_tokens=60, seed=3)
            )
        except ServiceError as error:
            answers.append(str(error))

    client = threading.Thread(target=wait)
    client.start()
    assert held.reached.wait(PATIENCE)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._inference._sampler._closed:
        assert closing.is_alive()
    held.released.set()
    client.join(PATIENCE)
    closing.join(PATIENCE)
    assert "the service is being stopped" in answers[0]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_given_though_it_cannot_be_counted(service, monkeypatch, stream):
    def full(*_):
        raise LabError("the disk is full")

    monkeypatch.setattr(Ledger, "add", full)
    if stream:
        assert events(service)[1].endswith("data: [DONE]\n\n")
    else:
        assert service.chat().choices
    assert service.call("GET", "/v1/preview/usage")["data"] == []


def test_others_are_answered_while_a_stream_waits_to_be_counted(service, monkeypatch):
    waits, released, add = threading.Event(), threading.Event(), Ledger.add

    def slow(*values):
        waits.set()
        assert released.wait(PATIENCE)
        add(*values)

    monkeypatch.setattr(Ledger, "add", slow)
    texts = []
    client = threading.Thread(target=lambda: texts.append(events(service)[1]))
    client.start()
    try:
        assert waits.wait(PATIENCE)
        assert service.call("GET", "/v1/health", timeout=PATIENCE)["status"] == "ok"
    finally:
        released.set()
        client.join(PATIENCE)
    assert texts[0].endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 + 1, -(2**70), 10**400])
def test_any_integer_is_a_seed(service, seed):
    first, second = (service.chat(seed=seed).choices[0].message.content for _ in range(2))
    assert first == second


def test_the_context_can_be_filled_to_its_last_token(service):
    longest = service.chat(max_tokens=1).usage.prompt_tokens
    words = "a" * (127 - longest - 4)
    while service.chat(words, max_tokens=1).usage.prompt_tokens < 127:
        words += "a"
    [choice] = service.chat(words, max_tokens=50).choices
    assert len(choice.sampled_tokens()) == 1
    [alone] = service.chat(words, max_tokens=1, top_logprobs=20, n=1).choices
    assert len(alone.sampled_tokens()[0].top_logprobs) == 20


def test_completions_of_a_stream_end_each_in_its_own_way(service):
    whole = service.chat(seed=3, n=3, max_tokens=40)
    stop = whole.choices[1].message.content[4:6]
    whole = service.chat(seed=3, n=3, max_tokens=40, stop=stop, top_logprobs=2)
    chunks = service.stream(seed=3, n=3, max_tokens=40, stop=stop, top_logprobs=2)
    for choice in whole.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.delta.content or "" for c in own) == choice.message.content
        assert [e for c in own if c.logprobs for e in c.logprobs.content] == choice.sampled_tokens()
        assert all(len(e.top_logprobs) == 2 for c in own if c.logprobs for e in c.logprobs.content)
        assert [c.finish_reason for c in own if c.finish_reason] == [choice.finish_reason]
        assert stop not in choice.message.content
    assert {choice.finish_reason for choice in whole.choices} >= {"stop"}


def test_tools_a_stop_string_and_a_stream_go_together(practice_service):
    function = {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {}}}}
    options = {"tools": [{"type": "function", "function": function}], "max_tokens": 48, "temperature": 0}
    for stop in (["expression"], ["</tool_call>"], ["{"], ["zzz"]):
        [choice] = practice_service.chat("What is 27 + 35?", **options, stop=stop).choices
        chunks = practice_service.stream("What is 27 + 35?", **options, stop=stop)
        deltas = [c.delta for chunk in chunks for c in chunk.choices]
        assert "".join(d.content or "" for d in deltas) == (choice.message.content or "")
        calls = [call.function for d in deltas for call in d.tool_calls or []]
        assert calls == [call.function for call in choice.message.tool_calls or []]
        assert chunks[-1].choices[0].finish_reason == choice.finish_reason
