"""One loop, one pool: how requests are sent, and what comes of those that fail."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from typing import Any

import httpx
import pytest
import uvicorn

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.secrecy import Unencrypted
from rolloutlab.api.http.transport import ProxyRouter
from rolloutlab.errors import (
    BrokenOffError,
    InputError,
    NotFoundError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)

URL = "https://train.example/v1/health"
TOKEN = "sekret"

PATIENCE = 240.0
"""Seconds after which a test that waits for something is a test that fails."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[Any]]


class Script:
    """Answers requests in turn, the last for ever; an error is raised. `sent` has every request."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers = answers
        self.sent: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        answer = self._answers[min(len(self.sent), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ok(**body: Any) -> httpx.Response:
    return httpx.Response(200, json=body)


@pytest.fixture
def talk():
    """Makes an Http that a function answers; `backoff` is 0, and no answer keeps a test waiting."""
    made: list[HttpClient] = []

    def make(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> HttpClient:
        made.append(HttpClient(httpx.MockTransport(answer), **{"backoff": 0, **options}))
        return made[-1]

    yield make
    for http in made:
        http.close()


@pytest.fixture
def ask(talk):
    """Sends one request to a script and returns the answer."""

    def send(script: Script, method: str = "GET", **options: Any) -> Any:
        http = talk(script)
        return http.run(http.request(method, URL, **{"token": TOKEN, **options}))

    return send


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that were to be waited between tries; nothing waits."""
    seconds: list[float] = []

    async def sleep(delay: float) -> None:
        seconds.append(delay)

    monkeypatch.setattr("rolloutlab.api.http.client.asyncio.sleep", sleep)
    return seconds


@pytest.fixture
def http():
    """An Http with real connections."""
    http = HttpClient(backoff=0)
    yield http
    http.close()


@pytest.fixture
def serve(http):
    """Starts a server that treats each connection, once its request has been read, as told; gives its address."""
    servers: list[asyncio.Server] = []

    def start(treat: Handler) -> str:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                await treat(reader, writer)
            writer.close()

        servers.append(http.run(asyncio.start_server(connected, "127.0.0.1", 0)))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    async def stop() -> None:
        for server in servers:
            server.close()

    yield start
    http.run(stop())


@pytest.fixture
def closed_port():
    """A port of this machine on which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def raw(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(*answers: bytes) -> Handler:
    """Treats the first connection with the first answer, and so on; the last for ever."""
    left = list(answers)

    async def treat(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return treat


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Says nothing for as long as the client waits."""
    await reader.read()


def words(error: BaseException) -> str:
    """Everything that an error may show to anyone: its lines, and the whole traceback with its causes."""
    shown = error._render_traceback_() if isinstance(error, RolloutlabError) else []
    return "\n".join([*shown, *traceback.format_exception(error)])


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rolloutlab-http"]


def test_the_answer_is_its_json(ask):
    assert ask(Script(ok(a=[1, None, "é"]))) == {"a": [1, None, "é"]}


def test_a_request_carries_its_token_parameters_headers_and_body(ask):
    script = Script(ok())
    ask(script, "POST", json={"a": 1}, params={"after": "x y", "limit": 2}, headers={"Idempotency-Key": "k"})
    (sent,) = script.sent
    assert (sent.method, str(sent.url)) == ("POST", f"{URL}?after=x+y&limit=2")
    assert sent.headers["Authorization"] == f"Bearer {TOKEN}"
    assert sent.headers["Idempotency-Key"] == "k"
    assert (sent.headers["Content-Type"], sent.content) == ("application/json", b'{"a":1}')


def test_content_is_sent_as_json_that_is_written_already(ask):
    script = Script(ok())
    ask(script, "POST", content='{"a": "é"}')
    assert script.sent[0].headers["Content-Type"] == "application/json"
    assert script.sent[0].content == '{"a": "é"}'.encode()


@pytest.mark.clause("A1")
@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_none_is_sent(ask, token):
    script = Script(ok())
    ask(script, token=token)
    assert "Authorization" not in script.sent[0].headers


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    "trouble",
    [
        *(httpx.Response(status) for status in (408, 409, 429, 500, 502, 503, 504, 599)),
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("late"),
        httpx.ReadTimeout("late"),
        httpx.ReadError("broken"),
        httpx.RemoteProtocolError("broken"),
    ],
    ids=lambda trouble: str(getattr(trouble, "status_code", type(trouble).__name__)),
)
def test_get_and_delete_are_tried_again_when_that_can_help(ask, method, trouble):
    script = Script(trouble, trouble, ok(a=1))
    assert ask(script, method) == {"a": 1}
    assert len(script.sent) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405, 413, 422])
def test_what_another_try_cannot_help_is_tried_once(ask, status):
    script = Script(httpx.Response(status))
    with pytest.raises(RolloutlabError):
        ask(script)
    assert len(script.sent) == 1


@pytest.mark.parametrize("trouble", [httpx.Response(503), httpx.ConnectError("refused")])
def test_a_post_is_never_tried_again_by_itself(ask, trouble):
    script = Script(trouble, ok())
    with pytest.raises(ServiceError):
        ask(script, "POST", json={})
    assert len(script.sent) == 1


@pytest.mark.parametrize("trouble", [httpx.Response(503), httpx.ConnectError("refused")])
def test_a_post_is_tried_again_when_asked_for_with_the_same_body(ask, trouble):
    script = Script(trouble, ok(a=1))
    assert ask(script, "POST", json={"b": 2}, retry=True) == {"a": 1}
    assert [sent.content for sent in script.sent] == [b'{"b":2}'] * 2


def test_a_get_is_tried_once_when_asked_for(ask):
    script = Script(httpx.Response(503), ok())
    with pytest.raises(ServiceError):
        ask(script, retry=False)
    assert len(script.sent) == 1


@pytest.mark.parametrize(
    ("trouble", "kind"), [(httpx.Response(409), RefusedError), (httpx.ReadError(""), BrokenOffError)]
)
def test_after_the_last_try_its_error_is_raised(talk, trouble, kind):
    script = Script(trouble)
    http = talk(script, tries=3)
    with pytest.raises(kind):
        http.run(http.request("GET", URL))
    assert len(script.sent) == 3


def test_between_two_tries_the_time_that_the_service_asks_for_passes(talk, pauses):
    http = talk(Script(httpx.Response(429, headers={"retry-after": "7"}), ok()))
    http.run(http.request("GET", URL))
    assert pauses == [7.0]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, RefusedError),
        (401, SignInError),
        (403, SignInError),
        (404, NotFoundError),
        (409, RefusedError),
        (413, RefusedError),
        (422, RefusedError),
        (429, RefusedError),
        (500, ServiceError),
        (503, ServiceError),
    ],
)
def test_an_error_is_translated_by_its_status(ask, status, kind):
    with pytest.raises(ServiceError if kind is ServiceError else kind) as refused:
        ask(Script(httpx.Response(status, json={"error": {"message": "no such thing"}})))
    assert type(refused.value) is kind
    assert "no such thing" in refused.value.message


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a":', b"\xff\xfe"])
def test_an_answer_that_is_not_json_is_the_services_error(ask, body):
    with pytest.raises(ServiceError, match=r"train\.example answered with something that is not JSON"):
        ask(Script(httpx.Response(200, content=body)))


def test_half_an_emoji_in_an_answer_is_a_replacement_character(ask):
    body = rb'{"text": "half \ud83d, whole \ud83d\ude00, no escape \\ud83d"}'
    assert ask(Script(httpx.Response(200, content=body))) == {"text": "half \ufffd, whole 😀, no escape \\ud83d"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-chroma-token": "secret"},
        {"X-Api-Key": "secret"},
        {"Cookie": "session=secret"},
        {"Proxy-Authorization": "Basic secret"},
        {"X-Goog-Api-Key": "secret"},
        {"Private-Token": "secret"},
        {"X-Client-Secret": "secret"},
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "http://train.example/",
        "HTTP://10.0.0.5:8000/",
        "http://127.0.0.1.example/",
        "http://0.0.0.0:8000/",
        "http://[2002:7f00:1::]:8000/",
        "http://[64:ff9b::7f00:1]:8000/",
    ],
)
def test_no_request_shows_a_key_on_its_way(talk, url, headers):
    script = Script(ok())
    http = talk(script)
    with pytest.raises(InputError, match="is not encrypted"):
        http.run(http.request("GET", url, token=None if headers else TOKEN, headers=headers))
    assert not script.sent
    http.run(http.request("GET", url, headers={"Idempotency-Key": "1"}))
    assert len(script.sent) == 1


def test_a_redirect_is_not_followed_with_the_token(ask):
    script = Script(httpx.Response(307, headers={"Location": "http://elsewhere.example/"}), ok())
    with pytest.raises(ServiceError, match="307"):
        ask(script)
    assert [sent.url.host for sent in script.sent] == ["train.example"]


@pytest.mark.parametrize(
    "answer",
    [
        *(httpx.Response(status, json={"detail": "no"}) for status in (307, 400, 401, 403, 404, 422, 500)),
        httpx.Response(200, content=b"<html>"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout(""),
        httpx.Response(401, json={"error": {"message": f"Incorrect API key provided: {TOKEN}."}}),
        httpx.Response(
            422, json={"detail": [{"loc": ["header", "authorization"], "msg": f"Bearer {TOKEN} is no JWT"}]}
        ),
    ],
    ids=lambda answer: str(getattr(answer, "status_code", type(answer).__name__)),
)
def test_no_token_is_in_any_message(ask, answer):
    with pytest.raises(RolloutlabError) as refused:
        ask(Script(answer))
    assert TOKEN not in words(refused.value)


@pytest.mark.parametrize("token", ["sekret\n", "sek\nret", "sekreté", "sekret\0"])
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(http, serve, token):
    url = serve(answering(raw("200 OK", b"{}")))
    with pytest.raises(SignInError) as refused:
        http.run(http.request("GET", url, token=token))
    assert "sek" not in words(refused.value)


def test_a_refused_connection_is_told_with_the_address_and_not_as_a_time_out(http, closed_port):
    with pytest.raises(UnreachableError) as refused:
        http.run(http.request("GET", f"http://127.0.0.1:{closed_port}/v1/health", token=TOKEN))
    assert refused.value.message == f"nothing answers at http://127.0.0.1:{closed_port}: the connection was refused"
    assert not any(word in refused.value.message.lower() for word in ("timeout", "time-out", "timed out"))


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ssl.SSLCertVerificationError(1, "[SSL] failed"), "its certificate is not trusted: self-signed certificate"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "the TLS handshake failed; http:// might be meant"),
        (socket.gaierror(-2, "Name or service not known"), "no host has that name"),
        (OSError("no route"), "the connection could not be made"),
    ],
    ids=["certificate", "handshake", "name", "route"],
)
def test_what_lies_below_a_failure_to_connect_is_told(ask, cause, said):
    cause.verify_message = "self-signed certificate"
    error = httpx.ConnectTimeout("")
    error.__cause__ = cause
    with pytest.raises(UnreachableError) as refused:
        ask(Script(error))
    assert refused.value.message == f"nothing answers at https://train.example: {said}"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "train.example/v1", "ftp://train.example", "http://[::1/x", "http://h:x"]
)
def test_an_address_that_is_none_is_told_as_it_was_given(http, url):
    with pytest.raises(RolloutlabError) as refused:
        http.run(http.request("GET", url))
    assert url in refused.value.message


def test_a_real_answer_is_its_json(http, serve):
    url = serve(answering(raw("200 OK", b'{"a": 1}')))
    assert http.run(http.request("GET", f"{url}/x", token=TOKEN)) == {"a": 1}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (raw("200 OK", b"a whole file")[:-3], BrokenOffError),
        (raw("404 Not Found", b'{"detail": "there is no such checkpoint"}'), NotFoundError),
    ],
)
def test_a_download_that_breaks_off_or_is_refused_is_an_error(http, serve, answer, kind):
    async def work() -> bytes:
        return b"".join([part async for part in http.download(f"{serve_at}/x", token=TOKEN)])

    serve_at = serve(answering(raw("200 OK", b"a whole file")))
    assert http.run(work()) == b"a whole file"
    serve_at = serve(answering(answer))
    with pytest.raises(kind):
        http.run(work())


def test_a_connection_that_breaks_is_tried_again(http, serve):
    broken, half, good = b"", raw("200 OK", b'{"a": 1}')[:-3], raw("200 OK", b'{"a": 1}')
    url = serve(answering(broken, half, good))
    assert http.run(http.request("GET", url)) == {"a": 1}


def test_an_unused_connection_is_closed_before_a_server_with_uvicorns_default_closes_it():
    transport = ProxyRouter(1, Unencrypted())._through(None)
    assert transport.limits.keepalive_expiry < uvicorn.Config("app").timeout_keep_alive


def test_a_closed_connection_is_no_failure_to_connect(http, serve):
    url = serve(answering(b""))
    with pytest.raises(BrokenOffError) as broken:
        http.run(http.request("POST", url))
    assert broken.value.message == f"nothing answers at {url}: the connection was closed before a response"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        raw("200 OK", b'{"a": 1}')[:-3],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 OK fine\r\n\r\n",
        raw("200 OK", b"no gzip", "Content-Encoding: gzip"),
    ],
)
def test_what_does_not_speak_http_is_an_error_of_ours(http, serve, answer):
    url = serve(answering(answer))
    with pytest.raises(ServiceError) as refused:
        http.run(http.request("GET", url, token=TOKEN))
    assert url in refused.value.message
    assert TOKEN not in words(refused.value)


def test_a_service_that_says_nothing_is_waited_for_only_so_long(http, serve):
    url = serve(silent)
    with pytest.raises(UnreachableError, match=f"nothing answers at {url}"):
        http.run(http.request("GET", url, timeout=0.01, retry=False))


def test_a_request_may_take_longer_than_a_tick(http, serve):
    go_on = threading.Event()

    async def slow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(go_on.wait, PATIENCE)
        writer.write(raw("200 OK", b'{"a": 1}'))

    assert http.run(http.request("GET", serve(slow)), go_on.set, every=0.001) == {"a": 1}
    assert go_on.is_set()


def test_run_gives_the_result_of_the_coroutine(http):
    async def work() -> int:
        return 3

    assert http.run(work()) == 3


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("x"), NotFoundError("x")])
def test_run_raises_the_error_of_the_coroutine(http, error):
    async def work() -> None:
        raise error

    with pytest.raises(type(error), match="x"):
        http.run(work())


def test_run_ticks_in_the_callers_thread_until_the_end(http):
    ended = threading.Event()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(threading.get_ident())
        if len(ticks) == 3:
            ended.set()

    http.run(asyncio.to_thread(ended.wait, PATIENCE), tick, every=0.001)
    assert len(ticks) >= 3
    assert set(ticks) == {threading.get_ident()}


def test_a_result_that_comes_as_a_wait_ends_is_still_the_result(http):
    async def work() -> int:
        return 3

    assert {http.run(work(), every=0) for _ in range(300)} == {3}


class Interrupted:
    """Work that never ends by itself, and what became of it."""

    def __init__(self) -> None:
        self.story: list[str] = []

    async def work(self) -> None:
        self.story.append("begun")
        try:
            await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.story.append("tidied up")
            raise


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), SystemExit(1)])
def test_whatever_interrupts_the_wait_cancels_the_work_lets_it_end_and_is_raised(http, error):
    interrupted = Interrupted()

    def tick() -> None:
        if interrupted.story:
            raise error

    with pytest.raises(type(error)) as raised:
        http.run(interrupted.work(), tick, every=0.001)
    assert raised.value is error
    assert interrupted.story == ["begun", "tidied up"]


def test_an_interrupt_of_the_kernel_cancels_the_work(http):
    interrupted = Interrupted()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await interrupted.work()

    with pytest.raises(KeyboardInterrupt):
        http.run(work(), every=0.01)  # a signal that comes just before a wait begins is seen when it ends
    assert interrupted.story == ["begun", "tidied up"]


def test_an_interrupt_that_comes_before_the_work_has_begun_cancels_it_and_waits_for_nothing(http, monkeypatch):
    busy, interrupted, waits = threading.Event(), Interrupted(), []

    def waited(futures, timeout):
        busy.set()
        waits.append(wait(futures, PATIENCE))
        return waits[-1]

    monkeypatch.setattr("rolloutlab.runtime.wait", waited)

    def interrupt() -> None:
        raise KeyboardInterrupt

    http._loop.start().call_soon_threadsafe(busy.wait, PATIENCE)
    with pytest.raises(KeyboardInterrupt):
        http.run(interrupted.work(), interrupt, every=0.001)
    assert [len(ended.done) for ended in waits] == [1]
    assert interrupted.story == []


def test_an_interrupt_ends_a_pause_between_two_tries(talk):
    script = Script(httpx.Response(429, headers={"Retry-After": "60"}))
    http = talk(script)

    def interrupt() -> None:
        if script.sent:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        http.run(http.request("GET", URL), interrupt, every=0.001)
    assert len(script.sent) == 1


def test_after_an_interrupt_the_next_request_works(talk):
    http = talk(Script(ok(a=1)))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        http.run(Interrupted().work(), interrupt, every=0.001)
    assert http.run(http.request("GET", URL)) == {"a": 1}


def test_every_thread_works_on_the_same_loop(http):
    together = threading.Barrier(8)
    loops: list[int] = []

    async def loop() -> int:
        return id(asyncio.get_running_loop())

    def use() -> None:
        together.wait()
        loops.append(http.run(loop()))

    users = [threading.Thread(target=use) for _ in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert (len(loops), len(set(loops)), threads()) == (8, 1, ["rolloutlab-http"])


def test_nothing_is_started_before_it_is_needed():
    http = HttpClient()
    assert threads() == []
    http.close()
    assert threads() == []


def test_closing_leaves_no_thread_and_may_be_done_twice(talk):
    http = talk(Script(ok()))
    http.run(http.request("GET", URL))
    assert threads() == ["rolloutlab-http"]
    http.close()
    http.close()
    assert threads() == []


def test_what_was_closed_can_be_used_again(http, serve):
    http.close()
    url = serve(answering(raw("200 OK", b"{}")))
    assert http.run(http.request("GET", url)) == {}


async def pieces():
    yield b'{"a": '
    yield b"1}"


def test_a_body_in_pieces_is_sent_whole_and_once(ask):
    script = Script(httpx.Response(503))
    with pytest.raises(ServiceError, match="503"):
        ask(script, "POST", content=pieces)
    [sent] = script.sent
    assert sent.content == b'{"a": 1}'
    assert sent.headers["Content-Type"] == "application/json"


def test_what_is_begun_runs_while_nobody_waits_and_ends_when_the_connections_are_closed():
    http, running = HttpClient(), threading.Event()

    async def work() -> None:
        running.set()
        await asyncio.Event().wait()

    begun = http.begin(work())
    assert running.wait(240)
    http.close()
    assert begun.cancelled()


def test_what_fails_in_the_background_is_logged(caplog):
    http = HttpClient()

    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError):
        http.begin(fail()).result(240)
    http.close()
    assert "a background task failed" in caplog.text


class Renewing:
    """A token that is another after each refusal."""

    def __init__(self):
        self.tokens, self.told = iter(["old", "new"]), []
        self.now = next(self.tokens)

    def of(self, url):
        return self if "/mine" in url else None

    async def token(self):
        return self.now

    async def after(self, status, headers, operation, token):
        self.told.append((status, operation, token))
        if status == 401:
            self.now = next(self.tokens)
        return status == 401


def test_a_request_is_sent_again_with_a_token_that_was_renewed_and_no_token_goes_elsewhere():
    seen = []

    async def answer(request):
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(401 if seen[-1] == "Bearer old" else 200, json={"ok": True})

    http, bearer = HttpClient(httpx.MockTransport(answer)), Renewing()
    assert http.run(http.request("GET", "https://a.example/mine", token=bearer)) == {"ok": True}
    assert seen == ["Bearer old", "Bearer new"]
    assert bearer.told == [(401, "GET /mine", "old"), (200, "GET /mine", "new")]
    http.run(http.request("GET", "https://a.example/other", token=bearer))
    assert seen[-1] is None
    http.close()


def test_a_body_in_pieces_is_made_anew_for_the_token_that_was_renewed(http, serve):
    bodies = []

    async def answer(reader, writer):
        bodies.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(raw("200 OK" if bodies[1:] else "401 Unauthorized", b"{}"))

    url = serve(answer)
    assert http.run(http.request("POST", f"{url}/mine", token=Renewing(), content=pieces)) == {}
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
