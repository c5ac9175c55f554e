"""Rollouts whose process was killed: what had ended is there, and the rest is played once."""

import fcntl
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from rolloutlab.settings import Settings
from rolloutlab.store.lab import Lab
from tests.sampling_services import SamplingService

pytestmark = pytest.mark.process
LONG = partial(pytest.param, marks=pytest.mark.long)
ROWS, N, CONCURRENT = [{"i": i} for i in range(16)], 4, 8
TURNS = 2
PLAYER = """
import sys
from rolloutlab import Session

async def solve(row, client):
    messages = []
    for text in (f"task {row['i']}", "sure?"):
        messages.append({"role": "user", "content": text})
        answer = await client.chat.completions.create(messages=messages)
        messages.append(answer.choices[0].message)
    return {"number": row["i"]}

lab = Session()
if sys.argv[1:] == ["resume"]:
    lab.resume("agent", program=solve, concurrency=8)
else:
    rows = [{"i": i} for i in range(16)]
    lab.rollouts("agent", solve, over=rows, n=4, model="tester/policy", concurrency=8)
lab.close()
"""
AGENT = """
import http.client, json, os, sys
row, messages = json.loads(sys.stdin.readline()), []
host, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
for text in (f"task {row['i']}", "sure?"):
    messages.append({"role": "user", "content": text})
    connection = http.client.HTTPConnection(host, timeout=240)
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    connection.request("POST", f"/{path}/chat/completions", json.dumps({"messages": messages}), headers)
    messages.append(json.load(connection.getresponse())["choices"][0]["message"])
print(json.dumps({"number": row["i"]}))
"""


class Policy(SamplingService):
    """Each answer is another one."""

    models = ("tester/policy",)

    def _choice(self, body, i):
        token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        message = {"role": "assistant", "content": f"answer {len(self.taken)}"}
        return {"index": i, "message": message, "finish_reason": "stop", "logprobs": {"content": [token]}}


class Service(ThreadingHTTPServer):
    """A service that holds every chat after the first `most`. turns: of each task, how often each turn was answered."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.most, self.full, self.freed = sys.maxsize, threading.Event(), threading.Event()
        self.turns: Counter[tuple[str, int]] = Counter()
        self._policy, self._lock, self._chats = Policy(), threading.Lock(), 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, body: bytes) -> httpx.Response:
        chat = path.endswith("/completions")
        with self._lock:
            self._chats += chat
            held = chat and self._chats > self.most
            if chat and not held:
                messages = json.loads(body)["messages"]
                self.turns[messages[0]["content"], len(messages) // 2] += 1
                return self._policy(httpx.Request(method, self.url + path, content=body))
        if held:
            self.full.set()
            self.freed.wait(240)
        return self._policy(httpx.Request(method, self.url + path, content=body))

    def handle_error(self, request, client_address) -> None:
        """A client that was killed reads no answer."""


class Answers(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        answer = self.server.answer(self.command, self.path, body)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield service
        service.freed.set()
        service.shutdown()
        thread.join()


def in_a_notebook(url: str, folder: Path, *, resume: bool) -> list[str]:
    return [sys.executable, "-c", PLAYER, *(["resume"] if resume else [])]


def as_a_command(url: str, folder: Path, *, resume: bool) -> list[str]:
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, ROWS)))
    plan = ["--resume"] if resume else ["--over", str(rows), "-n", str(N), "--model", "tester/policy"]
    command = [sys.executable, "-m", "rolloutlab", "capture", "agent", *plan, "--concurrency", str(CONCURRENT)]
    return [*command, "--", sys.executable, "-I", "-S", "-c", AGENT]


@pytest.mark.parametrize(("command", "answers"), [(in_a_notebook, 20), LONG(as_a_command, 75)])
def test_a_kill_among_64_rollouts_loses_none_that_had_ended_and_plays_none_twice(service, tmp_path, command, answers):
    settings = Settings(home=tmp_path / "lab")
    environment = {**os.environ, "ROLLOUTLAB_HOME": str(settings.home), "ROLLOUTLAB_URL": service.url}
    service.most = answers
    with subprocess.Popen(command(service.url, tmp_path, resume=False), env=environment) as player:
        assert service.full.wait(240)
        player.kill()
    ended = sum(times for (_, turn), times in service.turns.items() if turn == TURNS - 1)
    before = stored(settings)
    assert max(1, ended - CONCURRENT) <= len(before) <= ended
    service.most = sys.maxsize
    service.freed.set()
    service.turns.clear()
    subprocess.run(command(service.url, tmp_path, resume=True), env=environment, check=True, timeout=240)
    after = stored(settings)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(ROWS) * N
    assert len({t.answer for t in after.values()}) == len(ROWS) * N
    for t in after.values():
        assert (len(t.choices), t.pending, t.extra) == (TURNS, 0, {"metadata": {"episode_end": "done"}})
        assert (t.reward, t.components) == (t.row["i"], {"number": t.row["i"]})
    left = Counter(f"task {t.row['i']}" for name, t in after.items() if name not in before)
    assert service.turns == {(task, turn): times for task, times in left.items() for turn in range(TURNS)}


def stored(settings, name="agent"):
    """The trajectories of a collection, each complete, by name; none before there is the collection."""
    lab = Lab(settings.database)
    try:
        made = [each for each in lab.collections() if each.name == name]
        return {t.name: t for each in made for group in lab.groups(each, unfinished=True) for t in group.trajectories}
    finally:
        lab.close()


EVALUATOR = """
import http.client, json, os, sys, time
host, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
for i in range(20):
    connection = http.client.HTTPConnection(host, timeout=240)
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "X-Session-ID": f"{sys.argv[1]}{i}"}
    body = json.dumps({"messages": [{"role": "user", "content": f"task {i % 5}"}], "max_tokens": 4})
    connection.request("POST", f"/{path}/chat/completions", body, headers)
    json.load(connection.getresponse())
open(sys.argv[2], "w").write(str(os.getpid()))
if sys.argv[3:]:
    time.sleep(600)
"""
PRICES = '[prices."tester/policy"]\nprompt = 1000\ncompletion = 2000\n'


def is_gone(number: int) -> bool:
    """Whether a process has ended; its parent may not have taken note of it."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_for(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def captured(service, tmp_path):
    """Starts the evaluator under `rolloutlab capture`, with a terminal of its own."""
    file = tmp_path / "settings.toml"
    file.write_text(PRICES)
    home, answered = tmp_path / "lab", tmp_path / "answered"
    variables = {"ROLLOUTLAB_HOME": str(home), "ROLLOUTLAB_URL": service.url, "ROLLOUTLAB_SETTINGS": str(file)}

    def start(*options, first="a", then=("waits",), program=None):
        command = [sys.executable, "-m", "rolloutlab", "capture", "eval", "--sessions", *options, "--"]
        command += program or [sys.executable, "-I", "-S", "-c", EVALUATOR, first, str(answered), *then]
        terminal, there = pty.openpty()
        streams = {"stdin": there, "stdout": there, "stderr": there}
        options = {"env": os.environ | variables, "start_new_session": True, **streams}
        player = subprocess.Popen(command, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0), **options)
        os.close(there)
        return player, terminal

    return start, Settings(home=home), answered


def text_of(terminal) -> str:
    said = b""
    with suppress(OSError):  # a terminal without programs
        while piece := os.read(terminal, 10_000):
            said += piece
    return said.decode()


@pytest.mark.parametrize("by", [LONG(signal.SIGTERM), LONG(signal.SIGINT), signal.SIGKILL, "closing"])
def test_sessions_of_a_capture_that_is_ended_are_kept_with_what_they_cost(captured, by):
    start, settings, answered = captured
    player, terminal = start("--model", "tester/policy")
    with player:
        wait_for(answered.exists)
        if by == signal.SIGKILL:
            wait_for(lambda: settings.database.exists() and len(stored(settings, "eval")) == 20)
        os.close(terminal) if by == "closing" else player.send_signal(by)
        said = "" if by == "closing" else text_of(terminal)
        status = player.wait(240)
    evaluator_id = int(answered.read_text())
    wait_for(lambda: is_gone(evaluator_id))
    if by != signal.SIGKILL:
        assert status == 128 + (signal.SIGHUP if by == "closing" else by)
    before = stored(settings, "eval")
    names = {t.extra["metadata"]["session"] for t in before.values()}
    assert names == {f"a{i}" for i in range(20)}
    assert {t.extra["metadata"]["episode_end"] for t in before.values()} == {"done"}
    lab = Lab(settings.database)
    (entry,) = lab.spending._database.read("SELECT amount, completion_tokens FROM spending")
    collection = lab.find("eval")
    assert collection.completion_tokens == entry["completion_tokens"] > 0
    assert lab.spending.sampled() == {collection.id: entry["amount"]}
    lab.close()
    if by not in ("closing", signal.SIGKILL):
        assert "20 sessions had begun and are kept" in said
        advice = said.replace("\r\n", "\n").partition("  -> ")[2]
        typed = shlex.split(advice)
        assert typed[:6] == ["rolloutlab", "capture", "eval:1", "--sessions", "--resume", "--"]
        assert typed[-4:] == [EVALUATOR, "a", str(answered), "waits"]
    resumed, terminal = start("--resume", first="b", then=())
    with resumed:
        assert "eval:1 has 40 trajectories" in text_of(terminal)
    after = stored(settings, "eval")
    assert {name: t for name, t in after.items() if name in before} == before
    assert len({t.answer for t in after.values()}) == 40


def test_a_kill_ends_all_that_the_evaluator_has_started(captured):
    start, _, answered = captured
    evaluator = [sys.executable, "-I", "-S", "-c", EVALUATOR, "a", str(answered), "waits"]
    player, terminal = start("--model", "tester/policy", program=["sh", "-c", '"$@"; true', "sh", *evaluator])
    with player:
        wait_for(lambda: answered.exists() and answered.read_text())
        player.kill()
    wait_for(lambda: is_gone(int(answered.read_text())))
    os.close(terminal)
