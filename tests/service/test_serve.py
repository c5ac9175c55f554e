"""The real service as a process: where it listens, and what it tells of signing in."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import UnreachableError
from rolloutlab.settings import Settings
from tests.forked import Forked

pytestmark = pytest.mark.process

BROWSER = Path(__file__).parents[2] / "notebooks" / "browser.py"

USE = """
import sys
from rolloutlab.session import Session

lab = Session()
lab.login(f"{sys.argv[1]}/context")
lab.tools.add(f"{sys.argv[1]}/context", "memory")
print(lab.tools.call("memory.list_groups"))
lab.close()
"""


@pytest.fixture
def serve(tiny_policy: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a service, after the one before has ended; where it listens, once it says so."""
    running: list[Forked] = []

    def end() -> None:
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=240)
        running.clear()

    def begin(*options: str) -> str:
        end()
        command = [sys.executable, "-m", "rolloutlab", "serve", "--home", str(tmp_path), "--policy", str(tiny_policy)]
        running.append(Forked([*command, *options], stdout=subprocess.PIPE))
        stdout = running[0].stdout
        assert stdout
        assert "serves" in stdout.readline()
        return str(json.loads((tmp_path / "service" / "service.json").read_text())["base_url"])

    yield begin
    end()


def test_a_service_prefers_the_port_that_it_had_last_so_that_grants_outlive_it(serve):
    first = serve("--token-lifetime", "5")
    said = httpx.get(f"{first}/.well-known/oauth-authorization-server", timeout=240).json()
    assert said["issuer"] == first
    assert httpx.post(f"{first}/context", timeout=240).status_code == 401
    assert serve() == first


def test_a_service_takes_any_port_when_its_last_one_is_taken(serve, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "service").mkdir()
        (tmp_path / "service" / "port").write_text(str(taken.getsockname()[1]))
        assert serve() != f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_notebook_signs_in_over_https_to_a_service_with_a_certificate_and_uses_its_tools(serve, certify, tmp_path):
    certificate, key = certify("127.0.0.1")
    url = serve("--tls-cert", str(certificate), "--tls-key", str(key))
    assert url.startswith("https://127.0.0.1:")
    environment = {
        **os.environ,
        "ROLLOUTLAB_HOME": str(tmp_path),
        "ROLLOUTLAB_BROWSER": f"{sys.executable} {BROWSER}",
        "SSL_CERT_FILE": str(certificate),
    }
    said = subprocess.check_output([sys.executable, "-c", USE, url], env=environment, text=True, timeout=240)
    assert json.loads(said.splitlines()[-1]) == {"collections": [], "total": 0}


def test_a_service_short_of_descriptors_answers_503_and_goes_on_when_there_are_some_again(tiny_policy, tmp_path):
    command = [sys.executable, "-m", "rolloutlab", "serve", "--home", str(tmp_path), "--policy", str(tiny_policy)]
    short = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (128, 128))
    with (tmp_path / "log").open("w") as log, ExitStack() as ended, ExitStack() as idle:
        process = Forked(command, stdout=subprocess.PIPE, stderr=log, preexec_fn=short)
        ended.callback(process.communicate, timeout=240)
        ended.callback(process.send_signal, signal.SIGKILL)  # also where the test fails
        assert process.stdout
        assert "serves" in process.stdout.readline()
        published = json.loads((tmp_path / "service" / "service.json").read_text())
        port = int(published["base_url"].rpartition(":")[2])
        health = f"{published['base_url']}/v1/health"
        for _ in range(200):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        refused = httpx.get(health, timeout=240)
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        client = Embedded(Settings(home=tmp_path), HttpClient(), timeout=0.2)
        with pytest.raises(UnreachableError, match="does not answer: it is suspended or overloaded"):
            client.running()
        client._http.close()
        assert "file descriptors" in refused.json()["detail"] == refused.json()["error"]["message"]
        idle.close()
        while httpx.get(health, timeout=240).status_code == 503:
            pass
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=240)
    assert (tmp_path / "log").read_text().count("out of system resource") == 0


@pytest.mark.parametrize("given", ["99999", "-1"])
def test_a_port_that_is_none_is_told(tmp_path, given):
    command = [sys.executable, "-m", "rolloutlab", "serve", "--home", str(tmp_path), f"--port={given}"]
    process = Forked(command, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert f"port {given} cannot be used" in errors
    assert "-> rolloutlab serve --host 127.0.0.1\n" in errors
