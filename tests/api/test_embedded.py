"""The embedded service's life, with real processes: found, shared, started once, gone when nobody needs it."""

import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock

from rolloutlab.api import inference, training
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.secrecy import proof, proves
from rolloutlab.api.wire.training import RegisterModel
from rolloutlab.connection import inspect
from rolloutlab.errors import InputError, LabError, PolicyError, SignInError, UnreachableError
from rolloutlab.service.lifecycle import Folder
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings
from tests.forked import fork_embedded
from tests.policies import write_gguf

pytestmark = pytest.mark.process

LONGEST = 240.0


@pytest.fixture
def settings(tmp_path, tiny_policy):
    return Settings(home=tmp_path / "lab", policy=str(tiny_policy), linger=0.5)


@pytest.fixture
def attach(settings, monkeypatch):
    """Make as many clients of the lab's service as a test wants; all let go at its end."""
    fork_embedded(monkeypatch)
    made = []

    def make(**changes):
        client = Embedded(Settings(**{**vars(settings), **changes}), HttpClient())
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
        client._http.close()
    with FileLock(settings.service_folder / "lock").acquire(timeout=LONGEST):
        pass  # the service has ended


@pytest.fixture(scope="module")
def started(tiny_policy, tmp_path_factory):
    """The folder of a kernel without docstrings in which modules lie, and the address of a service started there.

    It is not forked: imports are what this is about.
    """
    folder, lab = (tmp_path_factory.mktemp(name) for name in ("notebooks", "lab"))
    for name in ("transformers", "torch", "uvicorn", "json"):
        (folder / f"{name}.py").write_text("open('was-run', 'w').close()\nraise SystemExit(name)\n")
    client = Embedded(Settings(home=lab, policy=str(tiny_policy), linger=0.5), HttpClient())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONOPTIMIZE", "2")
        address = client.address()
    client.stop()
    client.close()
    client._http.close()
    return folder, address


def test_the_service_runs_no_module_that_lies_in_the_folder_of_the_notebook(started):
    folder, address = started
    assert address
    assert not (folder / "was-run").exists()


def test_a_kernel_without_docstrings_starts_a_service_that_has_them(started):
    _, address = started
    assert address
    refused = subprocess.run([sys.executable, "-OO", "-m", "rolloutlab", "serve"], capture_output=True, text=True)
    assert refused.stderr.splitlines() == [
        "InputError: transformers needs docstrings, which PYTHONOPTIMIZE=2 and python -OO remove",
        "  -> PYTHONOPTIMIZE=1",
    ]


def test_two_kernels_that_start_at_once_share_one_service_which_ends_when_both_have_gone(attach, settings):
    first, second = attach(), attach()
    with ThreadPoolExecutor() as pool:
        addresses = list(pool.map(lambda client: client.address(), [first, second]))
    assert addresses[0] == addresses[1]
    assert first.pid() == second.pid() != os.getpid()
    assert attach().running() == addresses[0]
    for client in (first, second):
        client.close()
    with FileLock(settings.service_folder / "lock").acquire(timeout=LONGEST):
        assert first.running() is None
        assert not (settings.service_folder / "service.json").exists()


def test_a_service_that_was_killed_is_started_again_and_one_that_is_told_to_stop_stops(attach, settings):
    client = attach()
    client.address()
    killed = client.pid()
    os.kill(killed, signal.SIGKILL)
    client.address()
    assert client.pid() != killed
    client.stop()
    assert client.running() is None
    assert not (settings.service_folder / "service.json").exists()


def test_a_service_that_ends_by_itself_while_it_is_told_to_stop_has_stopped(settings, monkeypatch):
    folder = Folder(settings.service_folder)
    folder.claim()
    folder.draw_token()
    folder.publish("http://127.0.0.1:1", "tiny")

    def ended(*_given):
        folder._lock.release()
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", ended)
    with closing(HttpClient()) as http:
        assert Embedded(settings, http).stop()


def test_a_policy_that_cannot_be_loaded_is_reported_from_the_log(attach):
    with pytest.raises(PolicyError, match="the policy '/nowhere' could not be loaded"):
        attach(policy="/nowhere").address()


def test_a_kernel_hears_what_a_long_start_is_doing_and_gets_the_policy_of_a_file(attach, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf")
    digest = hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest()[:16]
    lock = tmp_path / "cache" / "rolloutlab" / "policies" / f"tiny-{digest}-1.lock"
    lock.parent.mkdir(parents=True)
    converting, heard = FileLock(lock), []
    converting.acquire()

    def hear(doing):
        heard.append(doing)
        if doing.startswith("converting a policy: another process does it, "):
            converting.release()

    client = attach(policy=str(tmp_path / "tiny.gguf"))
    address = client.address(hear)
    assert heard[0] == "starting the embedded service"
    assert "loading the policy" in heard or heard[-1].startswith("converting a policy: ")
    assert not (client.settings.service_folder / "starting").exists()
    model = RegisterModel(project="lab", name="tiny", return_existing=True)
    assert client._http.run(training.register_model(client._http, address, model)).base_model == "tiny"


@pytest.mark.parametrize("noted", [True, False])
def test_a_start_is_waited_for_while_it_says_what_it_is_doing(tmp_path, noted):
    first = Folder(tmp_path / "service")
    first.claim()
    if noted:
        first.note_start("converting a policy")

    class Second(Folder):
        def _is_starting(self, seconds):
            says = super()._is_starting(LONGEST)
            first._lock.release()
            return says

    second = Second(tmp_path / "service")
    if noted:
        second.claim(timeout=0.01)
        assert not (tmp_path / "service" / "starting").exists()
    else:
        with pytest.raises(InputError, match="a service already runs on"):
            second.claim(timeout=0.01)


def test_another_policy_than_the_running_one_is_refused(attach):
    attach().address()
    other = attach(policy="practice")
    with pytest.raises(InputError, match=r"the service of this lab runs the policy '.*tiny', not 'practice'"):
        other.address()


def test_a_connection_shows_that_another_policy_than_that_of_the_settings_runs(attach):
    client = attach()
    client.address()
    assert "not" not in inspect(client._http, client, client.settings).state
    other = attach(model=ModelSettings(engine="ray"))
    last = inspect(other._http, other, other.settings).state.splitlines()[-1]
    assert re.fullmatch(r"the service of this lab runs the policy .*, not '.*tiny --engine=ray' -> %service stop", last)


def test_another_engine_than_the_running_one_is_refused_and_the_status_shows_which_runs(attach):
    client = attach()
    client.address()
    assert "\nengine local: device c" in client.report("status")  # cpu or cuda
    with pytest.raises(InputError, match=r"not '.*tiny --engine=ray'"):
        attach(model=ModelSettings(engine="ray")).address()


def test_an_engine_that_cannot_be_opened_is_reported_from_the_log(attach):
    wrong = ModelSettings(engine_url="http://127.0.0.1:1")
    with pytest.raises(PolicyError, match="the engine local computes in this process, at no URL"):
        attach(model=wrong).address()


def test_a_services_folder_that_cannot_be_used_is_an_error_in_words(tmp_path):
    settings = Settings(home=tmp_path)
    settings.service_folder.mkdir()
    (settings.service_folder / "clients").touch()
    with pytest.raises(LabError, match=r"service cannot be used: .*File exists"):
        Embedded(settings, HttpClient()).address()


def test_a_client_detaches_also_where_its_lock_cannot_be_removed(attach, settings, monkeypatch):
    client, folder = attach(), Folder(settings.service_folder)
    client._attach()
    held = client._lock  # which would let go by itself once nothing refers to it
    assert held.is_locked
    assert folder.attached()

    def refuse(*_, **__):
        raise OSError("Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        client.close()
    assert len(list((settings.service_folder / "clients").iterdir())) == 1
    assert not held.is_locked
    assert not folder.attached()
    assert list((settings.service_folder / "clients").iterdir()) == []


def test_a_client_whose_lock_a_hanging_service_looks_at_takes_another(attach, settings, monkeypatch):
    names = [uuid.UUID(int=1), uuid.UUID(int=2)]
    monkeypatch.setattr("uuid.uuid4", lambda: names.pop(0))
    monkeypatch.setattr("rolloutlab.api.embedded._ATTACH_TIMEOUT", 0.0)
    clients = settings.service_folder / "clients"
    clients.mkdir(parents=True)
    with FileLock(clients / f"{names[0].hex}.lock"):
        client = attach()
        client._attach()
        assert Path(client._lock.lock_file).stem == uuid.UUID(int=2).hex
        assert Folder(settings.service_folder).attached()


def test_the_token_is_readable_by_the_user_alone(tmp_path):
    folder = Folder(tmp_path / "service")
    token = folder.draw_token()
    assert len(token) >= 32
    assert (tmp_path / "service" / "token").read_text() == token
    assert (tmp_path / "service" / "token").stat().st_mode & 0o077 == 0
    assert (tmp_path / "service").stat().st_mode & 0o077 == 0


def test_a_folder_where_the_token_should_be_is_told_as_what_it_is(tmp_path):
    folder, place = Folder(tmp_path / "service"), tmp_path / "service" / "token"
    place.mkdir()
    with pytest.raises(LabError, match=r"token cannot be written: Is a directory: .*token should be a file") as refused:
        folder.draw_token()
    assert refused.value.hint == f"!mv {place} {place}.old"


def test_a_kernel_makes_the_services_folder_for_the_user_alone(attach, settings):
    attach()._attach()
    folders = [settings.service_folder, settings.service_folder / "clients"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700, 0o700]


def test_a_key_that_was_not_written_whole_is_made_again(tmp_path):
    folder = Folder(tmp_path / "service")
    for name in ("key", "key.draft"):
        (tmp_path / "service" / name).write_text("")
    assert len(folder.key()) >= 32
    assert folder.key() == folder.key()
    assert (tmp_path / "service" / "key").stat().st_mode & 0o077 == 0


def test_a_second_service_on_one_folder_is_refused(tmp_path):
    first = Folder(tmp_path / "service")
    first.claim()
    with pytest.raises(InputError, match="a service already runs on"):
        Folder(tmp_path / "service").claim()


def test_the_lock_of_a_client_that_died_does_not_count(tmp_path):
    clients = tmp_path / "service" / "clients"
    clients.mkdir(parents=True)
    (clients / "dead.lock").touch()
    held = FileLock(clients / "alive.lock")
    folder = Folder(tmp_path / "service")
    with held:
        assert folder.attached()
    assert not held.is_locked
    assert not folder.attached()
    assert list(clients.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"base_url": "http://127.0.0.1:9"})])
def test_a_damaged_or_stale_address_file_counts_as_no_service(settings, content):
    Path(settings.service_folder).mkdir(parents=True)
    (settings.service_folder / "service.json").write_text(content)
    (settings.service_folder / "token").write_text("t")
    http = HttpClient()
    assert Embedded(settings, http).running() is None
    http.close()


class Taker:
    """A program at a port that was the service's: it has read what the service's health check says, and says it."""

    def __init__(self, port, **health):
        self.heard = []
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.heard.append(f"{self.path} {self.headers}")
                known = self.path.startswith("/v1/health")
                self.send_response(200 if known else 401)
                self.end_headers()
                self.wfile.write(json.dumps({"status": "ok", **health}).encode() if known else b"{}")

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def take():
    """Has a program listen at a port; 0 is any."""
    takers = []

    def begin(port=0, **health):
        takers.append(Taker(port, **health))
        return takers[-1]

    yield begin
    for taker in takers:
        taker.close()


def publish(settings, url, instance, pid=1):
    """What a service with that address leaves in its folder when it is killed."""
    settings.service_folder.mkdir(parents=True, exist_ok=True)
    said = {"base_url": url, "inference_base_url": f"{url}/v1", "policy": "x", "pid": pid, "instance": instance}
    (settings.service_folder / "service.json").write_text(json.dumps(said))
    (settings.service_folder / "token").write_text("of-the-folder")


def models(client, address):
    return client._http.run(inference.models(client._http, address))


@pytest.mark.parametrize("claimed", [{}, {"proof": "0" * 64}, {"proof": 1}])
def test_another_program_at_the_services_address_counts_as_no_service_and_is_sent_no_token(settings, take, claimed):
    taker = take(instance="ours", **claimed)
    publish(settings, taker.url, "ours")
    http = HttpClient()
    assert Embedded(settings, http).running() is None
    http.close()
    assert len(taker.heard) == 1
    assert "of-the-folder" not in taker.heard[0]


def test_the_proof_of_a_service_at_another_address_proves_nothing():
    """A program may pass the question on to the service, which answers for its own address only."""
    said = {"proof": proof("secret", "ab" * 16, "http://127.0.0.1:1")}
    assert proves(said, "secret", "ab" * 16, "http://127.0.0.1:1")
    assert not proves(said, "secret", "ab" * 16, "http://127.0.0.1:2")
    assert not proves(said, "secret", "cd" * 16, "http://127.0.0.1:1")
    assert not proves(said, "other", "ab" * 16, "http://127.0.0.1:1")


def test_who_takes_the_port_of_a_killed_service_gets_no_token_and_a_new_service_starts_elsewhere(
    attach, settings, take
):
    client = attach()
    before = client.address()
    instance = json.loads((settings.service_folder / "service.json").read_text())["instance"]
    token = (settings.service_folder / "token").read_text()
    os.kill(client.pid(), signal.SIGKILL)
    with FileLock(settings.service_folder / "lock").acquire(timeout=LONGEST):
        taker = take(int(before.base_url.rpartition(":")[2]), instance=instance)
    after = client.address()
    assert after.base_url != before.base_url
    assert models(client, after)
    with pytest.raises(UnreachableError, match="has ended"):  # a request that was on its way to the old address
        models(client, before)
    new = (settings.service_folder / "token").read_text()
    assert new != token
    assert not any(new in each for each in taker.heard)
    assert not any(token in each for each in taker.heard[:-1])


def test_every_start_draws_a_token_and_a_request_under_way_reads_it_again_once(attach, settings):
    client = attach()
    before = client.address()
    assert models(client, before)
    old = (settings.service_folder / "token").read_text()
    client.stop()
    assert client.address() == before  # the same port
    assert (settings.service_folder / "token").read_text() != old
    assert models(client, before)
    stale = replace(before, token=old)
    with pytest.raises(SignInError, match="refused the token"):
        models(client, stale)


def test_a_service_that_has_just_locked_the_folder_may_still_remove_the_file_of_a_killed_one(settings, take):
    class RemovedAtTheSecondLook(list):
        def append(self, request):
            super().append(request)
            if len(self) == 2:
                (settings.service_folder / "service.json").unlink()

    taker = take(instance="ours")
    taker.heard = RemovedAtTheSecondLook()
    publish(settings, taker.url, "ours")
    http = HttpClient()
    with FileLock(settings.service_folder / "lock"):
        assert Embedded(settings, http).running() is None
    http.close()
    assert len(taker.heard) == 2


def test_a_service_that_proves_nothing_but_holds_the_folder_is_told_with_what_to_type(settings, take):
    taker = take(instance="ours", version="0.0.1")
    publish(settings, taker.url, "ours")
    http = HttpClient()
    with (
        FileLock(settings.service_folder / "lock"),
        pytest.raises(UnreachableError, match="an older rolloutlab") as told,
    ):
        Embedded(settings, http).address()
    http.close()
    assert told.value.hint == "%service stop"
    assert not any("of-the-folder" in each for each in taker.heard)


def test_a_service_that_hangs_is_told_in_words_and_can_be_stopped(attach, settings, service_of, suspend):
    client = attach()
    client.address()
    suspend(client.pid())
    hanging = Embedded(settings, client._http, timeout=0.5)
    with pytest.raises(UnreachableError) as told:
        hanging.address()
    hanging.close()
    said = f"the embedded service (process {client.pid()}) does not answer: it is suspended or overloaded"
    assert (told.value.message, told.value.hint) == (said, "%service stop")
    assert service_of(settings).service("stop") == "the embedded service has stopped; the next %%chat starts it again"
    assert client.running() is None
    assert service_of(settings).service("stop") == "the embedded service is not running; the first %%chat starts it"


@pytest.fixture
def suspend():
    """Suspends processes until the test has ended."""
    suspended = []

    def begin(pid):
        os.kill(pid, signal.SIGSTOP)
        suspended.append(pid)

    yield begin
    for pid in suspended:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def service_of():
    """A notebook's session on the embedded service."""
    sessions = []

    def make(settings):
        sessions.append(Session(settings))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
