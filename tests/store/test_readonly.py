"""The lab of someone else: it is read where nothing may be written, and says so where something would be."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.fsutil import Lock
from rolloutlab.session import Session
from rolloutlab.settings import EMBEDDED, Address, Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.migrations import READABLE_FROM
from rolloutlab.store.models import Recorded, SubmittedJob
from tests.forked import fork_embedded

JOB = "0b7d1c9e-0000-4000-8000-000000000001"
ELSEWHERE = Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)
LIKE_ANYBODY = """
import ctypes, os, sys
if os.geteuid() == 0:  # root may write everywhere by its capabilities (capabilities(7)), which it gives up here
    assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
from pathlib import Path
from rolloutlab.errors import LabError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
session = Session(Settings(home=Path(sys.argv[1]), service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)))

def refused(write, *given, **named):
    try:
        write(*given, **named)
    except LabError as error:
        print(*error._render_traceback_(), sep="|")
    else:
        print("it was done")
"""
"""What a child begins with: a session of the lab in a process that may not write where its mode forbids it."""


@pytest.fixture
def lab(tmp_path) -> Iterator[Path]:
    """The folder of a lab with two rewarded completions, which can be written."""
    folder = tmp_path / "lab"
    session = Session(Settings(home=folder, service=ELSEWHERE))
    with session.store.draft() as draft:
        draft.add(recorded(position) for position in (0, 1))
        draft.publish()
    session.reward("capitals", lambda *_: 1.0)
    session.close()
    yield folder
    for path in [folder, *folder.iterdir()]:  # so that pytest can remove it
        path.chmod(0o700)


def recorded(position: int) -> Recorded:
    prompt, answer = UserMessage(role="user", content="?"), AssistantMessage(role="assistant", content="Paris")
    return Recorded(f"line {position}", "capitals", 0, [prompt], [answer], position=position)


def made_read_only(folder: Path, *, but: str = "") -> Path:
    """The folder, in which nothing may be written; `but` one name."""
    shutil.rmtree(folder / "drafts")
    for path in [*folder.iterdir(), folder]:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222 if path.name != but else 0o700)
    return folder


@pytest.fixture
def printed(scripts) -> Callable[..., list[str]]:
    """The lines that a script prints which begins with LIKE_ANYBODY, by the folder of the lab and the script."""

    def run(folder: Path, script: str, *more: str) -> list[str]:
        ended = scripts.run(LIKE_ANYBODY + script, str(folder), *more)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


READING = """
print(*session.collections().index)
print(*[t.answer for t in session.collection("capitals/0").trajectories])
print(*session.rewards("capitals").to_frame()["reward"])
print(len(repr(session.collection("capitals"))) > 0)
session.files.export("capitals", sys.argv[2])
print(session.service("check").splitlines()[0].rpartition(": ")[2])
print(*sorted(hit.id for hit in session.search("paris").hits))
"""


@pytest.mark.parametrize("writable", ["", "lab", "lab.db"])
def test_a_lab_that_may_not_be_written_is_read_exported_and_searched(lab, tmp_path, writable, printed):
    made_read_only(lab, but=writable)
    before = sorted(path.name for path in lab.iterdir())
    lines = printed(lab, READING, str(tmp_path / "out.jsonl"))
    assert lines == ["capitals", "Paris Paris", "1.0 1.0", "True", "sound", "capitals:1/0/0 capitals:1/0/1"]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    assert sorted(path.name for path in lab.iterdir()) == before


def test_what_would_write_says_that_the_lab_is_read_only_and_what_to_type_before_anything_is_asked(lab, printed):
    script = """
refused(session.chat, "capitals", "Capital of France?", model="m")
refused(session.reward, "capitals", lambda *_: print("scored"))
refused(session.judge, "capitals", model="m")
refused(session.train, "capitals")
refused(session.delete, "capitals")
refused(session.rewards("capitals").undo)
refused(session.files.import_, sys.argv[2])
"""
    line = lab.parent / "in.jsonl"
    line.write_text('{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Paris"}]}\n')
    lines = printed(made_read_only(lab), script, str(line))
    copy = f"!cp -r --no-preserve=mode {lab} my-lab, then start Jupyter with ROLLOUTLAB_HOME=my-lab"
    assert lines == [f"LabError: {lab} is read-only: nothing can be stored in it|  -> {copy}"] * 7


@pytest.fixture
def answering():
    """The address of a service that says of every job that it has succeeded."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            job = {"id": JOB, "model_id": JOB, "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}
            event = {"id": "1", "type": "training_ended", "data": {"step": 3}}
            events = {"object": "list", "data": [event], "has_more": False}
            said = events if "events" in self.path else {**job, "final_step": 3}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_jobs_of_a_lab_that_may_not_be_written_are_listed_with_what_their_service_answers(lab, answering, printed):
    owner = Lab(lab / "lab.db")
    owner.jobs.add(SubmittedJob(JOB, answering, "lab/first", ("capitals:1",), {}, "2026-01-01T00:00:00+00:00"))
    owner.close()
    script = """
session.close()
session = Session(Settings(home=Path(sys.argv[1]), service=Address(sys.argv[2], sys.argv[2], None)))
jobs = session.jobs()
print(*jobs["status"], *jobs["step"], *jobs["collections"])
print([event.type for event in session.job().events()])
"""
    before = (lab / "lab.db").read_bytes()
    lines = printed(made_read_only(lab), script, answering)
    assert lines == ["succeeded 3 capitals", "['training_ended']"]
    assert (lab / "lab.db").read_bytes() == before


def test_a_lab_that_may_not_be_written_starts_no_service_and_says_what_to_type(lab, printed):
    owner = Lab(lab / "lab.db")
    owner.jobs.add(SubmittedJob(JOB, EMBEDDED, "lab/first", ("capitals:1",), {}, "2026-01-01T00:00:00+00:00"))
    owner.close()
    script = """
session.close()
session = Session(Settings(home=Path(sys.argv[1])))
print(*session.jobs()["status"])
print(session.service())
refused(session.models.list)
refused(session.model, "lab/first")
refused(session.models.lost)
refused(lambda: session.job().wait())
"""
    lines = printed(made_read_only(lab), script)
    copy = f"!cp -r --no-preserve=mode {lab} my-lab, then start Jupyter with ROLLOUTLAB_HOME=my-lab"
    assert lines[:2] == ["unknown", "the embedded service is not running; the first %%chat starts it"]
    said = f"LabError: {lab} is read-only: no service runs, and none can be started in it|  -> {copy}"
    assert lines[2:] == [said] * 4


def test_a_program_that_has_the_port_of_a_service_of_a_lab_that_may_not_be_written_is_not_taken_for_it(
    lab, answering, printed
):
    owner = Lab(lab / "lab.db")
    owner.jobs.add(SubmittedJob(JOB, EMBEDDED, "lab/first", ("capitals:1",), {}, "2026-01-01T00:00:00+00:00"))
    owner.close()
    (lab / "service").mkdir()
    said = {"base_url": answering, "inference_base_url": answering, "policy": "x", "pid": os.getpid(), "instance": "i"}
    for name, text in (("service.json", json.dumps(said)), ("token", "of-the-lab"), ("lock", "")):
        (lab / "service" / name).write_text(text)
        (lab / "service" / name).chmod(0o400)
    (lab / "service").chmod(0o500)
    script = """
session.close()
session = Session(Settings(home=Path(sys.argv[1])))
print(*session.jobs()["status"])
refused(session.service, "stop")
"""
    lines = printed(made_read_only(lab), script)
    unseen = f"LabError: {lab} is read-only: whether its service still runs is unknown"
    assert lines == ["unknown", f"{unseen}|  -> %service stop in a notebook of its owner"]


@pytest.mark.process
def test_a_service_that_runs_in_a_lab_that_may_not_be_written_is_used_and_still_ends(
    lab, tiny_policy, monkeypatch, printed
):
    fork_embedded(monkeypatch)
    settings = Settings(home=lab, policy=str(tiny_policy), linger=0.5)
    owner = Session(settings)
    owner.model("lab/first")
    script = """
session.close()
session = Session(Settings(home=Path(sys.argv[1]), policy=sys.argv[2]))
print(*session.models.list().index[1:], session.model("lab/first").newest)
"""
    clients = settings.service_folder / "clients"
    clients.chmod(0o500)
    try:
        lines = printed(made_read_only(lab, but="service"), script, str(tiny_policy))
        assert lines == ["lab/first 0"]
        owner.close()  # its lock's file stays there
        with Lock(settings.service_folder / "lock").acquire(timeout=240):
            pass  # the service has ended
    finally:
        clients.chmod(0o700)


@pytest.mark.process
def test_a_copy_that_may_not_be_written_does_not_have_the_service_of_the_lab_it_was_copied_from(
    lab, tiny_policy, monkeypatch, printed
):
    fork_embedded(monkeypatch)
    owner = Session(Settings(home=lab, policy=str(tiny_policy), linger=0.5))
    owner.model("lab/first")
    copy = shutil.copytree(lab, lab.parent / "copy")
    script = """
session.close()
session = Session(Settings(home=Path(sys.argv[1]), policy=sys.argv[2]))
print(session.service())
refused(session.models.list)
"""
    made_read_only(copy)
    for name in ("lock", "clients", "."):
        (copy / "service" / name).chmod(0o500)
    try:
        stopped, hint = printed(copy, script, str(tiny_policy))
    finally:
        for path in (copy, copy / "service", copy / "service" / "clients"):
            path.chmod(0o700)
        owner.close()
    with Lock(lab / "service" / "lock").acquire(timeout=240):
        pass  # the service has ended
    assert stopped == "the embedded service is not running; the first %%chat starts it"
    assert hint.startswith(f"LabError: {copy} is read-only: no service runs, and none can be started in it")


def test_what_its_owner_writes_meanwhile_is_seen(lab):
    made_read_only(lab)
    child = subprocess.Popen(
        [sys.executable, "-c", LIKE_ANYBODY + WATCHING, str(lab)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"[1.0, 1.0]\n"
    for path in [lab, lab / "lab.db"]:
        path.chmod(0o700)
    owner = Session(Settings(home=lab, service=ELSEWHERE))
    owner.reward("capitals", lambda *_: 2.0)
    said = child.communicate(b"\n", timeout=240)[0]
    owner.close()
    assert (said, child.returncode) == (b"[2.0, 2.0]\n", 0)


WATCHING = """
for _ in range(2):
    print([t.reward for t in session.collection("capitals").trajectories], flush=True)
    sys.stdin.readline() if _ == 0 else None
"""


def test_newer_contents_that_lie_beside_the_file_are_not_passed_over(lab, printed):
    owner = Lab(lab / "lab.db")
    owner.jobs.set_status("none", "queued")
    owner._database.execute("UPDATE trajectories SET reward = 3.0")
    copy = lab.parent / "copy"
    copy.mkdir()
    for name in ("lab.db", "lab.db-wal"):
        shutil.copy(lab / name, copy / name)
    owner.close()
    (copy / "drafts").mkdir()
    [line] = printed(made_read_only(copy), "refused(session.collections)")
    copy.chmod(0o700)
    assert "lab.db is read-only, and its latest writes are in lab.db-wal, which cannot be read|  -> !cp" in line


def test_a_lab_of_an_older_version_says_that_it_cannot_be_brought_up_to_date(lab, printed):
    with sqlite3.connect(lab / "lab.db") as other:
        other.execute(f"PRAGMA user_version = {READABLE_FROM - 1}")
    other.close()
    [line] = printed(made_read_only(lab), "refused(session.collections)")
    assert "was written by an older rolloutlab, and cannot be brought up to date: it is read-only|  -> !cp" in line
    assert [path.name for path in lab.iterdir()] == ["lab.db"]


def test_a_lab_of_the_version_before_models_had_origins_is_read_without_any(lab, printed):
    with sqlite3.connect(lab / "lab.db") as other:
        other.execute("DROP TABLE origins")
        other.execute(f"PRAGMA user_version = {READABLE_FROM}")
    other.close()
    script = "print(session.store.origins.all(), *session.collections().index)"
    assert printed(made_read_only(lab), script) == ["{} capitals"]


def test_a_lab_that_may_be_written_by_now_is_written_by_the_kernel_that_has_it_open(lab):
    made_read_only(lab)
    command = [sys.executable, "-c", LIKE_ANYBODY + WRITING, str(lab)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert b"is read-only: nothing can be stored in it" in child.stdout.readline()
    for path in [lab, *lab.iterdir()]:
        path.chmod(0o700)
    said = child.communicate(b"\n", timeout=240)[0]
    assert (said, child.returncode) == (b"it was done\n[2.0, 2.0]\n", 0)


WRITING = """
score = lambda: session.reward("capitals", lambda *_: 2.0, say=lambda _: None)
refused(score)
sys.stdout.flush()
sys.stdin.readline()
refused(score)
print([t.reward for t in session.collection("capitals").trajectories])
"""
