"""Captured evaluators and judges that are ended early, and backups of parts of a lab that are put back.

    kept.py [--ends 24] [--judges 24] [--backups 200] [--seed 0]

An evaluator asks in sessions of several turns, one after the other, and writes down each answer that it has read. The
capture is ended by SIGTERM, SIGHUP, SIGINT or SIGKILL at a random moment; some go on with the collection of the one
before. What the evaluator has read must be in the lab, after SIGKILL all but what it read in the last seconds, the
tokens of the collection must be those of its trajectories, and what earlier captures have stored must be unchanged.
No evaluator may outlive its capture.

Kernels judge a collection with a paid model, and are ended so, too; the same judge goes on in the next kernel until all
is judged. What the model has answered is on disk with what it cost, all but the requests under way, and is never asked
for again; no reward changes before the last group is judged.

Then a model is trained a few times, with a copy of the lab folder after each job. `lab.db`, `service.db` or the whole
folder of the service come from another copy than the rest: where the model would go on from an older checkpoint than
there is, or one of the databases has jobs that the other has not, `find_disagreements` must say so, and nothing
elsewhere.

Exit status 0 when nothing was lost and everything was said.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import closing
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

sys.path.insert(0, str(Path(__file__).parent))
from journal import digest
from processes import command_line, end, fork, gone, published, serve, until

from rolloutlab.api.wire.chat import ChatRequest, Choice, UserMessage
from rolloutlab.fsutil import Lock
from rolloutlab.scoring.judge import CONCURRENT, _digest_of
from rolloutlab.session import Session
from rolloutlab.settings import Address, Price, Settings
from rolloutlab.settings.values import same_service
from rolloutlab.store.agreement import find_disagreements
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup

ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGKILL)
LATEST = 2.0
"""Seconds before SIGKILL of which what was read may be lost: those of a batch, on a busy machine."""
LONGEST = 60.0
JUDGED = 120
"""Groups of a collection that is judged, each in two requests."""
ANSWER = (100 * 1000 + 10 * 2000) * 10**6
"""What an answer of the judge costs, as the lab counts money."""
JOBS = 3
EVALUATOR = """
import http.client, json, os, sys, time
host, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
read = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(100_000):
    messages = []
    for text in ("task", "sure?", "really?"):
        messages.append({"role": "user", "content": text})
        connection = http.client.HTTPConnection(host, timeout=60)
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "X-Session-ID": f"{sys.argv[2]}-{number}"}
        connection.request("POST", f"/{path}/chat/completions", json.dumps({"messages": messages}), headers)
        messages.append(json.load(connection.getresponse())["choices"][0]["message"])
        os.write(read, json.dumps([messages[-1]["content"], time.time()]).encode() + b"\\n")
"""


class Policy(BaseHTTPRequestHandler):
    """Each answer is another one."""

    protocol_version = "HTTP/1.1"
    counter = iter(range(10**9))

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "policy", "object": "model", "created": 1, "owned_by": "x"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/chat/completions"):
            self._send({"detail": "Not Found"}, 404)
            return
        token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
        message = {"role": "assistant", "content": f"answer {next(self.counter)}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": [token]}}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy"}
        self._send({**head, "choices": [choice], "usage": usage})

    def _send(self, body: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Quiet(ThreadingHTTPServer):
    """A server whose clients may be killed."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed reads no answer."""


class Captures:
    """Captures that are ended, and what is checked after each. known: digests of what was stored, by name."""

    def __init__(self, home: Path, chance: random.Random, url: str) -> None:
        self._home, self._chance, self._url = home, chance, url
        self._known: dict[str, str] = {}
        self.answers = self.sessions = 0
        self.losses: list[str] = []

    def run(self, number: int) -> None:
        """One capture. number: the first begins a collection, later ones go on with it or begin another."""
        read, by = self._home / f"read-{number}", self._chance.choice(ENDS)
        goes_on = ["--resume"] if number and self._chance.random() < 0.5 else ["--model", "policy"]
        options = ["capture", "eval", "--sessions", *goes_on, "--service", self._url, "--"]
        command = [*options, sys.executable, "-I", "-S", "-c", EVALUATOR, str(read), str(number)]
        pid = fork(partial(command_line, command), self._home / "capture.log")
        if not until(read.exists, LONGEST):
            raise SystemExit(f"capture {number} does not begin: {(self._home / 'capture.log').read_text()}")
        time.sleep(self._chance.expovariate(1.0) + (LATEST if by == signal.SIGKILL else 0))
        ended_at = time.time()
        end(pid, by)
        if not until(lambda: not evaluators(str(read)), LONGEST):
            self.losses.append(f"after {by.name}: the evaluator goes on")
        self._check(read, by, ended_at)

    def _check(self, read: Path, by: signal.Signals, ended_at: float) -> None:
        lines = [line for line in read.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        answers = [json.loads(line) for line in lines]
        latest = ended_at - LATEST if by == signal.SIGKILL else ended_at
        expected = {text for text, at in answers if at <= latest}
        self.answers += len(expected)
        with closing(sqlite3.connect(self._home / "lab.db", timeout=20.0)) as connection:
            [[verdict]] = connection.execute("PRAGMA quick_check").fetchall()
        if verdict != "ok":
            self.losses.append(f"after {by.name}: lab.db: {verdict}")
        lab = Lab(self._home / "lab.db")
        stored, sampled = dict[str, str](), set[str]()
        for collection in lab.collections():
            generation = f"{collection.name}:{collection.generation}"
            members = [each for group in lab.groups(collection) for each in group.trajectories]
            tokens = sum(each.tokens for each in members)
            if tokens != collection.completion_tokens:
                counted = collection.completion_tokens
                self.losses.append(f"after {by.name}: {generation} has {tokens} tokens and counts {counted}")
            for each in members:
                stored[f"{generation}/{each.extra['metadata']['session']}"] = digest(each)
                sampled |= {choice.message.content or "" for choice in each.choices}
        lab.close()
        if lost := expected - sampled:
            self.losses.append(f"after {by.name}: {len(lost)} of {len(expected)} answers that were read are not stored")
        if changed := [name for name, before in self._known.items() if stored.get(name) != before]:
            self.losses.append(f"after {by.name}: {changed[0]} is not as it was")
        self._known, self.sessions = stored, len(stored)


def evaluators(argument: str) -> list[int]:
    """Process ids of the evaluators with this argument that have not ended."""
    running = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in words and EVALUATOR.encode() in words:
            running.append(int(path.parent.name))
    return running


class Judge(BaseHTTPRequestHandler):
    """A judge whose answers take a random time. asked: digests of requests, and when they came; answered: and sent."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, float]]] = []
    answered: ClassVar[list[tuple[str, float]]] = []
    under_way = 0
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        digest_of = _digest_of(ChatRequest.model_validate(body))
        with self.lock:
            self.asked.append((digest_of, time.time()))
            Judge.under_way += 1
        try:
            self._answer()
            with self.lock:
                self.answered.append((digest_of, time.time()))
        finally:
            with self.lock:
                Judge.under_way -= 1

    def _answer(self) -> None:
        time.sleep(random.random() * 0.1)
        text = json.dumps({label: {"why": "So it is.", "score": random.random()} for label in "AB"})
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "judge"}
        content = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Judgings:
    """Kernels that judge and are ended, and what is checked after each. ends: how many were; losses: what was wrong."""

    def __init__(self, home: Path, chance: random.Random, url: str) -> None:
        self._home, self._chance, self._url = home, chance, url
        self._stored_at: dict[str, float] = {}
        self._paid = 0
        self.ends = 0
        self.losses: list[str] = []
        self._settings = Settings(home=home, service=Address(url, f"{url}/v1", prices={"judge": Price(1000.0, 2000.0)}))

    def run(self, number: int, ends: int) -> None:
        """Judge a new collection until it is whole, with so many ends at most."""
        name = f"words-{number}"
        lab = Lab(self._home / "lab.db")
        collection = lab.open_collection(name)
        prompts = [NewGroup([UserMessage(role="user", content=f"{number}, {i}?")], {}) for i in range(JUDGED)]
        for group in lab.add_groups(collection, prompts):
            lab.put(group, [Arrival(i, [_said(text)]) for i, text in enumerate("ab")], model="m", step=0, sampling={})
        lab.close()
        while ends and not self._judge(name):
            ends -= 1
        if not ends and not self._judge(name, to_its_end=True):
            self.losses.append(f"{name} does not come to its end: {(self._home / 'judge.log').read_text()[-2000:]}")

    def _judge(self, name: str, *, to_its_end: bool = False) -> bool:
        """Whether a kernel came to its end, which is ended at a random moment otherwise."""
        until(lambda: not Judge.under_way, LONGEST)  # of the kernel before
        by, asked, begun = self._chance.choice(ENDS), len(Judge.asked), time.time()
        pid = fork(partial(self._work, name), self._home / "judge.log")
        if to_its_end:
            whole = os.waitpid(pid, 0)[1] == 0
        else:
            until(lambda: len(Judge.asked) > asked or gone(pid), LONGEST)
            time.sleep(self._chance.expovariate(5.0))
            whole = end(pid, by) == 0
        self.ends += not whole
        self._check(name, None if whole else by, begun, time.time())
        return whole

    def _work(self, name: str) -> None:
        session = Session(self._settings)
        session.judge(name, model="judge", say=lambda _: None)
        session.close()

    def _check(self, name: str, by: signal.Signals | None, begun: float, ended_at: float) -> None:
        where = f"{name} after {by.name if by else 'its end'}"
        lab = Lab(self._home / "lab.db")
        rows = lab._database.read(
            "SELECT DISTINCT json_extract(s.value, '$.of') FROM reward_results r, json_each(r.result) s"
        )
        stored = {row[0] for row in rows}
        with Judge.lock:
            asked, answered = [*Judge.asked], [*Judge.answered]
        now = [digest_of for digest_of, at in answered if at >= begun]
        if (lost := len({*now} - stored)) > (CONCURRENT if by else 0):
            self.losses.append(f"{where}: {lost} of {len(now)} answers are not stored")
        if twice := [d for d, at in asked if at > self._stored_at.get(d, at)]:
            self.losses.append(f"{where}: {len(twice)} stored answers were asked for again")
        self._stored_at.update(dict.fromkeys(stored - self._stored_at.keys(), ended_at))
        self._paid += len(now) - (CONCURRENT if by else 0)
        spent = lab.spending.at(same_service(self._url))
        least, most = max(self._paid, len(stored)) * ANSWER, len(asked) * ANSWER
        if not least <= spent <= most:
            self.losses.append(f"{where}: ${spent / 10**12} is recorded, of ${least / 10**12} to ${most / 10**12}")
        rewards = [t.reward is not None for group in lab.groups(lab.find(name)) for t in group.trajectories]
        if any(rewards) and not all(rewards):
            self.losses.append(f"{where}: {sum(rewards)} of {len(rewards)} trajectories have a reward")
        if by is None and not all(rewards):
            self.losses.append(f"{where}: there are no rewards")
        lab.close()


def _said(text: str) -> Choice:
    message = {"role": "assistant", "content": text}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message})


def copies(folder: Path) -> list[Path]:
    """Copies of a lab folder after each of its jobs, without a service."""
    home, made = folder / "lab", list[Path]()
    home.mkdir()
    pid = fork(partial(serve, home), folder / "service.log")
    if not until(lambda: published(home, pid), LONGEST):
        raise SystemExit("the service does not start")
    session = Session(Settings(home=home))
    session.model("lab/kept")
    session.chat("letters", "Sort the letters: d b a c", n=4, max_tokens=6)
    session.reward("letters", lambda trajectory: float(trajectory.name[-1]), say=lambda _: None)
    for number in range(JOBS + 1):
        if number:
            session.train("letters", wait=False, say=lambda _: None).wait(progress=False)
        made.append(folder / f"copy-{number}")
        shutil.copytree(home, made[-1])
    session.close()
    end(pid, signal.SIGTERM)
    Lock(home / "service" / "lock").acquire(timeout=LONGEST).lock.release()
    return made


def put_together(made: list[Path], chance: random.Random, home: Path) -> str:
    """Make a lab folder of parts of copies; what is wrong with what is said of it, or nothing."""
    rest, lab, database = (chance.randrange(len(made)) for _ in range(3))
    whole = chance.random() < 0.5  # the folder of the service is of one copy
    database = rest if whole else database
    shutil.copytree(made[rest], home)
    for pattern, source in (("lab.db*", lab), ("service/service.db*", database)):
        for path in home.glob(pattern):
            path.unlink()
        for path in made[source].glob(pattern):
            shutil.copy(path, home / path.relative_to(made[source]))
    found = find_disagreements(Settings(home=home))
    said = {"set aside": False, "trained": False, "does not have": False}
    for each in found:
        said |= {words: True for words in said if words in each.message}
    # copy N has N jobs and the checkpoints up to N, in each of its parts
    right = {"set aside": database < rest, "trained": lab > database, "does not have": lab < database}
    return "" if said == right else f"lab.db {lab}, service.db {database}, checkpoints {rest}: {[*map(str, found)]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ends", type=int, default=24)
    parser.add_argument("--judges", type=int, default=24)
    parser.add_argument("--backups", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, begun = random.Random(options.seed), time.monotonic()
    localhost = ("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as name, Quiet(localhost, Policy) as server, Quiet(localhost, Judge) as judge:
        folder = Path(name)
        (folder / "judged").mkdir()
        (folder / "captures").mkdir()
        (folder / "backups").mkdir()
        os.environ["ROLLOUTLAB_HOME"] = str(folder / "captures")
        made = copies(folder / "backups")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        captures = Captures(folder / "captures", chance, f"http://127.0.0.1:{server.server_port}")
        for number in range(options.ends):
            captures.run(number)
        threading.Thread(target=judge.serve_forever, daemon=True).start()
        judgings = Judgings(folder / "judged", chance, f"http://127.0.0.1:{judge.server_port}")
        number = 0
        while judgings.ends < options.judges and not judgings.losses:
            judgings.run(number, options.judges - judgings.ends)
            number += 1
        wrong = []
        for number in range(options.backups):
            home = folder / f"put-{number}"
            wrong += filter(None, [put_together(made, chance, home)])
            shutil.rmtree(home)
    print(
        f"{options.ends} captures ended, {captures.answers:,} answers read, {captures.sessions:,} sessions, "
        f"{len(captures.losses)} losses; {judgings.ends} judges ended, {len(Judge.asked):,} requests, "
        f"{len(judgings.losses)} losses; {options.backups} labs put together, {len(wrong)} wrongly described; "
        f"{time.monotonic() - begun:.0f} s, seed {options.seed}"
    )
    for trouble in [*captures.losses, *judgings.losses, *wrong][:20]:
        print(f"  {trouble}")
    return 1 if captures.losses or judgings.losses or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
