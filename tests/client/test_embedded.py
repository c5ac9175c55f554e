"""The embedded service's life, with real processes: found, shared, started once, gone when nobody needs it."""

import json
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from filelock import FileLock

from rolloutlab.client.embedded import Embedded
from rolloutlab.errors import InputError, PolicyError
from rolloutlab.http import Http
from rolloutlab.service.lifecycle import Folder
from rolloutlab.settings import Settings

LONGEST = 60


@pytest.fixture
def settings(tmp_path, tiny_policy):
    return Settings(home=tmp_path / "lab", policy=str(tiny_policy), linger=0.5)


@pytest.fixture
def attach(settings):
    """Make as many clients of the lab's service as a test wants; all let go at its end."""
    made = []

    def make(**changes):
        client = Embedded(Settings(**{**vars(settings), **changes}), Http())
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
        client._http.close()
    with FileLock(settings.service_folder / "lock").acquire(timeout=LONGEST):
        pass  # the service has ended


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


def test_a_policy_that_cannot_be_loaded_is_reported_from_the_log(attach):
    with pytest.raises(PolicyError, match="the policy '/nowhere' could not be loaded"):
        attach(policy="/nowhere").address()


def test_another_policy_than_the_running_one_is_refused(attach):
    attach().address()
    with pytest.raises(InputError, match=r"the service of this lab runs the policy '.*tiny', not 'practice'"):
        attach(policy="practice").address()


def test_the_token_is_readable_by_the_user_alone(tmp_path):
    folder = Folder(tmp_path / "service")
    token = folder.token()
    assert len(token) >= 32
    assert folder.token() == token
    assert (tmp_path / "service" / "token").stat().st_mode & 0o077 == 0
    assert (tmp_path / "service").stat().st_mode & 0o077 == 0


def test_a_kernel_makes_the_services_folder_for_the_user_alone(attach, settings):
    attach()._attach()
    folders = [settings.service_folder, settings.service_folder / "clients"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700, 0o700]


def test_a_token_that_was_not_written_whole_is_made_again(tmp_path):
    folder = Folder(tmp_path / "service")
    for name in ("token", "token.draft"):
        (tmp_path / "service" / name).write_text("")
    assert len(folder.token()) >= 32
    assert (tmp_path / "service" / "token").stat().st_mode & 0o077 == 0


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
    assert not folder.attached()
    assert list(clients.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", "[]", json.dumps({"base_url": "http://127.0.0.1:9"})])
def test_a_damaged_or_stale_address_file_counts_as_no_service(settings, content):
    Path(settings.service_folder).mkdir(parents=True)
    (settings.service_folder / "service.json").write_text(content)
    (settings.service_folder / "token").write_text("t")
    http = Http()
    assert Embedded(settings, http).running() is None
    http.close()


def test_another_program_at_the_services_address_counts_as_no_service_and_is_sent_no_token(settings):
    heard = []

    class Another(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(str(self.headers))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ok", "instance": "of another"}).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Another)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    Path(settings.service_folder).mkdir(parents=True)
    said = {"base_url": url, "inference_base_url": f"{url}/v1", "policy": "practice", "pid": 1, "instance": "ours"}
    (settings.service_folder / "service.json").write_text(json.dumps(said))
    (settings.service_folder / "token").write_text("of-the-folder")
    http = Http()
    found = Embedded(settings, http).running()
    http.close()
    server.shutdown()
    thread.join()
    server.server_close()
    assert (found, len(heard)) == (None, 1)
    assert "of-the-folder" not in heard[0]
