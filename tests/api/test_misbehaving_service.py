"""Sampling from a service that misbehaves, over real connections: what arrived is kept once, the rest is resumed."""

import asyncio
import json
import os
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from typing import Any

import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import RefusedError, SamplingError, ServiceError, UnreachableError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

PATIENCE = 240.0
"""Seconds after which a test that waits for something is a test that fails."""

HANG, RESET, CLOSE = "hang", "reset", "close"

Treat = Callable[[str, int], bytes | str]
"""What becomes of the request for a prompt that comes for the n-th time: bytes to send, or HANG, RESET or CLOSE."""


def raw(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(sent)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent


def completion(prompt: str, **overrides: Any) -> dict[str, Any]:
    content = [{"token": "!", "bytes": [33], "logprob": -0.5, "top_logprobs": []}]
    message = {"role": "assistant", "content": f"{prompt}!", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    record = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return record | overrides


def good(prompt: str, _time: int = 1) -> bytes:
    return raw(completion(prompt))


class Service:
    """A chat service on a real socket. `asked` counts the requests for each prompt, `most` those at the same time."""

    def __init__(self) -> None:
        self.treat: Treat = good
        self.asked: Counter[str] = Counter()
        self.most = 0
        self._under_way = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.close_after_each = False
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen; after `die`, at the same port."""
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024))
        self.port = self._server.sockets[0].getsockname()[1]
        self._released = asyncio.Event()

    def die(self) -> None:
        """Break all connections and take no more."""
        self._loop.call_soon_threadsafe(self.die_now)

    def die_now(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def release(self) -> None:
        """Let what hangs go on, to no answer."""
        self._loop.call_soon_threadsafe(self._released.set)

    def close(self) -> None:
        async def all_gone() -> None:
            self.die_now()
            self._released.set()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)

        self._do(all_gone())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._answered(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection is kept after one more request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        prompt = json.loads(await reader.readexactly(length))["messages"][-1]["content"]
        self.asked[prompt] += 1
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        outcome = self.treat(prompt, self.asked[prompt])
        if outcome == HANG:
            await self._released.wait()
        self._under_way -= 1
        if outcome == RESET:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if isinstance(outcome, str):
            return False
        writer.write(outcome)
        await writer.drain()
        return not self.close_after_each and b"Connection: close" not in outcome


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.fixture
def lab(service, tmp_path) -> Iterator[Session]:
    lab = Session(Settings(home=tmp_path, service=Address(service.url, service.url, None)), http=HttpClient(backoff=0))
    yield lab
    lab.close()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The seconds that were to be waited between tries; nothing waits."""
    seconds: list[float] = []

    async def sleep(delay: float) -> None:
        seconds.append(delay)

    monkeypatch.setattr("rolloutlab.api.http.client.asyncio.sleep", sleep)
    return seconds


def chat(lab: Session, count: int, **options: Any) -> Any:
    return lab.chat("c", "{{i}}", over=[{"i": str(i)} for i in range(count)], model="m", **options)


def kept(lab: Session) -> list[str]:
    """The answers of a collection, which are stored once each; what is missing of it is the rest."""
    summary = lab.store.collection("c")
    found = [t for group in lab.store.groups(summary) for t in group.trajectories]
    assert [t.answer for t in found] == [f"{t.row['i']}!" for t in found]
    assert (summary.trajectories, summary.missing) == (len(found), int(summary.plan["total"]) - len(found))
    assert summary.completion_tokens == len(found)
    return [t.row["i"] for t in found]


def numbers(found: Iterable[int]) -> list[str]:
    return [str(i) for i in found]


def resumed(lab: Session, service: Service, wanted: int) -> Counter[str]:
    """What a resume asks for, of a service that is well again; nothing is missing after it."""
    service.treat = good
    service.asked.clear()
    lab.resume("c")
    assert kept(lab) == numbers(range(wanted))
    return service.asked


def interrupt() -> None:
    """What Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("said", ["2", "date", None])
def test_when_all_are_turned_away_at_once_all_come_back(lab, service, pauses, said):
    date = formatdate(4_000_000_000, usegmt=True)
    headers = [f"Retry-After: {date if said == 'date' else said}"] if said else []
    turned_away = raw({"error": {"message": "slow down"}}, "429 Too Many Requests", *headers)
    service.treat = lambda prompt, time: turned_away if time <= 2 else good(prompt)
    chat(lab, 64)
    assert kept(lab) == numbers(range(64))
    assert set(service.asked.values()) == {3}
    assert pauses == [{"2": 2.0, "date": 60.0, None: 0.0}[said]] * 128


def test_what_is_turned_away_for_ever_fails_and_the_others_do_not(lab, service, pauses):
    service.treat = lambda prompt, _: raw({}, "429 Too Many Requests") if prompt == "7" else good(prompt)
    with pytest.raises(SamplingError, match=r"1 of 20 completions of c:1 failed.*429"):
        chat(lab, 20)
    assert kept(lab) == numbers(i for i in range(20) if i != 7)
    assert resumed(lab, service, 20) == {"7": 1}


def test_a_server_error_now_and_then_is_not_noticed(lab, service):
    error = raw({}, "500 Internal Server Error")
    service.treat = lambda prompt, time: error if int(prompt) % 3 == 0 and time < 3 else good(prompt)
    chat(lab, 30)
    assert kept(lab) == numbers(range(30))
    assert service.asked == {str(i): 3 if i % 3 == 0 else 1 for i in range(30)}


CUT_OFF = raw(completion("x"), "200 OK", "Connection: close")[:-30]


@pytest.mark.parametrize(
    ("trouble", "tries"),
    [
        (raw({"error": {"message": "on fire"}}, "500 Internal Server Error"), 4),
        (CUT_OFF, 4),
        (RESET, 4),
        (CLOSE, 4),
        (raw(b'{"id": "c", "choices": [{]}'), 1),
        (raw(b"<html>busy</html>"), 1),
        (raw(b""), 1),
        (raw({}), 1),
        (raw([]), 1),
        (raw(None), 1),
        (raw("text"), 1),
        (raw(completion("x", choices=[])), 1),
        (raw(completion("x", choices=None)), 1),
        (raw(completion("x", choices=[{"index": 0, "finish_reason": "stop"}])), 1),
        (raw(completion("x", choices=[{"index": 0, "finish_reason": "stop", "message": None}])), 1),
        (raw(completion("x", choices=["text"])), 1),
        (raw({"error": {"message": "too long"}}, "400 Bad Request"), 1),
        (raw({}, "302 Found", "Location: /elsewhere"), 1),
    ],
    ids=lambda trouble: str(trouble)[-30:],
)
def test_what_goes_wrong_for_ever_costs_only_the_prompts_it_befalls(lab, service, trouble, tries):
    service.treat = lambda prompt, _: trouble if int(prompt) % 5 == 2 else good(prompt)
    with pytest.raises(SamplingError, match=r"4 of 20 completions of c:1 failed, the others are kept: ") as failed:
        chat(lab, 20)
    assert failed.value.hint == "%%chat c:1 --resume"
    assert kept(lab) == numbers(i for i in range(20) if i % 5 != 2)
    assert {service.asked[str(i)] for i in range(20) if i % 5 == 2} == {tries}
    assert resumed(lab, service, 20) == {str(i): 1 for i in range(20) if i % 5 == 2}


@pytest.mark.parametrize("trouble", [CUT_OFF, RESET, CLOSE], ids=["cut off", "reset", "close"])
def test_a_connection_that_breaks_once_is_not_noticed(lab, service, trouble):
    service.treat = lambda prompt, time: trouble if time == 1 else good(prompt)
    chat(lab, 40)
    assert kept(lab) == numbers(range(40))
    assert set(service.asked.values()) == {2}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_service_that_closes_each_connection_after_its_answer_is_asked_no_more_than_needed(lab, service, concurrency):
    service.treat = lambda prompt, _: raw(completion(prompt), "200 OK", "Connection: close")
    chat(lab, 30, concurrency=concurrency)
    assert kept(lab) == numbers(range(30))
    assert set(service.asked.values()) == {1}


def test_a_kept_connection_that_is_closed_without_a_word_costs_one_try_at_most(lab, service):
    service.close_after_each = True
    chat(lab, 30, concurrency=4)
    assert kept(lab) == numbers(range(30))
    assert max(service.asked.values()) <= 2


def test_slow_answers_are_waited_for_side_by_side(lab, service):
    def treat(prompt, time):
        if len(service.asked) == 64:
            service.release()
        return HANG if time == 1 else good(prompt)

    service.treat = treat
    chat(lab, 64)
    assert kept(lab) == numbers(range(64))
    assert service.most == 64


def test_no_more_than_512_requests_are_under_way_however_many_are_allowed(lab, service):
    def treat(prompt, time):
        if len(service.asked) == 512:
            service.release()
        return HANG if time == 1 and int(prompt) < 512 else good(prompt)

    service.treat = treat
    chat(lab, 700, concurrency=10_000)
    assert kept(lab) == numbers(range(700))
    assert service.most == 512


def test_a_service_that_dies_in_the_middle_ends_it_and_what_had_arrived_is_kept(lab, service):
    def treat(prompt, _):
        if len(service.asked) > 40:
            service.die_now()
        return good(prompt)

    service.treat = treat
    with pytest.raises(UnreachableError, match=f"nothing answers at http://127.0.0.1:{service.port}"):
        chat(lab, 100, concurrency=8)
    before = kept(lab)
    assert 0 < len(before) <= 40
    with pytest.raises(UnreachableError):
        lab.resume("c")
    service.start()
    assert resumed(lab, service, 100) == {str(i): 1 for i in range(100) if str(i) not in before}


def test_a_service_that_answers_nothing_right_is_left_alone_soon(lab, service):
    service.treat = lambda *_: raw({"error": {"message": "on fire"}}, "500 Internal Server Error")
    with pytest.raises(ServiceError, match="on fire"):
        chat(lab, 500, concurrency=8)
    assert sum(service.asked.values()) <= 4 * 16
    assert lab.store.collections() == []


def test_a_service_that_is_too_busy_for_all_says_so(lab, service, pauses):
    service.treat = lambda *_: raw({"error": {"message": "slow down"}}, "429 Too Many Requests")
    with pytest.raises(RefusedError, match="429 slow down"):
        chat(lab, 500, concurrency=8)
    assert lab.store.collections() == []


def test_an_interrupt_while_requests_hang_keeps_what_had_arrived_and_leaves_all_usable(lab, service):
    def treat(prompt, _):
        if int(prompt) < 50:
            return good(prompt)
        if sum(service.asked.values()) == 58:
            threading.Timer(0, when_stored).start()
        return HANG

    def when_stored():
        while "c" not in [s.name for s in lab.store.collections()] or lab.store.collection("c").trajectories < 50:
            pass
        interrupt()

    service.treat = treat
    with pytest.raises(KeyboardInterrupt):
        chat(lab, 100, concurrency=8)
    assert kept(lab) == numbers(range(50))
    assert resumed(lab, service, 100) == {str(i): 1 for i in range(50, 100)}


def test_an_interrupt_while_all_wait_to_be_let_in_ends_the_wait(lab, service):
    def treat(prompt, _):
        if sum(service.asked.values()) == 8:
            interrupt()
        return raw({}, "429 Too Many Requests", "Retry-After: 60")

    service.treat = treat
    with pytest.raises(KeyboardInterrupt):
        chat(lab, 8)
    service.treat = good
    chat(lab, 8)
    assert kept(lab) == numbers(range(8))


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_an_interrupt_while_a_tool_hangs_leaves_all_usable(lab, service, kind):
    go_on = threading.Event()

    def hang(city: str) -> str:
        interrupt()
        go_on.wait(PATIENCE)
        return city

    async def hang_the_loop(city: str) -> str:
        return hang(city)

    lookup = {"function": hang, "coroutine": hang_the_loop}[kind]
    lookup.__name__ = "lookup"
    function = {"name": "lookup", "arguments": '{"city": "Paris"}'}
    calling = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": calling}
    service.treat = lambda prompt, _: raw(completion(prompt, choices=[choice]))
    with pytest.raises(KeyboardInterrupt):
        lab.chat("t", "x", n=1, over=[{}, {}], model="m", tools=[lookup], concurrency=1)
    service.treat = good
    chat(lab, 8)
    assert kept(lab) == numbers(range(8))
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "rolloutlab-tool":
            thread.join(PATIENCE)
