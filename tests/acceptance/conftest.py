"""The service as strangers meet it: a process of its own, an address and a token.

These tests run in environments where the client under test is installed and rolloutlab is not.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from openai import OpenAI

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ROLLOUTLAB_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
POLICY = "practice"


@dataclass(frozen=True)
class Served:
    """A running service. Its inference address ends in /v1."""

    base_url: str
    inference_base_url: str
    token: str


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on a fresh lab folder, ended after the last test."""
    home = tmp_path_factory.mktemp("lab")
    command = [PYTHON, "-m", "rolloutlab", "serve", "--home", str(home), "--port", "0", "--policy", POLICY]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment
        ) as process,
    ):
        try:
            if not process.stdout.readline():  # it says where it listens, or ends
                pytest.fail(f"the service ended at its start: {(home / 'log').read_text()}")
            published = json.loads((home / "service" / "service.json").read_text())
            token = (home / "service" / "token").read_text()
            yield Served(published["base_url"], published["inference_base_url"], token)
        finally:
            process.terminate()
            process.wait(timeout=240)


@pytest.fixture(scope="session")
def client(served: Served) -> "Iterator[OpenAI]":
    """The official SDK, which here refuses every answer that is not of its own types."""
    from openai import OpenAI

    with OpenAI(
        base_url=served.inference_base_url, api_key=served.token, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


class Chroma:
    """A Chroma server of its own process, as plain HTTP has it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.collections = f"{url}/api/v2/tenants/default_tenant/databases/default_database/collections"

    def post(self, url: str, body: Any) -> tuple[int, Any]:
        """Status and JSON of an answer, whatever the status."""
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def create(self, name: str, space: str, records: list[dict[str, Any]]) -> str:
        """The address of a new collection with some records."""
        made = self.post(self.collections, {"name": name, "configuration": {"hnsw": {"space": space}}})[1]
        columns = {"ids": "id", "documents": "document", "metadatas": "metadata", "embeddings": "embedding"}
        body = {column: [record.get(key) for record in records] for column, key in columns.items()}
        assert self.post(f"{self.collections}/{made['id']}/add", body) == (201, {})
        return f"{self.collections}/{made['id']}"


@pytest.fixture(scope="session")
def chroma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chroma]:
    """A Chroma server on an empty folder, ended after the last test."""
    folder = tmp_path_factory.mktemp("chroma")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "ANONYMIZED_TELEMETRY": "False"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([*command, "--path", str(folder)], stdout=log, stderr=log, env=environment) as process,
    ):
        try:
            until_it_answers(f"http://127.0.0.1:{port}/api/v2/heartbeat", process, folder / "log")
            yield Chroma(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(timeout=240)


def until_it_answers(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with urllib.request.urlopen(url):
                return
        except urllib.error.URLError:
            process.poll()
    pytest.fail(f"nothing answers at {url}: {log.read_text()}")


class Lab:
    """The side of rolloutlab, asked in JSON lines; `search_lab.py` says what."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, **call: Any) -> Any:
        """The answer; ValueError with the message when the lab refuses."""
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline() or '{"error": "the lab ended"}')
        if "error" in said:
            raise ValueError(said["error"])
        return said["answer"]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A process that has rolloutlab."""
    command = [PYTHON, str(Path(__file__).with_name("search_lab.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Lab(process)
        process.stdin.close()
        process.wait(timeout=240)
