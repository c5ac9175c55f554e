"""The real service as a process: where it listens, and what it tells of signing in."""

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from rolloutlab.service.lifecycle import Folder


@pytest.fixture
def serve(tiny_policy: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a service, after the one before has ended; where it listens, once it says so."""
    running: list[subprocess.Popen[str]] = []

    def end() -> None:
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
        running.clear()

    def begin(*options: str) -> str:
        end()
        command = [sys.executable, "-m", "rolloutlab", "serve", "--home", str(tmp_path), "--policy", str(tiny_policy)]
        running.append(subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True))
        stdout = running[0].stdout
        assert stdout
        assert "serves" in stdout.readline()
        return str(json.loads((tmp_path / "service" / "service.json").read_text())["base_url"])

    yield begin
    end()


def test_a_service_prefers_the_port_that_it_had_last_so_that_grants_outlive_it(serve):
    first = serve("--token-lifetime", "5")
    said = httpx.get(f"{first}/.well-known/oauth-authorization-server", timeout=60).json()
    assert said["issuer"] == first
    assert httpx.post(f"{first}/context", timeout=60).status_code == 401
    assert serve() == first


def test_a_service_takes_any_port_when_its_last_one_is_taken(serve, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "service").mkdir()
        (tmp_path / "service" / "port").write_text(str(taken.getsockname()[1]))
        assert serve() != f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_service_with_a_certificate_is_signed_in_to_over_https(serve, visits, certify, tmp_path):
    certificate, key = certify("127.0.0.1")
    url = serve("--tls-cert", str(certificate), "--tls-key", str(key))
    assert url.startswith("https://127.0.0.1:")
    visitor = visits(url, tmp_path, verify=ssl.create_default_context(cafile=certificate))
    client_id = visitor.registers()["client_id"]
    answer = visitor.decides(visitor.asks(client_id), passcode=Folder(tmp_path / "service").passcode())
    code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
    token = visitor.redeems(client_id, code).json()["access_token"]
    assert visitor.calls("tools/list", token).json()["result"]["tools"]
